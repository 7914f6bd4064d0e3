// SPDX-License-Identifier: Apache-2.0
// Every kernel at every rung, at sizes that stay in the first two caches: what `dsakit bench kernels` prints.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "bench.hpp"
#include "core/random.hpp"
#include "kernels/kernels.hpp"
#include "kernels/order.hpp"

namespace dsakit {
namespace {

/// Time of this thread alone: what neighbours take does not count.
double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

/// The fastest of thirty batches of about a millisecond, divided by its calls.
template <class F>
double best_seconds(F call) {
  const auto batch = [&](int calls) {
    const double start = thread_seconds();
    for (int i = 0; i < calls; ++i) call();
    return thread_seconds() - start;
  };
  int calls = 1;
  while (batch(calls) < 1e-3) calls *= 2;
  double best = 1e30;
  for (int i = 0; i < 30; ++i) best = std::min(best, batch(calls));
  return best / calls;
}

/// Numbers from the start of a cache line, as packed weights and scratch are.
template <class T>
class Array {
 public:
  explicit Array(std::size_t n)
      : numbers_(static_cast<T*>(std::aligned_alloc(64, (n * sizeof(T) + 63) / 64 * 64)), &std::free) {
    if (!numbers_) throw std::bad_alloc();
    std::fill_n(data(), n, T{});
  }
  template <class U>
  Array(const std::vector<U>& from) : Array(from.size()) {
    std::copy(from.begin(), from.end(), data());
  }
  T* data() const { return numbers_.get(); }

 private:
  std::unique_ptr<T, decltype(&std::free)> numbers_;
};

/// Rows of numbers, and where they are.
template <class T>
struct Rows {
  static constexpr int kCount = 256, kWidth = 576;
  Array<T> numbers;
  std::vector<const T*> row;
  std::vector<const std::byte*> bytes;
  Rows(const std::vector<T>& from) : numbers(from) {
    for (int i = 0; i < kCount; ++i) {
      row.push_back(numbers.data() + i * kWidth);
      bytes.push_back(reinterpret_cast<const std::byte*>(row.back()));
    }
  }
};

class Bench {
 public:
  Bench(const std::vector<std::string>& wanted, const std::function<void(const KernelTime&)>& each)
      : wanted_(wanted), each_(each) {}

  void run() {
    for (const int depth : {512, 2048})
      for (const int m : {1, 4, 8, 64})
        if (depth == 512 || (m != 8 && m != 4)) products(m, depth);
    for (const int m : {1, 4, 8}) strips(m);
    indexer();
    for (const int n : {128, 4096}) rows(n);
    attention(256);
    panels();
    for (const int n : {1, 4, 12}) gemv(n);
  }

 private:
  /// `work`: operations of products (two for each multiplication), else elements.
  template <class F, class Call>
  void time(const char* kernel, F Kernels::*entry, const std::string& size, double work, Call call) {
    for (const Kernels* k : supported_kernels()) {
      const std::string name = std::string(kernel) + " " + k->isa;
      const auto in_name = [&](const std::string& part) { return name.find(part) != std::string::npos; };
      if (!std::ranges::all_of(wanted_, in_name)) continue;
      const double seconds = best_seconds([&] { call(k->*entry); });
      each_({kernel, k->isa, size, seconds, work / seconds});
    }
  }

