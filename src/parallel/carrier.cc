// SPDX-License-Identifier: Apache-2.0
#include "dsakit/carrier.hpp"
#include "core/out_of_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <sstream>

namespace dsakit {
namespace {

constexpr int kMostPending = 4;

std::string bytes_text(std::size_t bytes) { return std::to_string(bytes) + " bytes"; }

void check_size(const char* exchange, const char* parameter, std::size_t got, std::size_t wanted) {
  if (got != wanted)
    throw Error(Status::invalid_argument, exchange, parameter, "", "has " + bytes_text(got), bytes_text(wanted));
}

void check_ranks(const char* exchange, const char* parameter, const Group& group, std::span<const std::size_t> bytes) {
  if (bytes.size() != std::size_t(group.size()))
    throw Error(Status::invalid_argument, exchange, parameter, "", "has " + std::to_string(bytes.size()) + " sizes",
                "one for each of " + std::to_string(group.size()) + " ranks");
}

template <class Byte>
std::vector<std::span<Byte>> parts(std::span<Byte> all, std::span<const std::size_t> bytes_of_rank) {
  std::vector<std::span<Byte>> parts;
  for (std::size_t at = 0; const std::size_t bytes : bytes_of_rank) {
    parts.push_back(all.subspan(at, bytes));
    at += bytes;
  }
  return parts;
}

std::size_t sum(std::span<const std::size_t> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
}

std::string name(const char* exchange, std::int64_t number) { return exchange + (" " + std::to_string(number)); }

std::string list(std::span<const int> ranks) {
  if (ranks.empty()) return "ranks";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

Exchange all_gather_of(const Group& group, std::span<const std::byte> mine, std::span<std::byte> all,
                       std::span<const std::size_t> bytes_of_rank) {
  check_ranks("all_gather", "bytes_of_rank", group, bytes_of_rank);
  check_size("all_gather", "mine", mine.size(), bytes_of_rank[std::size_t(group.rank())]);
  check_size("all_gather", "all", all.size(), sum(bytes_of_rank));
  return {"all_gather", {bytes_of_rank.size(), mine}, parts(all, bytes_of_rank)};
}

Exchange all_to_all_of(const Group& group, std::span<const std::byte> mine, std::span<const std::size_t> to,
                       std::span<std::byte> got, std::span<const std::size_t> from) {
  check_ranks("all_to_all", "to", group, to);
  check_ranks("all_to_all", "from", group, from);
  check_size("all_to_all", "mine", mine.size(), sum(to));
  check_size("all_to_all", "got", got.size(), sum(from));
  const std::size_t r = std::size_t(group.rank());
  if (to[r] != from[r])
    throw Error(Status::invalid_argument, "all_to_all", "from", "[" + std::to_string(r) + "]",
                "is " + bytes_text(from[r]), bytes_text(to[r]), "what this rank sends to itself");
  return {"all_to_all", parts(mine, to), parts(got, from)};
}

Exchange broadcast_of(const Group& group, std::span<std::byte> bytes, int root) {
  if (root < 0 || root >= group.size())
    throw Error(Status::invalid_argument, "broadcast", "root", "", "is " + std::to_string(root),
                "0.." + std::to_string(group.size() - 1));
  Exchange e{"broadcast", std::vector<std::span<const std::byte>>(std::size_t(group.size())),
             std::vector<std::span<std::byte>>(std::size_t(group.size()))};
  if (group.rank() != root) {
    e.from[std::size_t(root)] = bytes;
    return e;
  }
  std::fill(e.to.begin(), e.to.end(), bytes);
  e.to[std::size_t(root)] = {};
  return e;
}

std::int64_t Sequence::begin(const char* exchange) {
  if (pending_ == kMostPending)
    throw Error(Status::invalid_argument, "group", exchange, "", "begins while 4 exchanges are pending", "at most 4");
  ++pending_;
  return ++number_;
}

Split agree_on_split(Group& parent, int colour, int key, std::int32_t number) {
  if (colour < 0)
    throw Error(Status::invalid_argument, "split", "colour", "", "is " + std::to_string(colour), "0 or above");
  struct Word {
    std::int32_t colour, key, number;
  };
  const std::size_t ranks = std::size_t(parent.size());
  const Word mine{colour, key, number};
  std::vector<Word> all(ranks);
  parent
      .all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                  std::vector(ranks, sizeof(Word)))
      ->wait();
  Split split{{}, 0, number};
  for (int r = 0; r < int(ranks); ++r) {
    split.number = std::max(split.number, all[std::size_t(r)].number);
    if (all[std::size_t(r)].colour == colour) split.members.push_back(r);
  }
  std::stable_sort(split.members.begin(), split.members.end(),
                   [&](int a, int b) { return all[std::size_t(a)].key < all[std::size_t(b)].key; });
  split.rank = int(std::find(split.members.begin(), split.members.end(), parent.rank()) - split.members.begin());
  return split;
}

Error peers_missing(const char* exchange, std::int64_t number, std::span<const int> ranks, double seconds,
                    const std::string& why) {
  std::ostringstream got;
  got << "misses " << list(ranks);
  if (seconds > 0) got << " after " << seconds << " s";
  return Error(Status::peer_failed, "group", name(exchange, number), "", got.str(), "all ranks", why);
}

Error dropped_unwaited(const char* exchange, std::int64_t number, int rank) {
  return Error(Status::peer_failed, "group", name(exchange, number), "",
               "was dropped by rank " + std::to_string(rank) + " before it was done", "wait()");
}

void barrier(Group& group) try {
  // A byte of each rank: an exchange without bytes may end before all have come.
  const std::byte mine{};
  std::vector<std::byte> all(std::size_t(group.size()));
  group.all_gather({&mine, 1}, all, std::vector(all.size(), std::size_t{1}))->wait();
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void all_reduce(Group& group, std::span<float> values, Reduction how) try {
  const std::size_t ranks = std::size_t(group.size()), rank = std::size_t(group.rank());
  const auto begin = [&](std::size_t r) { return values.size() * r / ranks; };
  const std::size_t n = begin(rank + 1) - begin(rank);  // numbers that this rank adds
  std::vector<std::size_t> slices;
  for (std::size_t r = 0; r < ranks; ++r) slices.push_back((begin(r + 1) - begin(r)) * sizeof(float));
  std::vector<float> of_ranks(n * ranks);
  group
      .all_to_all(std::as_bytes(values), slices, std::as_writable_bytes(std::span(of_ranks)),
                  std::vector(ranks, n * sizeof(float)))
      ->wait();
  for (std::size_t r = 1; r < ranks; ++r)
    for (std::size_t i = 0; i < n; ++i) {
      float& all = of_ranks[i];
      const float one = of_ranks[r * n + i];
      if (how == Reduction::sum) all += one;
      else if (all < one || std::isnan(one)) all = one;
    }
  group.all_gather(std::as_bytes(std::span(of_ranks).first(n)), std::as_writable_bytes(values), slices)->wait();
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
