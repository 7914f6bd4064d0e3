// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/pack.hpp"
#include "kernels/roof.hpp"

namespace dsakit {
namespace {

/// G/s of operations, and their share of the rung's limit.
void report(benchmark::State& state, const Kernels& k, Dot kind, double operations) {
  static std::map<std::pair<const Kernels*, Dot>, double> peaks;
  const auto [peak, missing] = peaks.try_emplace({&k, kind});
  if (missing) peak->second = measure_peak(k, kind, 1);
  const double done = operations * double(state.iterations()) * 1e-9;
  state.counters["G/s"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
  if (peak->second > 0) state.counters["share"] = benchmark::Counter(done / peak->second, benchmark::Counter::kIsRate);
}

/// The panels of a weight of at most `bytes`, but one at least, in huge pages like a packed weight: what does not fit a
/// cache streams.
template <class T>
struct Panels {
  std::size_t size, count;
  T* data;
  Panels(std::size_t size, std::size_t bytes, T value)
      : size(size), count(std::max<std::size_t>(1, bytes / (size * sizeof(T)))) {
    constexpr std::size_t kHugePage = std::size_t(2) << 20;
    const std::size_t all = (size * count * sizeof(T) + kHugePage - 1) / kHugePage * kHugePage;
    data = static_cast<T*>(std::aligned_alloc(kHugePage, all));
    madvise(data, all, MADV_HUGEPAGE);
    std::fill_n(data, size * count, value);
  }
  Panels(const Panels&) = delete;
  ~Panels() { std::free(data); }
};

void product_i8(benchmark::State& state, const Kernels& k, int m, int depth, std::size_t bytes) {
  const Panels<std::int8_t> w(std::size_t(depth) * kPanel, bytes, 3);
  const std::vector<std::uint8_t> a(std::size_t(m) * depth, 131);
  const std::vector<std::int32_t> sums(kPanel, 3 * depth);
  std::vector<std::int32_t> c(std::size_t(m) * kPanel * w.count);
  for (auto _ : state)
    for (std::size_t p = 0; p < w.count; ++p)
      k.product_i8(a.data(), depth, m, w.data + p * w.size, sums.data(), depth, &c[p * kPanel], kPanel * w.count);
  state.SetBytesProcessed(std::int64_t(state.iterations() * w.size * w.count));
  report(state, k, Dot::i8, 2.0 * m * double(w.size * w.count));
}

template <class T>
void product_float(benchmark::State& state, const Kernels& k, int m, int depth, std::size_t bytes) {
  const Panels<bf16> w(std::size_t(panel_elements_bf16(depth)), bytes, bf16{0x3f80});
  const std::vector<T> a(std::size_t(m) * depth, T{});
  std::vector<float> c(std::size_t(m) * kPanel * w.count);
  for (auto _ : state)
    for (std::size_t p = 0; p < w.count; ++p) {
      const auto run = [&](auto kernel) {
        kernel(a.data(), depth, m, w.data + p * w.size, depth, &c[p * kPanel], kPanel * w.count, false);
      };
      if constexpr (sizeof(T) == 2) run(k.product_bf16);
      else run(k.product_f32);
    }
  state.SetBytesProcessed(std::int64_t(state.iterations() * 2 * w.size * w.count));
  report(state, k, sizeof(T) == 2 ? Dot::bf16 : Dot::f32, 2.0 * m * double(w.size * w.count));
}

void index_scores(benchmark::State& state, const Kernels& k, int heads, int keys) {
  constexpr int kDims = 128;
  std::vector<std::uint8_t> codes(std::size_t(heads) * kDims + 64, 130);
  std::uint8_t* aligned = codes.data() + (64 - reinterpret_cast<std::uintptr_t>(codes.data()) % 64) % 64;
  const std::vector<float> weight(heads, 0.5f);
  const std::vector<std::int8_t> key(std::size_t(keys) * kDims, 3);
  std::vector<float> scores(keys);
  std::vector<std::uint64_t> out(keys);
  for (auto _ : state) {
    k.index_scores_i8({aligned, weight.data(), heads / 16, kDims}, key.data(), kDims, keys, scores.data());
    benchmark::DoNotOptimize(k.append_candidates(scores.data(), keys, 0, 0xffffffffu, out.data()));
  }
  report(state, k, Dot::i8, 2.0 * heads * kDims * keys);
}

void index_scores_f32(benchmark::State& state, const Kernels& k, int heads, int keys) {
  constexpr int kDims = 128;
  const std::vector<float> values(std::size_t(heads) * kDims, 0.5f), weight(heads, 0.5f);
  const std::vector<float> key(std::size_t(keys) * kDims, 3);
  std::vector<float> scores(keys);
  for (auto _ : state)
    k.index_scores_f32({values.data(), weight.data(), heads / 16, kDims}, key.data(), kDims, keys, scores.data());
  report(state, k, Dot::f32, 2.0 * heads * kDims * keys);
}

/// Chunks of 256 rows gathered at random from a cache of that many elements.
template <class T, class F>
void gather(benchmark::State& state, int dims, int elements, F f) {
  const std::size_t rows = elements / dims;
  const std::vector<T> cache(rows * dims, T{1});
  std::vector<bf16> panels(std::size_t(256) * (dims + 63) / 64 * 64);
  const T* row[256];
  std::uint64_t next = 1;
  for (auto _ : state) {
    state.PauseTiming();
    for (const T*& r : row)
      r = &cache[((next = next * 6364136223846793005u + 1442695040888963407u) >> 33) % rows * dims];
    state.ResumeTiming();
    f(row, panels.data());
  }
}

void rows(benchmark::State& state, const Kernels& k, int n, int which) {
  std::vector<float> x(n, 0.5f), y(n, 0.25f);
  std::vector<bf16> b(n);
  std::vector<std::int8_t> codes(n);
  std::vector<std::int32_t> acc(n, 77);
  float most = 0;
  for (auto _ : state) {
    switch (which) {
      case 0:
        benchmark::DoNotOptimize(k.sum_squares(x.data(), n, 0.1f));
        break;
      case 1:
        benchmark::DoNotOptimize(k.max_abs(x.data(), n));
        break;
      case 2:
        k.quantize(x.data(), n, 3.0f, codes.data());
        break;
      case 3:
        k.dequantize(acc.data(), n, 0.1f, x.data(), y.data());
        break;
      case 4:
        k.widen_bf16(b.data(), n, y.data());
        break;
      case 5:
        k.round_bf16(x.data(), n, b.data());
        break;
      case 6:
        benchmark::DoNotOptimize(k.softmax(x.data(), n, 0.1f, &most));
        break;
      case 7:
        k.multiply_add(x.data(), y.data(), n, y.data());
        break;
      case 8:
        k.multiply_round(x.data(), y.data(), n, b.data());
        break;
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(std::int64_t(state.iterations()) * n);
}

const bool registered = [] {
  for (const Kernels* kernels : supported_kernels()) {
    const Kernels& k = *kernels;
    const auto add = [&](const std::string& name, auto f) {
      benchmark::RegisterBenchmark((name + "/" + k.isa).c_str(), f)->Unit(benchmark::kMicrosecond);
    };
    constexpr std::size_t kStream = std::size_t(256) << 20;
    for (auto [m, depth, bytes] : {std::tuple{1, 7168, kStream},
                                   {4, 7168, kStream},
                                   {12, 7168, kStream},
                                   {32, 7168, kStream},
                                   {6, 1536, std::size_t(0)},
                                   {96, 1536, std::size_t(0)},
                                   {6, 7168, std::size_t(0)},
                                   {96, 7168, std::size_t(0)}}) {
      const std::string shape = "/m" + std::to_string(m) + "/k" + std::to_string(depth) + (bytes ? "/stream" : "");
      add("product_i8" + shape, [=, &k](auto& s) { product_i8(s, k, m, depth, bytes); });
      add("product_bf16" + shape, [=, &k](auto& s) { product_float<bf16>(s, k, m, depth, bytes); });
      if (!bytes) add("product_f32" + shape, [=, &k](auto& s) { product_float<float>(s, k, m, depth, bytes); });
    }
    for (const int heads : {16, 32, 64, 128}) {
      const std::string shape = "/heads" + std::to_string(heads);
      add("index_scores_i8" + shape, [=, &k](auto& s) { index_scores(s, k, heads, 4096); });
    }
    add("index_scores_f32/heads64", [&k](auto& s) { index_scores_f32(s, k, 64, 1024); });
    for (const auto& [where, elements] : {std::pair{"/memory", 1 << 26}, {"/L2", 1 << 17}}) {
      const std::string shape = std::string("/256x512") + where;
      add("transpose_bf16" + shape, [=, elements = elements, &k](auto& s) {
        gather<bf16>(s, 512, elements, [&](const bf16** row, bf16* panel) {
          for (int j = 0; j < 256; j += 64) k.transpose_bf16(row + j, 64, 512, panel + j * 512);
        });
      });
      add("transpose_i8" + shape, [=, elements = elements, &k](auto& s) {
        gather<std::int8_t>(s, 512, elements, [&](const std::int8_t** row, bf16* panel) {
          for (int j = 0; j < 256; j += 64) k.transpose_i8(row + j, 64, 512, panel + j * 512);
        });
      });
      add("interleave_bf16" + shape, [=, elements = elements, &k](auto& s) {
        gather<bf16>(s, 512, elements, [&](const bf16** row, bf16* panel) { k.interleave_bf16(row, 256, 512, panel); });
      });
      add("interleave_i8" + shape, [=, elements = elements, &k](auto& s) {
        gather<std::int8_t>(s, 512, elements,
                            [&](const std::int8_t** row, bf16* panel) { k.interleave_i8(row, 256, 512, panel); });
      });
    }
    const char* const names[] = {"sum_squares", "max_abs", "quantize",     "dequantize",    "widen_bf16",
                                 "round_bf16",  "softmax", "multiply_add", "multiply_round"};
    for (int which = 0; which < 9; ++which)
      add(std::string(names[which]) + "/256", [=, &k](auto& s) { rows(s, k, 256, which); });
    add("sum_squares/7168", [&k](auto& s) { rows(s, k, 7168, 0); });
    add("quantize/7168", [&k](auto& s) { rows(s, k, 7168, 2); });
  }
  return true;
}();

}  // namespace
}  // namespace dsakit