  void products(int m, int depth) {
    const std::string size = std::to_string(m) + "x" + std::to_string(depth) + "x64";
    const double work = 2.0 * m * depth * kPanel;
    time("product_i8", &Kernels::product, size, work,
         [&](auto f) { f(codes_.data(), depth, m, weights_i8_.data(), sums_.data(), depth, acc_.data(), kPanel); });
    time("product_bf16", &Kernels::product, size, work,
         [&](auto f) { f(a_bf16_.data(), depth, m, weights_bf16_.data(), depth, y_.data(), kPanel, false); });
    time("product_f32", &Kernels::product, size, work,
         [&](auto f) { f(a_.data(), depth, m, weights_bf16_.data(), depth, y_.data(), kPanel, false); });
    time("product_bf16_e4m3", &Kernels::product, size, work, [&](auto f) {
      f(a_bf16_.data(), depth, m, ScaledPanel{reinterpret_cast<const e4m3*>(weights_i8_.data()), a_.data()}, depth, y_.data(), kPanel, false);
    });
    time("product_f32_e4m3", &Kernels::product, size, work, [&](auto f) {
      f(a_.data(), depth, m, ScaledPanel{reinterpret_cast<const e4m3*>(weights_i8_.data()), a_.data()}, depth, y_.data(), kPanel, false);
    });
    time("product_wide", &Kernels::product, size, work,
         [&](auto f) { f(a_.data(), depth, m, weights_.data(), depth, y_.data(), kPanel, false); });
  }

  /// A matrix as it lies, [128, 1024]; column by column that of 1024 rows.
  void strips(int m) {
    constexpr int kDepth = 128, kColumns = 1024;
    const std::string size = std::to_string(m) + "x128x1024";
    const double work = 2.0 * m * kDepth * kColumns;
    time("strip_i8", &Kernels::strip_product, size, work, [&](auto f) {
      f(codes_.data(), kDepth, m, {weights_i8_.data(), kColumns}, kDepth, kColumns, acc_.data(), kColumns, false, weights_i8_.data());
    });
    time("strip_i8_nz", &Kernels::strip_product, size, work, [&](auto f) {
      for (int j = 0; j < kColumns; j += kPanel)
        f(codes_.data(), kDepth, m, {weights_i8_.data() + j * kDepth, 32, 32 * kDepth}, kDepth, kPanel, acc_.data() + j, kColumns, false, weights_i8_.data());
    });
    time("column_i8", &Kernels::column_product, std::to_string(m) + "x1024x128", work, [&](auto f) {
      f(codes_.data(), kColumns, m, weights_i8_.data(), kColumns, kColumns, kDepth, acc_.data(), kDepth);
    });
    time("strip_bf16", &Kernels::strip_product, size, work, [&](auto f) {
      f(a_bf16_.data(), kDepth, m, {weights_bf16_.data(), kColumns}, kDepth, kColumns, y_.data(), kColumns, false, weights_bf16_.data());
    });
  }

  void indexer() {
    constexpr int kBlocks = 4, kDims = 128;
    const IndexQueryI8 narrow{codes_.data(), a_.data(), kBlocks, kDims};
    const IndexQueryF32 wide{a_.data(), a_.data() + 64 * kDims, kBlocks, kDims};
    for (const int count : {16, 128}) {
      const std::string size = "64 heads, " + std::to_string(count) + " keys";
      const double work = 2.0 * kBlocks * 16 * kDims * count;
      time("index_scores_i8", &Kernels::index_scores, size, work,
           [&](auto f) { f(narrow, weights_i8_.data(), kDims, count, y_.data(), nullptr); });
      time("index_scores_f32", &Kernels::index_scores, size, work,
           [&](auto f) { f(wide, weights_.data(), kDims, count, y_.data()); });
    }
    std::vector<float> weight(kHeadBlock);
    for (const int heads : {1, 2, 4, 6, 7, 8, 16}) {
      std::fill_n(weight.begin(), heads, 1.0f);
      const IndexQueryI8 few{codes_.data(), weight.data(), 1, kDims};
      time("index_scores_i8", &Kernels::index_scores, std::to_string(heads) + " heads, 128 keys", 2.0 * heads * kDims * 128,
           [&](auto f) { f(few, weights_i8_.data(), kDims, 128, y_.data(), nullptr); });
    }
    for (const float floor : {0.9f, -2.0f})  // a twentieth of uniform numbers of -1..1, or all
      time("append_candidates", &Kernels::append_candidates, floor > 0 ? "2048, 5 %" : "2048, all", 2048,
           [&](auto f) { f(a_.data(), 2048, 0, order_key(floor), candidates_.data()); });
  }

