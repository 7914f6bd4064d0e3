// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "dsakit/group.hpp"

// What every carrier owes its ranks: each of them calls every_exchange(group). Throws where something is wrong.
namespace dsakit::carriers {

using Bytes = std::vector<std::byte>;
using Sizes = std::vector<std::size_t>;

inline void must(bool right, const std::string& what) {
  if (!right) throw std::logic_error(what);
}

template <class F>
void must_refuse(Status status, const std::string& what, F f) {
  try {
    f();
  } catch (const Error& e) {
    return must(e.status == status, what + ": " + e.what());
  }
  must(false, what + " is not refused");
}

/// Another byte for every sender, receiver, number of the exchange and position.
inline Bytes message(int from, int to, int number, std::size_t bytes) {
  Bytes m(bytes);
  const std::size_t first = std::size_t(from) * 131 + std::size_t(to) * 31 + std::size_t(number) * 17;
  for (std::size_t i = 0; i < bytes; ++i) m[i] = std::byte((first + i * 7 + i / 256) & 255);
  return m;
}

inline void append(Bytes& all, const Bytes& more) { all.insert(all.end(), more.begin(), more.end()); }

struct Buffers {
  Bytes mine{}, got{}, wanted{};
  Sizes to{}, from{};
  std::unique_ptr<Pending> pending{};
};

/// bytes(from, to) of each pair of ranks.
template <class F>
Buffers start_all_to_all(Group& g, int number, F bytes) {
  Buffers b;
  for (int r = 0; r < g.size(); ++r) {
    b.to.push_back(bytes(g.rank(), r));
    b.from.push_back(bytes(r, g.rank()));
    append(b.mine, message(g.rank(), r, number, b.to.back()));
    append(b.wanted, message(r, g.rank(), number, b.from.back()));
  }
  b.got.resize(b.wanted.size());
  b.pending = g.all_to_all(b.mine, b.to, b.got, b.from);
  return b;
}

/// bytes(from) of each rank.
template <class F>
Buffers start_all_gather(Group& g, int number, F bytes) {
  Buffers b;
  for (int r = 0; r < g.size(); ++r) {
    b.from.push_back(bytes(r));
    append(b.wanted, message(r, 0, number, b.from.back()));
  }
  b.mine = message(g.rank(), 0, number, bytes(g.rank()));
  b.got.resize(b.wanted.size());
  b.pending = g.all_gather(b.mine, b.got, b.from);
  return b;
}

inline Buffers start_broadcast(Group& g, int number, int root, std::size_t bytes) {
  Buffers b;
  b.wanted = message(root, 0, number, bytes);
  b.got = g.rank() == root ? b.wanted : Bytes(bytes);
  b.pending = g.broadcast(b.got, root);
  return b;
}

inline void end(Buffers b, const std::string& what) {
  b.pending->wait();
  must(b.pending->poll(), what + " is not done after wait()");
  must(b.got == b.wanted, what + " gets other bytes");
}

inline void sizes_of_all_kinds(Group& g) {
  for (const std::size_t unit : {0, 1, 13, 5000, 300000}) {
    const auto of_pair = [&](int from, int to) { return unit * std::size_t((from * 3 + to * 5) % 4); };  // some 0
    const auto of_rank = [&](int from) { return unit * std::size_t((from + 2) % 3); };
    if (unit > 5000 && g.size() > 8) break;
    const std::string what = std::to_string(unit);
    end(start_all_to_all(g, 1, of_pair), "all_to_all of " + what);
    end(start_all_to_all(g, 2, [&](int, int) { return unit; }), "all_to_all of equal " + what);
    end(start_all_gather(g, 3, of_rank), "all_gather of " + what);
    end(start_all_gather(g, 4, [&](int) { return unit; }), "all_gather of equal " + what);
    for (int root = 0; root < g.size(); ++root) end(start_broadcast(g, 5 + root, root, unit), "broadcast of " + what);
  }
}

inline void several_pending(Group& g) {
  const auto start = [&](int number) {
    return start_all_to_all(g, number, [=](int from, int to) { return std::size_t(number * 100 + from + to); });
  };
  std::vector<Buffers> on_their_way;
  for (int number = 0; number < 4; ++number) on_their_way.push_back(start(number));
  must_refuse(Status::invalid_argument, "a fifth pending exchange", [&] { start(4); });
  while (!on_their_way[2].pending->poll()) {
  }
  on_their_way.push_back(start(4));
  for (const std::size_t i : {4, 2, 0, 3, 1}) end(std::move(on_their_way[i]), "pending " + std::to_string(i));
}

inline void sums_in_the_order_of_ranks(Group& g) {
  for (const int n : {0, 1, 3, 1000}) {
    const auto value = [](int rank, int i) { return std::ldexp(1.f + float(i % 7) / 3, (rank * 29 + i) % 40 - 20); };
    std::vector<float> mine, sum, most;
    for (int i = 0; i < n; ++i) {
      mine.push_back(value(g.rank(), i));
      sum.push_back(value(0, i));
      most.push_back(value(0, i));
      for (int r = 1; r < g.size(); ++r) sum.back() += value(r, i), most.back() = std::max(most.back(), value(r, i));
    }
    std::vector<float> all = mine;
    all_reduce(g, all, Reduction::sum);
    must(all == sum, "all_reduce of " + std::to_string(n));
    all = mine;
    all_reduce(g, all, Reduction::max);
    must(all == most, "all_reduce, the largest of " + std::to_string(n));
  }
  std::vector<float> all = {g.rank() == g.size() / 2 ? std::numeric_limits<float>::quiet_NaN() : 1.f};
  all_reduce(g, all, Reduction::max);
  must(std::isnan(all[0]), "all_reduce, the largest, without the NaN");
}

/// Odd and even ranks, each in turned order, with an exchange of the whole on its way; and parts of parts.
inline void parts(Group& g) {
  Buffers whole = start_all_gather(g, 9, [](int from) { return std::size_t(from + 1); });
  const std::unique_ptr<Group> part = g.split(g.rank() % 2, -g.rank());
  must(part->size() == (g.size() + 1 - g.rank() % 2) / 2, "size of a part");
  must(part->rank() == part->size() - 1 - g.rank() / 2, "rank in a part");
  end(start_all_gather(*part, 10, [](int from) { return std::size_t(from + 40); }), "all_gather of a part");
  end(std::move(whole), "all_gather of the whole");
  const std::unique_ptr<Group> again = part->split(part->rank() / 2, 0);
  must(again->size() == std::min(2, part->size() - part->rank() / 2 * 2), "size of a part of a part");
  Buffers a = start_all_gather(*again, 12, [](int from) { return std::size_t(from + 4); });
  Buffers b = start_all_gather(*part, 13, [](int from) { return std::size_t(from + 5); });
  Buffers c = start_all_gather(g, 14, [](int from) { return std::size_t(from + 6); });
  end(std::move(c), "the whole, third");
  end(std::move(b), "a part, second");
  end(std::move(a), "a part of a part, first");
}

inline void refusals(Group& g) {
  Bytes bytes(std::size_t(g.size()) + 1);
  const std::span<std::byte> all = std::span(bytes).first(std::size_t(g.size()));
  const Sizes ones(std::size_t(g.size()), 1), too_few(std::size_t(g.size()) - 1, 1);
  const std::span<std::byte> one = all.first(1), none = all.first(0);
  const auto refused = [&](const std::string& what, auto f) { must_refuse(Status::invalid_argument, what, f); };
  refused("mine of another size", [&] { g.all_gather(none, all, ones); });
  refused("all of another size", [&] { g.all_gather(one, bytes, ones); });
  refused("too few sizes", [&] { g.all_gather(one, all, too_few); });
  refused("a message of another size", [&] { g.all_to_all(bytes, ones, all, ones); });
  refused("room of another size", [&] { g.all_to_all(all, ones, bytes, ones); });
  refused("too few sizes to send", [&] { g.all_to_all(all, too_few, all, ones); });
  refused("root beyond the ranks", [&] { g.broadcast(all, g.size()); });
  refused("a negative root", [&] { g.broadcast(all, -1); });
  refused("a negative colour", [&] { g.split(-1, 0); });
}

inline void every_exchange(Group& g) {
  refusals(g);
  sizes_of_all_kinds(g);
  several_pending(g);
  sums_in_the_order_of_ranks(g);
  for (int i = 0; i < 3; ++i) barrier(g);
  parts(g);
  sizes_of_all_kinds(g);
}

}  // namespace dsakit::carriers
