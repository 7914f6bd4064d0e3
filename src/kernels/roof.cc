// SPDX-License-Identifier: Apache-2.0
#include "kernels/roof.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace dsakit {
namespace {

/// The best of several tries: a limit is what the machine can do when nobody disturbs it.
template <class F>
double best_seconds(int tries, F f) {
  double best = 1e30;
  for (; tries > 0; --tries) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

/// f(thread) on all of them; the sum of what they return.
template <class F>
auto on_threads(int threads, F f) {
  using Result = decltype(f(0));
  std::vector<Result> results(static_cast<std::size_t>(threads));
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back([&, t] { results[std::size_t(t)] = f(t); });
  results[0] = f(0);
  for (std::thread& t : others) t.join();
  return std::accumulate(results.begin(), results.end(), Result());
}

/// The median of as many: for threads side by side, of which the first or the last may be alone for a try.
template <class F>
double median_seconds(int tries, F f) {
  std::vector<double> times;
  for (; tries > 0; --tries) times.push_back(best_seconds(1, f));
  std::nth_element(times.begin(), times.begin() + std::ptrdiff_t(times.size() / 2), times.end());
  return times[times.size() / 2];
}

/// Eight chains, so that the additions do not limit it. `Near`: 3 asks for lines of L1, 2 of L2, which on one machine or
/// another is the faster way.
template <int Near>
std::uint64_t read_all(const std::uint64_t* x, std::int64_t n) {
  std::uint64_t sum[8] = {};
  for (std::int64_t i = 0; i + 8 <= n; i += 8) {
    __builtin_prefetch(x + i + (Near == 3 ? 512 : 128), 0, Near);
    for (int l = 0; l < 8; ++l) sum[l] += x[i + l];
  }
  return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

}  // namespace

double measure_peak(const Kernels& kernels, Dot kind, int threads) {
  constexpr int kRounds = 1 << 17;
  return 1e-9 * on_threads(threads, [&](int) {  // each on its own: one that a neighbour interrupts holds up no other
    double operations = 0;
    const double seconds = median_seconds(40, [&] { operations = kernels.peak[int(kind)](kRounds); });
    return operations / seconds;
  });
}

double measure_best_peak(Dot kind, int threads) {
  double best = 0;
  for (const Kernels* k : supported_kernels()) best = std::max(best, measure_peak(*k, kind, threads));
  return best;
}

double measure_read(int threads) {
  constexpr std::int64_t kBytes = std::int64_t(1) << 29, kWords = kBytes / 8;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
#ifdef MADV_HUGEPAGE
  madvise(memory, kBytes, MADV_HUGEPAGE);
#endif
  auto* words = static_cast<std::uint64_t*>(memory);
  std::fill_n(words, kWords, std::uint64_t(1));
  std::uint64_t sum = 0;
  const std::int64_t share = kWords / threads;
  const auto best = [&](auto read) {
    return best_seconds(10, [&] { sum += on_threads(threads, [&](int t) { return read(words + share * t, share); }); });
  };
  const double seconds = std::min(best(read_all<3>), best(read_all<2>));
  munmap(memory, kBytes);
  return sum ? kBytes / seconds * 1e-9 : 0;
}

}  // namespace dsakit