  void rows(int n) {
    const std::string size = std::to_string(n);
    const float* const x = a_.data();
    time("sum_squares", &Kernels::sum_squares, size, n, [&](auto f) { *y_.data() = f(x, n, 0.1f); });
    time("sum", &Kernels::sum, size, n, [&](auto f) { *y_.data() = f(x, n, 0.1f); });
    time("max_abs", &Kernels::max_abs, size, n, [&](auto f) { *y_.data() = f(x, n); });
    time("quantize", &Kernels::quantize, size, n, [&](auto f) { f(x, n, 127.0f, codes_out_.data()); });
    time("dequantize", &Kernels::dequantize, size, n, [&](auto f) { f(sums_.data(), n, 0.1f, x, y_.data()); });
    const bf16* const kept = a_bf16_.data();
    const auto* const scales = reinterpret_cast<const float*>(soft_.data());
    time("max_abs_bf16", &Kernels::max_abs, size, n, [&](auto f) { *y_.data() = f(kept, n); });
    time("quantize_bf16", &Kernels::quantize, size, n, [&](auto f) { f(kept, n, 127.0f, codes_out_.data()); });
    time("quantize_channels", &Kernels::quantize_channels, size, n,
         [&](auto f) { f(kept, scales, nullptr, n, codes_out_.data()); });
    time("divide_channels", &Kernels::divide_channels, size, n,
         [&](auto f) { f(kept, scales, nullptr, n, false, codes_out_.data()); });
    time("quantize_blocks", &Kernels::quantize_blocks, size, n,
         [&](auto f) { f(kept, n, 128, 0.0f, codes_out_.data(), y_.data()); });
    time("rotate", &Kernels::rotate, size, n, [&](auto f) {
      f(RotateRows<bf16>{RopePairs::half, kept, 64, kept, 0, kept, 0, high_.data(), 64, n / 64, 32});
    });
    time("hadamard", &Kernels::hadamard, size, n, [&](auto f) { f(kept, n / kHadamardLeast, kHadamardLeast, 0.1f, high_.data()); });
    time("widen_bf16", &Kernels::widen, size, n, [&](auto f) { f(a_bf16_.data(), n, y_.data()); });
    time("widen_f16", &Kernels::widen, size, n, [&](auto f) { f(a_f16_.data(), n, y_.data()); });
    time("round_bf16", &Kernels::round, size, n, [&](auto f) { f(x, n, high_.data()); });
    time("round_f16", &Kernels::round, size, n, [&](auto f) { f(x, n, halves_.data()); });
    const bf16 *const a = a_bf16_.data(), *const two[] = {a, a + n};
    time("swiglu", &Kernels::swiglu, size, n, [&](auto f) { f(a, a + n, n, high_.data()); });
    time("rms_norm", &Kernels::rms_norm, size, n, [&](auto f) { f(a, x, n, 1e-6f, high_.data()); });
    time("rms_norm_divided", &Kernels::rms_norm_divided, size, n, [&](auto f) { f(a, x, n, 1e-6f, high_.data()); });
    time("add_rms_norm", &Kernels::add_rms_norm, size, n,
         [&](auto f) { f(a, a + n, x, nullptr, n, 1e-6f, low_.data(), high_.data()); });
    time("weighted_sum", &Kernels::weighted_sum, size, n, [&](auto f) { f(two, x, 2, n, high_.data()); });
    time("divide", &Kernels::divide, size, n, [&](auto f) { f(x, 3.0f, n, high_.data()); });
  }

