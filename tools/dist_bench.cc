// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "commands.hpp"
#include "launch.hpp"

namespace dsakit::tools {
namespace {

using Bytes = std::vector<std::byte>;
using Sizes = std::vector<std::size_t>;

struct Measured {
  std::string exchange;
  int rounds;         // exchanges one after the other
  std::size_t bytes;  // that a rank receives
  std::size_t count;
  double median, slow;  // seconds, of the slowest rank; slow: 90 % are faster
};

struct Network {
  double latency, bandwidth;  // seconds, bytes per second
};

/// As `plan` predicts: messages go round in as many steps as the number of ranks can be doubled.
double steps(int ranks) { return std::bit_width(unsigned(ranks) - 1); }
double predicted(const Network& n, int ranks, const Measured& m) {
  return m.rounds * n.latency * steps(ranks) + double(m.bytes) / n.bandwidth;
}

/// Of each exchange, after all have come to it; the same on all ranks.
template <class F>
Measured measure(Group& g, const std::string& exchange, int rounds, std::size_t bytes, F once) {
  const std::size_t count = std::clamp<std::size_t>((64u << 20) / (bytes + 1), 20, 400);
  std::vector<float> seconds(count);
  for (std::size_t i = 0; i < count + 3; ++i) {  // the first ones make connections
    barrier(g);
    const auto begin = std::chrono::steady_clock::now();
    once();
    const std::chrono::duration<float> took = std::chrono::steady_clock::now() - begin;
    if (i >= 3) seconds[i - 3] = took.count();
  }
  all_reduce(g, seconds, Reduction::max);
  std::sort(seconds.begin(), seconds.end());
  return {exchange, rounds, bytes, count, seconds[count / 2], seconds[count * 9 / 10]};
}

std::vector<Measured> measure_all(Group& g) {
  const std::size_t ranks = std::size_t(g.size());
  std::vector<Measured> all;
  for (const std::size_t n : {16, 512, 4096, 32768, 262144, 2097152}) {
    const Sizes each(ranks, n);
    Bytes mine(n), of_all(n * ranks), to_all(n * ranks);
    std::vector<float> values(n / sizeof(float));
    all.push_back(measure(g, "all_gather", 1, n * (ranks - 1), [&] { g.all_gather(mine, of_all, each)->wait(); }));
    all.push_back(
        measure(g, "all_to_all", 1, n * (ranks - 1), [&] { g.all_to_all(to_all, each, of_all, each)->wait(); }));
    all.push_back(measure(g, "broadcast", 1, n, [&] { g.broadcast(mine, 0)->wait(); }));
    // Each of its two exchanges brings all but a rank's own slice.
    all.push_back(measure(g, "all_reduce", 2, 2 * (n - n / ranks), [&] { all_reduce(g, values, Reduction::sum); }));
  }
  return all;
}

/// The latency and bandwidth whose predictions are off by the least part of what was measured, in the sense of squares.
Network fit(const std::vector<Measured>& all, int ranks) {
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (const Measured& m : all) {
    const double a = m.rounds * steps(ranks) / m.median, b = double(m.bytes) / m.median;
    aa += a * a, ab += a * b, bb += b * b, a1 += a, b1 += b;
  }
  const double determinant = aa * bb - ab * ab;
  const double latency = (a1 * bb - b1 * ab) / determinant, per_byte = (b1 * aa - a1 * ab) / determinant;
  return {std::max(latency, 0.), 1 / std::max(per_byte, 1e-15)};
}

void print(const std::vector<Measured>& all, const Network& network, int ranks) {
  fmt::print("{} ranks\n{:<12}{:>14}{:>8}{:>14}{:>12}{:>16}\n", ranks, "exchange", "bytes", "count", "median us", "90 % us",
             "predicted us");
  for (const Measured& m : all)
    fmt::print("{:<12}{:>14}{:>8}{:>14.1f}{:>12.1f}{:>16.1f}\n", m.exchange, m.bytes, m.count, 1e6 * m.median,
               1e6 * m.slow, 1e6 * predicted(network, ranks, m));
  fmt::print("fitted: latency {:.1f} us, bandwidth {:.2f} GB/s (plan --latency {:.1f}us --net {:.1f}Gb)\n",
             1e6 * network.latency, network.bandwidth / 1e9, 1e6 * network.latency, 8 * network.bandwidth / 1e9);
}

void print_json(const std::vector<Measured>& all, const Network& network, int ranks) {
  nlohmann::ordered_json j = {{"ranks", ranks}};
  for (const Measured& m : all)
    j["exchanges"].push_back({{"exchange", m.exchange},
                              {"bytes", m.bytes},
                              {"count", m.count},
                              {"median_seconds", m.median},
                              {"90_percent_seconds", m.slow},
                              {"predicted_seconds", predicted(network, ranks, m)}});
  j["latency_seconds"] = network.latency;
  j["bandwidth_bytes_per_second"] = network.bandwidth;
  fmt::print("{}\n", j.dump(2));
}

}  // namespace

int dist_bench(bool json) {
  Group* g = launched_group(20);
  if (!g || g->size() < 2)
    throw Error(Status::invalid_argument, "dist-bench", "ranks", "", g ? "are 1" : "are not started by a launcher",
                "2 or more, such as mpirun -n 4 dsakit dist-bench");
  const std::vector<Measured> all = measure_all(*g);
  if (g->rank() != 0) return 0;
  (json ? print_json : print)(all, fit(all, g->size()), g->size());
  return 0;
}

}  // namespace dsakit::tools