  void attention(int n) {
    const std::string size = std::to_string(n);
    const float* const x = a_.data();
    constexpr int kRows = 8;
    time("softmax", &Kernels::softmax, std::to_string(kRows) + " rows of " + size, kRows * n, [&](auto f) {
      SoftmaxRow rows[kRows];
      for (int r = 0; r < kRows; ++r) rows[r] = {soft_.data() + r * n, n, 0.5f, 0, 0};
      f(rows, kRows);
      *y_.data() = rows[0].sum;
    });
    time("multiply_add", &Kernels::multiply_add, size, n, [&](auto f) { f(x, x + n, n, y_.data()); });
    time("multiply", &Kernels::multiply, size, n, [&](auto f) { f(x, x + n, n, high_.data()); });
    std::vector<float> probability(x, x + n);
    for (float& v : probability) v = std::exp2(20 * (std::fabs(v) - 1));
    std::vector<int> at(probability.size());
    time("deciding", &Kernels::deciding, size, n, [&](auto f) { f(probability.data(), n, 16.0f, 32, at.data()); });
    const bf16* few[6];
    for (int j = 0; j < 6; ++j) few[j] = a_bf16_.data() + j * n;
    time("blend_with", &Kernels::blend, "64, 6 rows", 64,
         [&](auto f) { f(x, few, x, 6, 0.5f, 0.7f, 64, 0.5f, y_.data()); });
    time("blend", &Kernels::blend, size, n, [&](auto f) { f(x, 0.5f, 0.7f, n, 0.5f, y_.data()); });
    for (const int digits : {1, 3}) {
      const std::string both = size + ", " + std::to_string(digits) + (digits > 1 ? " digits" : " digit");
      time("split_codes", &Kernels::split_codes, both, n,
           [&](auto f) { f(x, n, digits > 1 ? 0x1p20f : 100.0f, digits, codes_bytes_.data(), n); });
      time("join_codes", &Kernels::join_codes, both, n,
           [&](auto f) { f(sums_.data(), n, n, digits, 0.1f, y_.data()); });
    }
  }

  /// A key panel of 64 rows of 576, value panels of 256 rows of 512.
  void panels() {
    constexpr int kKeys = 64, kWidth = 576, kValues = 256, kValueWidth = 512;
    const auto both = [&](const char* transpose, auto t, const char* interleave, auto i, auto& rows, auto& panel,
                          auto... more) {
      time(transpose, t, "64x576", kKeys * kWidth,
           [&](auto f) { f(rows.row.data(), kKeys, kWidth, panel.data(), more...); });
      time(interleave, i, "256x512", kValues * kValueWidth,
           [&](auto f) { f(rows.row.data(), kValues, kValueWidth, panel.data(), more...); });
    };
    using K = Kernels;
    both("transpose_bf16", &K::transpose, "interleave_bf16", &K::interleave, rows_bf16_, panel_bf16_);
    both("transpose_i8", &K::transpose, "interleave_i8", &K::interleave, rows_i8_, panel_bf16_);
    both("transpose_bf16_f32", &K::transpose, "interleave_bf16_f32", &K::interleave, rows_bf16_, panel_);
    both("transpose_f16", &K::transpose, "interleave_f16", &K::interleave, rows_f16_, panel_);
    both("transpose_f32", &K::transpose, "interleave_f32", &K::interleave, rows_f32_, panel_);
    both("transpose_codes", &K::transpose, "interleave_codes", &K::interleave, rows_i8_, panel_i8_,
         acc_.data());
  }

  void gemv(int rows) {
    constexpr int kKeys = 64, kWidth = 512;
    const std::string size = std::to_string(rows) + "x64x512";
    const double work = 2.0 * rows * kKeys * kWidth;
    const std::int32_t* const query = sums_.data();  // any codes; those of a float below are small numbers
    const auto* const floats = reinterpret_cast<const std::int32_t*>(a_.data());
    const int digits = rows % 3 == 0 ? 3 : 1, pieces = rows % 2 == 0 ? 2 : 1;
    time("gemv_dots_i8", &Kernels::gemv_dots, size, work, [&](auto f) {
      f(query, rows / digits, digits, rows_i8_.bytes.data(), kKeys, kWidth, a_.data(), y_.data(), kKeys,
        rows_i8_.bytes.data(), kWidth);
    });
    time("gemv_sums_i8", &Kernels::gemv_sums, size, work, [&](auto f) {
      for (int column = 0; column < kWidth; column += kGemvColumns)
        f(codes_.data(), kKeys, rows / pieces, pieces, rows_i8_.bytes.data(), kKeys, column, kGemvColumns, a_.data(), y_.data(),
          rows_i8_.bytes.data());
    });
    time("gemv_dots_bf16", &Kernels::gemv_dots, size, work, [&](auto f) {
      f(reinterpret_cast<const std::int32_t*>(a_bf16_.data()), rows, rows_bf16_.bytes.data(), kKeys, kWidth, y_.data(),
        kKeys, rows_bf16_.bytes.data(), kWidth);
    });
    time("gemv_sums_bf16", &Kernels::gemv_sums, size, work, [&](auto f) {
      for (int column = 0; column < kWidth; column += kGemvColumns)
        f(a_bf16_.data(), kKeys, rows, rows_bf16_.bytes.data(), kKeys, column, kGemvColumns, y_.data(),
          rows_bf16_.bytes.data());
    });
    const auto wide = [&](Kept kept, const char* type, const auto& keys) {
      time("gemv_dots_wide", &Kernels::gemv_dots, size + " " + type, work, [&](auto f) {
        f(floats, rows, kept, keys.bytes.data(), kKeys, kWidth, y_.data(), kKeys, keys.bytes.data(), kWidth);
      });
      time("gemv_sums_wide", &Kernels::gemv_sums, size + " " + type, work, [&](auto f) {
        for (int column = 0; column < kWidth; column += kGemvColumns)
          f(a_.data(), kKeys, rows, kept, keys.bytes.data(), kKeys, column, kGemvColumns, y_.data(), keys.bytes.data());
      });
    };
    wide(Kept::bf16, "bf16", rows_bf16_);
    wide(Kept::f16, "f16", rows_f16_);
    wide(Kept::f32, "f32", rows_f32_);
  }

  const std::vector<std::string>& wanted_;
  const std::function<void(const KernelTime&)>& each_;

  static constexpr int kMost = 64 * 2048;  // elements of the largest operand: 64 rows, or a panel, of depth 2048
  static constexpr int kPanels = Rows<float>::kCount * Rows<float>::kWidth, kOut = 8192;
  Random random_{1};
  const Array<float> a_{random_f32(random_, kMost)}, weights_{random_f32(random_, kMost)};
  const Array<bf16> a_bf16_{random_bf16(random_, kMost)}, weights_bf16_{random_bf16(random_, kMost)};
  const Array<f16> a_f16_{random_f16(random_, kMost)};
  const Array<std::int8_t> weights_i8_{random_i8(random_, kMost)};
  const Array<std::uint8_t> codes_{random_i8(random_, kMost)};
  const Array<std::int32_t> sums_{random_i8(random_, kOut)};
  const Rows<bf16> rows_bf16_{random_bf16(random_, kPanels)};
  const Rows<f16> rows_f16_{random_f16(random_, kPanels)};
  const Rows<float> rows_f32_{random_f32(random_, kPanels)};
  const Rows<std::int8_t> rows_i8_{random_i8(random_, kPanels)};

  const Array<float> y_{kOut}, soft_{random_f32(random_, kOut)}, panel_{kPanels};
  const Array<std::int32_t> acc_{kOut};
  const Array<bf16> high_{kOut}, low_{kOut}, panel_bf16_{kPanels};
  const Array<f16> halves_{kOut};
  const Array<std::int8_t> codes_out_{kOut}, panel_i8_{kPanels};
  const Array<std::uint8_t> codes_bytes_{kOut};
  const Array<std::uint64_t> candidates_{2048};
};

}  // namespace

void bench_kernels(const std::vector<std::string>& wanted, const std::function<void(const KernelTime&)>& each) {
  Bench(wanted, each).run();
}

}  // namespace dsakit
