// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/float16.hpp"
#include "kernels/kernels.hpp"
#include "kernels/order.hpp"
#include "kernels/pack.hpp"
#include "kernels/stream.hpp"
#include "kernels/test_rungs.hpp"
#include "kernels/test_tiles.hpp"
#include "kernels/tuning.hpp"

namespace dsakit {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Where in its pages an array lies: flush with the unmapped page before or behind it. A kernel that reads or writes
/// one byte too much dies.
enum class Edge { begin, end };

template <class T>
class Guarded {
 public:
  Guarded(std::size_t n, Edge edge) : n_(n) {
    const std::size_t page = std::size_t(sysconf(_SC_PAGESIZE)), bytes = (n * sizeof(T) + page - 1) / page * page;
    size_ = bytes + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (bytes > 0) mprotect(base_ + page, bytes, PROT_READ | PROT_WRITE);
    data_ = reinterpret_cast<T*>(base_ + page + (edge == Edge::end ? bytes - n * sizeof(T) : 0));
  }
  Guarded(const std::vector<T>& x, Edge edge) : Guarded(x.size(), edge) { std::copy(x.begin(), x.end(), data_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, size_); }
  operator T*() const { return data_; }
  std::vector<T> values() const { return {data_, data_ + n_}; }

 private:
  std::size_t n_, size_;
  char* base_;
  T* data_;
};

/// Anew for each test, from its name: which others run does not change its data.
std::mt19937 random_bits;

std::vector<float> random_floats(std::size_t n, float magnitude = 1) {
  std::vector<float> x(n);
  for (float& v : x) v = magnitude * (float(random_bits() >> 8) * 0x1p-23f - 1);
  return x;
}
/// Magnitudes from subnormal to infinite, and NaN.
std::vector<float> wild_floats(std::size_t n) {
  std::vector<float> x(n);
  for (float& v : x) v = std::bit_cast<float>(std::uint32_t(random_bits()));
  const float special[] = {0.0f, -0.0f, kInf, -kInf, kNaN, -kNaN, 0x1p-149f, -0x1p-126f, 127.5f, -128.5f, 0.5f, 2.5f};
  for (std::size_t i = 0; i < n; i += 3) x[i] = special[random_bits() % std::size(special)];
  return x;
}
std::vector<std::int8_t> random_codes(std::size_t n) {
  std::vector<std::int8_t> x(n);
  for (std::int8_t& v : x) v = std::int8_t(random_bits() % 4 == 0 ? -128 : int(random_bits() & 255) - 128);
  return x;
}
bf16 cut(float x) { return {std::uint16_t(std::bit_cast<std::uint32_t>(x) >> 16)}; }
std::vector<bf16> random_bf16(std::size_t n) {
  std::vector<bf16> x(n);
  const std::vector<float> f = random_floats(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = cut(f[i]);
  return x;
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b);
}
/// NaN is NaN whatever its fraction.
bool same(bf16 a, bf16 b) { return a.bits == b.bits || same(to_float(a), to_float(b)); }
bool same(f16 a, f16 b) { return a.bits == b.bits || same(to_float(a), to_float(b)); }
template <class T>
bool same(T a, T b) {
  return a == b;
}
template <class T>
::testing::AssertionResult same(const std::vector<T>& a, const std::vector<T>& b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i)
    if (i >= a.size() || i >= b.size() || !same(a[i], b[i])) return ::testing::AssertionFailure() << "at " << i;
  return ::testing::AssertionSuccess();
}

class OnRung : public EveryRung {
 protected:
  void SetUp() override {
    EveryRung::SetUp();
    random_bits.seed(std::mt19937::result_type(random_of_test().next()));
  }
  /// Nobody who runs after a kernel finds tiles in use.
  void TearDown() override {
    EXPECT_EQ(std::exchange(tile_machine().faults, 0), 0);
    EXPECT_FALSE(std::exchange(tile_machine().configured, false));
  }
  const Kernels& k = GetParam().kernels ? *GetParam().kernels : *supported_kernels()[0];
};
INSTANTIATE_TEST_SUITE_P(Kernels, OnRung, for_every_rung(), rung_name);
INSTANTIATE_TEST_SUITE_P(Tiles, OnRung, ::testing::ValuesIn(tile_rungs()), rung_name);

constexpr Edge kEdges[] = {Edge::begin, Edge::end};
const int kWidths[] = {1, 2, 3, 5, 16, 31, 63, 64, 65, 511, 512, 513, 1025, 1537};

// ---- the judge: formulas as the contracts have them, plain --------------------------------------------------------

/// c of the fp32 products: one fma chain per block of k, blocks added ascending.
template <class Weight>
float chained(const float* row, Weight weight, int depth, float before, bool add) {
  for (int p = 0; p < depth || p == 0; p += kSumBlock) {
    float sum = 0;
    for (int q = p; q < std::min(p + kSumBlock, depth); ++q) sum = std::fma(row[q], weight(q), sum);
    before = add ? before + sum : sum;
    add = true;
  }
  return before;
}

float folded(float (&lane)[16]) {
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

/// Digits to the number they make, as join_codes does.
float joined_of(const std::int32_t* digit, std::ptrdiff_t pitch, int digits, float unit) {
  float x = float(digit[0]);
  for (int i = 1; i < digits; ++i) x = x * 256 + float(digit[i * pitch]);
  return x * unit;
}

// ---- products ---------------------------------------------------------------------------------------------------

TEST_P(OnRung, ProductI8IsExact) {
  for (const int depth : {4, 8, 12, 60, 512, 516, 1028, 2052})
    for (const int m : {1, 2, 3, 4, 5, 6, 7, 8, 13, 19, 25})
      for (const Edge edge : kEdges) {
        const std::ptrdiff_t a_stride = depth + 3, c_stride = kPanel + 5;
        std::vector<std::uint8_t> codes((m - 1) * a_stride + depth);
        for (auto& v : codes) v = std::uint8_t(random_bits() % 3 == 0 ? 0 : random_bits());
        const std::vector<std::int8_t> weight = random_codes(std::size_t(depth) * kPanel);
        const Guarded<std::uint8_t> a(codes, edge);
        const Guarded<std::int8_t> panel(weight.size(), edge);
        const Guarded<std::int32_t> sums(kPanel, edge), c((m - 1) * c_stride + kPanel, edge);
        pack_panel_i8({weight.data(), kPanel, false, depth, kPanel}, 0, panel, sums);
        k.product(a, a_stride, m, panel, sums, depth, c, c_stride);
        for (int i = 0; i < m; ++i)
          for (int j = 0; j < kPanel; ++j) {
            int expected = 0;
            for (int p = 0; p < depth; ++p) expected += (a[i * a_stride + p] - 128) * weight[p * kPanel + j];
            ASSERT_EQ(c[i * c_stride + j], expected) << depth << " " << m << " " << i << " " << j;
          }
        // The blocks of every make of core.
        const Tuning before = tuning;
        for (const int block : {1 << 10, 16 << 10, 64 << 10}) {
          std::vector<std::int32_t> again(std::size_t(m) * kPanel);
          tuning.code_block = block;
          k.product(a, a_stride, m, panel, sums, depth, again.data(), kPanel);
          tuning = before;
          for (int i = 0; i < m; ++i)
            for (int j = 0; j < kPanel; ++j) ASSERT_EQ(again[i * kPanel + j], c[i * c_stride + j]) << block;
        }
      }
}

struct Product {
  int depth, m;
  std::ptrdiff_t a_stride = depth + 3, c_stride = kPanel + 5;
  std::vector<bf16> weight = random_bf16(std::size_t(depth) * kPanel);
  std::vector<float> before = random_floats((m - 1) * c_stride + kPanel);

  template <class T, class F>
  std::vector<float> run(F kernel, const std::vector<T>& rows, bool add, Edge edge) const {
    const Guarded<T> a(rows, edge);
    const Guarded<bf16> panel(Panel<bf16>::elements(depth), edge);
    const Guarded<float> c(before, edge);
    pack_panel_bf16({weight.data(), kPanel, false, depth, kPanel}, 0, panel);
    kernel(a, a_stride, m, panel, depth, c, c_stride, add);
    return c.values();
  }

  /// What fp32 rows give.
  std::vector<float> expected(const std::vector<float>& rows, bool add) const {
    std::vector<float> c = before;
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < kPanel; ++j)
        c[i * c_stride + j] = chained(
            rows.data() + i * a_stride, [&](int p) { return to_float(weight[p * kPanel + j]); }, depth,
            before[i * c_stride + j], add);
    return c;
  }

  /// Every addition and product may round (the bf16 dot instruction: a few times), relative to the sum of magnitudes.
  template <class T>
  void check(const std::vector<float>& got, const std::vector<T>& rows, bool add) const {
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < kPanel; ++j) {
        double sum = add ? before[i * c_stride + j] : 0, size = std::abs(sum);
        for (int p = 0; p < depth; ++p) {
          double term = to_float(weight[p * kPanel + j]);
          if constexpr (sizeof(T) == 2) term *= to_float(rows[i * a_stride + p]);
          else term *= rows[i * a_stride + p];
          sum += term, size += std::abs(term);
        }
        ASSERT_NEAR(got[i * c_stride + j], sum, size * 0x1p-24 * (2 + std::min(depth, kSumBlock) + depth / kSumBlock))
            << depth << " " << m << " " << i << " " << j;
      }
  }

  /// Row i of a product of many rows is the product of row i.
  template <class T, class F>
  void check_rows(F kernel, const std::vector<float>& got, const std::vector<T>& rows, bool add) const {
    for (int i = 0; i < m; ++i) {
      Product one = *this;
      one.m = 1;
      one.before.assign(before.begin() + i * c_stride, before.begin() + i * c_stride + kPanel);
      const std::vector<T> row(rows.begin() + i * a_stride, rows.begin() + i * a_stride + depth);
      const std::vector<float> c = one.run(kernel, row, add, Edge::end);
      ASSERT_TRUE(
          std::equal(c.begin(), c.end(), got.begin() + i * c_stride, [](float a, float b) { return same(a, b); }));
    }
  }
};

const int kRowCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 19, 23, 25};

TEST_P(OnRung, ProductBf16) {
  for (const int depth : kWidths)
    for (const int m : kRowCounts)
      for (const bool add : {false, true}) {
        const Product p{depth, m};
        const std::vector<bf16> rows = random_bf16((m - 1) * p.a_stride + depth);
        const std::vector<float> got = p.run(k.product, rows, add, Edge::end);
        p.check(got, rows, add);
        p.check_rows(k.product, got, rows, add);
        ASSERT_TRUE(same(got, p.run(k.product, rows, add, Edge::begin)));
        std::vector<float> wide;
        for (const bf16 x : rows) wide.push_back(to_float(x));
        ASSERT_TRUE(!k.widens_rows || same(got, p.run(k.product, wide, add, Edge::end))) << depth << " " << m;
      }
}

/// Several blocks of rows and of k, and something to ask for meanwhile.
TEST_P(OnRung, ProductsOfManyRows) {
  for (const int depth : {512, 600})
    for (const int m : {32, 33, 70}) {
      const Product p{depth, m};
      const std::vector<bf16> rows = random_bf16((m - 1) * p.a_stride + depth), next = random_bf16(depth * 200);
      const auto kernel = [&](const auto&... a) { k.product(a..., Ahead{next.data(), 400}); };
      for (const bool add : {false, true}) {
        const std::vector<float> got = p.run(kernel, rows, add, Edge::end);
        p.check(got, rows, add);
        EXPECT_EQ(p.run(k.product, rows, add, Edge::end), got);  // of a panel that comes from memory
        p.check_rows(k.product, got, rows, add);
      }
      const std::vector<std::int8_t> codes = random_codes(std::size_t(m * depth));
      const std::vector<std::int8_t> weight = random_codes(std::size_t(depth) * kPanel);
      const std::vector<std::uint8_t> biased = [&] {
        std::vector<std::uint8_t> x;
        for (const std::int8_t code : codes) x.push_back(std::uint8_t(code + 128));
        return x;
      }();
      const Guarded<std::int8_t> panel(weight.size(), Edge::end);
      std::int32_t sums[kPanel];
      std::vector<std::int32_t> c(std::size_t(m) * kPanel);
      pack_panel_i8({weight.data(), kPanel, false, depth, kPanel}, 0, panel, sums);
      k.product(biased.data(), depth, m, panel, sums, depth, c.data(), kPanel, Ahead{next.data(), 200});
      for (int i = 0; i < m; ++i)
        for (int j = 0; j < kPanel; ++j) {
          int expected = 0;
          for (int q = 0; q < depth; ++q) expected += codes[i * depth + q] * weight[q * kPanel + j];
          ASSERT_EQ(c[i * kPanel + j], expected) << depth << " " << m << " " << i << " " << j;
        }
    }
}

TEST_P(OnRung, ProductF32HasTheSameBits) {
  for (const int depth : kWidths)
    for (const int m : kRowCounts)
      for (const bool add : {false, true}) {
        const Product p{depth, m};
        const std::vector<float> rows = random_floats((m - 1) * p.a_stride + depth);
        const std::vector<float> expected = p.expected(rows, add);
        p.check(expected, rows, add);
        for (const Edge edge : kEdges)
          ASSERT_TRUE(same(expected, p.run(k.product, rows, add, edge))) << depth << " " << m;
      }
}

/// Columns that are wanted do not depend on how many those are.
TEST_P(OnRung, ProductsOfSomeColumns) {
  for (const int depth : {1, 3, 64, 513, 1025})
    for (const int m : kRowCounts) {
      const Product p{depth, m};
      const std::size_t elements = std::size_t((m - 1) * p.a_stride + depth);
      const std::vector<bf16> rows = random_bf16(elements);
      const std::vector<float> wide = random_floats(elements), numbers = random_floats(std::size_t(depth) * kPanel);
      for (const int columns : {1, 16, 31, 32, 33, 48, 63, 64})
        for (const bool add : {false, true}) {
          const auto check = [&](auto product) {
            const std::vector<float> all = product(kPanel), some = product(columns);
            for (int i = 0; i < m; ++i)
              for (int j = 0; j < columns; ++j)
                ASSERT_TRUE(same(some[i * p.c_stride + j], all[i * p.c_stride + j])) << depth << " " << m << " " << columns;
          };
          const auto of_pairs = [&](const auto& a) {
            check([&](int n) {
              return p.run([&](const auto&... x) { k.product(x..., Ahead::nothing(), n); }, a, add, Edge::end);
            });
          };
          of_pairs(rows), of_pairs(wide);
          check([&](int n) {
            const Guarded<float> a(wide, Edge::end), panel(numbers, Edge::end), c(p.before, Edge::end);
            k.product(a, p.a_stride, m, panel, depth, c, p.c_stride, add, Ahead::nothing(), n);
            return c.values();
          });
        }
    }
}

TEST_P(OnRung, ProductWithFloatsHasTheSameBits) {
  for (const int depth : kWidths)
    for (const int m : kRowCounts)
      for (const bool add : {false, true}) {
        const Product p{depth, m};
        const std::vector<float> rows = random_floats((m - 1) * p.a_stride + depth);
        const std::vector<float> weights = random_floats(p.weight.size());
        std::vector<float> expected = p.before;
        for (int i = 0; i < m; ++i)
          for (int j = 0; j < kPanel; ++j)
            expected[i * p.c_stride + j] = chained(
                rows.data() + i * p.a_stride, [&](int q) { return weights[q * kPanel + j]; }, depth,
                p.before[i * p.c_stride + j], add);
        for (const Edge edge : kEdges) {
          const Guarded<float> a(rows, edge), panel(weights, edge), c(p.before, edge);
          k.product(a, p.a_stride, m, panel, depth, c, p.c_stride, add);
          ASSERT_TRUE(same(expected, c.values())) << depth << " " << m;
        }
      }
}

/// Columns flush with unmapped pages, of extreme codes too: 131071 of them are all that an int32 holds.
TEST_P(OnRung, ProductOfColumns) {
  for (const int depth : {1, 3, 15, 16, 31, 32, 63, 64, 65, 127, 200, 2047, 2048, 2049, 4096, 4097, 9000, 131071})
    for (int m = 1; m <= kColumnRows; ++m)
      for (const int n : {1, 2, 3, 4, 7}) {
        if (depth > 200 && n != 7 && m % 3 != 0) continue;
        if (depth > 9000 && m != 5) continue;
        const int pitch = depth + (m % 2 == 0 ? 0 : 5), a_stride = depth + m % 3, c_stride = n + m % 2;
        std::vector<std::int8_t> codes = random_codes(std::size_t((n - 1) * pitch + depth));
        std::vector<std::uint8_t> rows;
        for (const std::int8_t x : random_codes(std::size_t((m - 1) * a_stride + depth))) rows.push_back(std::uint8_t(x + 128));
        if (m == 5) std::fill(codes.begin(), codes.end(), std::int8_t(-128)), std::fill(rows.begin(), rows.end(), std::uint8_t(0));
        for (const int ahead : {0, 4096}) {  // few rows go by it
          if (m > 3 && ahead > 0) continue;
          const Tuning before = tuning;
          tuning.run_ahead = ahead;
          for (const Edge edge : kEdges) {
            const Guarded<std::uint8_t> a(rows, edge);
            const Guarded<std::int8_t> columns(codes, edge);
            const Guarded<std::int32_t> c(std::vector<std::int32_t>(std::size_t((m - 1) * c_stride + n), 7), edge);
            k.column_product(a, a_stride, m, columns, pitch, depth, n, c, c_stride);
            const std::vector<std::int32_t> got = c.values();
            for (int i = 0; i < m; ++i)
              for (int j = 0; j < c_stride && i * c_stride + j < int(got.size()); ++j) {
                std::int32_t sum = j < n ? 0 : 7;
                for (int p = 0; p < depth && j < n; ++p) sum += (rows[i * a_stride + p] - 128) * codes[j * pitch + p];
                ASSERT_EQ(got[i * c_stride + j], sum) << depth << " " << m << " " << n << ": " << i << " " << j;
              }
          }
          tuning = before;
        }
      }
}

TEST_P(OnRung, ProductsOfNothing) {
  float c[kPanel], d[kPanel], e[kPanel];
  std::fill_n(c, kPanel, 3.0f), std::fill_n(d, kPanel, 3.0f), std::fill_n(e, kPanel, 3.0f);
  for (const bool add : {false, true}) {
    const bf16* none = nullptr;
    const float* nothing = nullptr;
    k.product(none, 0, 1, none, 0, c, kPanel, add);
    k.product(nothing, 0, 1, none, 0, d, kPanel, add);
    k.product(nothing, 0, 1, nothing, 0, e, kPanel, add);
    for (int j = 0; j < kPanel; ++j) ASSERT_TRUE(c[j] == 0 && d[j] == 0 && e[j] == 0);
  }
}

TEST_P(OnRung, BlocksAreSummedInOrder) {
  // 2^24 from the first block swallows the second's 1 but not the third's 2: only this order gives 2^24 + 2.
  Product p{3 * kSumBlock, 1};
  for (bf16& w : p.weight) w = cut(1);
  std::vector<float> rows(p.depth);
  rows[0] = 0x1p24f, rows[kSumBlock] = 1, rows[2 * kSumBlock] = 2;
  std::vector<bf16> short_rows(p.depth);
  for (int i = 0; i < p.depth; ++i) short_rows[i] = cut(rows[i]);
  EXPECT_EQ(p.run(k.product, rows, false, Edge::end)[0], 0x1p24f + 2);
  EXPECT_EQ(p.run(k.product, short_rows, false, Edge::end)[0], 0x1p24f + 2);
}

/// Codes of all kinds with scales of all kinds, and the numbers they stand for.
struct ScaledWeight {
  int depth;
  std::vector<e4m3> codes = std::vector<e4m3>(std::size_t(Panel<e4m3>::elements(depth)));
  std::vector<float> scales;
  std::vector<bf16> numbers = std::vector<bf16>(std::size_t(Panel<bf16>::elements(depth)));

  explicit ScaledWeight(int depth, float (*scale)(int)) : depth(depth) {
    for (int p = 0; p < depth; p += kScaleRows) scales.push_back(scale(p / kScaleRows));
    for (int p = 0; p < depth; ++p)
      for (int j = 0; j < kPanel; ++j) {
        int code = int(random_bits() & 255);
        if ((code & 127) == 127) code = 0x80;
        codes[Panel<e4m3>::at(p, j)].bits = std::uint8_t(code);
        numbers[Panel<bf16>::at(p, j)] = to_bf16(value(code) * scales[p / kScaleRows]);
      }
  }
  static float value(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float size = exponent ? std::ldexp(float(8 + mantissa), exponent - 10) : std::ldexp(float(mantissa), -9);
    return code & 128 ? -size : size;
  }
};

float plain_scale(int i) { return 0.001f + 0.37f * float(i); }
/// Among them those at which numbers become subnormal, overflow, vanish, or change their sign.
float wild_scale(int i) {
  const float all[] = {0x1p-120f, 3e38f, -0.7f, 0, 0x1p-149f, -1.9e-38f, 0x1.fffp109f, 0x1p-110f, 1.3f};
  return all[i % 9];
}

TEST_P(OnRung, ScaledPanelsAreWidenedExactly) {
  for (const auto scale : {plain_scale, wild_scale})
    for (const int depth : {1, 2, 3, 4, 127, 128, 129, 130, 131, 1152})
      for (const Edge edge : kEdges) {
        const ScaledWeight w(depth, scale);
        const Guarded<e4m3> codes(w.codes, edge);
        const Guarded<float> scales(w.scales, edge);
        const Guarded<bf16> out(std::size_t(Panel<e4m3>::elements(depth)), edge);
        k.widen_scaled({codes, scales}, depth, out);
        for (int p = 0; p < depth; ++p)
          for (int j = 0; j < kPanel; ++j) {
            const std::ptrdiff_t at = Panel<bf16>::at(p, j);
            ASSERT_EQ(out[at].bits, w.numbers[at].bits) << depth << " " << p << " " << j;
          }
      }
}

template <class T>
void check_scaled(const Kernels& k, const std::vector<T> (*random)(std::size_t)) {
  for (const auto scale : {plain_scale, wild_scale})
    for (const int depth : {0, 1, 2, 3, 4, 5, 6, 7, 127, 128, 130, 511, 512, 513, 1030})
      for (const int m : {1, 2, 3, 7})
        for (const bool add : {false, true}) {
          const ScaledWeight w(depth, scale);
          const std::ptrdiff_t a_stride = depth + 3, c_stride = kPanel + 5;
          const std::vector<T> rows = random((m - 1) * a_stride + depth);
          const std::vector<float> before = random_floats((m - 1) * c_stride + kPanel);
          for (const Edge edge : kEdges) {
            const Guarded<T> a(rows, edge);
            const Guarded<e4m3> codes(w.codes, edge);
            const Guarded<float> scales(w.scales, edge), got(before, edge), expected(before, edge);
            k.product(a, a_stride, m, w.numbers.data(), depth, expected, c_stride, add);
            k.product(a, a_stride, m, ScaledPanel{codes, scales}, depth, got, c_stride, add);
            ASSERT_TRUE(same(expected.values(), got.values())) << depth << " " << m;
          }
        }
}

TEST_P(OnRung, ProductsWithScaledPanelsHaveTheBitsOfTheirNumbers) {
  check_scaled<bf16>(k, [](std::size_t n) -> const std::vector<bf16> { return random_bf16(n); });
  check_scaled<float>(k, [](std::size_t n) -> const std::vector<float> { return random_floats(n); });
}

// ---- the indexer ------------------------------------------------------------------------------------------------

TEST_P(OnRung, IndexScoresI8) {
  struct Heads {
    int blocks, heads;
  };
  for (const auto [blocks, heads] : {Heads{1, 16}, {2, 32}, {3, 48}, {4, 64}, {5, 80}, {8, 128}, {1, 0}, {1, 1}, {1, 2},
                                     {1, 3}, {1, 4}, {1, 5}, {1, 6}, {1, 7}, {1, 8}, {1, 9}})
    for (const int dims : {1, 2, 3, 4, 7, 64, 66, 127, 128, 129, 512, 515})
      for (const int count : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 16, 23, 30, 67}) {
        const Edge edge = kEdges[(blocks + dims + count) % 2];
        const std::vector<std::int8_t> q = random_codes(std::size_t(blocks) * ((dims + 3) / 4) * 64);
        Guarded<std::uint8_t> codes(q.size(), Edge::end);
        for (std::size_t i = 0; i < q.size(); ++i) codes[i] = std::uint8_t(q[i] + 128);
        std::vector<float> weights = random_floats(blocks * 16);
        std::fill(weights.begin() + heads, weights.end(), 0.0f);
        const Guarded<float> weight(weights, edge);
        const std::ptrdiff_t stride = dims + count % 3;
        const Guarded<std::int8_t> key(random_codes((count - 1) * stride + dims), edge);
        const Guarded<float> scores(count, edge);
        k.index_scores(IndexQueryI8{codes, weight, blocks, dims}, key, stride, count, scores, key);
        const Guarded<float> same_scores(count, edge), more_scores(count, edge);
        std::vector<std::int32_t> start(std::size_t(count) + 3);
        KeyStarts starts{start.data()};
        for (const auto* to : {&same_scores, &more_scores})
          k.index_scores(IndexQueryI8{codes, weight, blocks, dims}, key, stride, count, *to, nullptr, &starts);
        ASSERT_TRUE(same(same_scores.values(), scores.values()) && same(more_scores.values(), scores.values()));
        for (int s = 0; s < count; ++s) {
          float lane[16] = {};
          for (int h = 0; h < blocks * kHeadBlock; ++h) {
            int dot = 0;
            for (int d = 0; d < dims; ++d)
              dot += q[IndexQueryLayout<std::uint8_t>::at(dims, h, d)] * key[s * stride + d];
            lane[h % 16] = std::fma(weight[h], float(std::max(dot, 0)), lane[h % 16]);
          }
          ASSERT_TRUE(same(scores[s], folded(lane))) << heads << " " << dims << " " << count;
        }
      }
}

/// The formula once more, from the contract alone.
TEST_P(OnRung, IndexScoresI8FollowsTheFormula) {
  constexpr int kBlocks = 5, kDims = 128, kCount = 40;
  const std::vector<std::int8_t> q = random_codes(kBlocks * kDims * 16), key = random_codes(kCount * kDims);
  alignas(64) std::uint8_t codes[kBlocks * kDims * 16];
  for (std::size_t i = 0; i < q.size(); ++i) codes[i] = std::uint8_t(q[i] + 128);
  const std::vector<float> weight = random_floats(kBlocks * 16);
  float scores[kCount];
  k.index_scores({codes, weight.data(), kBlocks, kDims}, key.data(), kDims, kCount, scores, nullptr);
  for (int s = 0; s < kCount; ++s) {
    float lane[16] = {};
    for (int h = 0; h < kBlocks * 16; ++h) {
      int dot = 0;
      for (int d = 0; d < kDims; ++d)
        dot += q[((h / 16 * (kDims / 4) + d / 4) * 16 + h % 16) * 4 + d % 4] * key[s * kDims + d];
      lane[h % 16] = std::fma(weight[h], float(std::max(dot, 0)), lane[h % 16]);
    }
    for (int half = 8; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
    ASSERT_TRUE(same(scores[s], lane[0])) << s;
  }
}

TEST_P(OnRung, IndexScoresF32) {
  for (const int blocks : {1, 2, 3, 4, 5, 8})
    for (const int dims : {1, 3, 64, 128})
      for (const int count : {1, 2, 3, 4, 5, 6, 7, 12, 13, 25})
        for (const bool wild : {false, true}) {
          const Edge edge = kEdges[(blocks + dims + count) % 2];
          std::vector<float> q = random_floats(blocks * 16 * dims), x;
          const std::ptrdiff_t stride = dims + count % 3;
          x = random_floats((count - 1) * stride + dims, 100);
          for (float& v : q) v = to_float(cut(v));
          for (float& v : x) v = to_float(cut(v));
          if (wild) {
            x[random_bits() % x.size()] = kNaN;
            x[random_bits() % x.size()] = kInf;
            q[random_bits() % q.size()] = -kInf;
            q[random_bits() % q.size()] = 0;
          }
          const Guarded<float> values(q, edge), weight(random_floats(blocks * 16), edge), key(x, edge);
          const Guarded<float> scores(count, edge);
          k.index_scores(IndexQueryF32{values, weight, blocks, dims}, key, stride, count, scores);
          for (int s = 0; s < count; ++s) {
            float lane[16] = {};
            for (int h = 0; h < blocks * kHeadBlock; ++h) {
              float dot = 0;
              for (int d = 0; d < dims; ++d)
                dot = std::fma(values[IndexQueryLayout<float>::at(dims, h, d)], key[s * stride + d], dot);
              lane[h % 16] = std::fma(weight[h], dot < 0 ? 0 : dot, lane[h % 16]);
            }
            ASSERT_TRUE(same(scores[s], folded(lane))) << blocks << " " << dims << " " << count;
          }
        }
}

TEST_P(OnRung, AppendCandidates) {
  EXPECT_EQ(order_key(-0.0f), order_key(0.0f));
  EXPECT_LT(order_key(kNaN), order_key(-kInf));
  EXPECT_LT(order_key(-0x1p-149f), order_key(0.0f));
  EXPECT_LT(order_key(3.0f), order_key(kInf));
  const std::uint32_t floors[] = {0,
                                  1,
                                  order_key(-kInf),
                                  order_key(-kInf) + 1,
                                  order_key(0.0f),
                                  order_key(0.0f) + 1,
                                  order_key(1.0f),
                                  order_key(kInf),
                                  order_key(kInf) + 1,
                                  0xffffffffu};
  for (int count = 0; count <= 200; ++count) {
    const Edge edge = kEdges[count % 2];
    const Guarded<float> scores(wild_floats(count), edge);
    for (const std::uint32_t floor : floors) {
      const Guarded<std::uint64_t> out(count, edge);
      const std::uint32_t first = count % 5 == 0 ? 0xffffff00u : 1000u;
      const int n = k.append_candidates(scores, count, first, floor, out);
      std::vector<std::uint64_t> expected;
      for (int i = 0; i < count; ++i)
        if (order_key(scores[i]) >= floor)
          expected.push_back(candidate(order_key(scores[i]), first + std::uint32_t(i)));
      ASSERT_EQ(n, int(expected.size()));
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), &out[0]));
    }
  }
}

// ---- rows -------------------------------------------------------------------------------------------------------

TEST_P(OnRung, SumsAreCanonical) {
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      const Guarded<float> x(random_floats(n, 3), edge);
      float sums[16] = {}, squares[16] = {};
      for (int i = 0; i < n; ++i) {
        const float square = x[i] * x[i], term = square * 0.3f, each = x[i] * 0.3f;
        squares[i % 16] += term;
        sums[i % 16] += each;
      }
      for (float* lane : {sums, squares})
        for (int half = 8; half > 0; half /= 2)
          for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
      ASSERT_TRUE(same(k.sum(x, n, 0.3f), sums[0])) << n;
      ASSERT_TRUE(same(k.sum_squares(x, n, 0.3f), squares[0])) << n;
    }
}

TEST_P(OnRung, MaxAbs) {
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      const Guarded<float> x(n % 2 ? wild_floats(n) : random_floats(n), edge);
      float expected = 0;
      for (int i = 0; i < n; ++i)
        if (std::abs(x[i]) > expected) expected = std::abs(x[i]);
      ASSERT_TRUE(same(k.max_abs(x, n), expected)) << n;
    }
}

TEST_P(OnRung, Quantize) {
  const auto code = [](float x) { return std::int8_t(x != x ? 0 : std::clamp(std::nearbyint(x), -128.0f, 127.0f)); };
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges)
      for (const float multiplier : {1.0f, 0.37f, 100.0f, kInf, 0.0f}) {
        std::vector<float> values = n % 2 ? wild_floats(n) : random_floats(n, 140);
        for (int i = 0; i < n; i += 5) values[i] = float(int(random_bits() % 260) - 130) + 0.5f;
        const Guarded<float> x(values, edge);
        const Guarded<std::int8_t> codes(n, edge);
        k.quantize(x, n, multiplier, codes);
        for (int i = 0; i < n; ++i) ASSERT_EQ(codes[i], code(x[i] * multiplier)) << n << " " << x[i];
      }
}

/// x as T keeps it, before guard pages or after them.
template <class T>
Guarded<T> kept(const std::vector<float>& x, Edge edge) {
  std::vector<T> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    if constexpr (std::is_same_v<T, bf16>) y[i] = to_bf16(x[i]);
    else if constexpr (std::is_same_v<T, f16>) y[i] = to_f16(x[i]);
    else y[i] = x[i];
  return Guarded<T>(y, edge);
}
float number(float x) { return x; }
template <class T>
float number(T x) { return to_float(x); }

/// f.operator()<T>(n, edge) for rows of every dtype and every length up to 257.
template <class F>
void each_row(F f) {
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      f.template operator()<bf16>(n, edge);
      f.template operator()<f16>(n, edge);
      f.template operator()<float>(n, edge);
    }
}

TEST_P(OnRung, QuantizesRowsAsTheyAreKept) {
  const auto code = [](float x) { return std::int8_t(x != x ? 0 : std::clamp(std::nearbyint(x), -128.0f, 127.0f)); };
  each_row([&]<class T>(int n, Edge edge) {
    const Guarded<T> x = kept<T>(n % 2 ? wild_floats(n) : random_floats(n, 140), edge);
    const Guarded<float> each(n % 3 ? random_floats(n, 2) : wild_floats(n), edge);
    const Guarded<std::int8_t> codes(n, edge);
    for (const float* factors : {static_cast<const float*>(each), static_cast<const float*>(nullptr)}) {
      float largest = 0;
      for (int i = 0; i < n; ++i)
        if (const float z = number(x[i]) * (factors ? each[i] : 1); std::abs(z) > largest) largest = std::abs(z);
      ASSERT_TRUE(same(k.max_abs(x, n, factors), largest)) << n;
      k.quantize(x, n, 0.37f, codes, factors);
      for (int i = 0; i < n; ++i) {
        const float z = factors ? number(x[i]) * each[i] : number(x[i]);
        ASSERT_EQ(codes[i], code(z * 0.37f)) << n << " " << z;
      }
    }
  });
}

TEST_P(OnRung, QuantizesByBlock) {
  each_row([&]<class T>(int n, Edge edge) {
    const Guarded<T> x = kept<T>(n % 2 ? wild_floats(n) : random_floats(n, 140), edge);
    const Guarded<std::int8_t> codes(n, edge), alone(n, edge);
    for (const int block : {32, 100})
      for (const float min_scale : {0.0f, 2.0f}) {
        const Guarded<float> scales((n + block - 1) / block, edge);
        k.quantize_blocks(x, n, block, min_scale, codes, scales);
        for (int first = 0; first < n; first += block) {
          const int some = std::min(block, n - first);
          const float largest = k.max_abs(x + first, some), inverse = 1.0f / largest;
          float multiplier = inverse * 127.0f, scale = largest * (1.0f / 127.0f);
          if (min_scale > 0) multiplier = std::max(multiplier, min_scale), scale = std::min(scale, 1.0f / min_scale);
          if (!std::isfinite(inverse * 127.0f)) multiplier = scale = 0;
          ASSERT_TRUE(same(scales[first / block], scale)) << n << " " << largest;
          k.quantize(x + first, some, multiplier, alone);
          for (int i = 0; i < some; ++i) ASSERT_EQ(codes[first + i], multiplier == 0 ? 0 : alone[i]) << n;
        }
      }
  });
}

TEST_P(OnRung, QuantizesByChannel) {
  each_row([&]<class T>(int n, Edge edge) {
    std::vector<float> values = n % 2 ? wild_floats(n) : random_floats(n, 140), zeros(n);
    for (int i = 0; i < n; i += 5) values[i] = float(int(random_bits() % 260) - 130) + 0.5f;
    for (float& z : zeros) z = float(int(random_bits() % 512) - 256);
    for (int i = 0; i < n; i += 7) zeros[i] = i % 2 ? 1048575.0f : -1048575.0f;
    const Guarded<T> x = kept<T>(values, edge);
    const Guarded<float> scale(n % 3 ? random_floats(n, 2) : wild_floats(n), edge), zero(zeros, edge);
    const Guarded<std::int8_t> codes(n, edge);
    const auto cut = [](double v, double low, double high) { return v != v ? 0 : std::clamp(v, low, high); };
    for (const bool with_shift : {false, true}) {
      k.quantize_channels(x, scale, with_shift ? static_cast<const float*>(zero) : nullptr, n, codes);
      for (int i = 0; i < n; ++i) {
        const float product = number(x[i]) * scale[i], v = with_shift ? product + zero[i] : product;
        ASSERT_EQ(codes[i], int(cut(std::nearbyint(double(v)), -128, 127))) << n << " " << v;
      }
    }
    for (const bool is_unsigned : {false, true})
      for (const float* zeros : {static_cast<const float*>(zero), static_cast<const float*>(nullptr)}) {
        k.divide_channels(x, scale, zeros, n, is_unsigned, codes);
        for (int i = 0; i < n; ++i) {
          const float quotient = number(x[i]) / scale[i];
          const double v = std::nearbyint(double(quotient)) + (zeros ? zeros[i] : 0);
          const int wanted = int(is_unsigned ? cut(v, 0, 255) : cut(v, -128, 127));
          ASSERT_EQ(is_unsigned ? std::uint8_t(codes[i]) : codes[i], wanted) << n << " " << quotient << " " << zero[i];
        }
      }
  });
}

TEST_P(OnRung, Rotates) {
  std::vector<int> halves = {126, 127, 129, 130, 135};
  for (int half = 0; half <= 65; ++half) halves.push_back(half);
  for (const int half : halves)
    for (const Edge edge : kEdges)
      for (const RopePairs pairs : {RopePairs::half, RopePairs::adjacent, RopePairs::adjacent_to_half}) {
        const auto of = [&]<class T>(T) {
          constexpr int kRows = 3;
          const int n = 2 * half, pitch = n + (half % 4 ? 3 : 0);
          const int own = half % 3 ? n : 0;  // whether rows have a cos and sin of their own
          const Guarded<T> x = kept<T>(half % 2 ? wild_floats(kRows * pitch) : random_floats(kRows * pitch), edge);
          const Guarded<T> cos = kept<T>(random_floats(kRows * n), edge), sin = kept<T>(random_floats(kRows * n), edge);
          const Guarded<T> y = kept<T>(std::vector<float>(kRows * pitch, 7), edge);
          k.rotate(RotateRows<T>{pairs, x, pitch, cos, own, sin, own, y, pitch, kRows, half});
          for (int r = 0; r < kRows; ++r)
            for (int j = 0; j < pitch; ++j) {
              if (j >= n) {
                ASSERT_EQ(number(y[r * pitch + j]), 7);
                continue;
              }
              const bool split = pairs == RopePairs::half;
              const bool out_pairs = pairs == RopePairs::adjacent;
              const int pair = out_pairs ? j / 2 : j % half;
              const bool second = out_pairs ? j % 2 : j >= half;
              const float a = number(x[r * pitch + (split ? pair : 2 * pair)]);
              const float b = number(x[r * pitch + (split ? pair + half : 2 * pair + 1)]);
              const float c = number(cos[r * own + j]), s = number(sin[r * own + j]);
              const float wanted = second ? b * c + a * s : a * c - b * s;
              ASSERT_TRUE(same(number(y[r * pitch + j]), number(kept<T>({wanted}, edge)[0]))) << half << " " << j;
            }
        };
        of(bf16{}), of(f16{}), of(0.0f);
      }
}

/// Rows of whole numbers, whose sums are exact, and of others: the bits of plain loops in the promised order.
TEST_P(OnRung, Hadamard) {
  for (int n = kHadamardLeast; n <= kHadamardMost; n *= 2)
    for (const Edge edge : kEdges)
      for (const float scale : {1.0f, -0.08837890625f}) {
        constexpr int kRows = 3;
        std::vector<float> values = random_floats(kRows * n, 3);
        for (int i = 0; i < n; ++i) values[n + i] = float(int(random_bits() % 15) - 7);
        values[2 * n + 5] = kInf, values[2 * n + n - 1] = n == 256 ? -kInf : 2.0f;
        const Guarded<bf16> x = kept<bf16>(values, edge), y(kRows * n, edge);
        k.hadamard(x, kRows, n, scale, y);
        for (int r = 0; r < kRows; ++r) {
          std::vector<float> sums(n);
          for (int i = 0; i < n; ++i) sums[i] = number(x[r * n + i]) * scale;
          for (int far = 1; far < n; far *= 2)
            for (int i = 0; i < n; ++i)
              if (const float a = sums[i], b = sums[i ^ far]; !(i & far)) sums[i] = a + b, sums[i ^ far] = a - b;
          for (int j = 0; j < n; ++j) {
            ASSERT_TRUE(same(number(y[r * n + j]), number(kept<bf16>({sums[j]}, edge)[0]))) << n << " " << r << " " << j;
            if (r != 1 || scale != 1) continue;
            float exact = 0;
            for (int i = 0; i < n; ++i) exact += (std::popcount(unsigned(i & j)) % 2 ? -1 : 1) * number(x[r * n + i]);
            ASSERT_EQ(number(y[r * n + j]), number(kept<bf16>({exact}, edge)[0]));
          }
        }
        const Guarded<bf16> same_place(std::vector<bf16>(&x[0], &x[0] + kRows * n), edge);
        k.hadamard(same_place, kRows, n, scale, same_place);
        for (int i = 0; i < kRows * n; ++i) ASSERT_TRUE(same(number(same_place[i]), number(y[i])));
      }
}

TEST_P(OnRung, Dequantize) {
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      const Guarded<std::int32_t> acc(n, edge);
      for (int i = 0; i < n; ++i) acc[i] = std::int32_t(random_bits()) >> random_bits() % 32;
      const Guarded<float> scale(random_floats(n), edge);
      const auto of = [&]<class T>(T) {
        const Guarded<T> y(n, edge);
        k.dequantize(acc, n, 0.7f, scale, y);
        for (int i = 0; i < n; ++i) {
          const float row = float(acc[i]) * 0.7f;
          ASSERT_EQ(number(y[i]), number(kept<T>({row * scale[i]}, edge)[0]));
        }
      };
      of(bf16{}), of(f16{}), of(0.0f);
    }
}

TEST_P(OnRung, WidensEverySixteenBitFloat) {
  std::vector<bf16> x(65536);
  std::vector<f16> h(65536);
  for (int i = 0; i < 65536; ++i) x[i].bits = h[i].bits = std::uint16_t(i);
  std::vector<float> y(65536), z(65536);
  k.widen(x.data(), 65536, y.data());
  k.widen(h.data(), 65536, z.data());
  for (int i = 0; i < 65536; ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(y[i]), std::uint32_t(i) << 16);
    const int exponent = i >> 10 & 31, fraction = i & 1023;
    double value = exponent == 0    ? std::ldexp(fraction, -24)
                   : exponent == 31 ? (fraction ? double(kNaN) : double(kInf))
                                    : std::ldexp(1024 + fraction, exponent - 25);
    if (i >> 15) value = -value;
    ASSERT_TRUE(same(z[i], float(value))) << i;
  }
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      const Guarded<bf16> a(std::vector<bf16>(x.begin() + 16000, x.begin() + 16000 + n), edge);
      const Guarded<f16> b(std::vector<f16>(h.begin() + 16000, h.begin() + 16000 + n), edge);
      const Guarded<float> c(n, edge), d(n, edge);
      k.widen(a, n, c);
      k.widen(b, n, d);
      for (int i = 0; i < n; ++i) ASSERT_TRUE(same(c[i], y[16000 + i]) && same(d[i], z[16000 + i]));
    }
}

template <class T>
std::vector<T> rounded(const std::vector<float>& x) {
  std::vector<T> y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), round_to<T>);
  return y;
}

/// a / (1 + exp(-a)) * b of floats where exp is exact, or nearly: from underflow through 0 to overflow of exp(-a).
TEST_P(OnRung, Swiglu) {
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      std::vector<float> gates = random_floats(n, n % 2 == 0 ? 8 : 120);
      if (n > 5) gates[n / 2] = 0, gates[n / 3] = n % 4 == 0 ? -1e30f : 1e30f, gates[n - 1] = -88.7f;
      const Guarded<float> a(gates, edge), b(random_floats(n, 3), edge), y(n, edge);
      k.swiglu(a, b, n, y);
      std::vector<float> same_everywhere(n);
      find_kernels("generic")->swiglu(a, b, n, same_everywhere.data());
      ASSERT_TRUE(same(y.values(), same_everywhere));
      for (int i = 0; i < n; ++i) {
        const float e = float(std::exp(-double(a[i]))), exact = a[i] / (1.0f + e) * b[i];
        ASSERT_LE(std::abs(y[i] - exact), 0x1p-21f * std::abs(exact)) << a[i] << ", " << b[i];
      }
    }
  const float some[] = {kNaN, 1, kInf, -kInf}, one[] = {1, kNaN, 1, 1};
  float y[4];
  k.swiglu(some, one, 4, y);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && y[2] == kInf);
}

/// The kernels that read rows of T, beside the formula in fp32 and one rounding to T.
template <class T>
class RowsOf {
 public:
  explicit RowsOf(const Kernels& k) : k(k) {}

  void swiglu() const {
    each_size([&](int n, Edge edge) {
      const Guarded<T> a(row(n, 8), edge), b(row(n, 3), edge), y(n, edge);
      const std::vector<float> fa = floats(a, n), fb = floats(b, n);
      std::vector<float> expected(n);
      k.swiglu(fa.data(), fb.data(), n, expected.data());  // which is judged above
      k.swiglu(a, b, n, y);
      ASSERT_TRUE(same(y.values(), rounded<T>(expected))) << n;
      k.swiglu(a, b, n, a);
      ASSERT_TRUE(same(a.values(), y.values())) << n;
    });
  }

  /// norm returns statistic(row, epsilon), and an element is element(x, that, gamma).
  template <class Norm, class Element>
  void norm(const Norm& norm, float (*statistic)(const std::vector<float>&, float), Element element) const {
    each_size([&](int n, Edge edge) {
      const Guarded<T> x(row(n, 3), edge), y(n, edge);
      const Guarded<float> gamma(random_floats(n, 2), edge);
      std::vector<float> expected = floats(x, n);
      const float of_row = statistic(expected, 0.1f);
      for (int i = 0; i < n; ++i) expected[i] = element(expected[i], of_row, gamma[i]);
      ASSERT_TRUE(same(norm(x, gamma, n, 0.1f, y), of_row)) << n;
      ASSERT_TRUE(same(y.values(), rounded<T>(expected))) << n;
      norm(x, gamma, n, 0.1f, x);
      ASSERT_TRUE(same(x.values(), y.values())) << n;
    });
  }
  void rms_norm() const {
    norm(k.rms_norm, rstd_of, [](float x, float rstd, float gamma) { return x * rstd * gamma; });
  }
  void rms_norm_divided() const {
    norm(k.rms_norm_divided, root_of, [](float x, float root, float gamma) { return x / root * gamma; });
  }

  void add_rms_norm() const {
    each_size([&](int n, Edge edge) {
      const Guarded<T> a(row(n, 3), edge), b(row(n, 2), edge), x(n, edge), y(n, edge);
      const Guarded<float> gamma(random_floats(n, 2), edge), beta(random_floats(n, 2), edge);
      std::vector<float> sum = floats(a, n), other = floats(b, n);
      for (int i = 0; i < n; ++i) sum[i] = sum[i] + other[i];
      const std::vector<T> kept = rounded<T>(sum);
      sum = floats(kept.data(), n);
      const float rstd = rstd_of(sum, 0.1f);
      for (const float* plus : {static_cast<const float*>(beta), static_cast<const float*>(nullptr)}) {
        std::vector<float> expected(n);
        for (int i = 0; i < n; ++i) {
          expected[i] = to_float(round_to<T>(sum[i] * rstd)) * gamma[i];
          if (plus && std::is_same_v<T, f16>) expected[i] = to_float(round_to<T>(expected[i]));
          if (plus) expected[i] = expected[i] + plus[i];
        }
        ASSERT_TRUE(same(k.add_rms_norm(a, b, gamma, plus, n, 0.1f, x, y), rstd)) << n;
        ASSERT_TRUE(same(x.values(), kept)) << n;
        ASSERT_TRUE(same(y.values(), rounded<T>(expected))) << n;
      }
    });
  }

  void weighted_sum() const {
    each_size([&](int n, Edge edge) {
      const int count = n % 5;
      const std::vector<float> weights = random_floats(5);
      std::vector<std::unique_ptr<Guarded<T>>> rows;
      std::vector<const T*> row_at;
      std::vector<float> expected(n);
      for (int j = 0; j < count; ++j) {
        rows.push_back(std::make_unique<Guarded<T>>(row(n, 3), edge));
        row_at.push_back(*rows.back());
        for (int i = 0; i < n; ++i) {
          const float term = to_float(row_at[j][i]) * weights[j];
          expected[i] = expected[i] + term;
        }
      }
      const Guarded<T> y(n, edge);
      k.weighted_sum(row_at.data(), weights.data(), count, n, y);
      ASSERT_TRUE(same(y.values(), rounded<T>(expected))) << n;
    });
  }

 private:
  template <class F>
  static void each_size(F f) {
    for (int n = 0; n <= 257; ++n)
      for (const Edge edge : kEdges) ASSERT_NO_FATAL_FAILURE(f(n, edge));
  }
  static std::vector<T> row(int n, float magnitude) {
    std::vector<float> x = random_floats(n, magnitude);
    if (n > 200) x[n / 2] = n % 3 == 0 ? kNaN : 0x1p-20f;
    return rounded<T>(x);
  }
  static std::vector<float> floats(const T* x, int n) {
    std::vector<float> y(n);
    for (int i = 0; i < n; ++i) y[i] = to_float(x[i]);
    return y;
  }
  static float root_of(const std::vector<float>& x, float epsilon) {
    float lane[16] = {};
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float square = x[i] * x[i];
      lane[i % 16] += square;
    }
    const float mean = folded(lane) * (1.0f / float(x.size()));
    return std::sqrt(mean + epsilon);
  }
  static float rstd_of(const std::vector<float>& x, float epsilon) { return 1.0f / root_of(x, epsilon); }

  const Kernels& k;
};

template <class Test>
void on_rows_of_each(const Kernels& k, Test test) {
  test(RowsOf<bf16>(k)), test(RowsOf<f16>(k)), test(RowsOf<float>(k));
}
TEST_P(OnRung, SwigluOfRows) { on_rows_of_each(k, [](const auto& rows) { rows.swiglu(); }); }
TEST_P(OnRung, RmsNorm) { on_rows_of_each(k, [](const auto& rows) { rows.rms_norm(); }); }
TEST_P(OnRung, RmsNormDivided) { on_rows_of_each(k, [](const auto& rows) { rows.rms_norm_divided(); }); }
TEST_P(OnRung, AddRmsNorm) { on_rows_of_each(k, [](const auto& rows) { rows.add_rms_norm(); }); }
TEST_P(OnRung, WeightedSum) { on_rows_of_each(k, [](const auto& rows) { rows.weighted_sum(); }); }

/// Around every bf16 value: itself, the midpoint to the next, and the neighbours of that.
TEST_P(OnRung, RoundsToNearestEven) {
  std::vector<float> x;
  std::vector<std::uint16_t> expected;
  for (std::uint32_t low = 0; low < 65536; ++low) {
    const bool nan = (low & 0x7fff) > 0x7f80, infinite = (low & 0x7fff) == 0x7f80;
    for (const std::uint32_t tail : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      if (infinite && tail != 0) continue;  // those are NaN with an empty upper half: below
      x.push_back(std::bit_cast<float>(low << 16 | tail));
      const bool up = tail > 0x8000 || (tail == 0x8000 && low % 2 == 1);
      expected.push_back(nan ? std::uint16_t(low | 0x40) : std::uint16_t(low + up));
    }
  }
  x.push_back(std::bit_cast<float>(0x7f800001u)), expected.push_back(0x7fc0);
  x.push_back(std::bit_cast<float>(0xff80ffffu)), expected.push_back(0xffc0);
  std::vector<bf16> y(x.size());
  k.round(x.data(), std::int64_t(x.size()), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, expected[i]) << std::bit_cast<std::uint32_t>(x[i]);
  std::fill(y.begin(), y.end(), bf16{});
  k.divide(x.data(), 1, std::int64_t(x.size()), y.data());  // what is computed, two registers at a time
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, expected[i]) << std::bit_cast<std::uint32_t>(x[i]);
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      const Guarded<float> a(std::vector<float>(x.begin() + 90000, x.begin() + 90000 + n), edge);
      const Guarded<bf16> b(n, edge), c(n, edge);
      k.round(a, n, b), k.divide(a, 1, n, c);
      for (int i = 0; i < n; ++i) ASSERT_EQ(b[i].bits, expected[90000 + i]);
      for (int i = 0; i < n; ++i) ASSERT_EQ(c[i].bits, expected[90000 + i]);
    }
}

/// Every finite fp16 value, the midpoint to the next, and the neighbours of that; what is too large, and NaN.
TEST_P(OnRung, RoundsF16ToNearestEven) {
  std::vector<f16> every(65536);
  std::vector<float> value(65536), x;
  std::vector<std::uint16_t> expected;
  for (std::uint32_t i = 0; i < 65536; ++i) every[i].bits = std::uint16_t(i);
  k.widen(every.data(), 65536, value.data());
  value[0x7c00] = 65536, value[0xfc00] = -65536;
  for (const std::uint32_t sign : {0u, 0x8000u})
    for (std::uint32_t i = sign; i < sign + 0x7c00; ++i) {
      const float middle = (value[i] + value[i + 1]) / 2;
      x.insert(x.end(), {value[i], std::nextafter(middle, value[i]), middle, std::nextafter(middle, value[i + 1])});
      for (const std::uint32_t y : {i, i, i + i % 2, i + 1}) expected.push_back(std::uint16_t(y));
    }
  for (const float large : {65536.f, 1e30f, std::numeric_limits<float>::infinity()})
    x.insert(x.end(), {large, -large}), expected.insert(expected.end(), {0x7c00, 0xfc00});
  x.insert(x.end(), {1e-30f, -0.f, std::bit_cast<float>(0x7f800001u)});
  expected.insert(expected.end(), {0, 0x8000, 0x7e00});
  std::vector<f16> y(x.size());
  k.round(x.data(), std::int64_t(x.size()), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, expected[i]) << x[i];
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      const Guarded<float> a(std::vector<float>(x.begin() + 90000, x.begin() + 90000 + n), edge);
      const Guarded<f16> b(n, edge);
      k.round(a, n, b);
      for (int i = 0; i < n; ++i) ASSERT_EQ(b[i].bits, expected[90000 + std::size_t(i)]);
    }
}

TEST(Stream, RowsAndParts) {
  random_bits.seed(1);
  for (const std::size_t bytes : {0, 1, 15, 16, 17, 31, 32, 63, 64, 65, 100, 128, 656, 1152, 2047, 2048, 2049, 5000})
    for (const std::size_t shift : {0, 1, 8, 16})
      for (const Stores stores : {Stores::plain, Stores::past_caches})
        for (const Edge edge : kEdges) {
          constexpr int kRows = 9;
          const std::size_t pitch = bytes + shift;
          const std::vector<std::int8_t> numbers = random_codes(kRows * pitch);
          const Guarded<std::int8_t> from(numbers, edge), to(std::vector<std::int8_t>(kRows * pitch, 99), edge);
          std::vector<std::int8_t> wanted(kRows * pitch, 99);
          std::vector<std::byte*> to_rows;
          std::vector<const std::byte*> from_rows;
          for (int i = 0; i < kRows; ++i) {
            const std::size_t source = std::size_t(i * 4 % kRows) * pitch, target = std::size_t(i) * pitch;
            from_rows.push_back(reinterpret_cast<const std::byte*>(from + source));
            to_rows.push_back(reinterpret_cast<std::byte*>(to + target));
            std::copy_n(numbers.begin() + std::ptrdiff_t(source), bytes, wanted.begin() + std::ptrdiff_t(target));
          }
          stream_rows(to_rows.data(), from_rows.data(), kRows, bytes, stores);
          stream_fence();
          ASSERT_TRUE(same(to.values(), wanted)) << bytes << " " << shift;
          if (bytes < 64) continue;
          std::fill_n(static_cast<std::int8_t*>(to), kRows * pitch, std::int8_t(99));
          std::fill(wanted.begin(), wanted.end(), std::int8_t(99));
          stream_parts(to_rows.data(), 16, from_rows.data(), 32, from_rows.data(), kRows, stores);
          stream_fence();
          for (std::size_t i = 0; i < kRows; ++i)
            std::copy_n(&numbers[i * 4 % kRows * pitch + 32], 32, &wanted[i * pitch + 16]);
          ASSERT_TRUE(same(to.values(), wanted)) << bytes << " " << shift;
        }
}

// ---- attention over one chunk -----------------------------------------------------------------------------------

TEST_P(OnRung, ExpIsWithinTwoUlpAndItsArgument) {
  // Row maximum 0 in front, so that softmax leaves exp of the rest.
  std::vector<float> x{0};
  for (float v = 0; v > -110; v = std::nextafter(v - 1e-4f, -kInf)) x.push_back(v);
  for (const float v : {-1e6f, -1e30f, -std::numeric_limits<float>::max(), -kInf}) x.push_back(v);
  const std::vector<float> in = x;
  SoftmaxRow all{x.data(), int(x.size()), 1, 0, 0};
  k.softmax(&all, 1);
  EXPECT_EQ(all.largest, 0);
  EXPECT_EQ(x[0], 1);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (in[i] < -86 && x[i] == 0) continue;
    const double exact = std::exp(double(in[i])), ulp = std::ldexp(1, std::ilogb(exact) - 23);
    ASSERT_LE(std::abs(x[i] - exact), 2 * ulp - in[i] * 0x1p-23 * exact) << in[i];
  }
}

TEST_P(OnRung, Softmax) {
  for (int n = 1; n <= 257; ++n)
    for (const Edge edge : kEdges)
      for (const float scale : {0.3f, -0.3f, 0.0f}) {
        std::vector<float> in = random_floats(n, 40);
        if (n % 3 == 0 && scale > 0) in[n / 2] = -kInf;
        const Guarded<float> x(in, edge);
        double largest = -kInf;
        SoftmaxRow row{x, n, scale, 0, 0};
        k.softmax(&row, 1);
        for (const float v : in) largest = std::max(largest, double(v) * scale);
        ASSERT_EQ(row.largest, float(largest));
        float lanes[16] = {};
        for (int i = 0; i < n; ++i) {
          const double scaled = double(in[i]) * scale, exact = std::exp(scaled - largest);
          const double rounded = 2 + std::abs(scaled) + std::abs(largest);
          ASSERT_NEAR(x[i], exact, std::isinf(scaled) ? 0 : exact * rounded * 0x1p-22) << scale;
          lanes[i % 16] += x[i];
        }
        for (int half = 8; half > 0; half /= 2)
          for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
        ASSERT_EQ(row.sum, lanes[0]);
      }
  std::vector<float> x{1, kNaN, 2};
  SoftmaxRow row{x.data(), 3, 1, 0, 0};
  k.softmax(&row, 1);
  EXPECT_TRUE(std::isnan(row.sum));
}

TEST_P(OnRung, SoftmaxOfRowsIsThatOfEach) {
  std::vector<std::vector<float>> together, alone;
  std::vector<SoftmaxRow> rows;
  for (const int n : {256, 1, 17, 64, 255, 3}) alone.push_back(random_floats(n, 10));
  together = alone;
  for (std::vector<float>& x : together)
    rows.push_back({x.data(), int(x.size()), rows.size() % 3 == 2 ? -0.5f : 0.25f, 0, 0});
  std::vector<SoftmaxRow> each = rows;
  k.softmax(rows.data(), int(rows.size()));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    each[r].x = alone[r].data();
    k.softmax(&each[r], 1);
    EXPECT_TRUE(same(together[r], alone[r])) << r;
    EXPECT_EQ(rows[r].largest, each[r].largest);
    EXPECT_EQ(rows[r].sum, each[r].sum);
  }
  k.softmax(nullptr, 0);
}

TEST_P(OnRung, SoftmaxRoundsAsMultiplyDoes) {
  for (int n = 1; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      std::vector<float> in = random_floats(n, 200);  // far enough for subnormal bf16
      if (n % 7 == 0) in[n / 2] = kNaN;
      std::vector<float> alone = in, together = in;
      const Guarded<bf16> rounded(std::vector<bf16>(std::size_t(n)), edge), wanted(std::vector<bf16>(std::size_t(n)), edge);
      SoftmaxRow one{alone.data(), n, 0.5f, 0, 0}, both{together.data(), n, 0.5f, 0, 0, rounded};
      k.softmax(&one, 1), k.softmax(&both, 1);
      k.multiply(alone.data(), nullptr, n, wanted);
      ASSERT_TRUE(same(together, alone)) << n;
      ASSERT_TRUE(same(rounded.values(), wanted.values())) << n;
      ASSERT_TRUE(same(both.sum, one.sum)) << n;
    }
}

TEST_P(OnRung, Deciding) {
  int found = 0, none = 0;
  for (int n = 0; n <= 256; ++n)
    for (const Edge edge : kEdges)
      for (const float spread : {1.0f, 8.0f, 40.0f}) {
        std::vector<float> numbers = random_floats(n);
        double sum = 0, squares = 0;
        for (float& v : numbers) v = std::exp2(spread * (v - 1));
        if (n > 0) numbers[n / 2] = 1;
        for (const float v : numbers) sum += v, squares += double(v) * v;
        const int many = n % 2 ? 32 : 8;
        const bool few = squares * many > sum * sum;
        if (std::abs(squares * many - sum * sum) < 1e-4 * sum * sum) continue;
        const Guarded<float> x(numbers, edge);
        std::vector<int> at(many), expected;
        at.resize(k.deciding(x, n, float(sum), many, at.data()));
        for (int i = 0; i < n && few; ++i)
          if (x[i] >= float(sum) / float(many)) expected.push_back(i);
        ASSERT_EQ(at, expected) << n << " " << spread;
        (few ? found : none) += 1;
        // Between zeros, from any lane on.
        if (n + 3 * 16 + 5 > 256) continue;
        std::vector<float> around(16 * (n % 4) + n + 5);
        std::copy(numbers.begin(), numbers.end(), around.begin() + 16 * (n % 4));
        at.assign(many, 0);
        at.resize(k.deciding(around.data(), int(around.size()), float(sum), many, at.data()));
        for (int& i : at) i -= 16 * (n % 4);
        ASSERT_EQ(at, expected);
      }
  EXPECT_GT(found, 100);
  EXPECT_GT(none, 100);
}

TEST_P(OnRung, MultiplyAddAndRound) {
  for (int n = 0; n <= 257; ++n)
    for (const Edge edge : kEdges) {
      const Guarded<float> x(random_floats(n), edge), scale(random_floats(n, 2), edge), y(random_floats(n), edge);
      const std::vector<float> before = y.values();
      const Guarded<bf16> z(n, edge), one(n, edge);
      k.multiply_add(x, scale, n, y);
      k.multiply(x, scale, n, z);
      k.multiply(x, nullptr, n, one);
      std::vector<float> products(n);
      for (int i = 0; i < n; ++i) products[i] = x[i] * scale[i];
      std::vector<bf16> rounded(n);
      const auto round_all = [&](const float* from) { std::transform(from, from + n, rounded.begin(), to_bf16); };
      round_all(products.data());
      ASSERT_TRUE(same(z.values(), rounded));
      round_all(x);
      ASSERT_TRUE(same(one.values(), rounded));
      const Guarded<float> in_place(x.values(), edge), wide(n, edge);
      k.multiply(in_place, scale, n, in_place);
      k.multiply(x, nullptr, n, wide);
      ASSERT_TRUE(same(in_place.values(), products));
      ASSERT_TRUE(same(wide.values(), x.values()));
      for (const float keep : {0.0f, 0.375f}) {
        const Guarded<float> sum(before, edge);
        std::vector<float> expected = before;
        for (int i = 0; i < n; ++i) expected[i] = (keep == 0 ? 0 : expected[i] * keep) + x[i] * 0.7f * 1.3f;
        k.blend(x, 0.7f, 1.3f, n, keep, sum);
        ASSERT_TRUE(same(sum.values(), expected));
      }
      for (int i = 0; i < n; ++i) {
        const double exact = double(x[i]) * scale[i] + before[i];
        ASSERT_NEAR(y[i], exact, 0x1p-23 * (std::abs(products[i]) + std::abs(before[i])));
      }
    }
}

template <class T>
void divides(const Kernels& k) {
  for (int n = 0; n <= 130; ++n)
    for (const Edge edge : kEdges)
      for (const float divisor : {3.0f, 0.7f, -0x1p-140f, 0.0f, float(kInf), float(kNaN)}) {
        const std::vector<float> x = n % 2 ? wild_floats(n) : random_floats(n);
        std::vector<T> expected;
        for (const float v : x) expected.push_back(round_to<T>(v / divisor));
        const Guarded<float> from(x, edge);
        const Guarded<T> y(n, edge);
        k.divide(from, divisor, n, y);
        ASSERT_TRUE(same(y.values(), expected)) << n << " by " << divisor;
        if constexpr (std::is_same_v<T, float>) {
          k.divide(from, divisor, n, from);
          ASSERT_TRUE(same(from.values(), expected));
        }
      }
}

TEST_P(OnRung, Divide) {
  divides<bf16>(k);
  divides<f16>(k);
  divides<float>(k);
}

template <class T>
void blends_with_rows(const Kernels& k, std::vector<T> (*random)(int)) {
  constexpr int kMost = 5;
  for (int n = 0; n <= 130; ++n)
    for (const Edge edge : kEdges)
      for (const float keep : {0.0f, 0.375f}) {
        const int count = n % (kMost + 1);
        const std::vector<float> weights = random_floats(kMost), before = random_floats(n);
        const Guarded<float> x(random_floats(n), edge), y(before, edge);
        std::vector<float> sum = x.values();
        std::vector<std::unique_ptr<Guarded<T>>> rows;
        std::vector<const T*> row_at;
        for (int j = 0; j < count; ++j) {
          rows.push_back(std::make_unique<Guarded<T>>(random(n), edge));
          row_at.push_back(*rows.back());
          for (int i = 0; i < n; ++i) {
            const float term = number(row_at[j][i]) * weights[j];
            sum[i] = sum[i] + term;
          }
        }
        for (int i = 0; i < n; ++i) sum[i] = (keep == 0 ? 0 : before[i] * keep) + sum[i] * 0.7f * 1.3f;
        k.blend(x, row_at.data(), weights.data(), count, 0.7f, 1.3f, n, keep, y);
        ASSERT_TRUE(same(y.values(), sum)) << n;
      }
}
TEST_P(OnRung, BlendWithRows) {
  blends_with_rows<bf16>(k, [](int n) { return rounded<bf16>(random_floats(n, 3)); });
  blends_with_rows<std::int8_t>(k, [](int n) { return random_codes(std::size_t(n)); });
}

template <class T>
std::vector<T> random_halves(int n) {
  std::vector<T> x(n);
  for (T& v : x) v.bits = std::uint16_t(random_bits() & 0xbfff);  // finite in both formats
  return x;
}

/// Rows in a cache, each flush with the end of its pages.
template <class T>
struct Rows {
  std::vector<std::unique_ptr<Guarded<T>>> row;
  std::vector<const T*> pointer;
  /// `alike`: each begins where its page does.
  Rows(int count, int dims, bool alike = false) {
    for (int j = 0; j < count; ++j) {
      const Edge edge = alike ? Edge::begin : kEdges[j % 2];
      if constexpr (sizeof(T) == 1) row.push_back(std::make_unique<Guarded<T>>(random_codes(dims), edge));
      else if constexpr (sizeof(T) == 4) row.push_back(std::make_unique<Guarded<T>>(random_floats(dims), edge));
      else row.push_back(std::make_unique<Guarded<T>>(random_halves<T>(dims), edge));
      pointer.push_back(*row.back());
    }
  }
  bf16 at(int j, int c) const { return cut(j < int(row.size()) ? value(pointer[j][c]) : 0); }
  static float value(bf16 x) { return to_float(x); }
  static float value(std::int8_t x) { return x; }
};

template <class T, class Transpose, class Interleave>
void check_panels(Transpose transpose, Interleave interleave) {
  for (const int dims : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 128, 200, 513, 576})
    for (const int count : {1, 2, 3, 7, 8, 15, 16, 17, 33, 63, 64}) {
      const Rows<T> rows(count, dims);
      const Guarded<bf16> panel((dims + 1) / 2 * 2 * kPanel, Edge::end);
      std::memset(static_cast<void*>(panel), 0xff, panel.values().size() * 2);
      transpose(rows.pointer.data(), count, dims, panel);
      for (int c = 0; c < (dims + 1) / 2 * 2; ++c)
        for (int j = 0; j < kPanel; ++j)
          ASSERT_EQ(panel[c / 2 * 128 + j * 2 + c % 2].bits, c < dims ? rows.at(j, c).bits : 0) << dims << " " << count;
    }
  for (const int dims : {1, 15, 16, 17, 33, 63, 64, 65, 130, 512})
    for (const int count : {1, 2, 3, 16, 17, 64, 255, 256}) {
      const Rows<T> rows(count, dims);
      const int pairs = (count + 1) / 2, panels = (dims + 63) / 64;
      const Guarded<bf16> out(std::size_t(panels) * pairs * 128, Edge::end);
      std::memset(static_cast<void*>(out), 0xff, std::size_t(panels) * pairs * 256);
      interleave(rows.pointer.data(), count, dims, out);
      for (int j = 0; j < 2 * pairs; ++j)
        for (int c = 0; c < panels * 64; ++c)
          ASSERT_EQ(out[(c / 64 * pairs + j / 2) * 128 + c % 64 * 2 + j % 2].bits, c < dims ? rows.at(j, c).bits : 0)
              << dims << " " << count;
    }
}

template <class T, class Transpose, class Interleave>
void check_wide_panels(Transpose transpose, Interleave interleave) {
  const auto at = [&](const Rows<T>& rows, int j, int c) {
    float x = 0;
    if constexpr (sizeof(T) == 2) x = to_float(rows.pointer[j][c]);
    else x = rows.pointer[j][c];
    return x;
  };
  for (const int dims : {1, 2, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 128, 200, 513})
    for (const int count : {1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 63, 64}) {
      const Rows<T> rows(count, dims);
      const Guarded<float> panel(std::vector<float>(std::size_t(dims) * kPanel, 7.0f), Edge::end);
      transpose(rows.pointer.data(), count, dims, panel);
      for (int c = 0; c < dims; ++c)
        for (int j = 0; j < kPanel; ++j)
          ASSERT_TRUE(same(panel[c * kPanel + j], j < count ? at(rows, j, c) : 0)) << dims << " " << count;
      const int width = (dims + kPanel - 1) / kPanel * kPanel;
      const Guarded<float> out(std::vector<float>(std::size_t(width) * count, 7.0f), Edge::end);
      interleave(rows.pointer.data(), count, dims, out);
      for (int j = 0; j < count; ++j)
        for (int c = 0; c < width; ++c)
          ASSERT_TRUE(same(out[(c / kPanel * count + j) * kPanel + c % kPanel], c < dims ? at(rows, j, c) : 0))
              << dims << " " << count;
    }
}

TEST_P(OnRung, PanelsOfCodes) {
  for (const int dims : {1, 3, 4, 5, 16, 63, 64, 65, 66, 67, 128, 200, 513, 576})
    for (const int count : {1, 2, 3, 4, 5, 15, 16, 17, 33, 63, 64, 255, 256}) {
      const Rows<std::int8_t> rows(count, dims);
      const auto at = [&](int j, int c) { return j < count && c < dims ? rows.pointer[j][c] : std::int8_t(0); };
      if (count <= kPanel) {
        const int groups = (dims + 3) / 4;
        const Guarded<std::int8_t> panel(std::vector<std::int8_t>(std::size_t(groups) * 256, 7), Edge::end);
        const Guarded<std::int32_t> sums(kPanel, Edge::end);
        k.transpose(rows.pointer.data(), count, dims, panel, sums);
        std::vector<const e4m3*> scaled;
        for (const std::int8_t* row : rows.pointer) scaled.push_back(reinterpret_cast<const e4m3*>(row));
        const Guarded<e4m3> others(std::vector<e4m3>(std::size_t(groups) * 256, e4m3{7}), Edge::end);
        k.transpose(scaled.data(), count, dims, others);
        constexpr int kPlace[] = {0, 2, 1, 3};
        for (int j = 0; j < kPanel; ++j)
          for (int c = 0; c < groups * 4; ++c)
            ASSERT_EQ(others[c / 4 * 256 + j * 4 + kPlace[c % 4]].bits, std::uint8_t(at(j, c))) << dims << " " << count;
        for (int j = 0; j < kPanel; ++j) {
          int sum = 0;
          for (int c = 0; c < groups * 4; ++c) {
            ASSERT_EQ(panel[c / 4 * 256 + j * 4 + c % 4], at(j, c)) << dims << " " << count;
            sum += at(j, c);
          }
          ASSERT_EQ(sums[j], sum) << dims << " " << count;
        }
      }
      const int groups = (count + 3) / 4, columns = (dims + 63) / 64 * 64;
      const Guarded<std::int8_t> panels(std::vector<std::int8_t>(std::size_t(groups) * columns * 4, 7), Edge::end);
      const Guarded<std::int32_t> sums(columns, Edge::end);
      k.interleave(rows.pointer.data(), count, dims, panels, sums);
      for (int c = 0; c < columns; ++c) {
        int sum = 0;
        for (int j = 0; j < groups * 4; ++j) {
          ASSERT_EQ(panels[((c / 64 * groups + j / 4) * 64 + c % 64) * 4 + j % 4], at(j, c)) << dims << " " << count;
          sum += at(j, c);
        }
        ASSERT_EQ(sums[c], sum) << dims << " " << count;
      }
    }
}

/// Addresses of rows, the last one repeated as the GEMV kernels want it.
template <class T>
std::vector<const std::byte*> repeated(const Rows<T>& rows) {
  std::vector<const std::byte*> to;
  for (const T* row : rows.pointer) to.push_back(reinterpret_cast<const std::byte*>(row));
  to.resize((to.size() + 15) / 16 * 16, to.back());
  return to;
}

TEST_P(OnRung, GemvOfCodes) {
  // Digit i of some, as split_codes makes them: of three, a number below 2^22.
  const auto any_code = [&](int i, int digits) {
    const int top = i > 0 || digits == 1 ? 128 : digits == 2 ? 127 : 64;
    return random_bits() % 3 ? std::clamp(int(std::int8_t(random_bits())), -top, std::min(top, 127)) : -top;
  };
  for (const int few : {1, 2, 3, 4, 5, 6, 8, 11, 12, 13, 24})
    for (const int count : {1, 2, 7, 16, 17, 33, 63, 64, 200, 256})
      for (const int width : {1, 3, 4, 31, 32, 33, 63, 64, 65, 128, 200, kGemvCodes}) {
        if (count > 64 && width > 128) continue;
        const Rows<std::int8_t> rows(count, width);
        const auto addresses = repeated(rows);
        for (const int digits : {1, 3}) {
          if (few % digits) continue;
          const int joined = few / digits, fours = (width + 31) / 32 * 8, pitch = (count + 15) / 16 * 16;
          const Guarded<std::int32_t> query((fours + 1) * few, Edge::end);
          std::vector<int> code(std::size_t(few) * width);
          for (int r = 0; r < few; ++r) {
            for (int g = 0; g <= fours; ++g) query[g * few + r] = 0;
            for (int c = 0; c < width; ++c) {
              const int x = code[r * width + c] = any_code(r % digits, digits);
              query[r] -= 128 * x;
              query[(1 + c / 4) * few + r] |= std::int32_t(std::uint32_t(x & 255) << 8 * (c % 4));
            }
          }
          const Guarded<float> unit(random_floats(joined, 3), Edge::end), y(joined * pitch, Edge::end);
          k.gemv_dots(query, joined, digits, addresses.data(), count, width, unit, y, pitch, addresses.data(), width);
          for (int r = 0; r < joined; ++r)
            for (int j = 0; j < count; ++j) {
              std::int32_t sum[3] = {};
              for (int i = 0; i < digits; ++i)
                for (int c = 0; c < width; ++c) sum[i] += code[(r * digits + i) * width + c] * rows.pointer[j][c];
              ASSERT_EQ(y[r * pitch + j], joined_of(sum, 1, digits, unit[r])) << few << " " << count << " " << width;
            }
        }
        const int pitch = (count + 3) / 4 * 4;
        const Guarded<std::uint8_t> weights(few * pitch, Edge::end);
        for (const int digits : {1, 2, 3}) {
          if (few % digits) continue;
          const int joined = few / digits;
          for (int i = 0; i < few * pitch; ++i) weights[i] = std::uint8_t(any_code(i / pitch % digits, digits) + 128);
          const Guarded<float> unit(random_floats(joined, 3), Edge::end), sums(joined * kGemvColumns, Edge::end);
          for (int column = 0; column < width; column += kGemvColumns) {
            const int columns = std::min(kGemvColumns, width - column);
            k.gemv_sums(weights, pitch, joined, digits, addresses.data(), count, column, columns, unit, sums,
                        addresses.data());
            for (int r = 0; r < joined; ++r)
              for (int c = 0; c < columns; ++c) {
                std::int32_t sum[3] = {};
                for (int i = 0; i < digits; ++i)
                  for (int j = 0; j < count; ++j)
                    sum[i] += (weights[(r * digits + i) * pitch + j] - 128) * rows.pointer[j][column + c];
                ASSERT_EQ(sums[r * kGemvColumns + c], joined_of(sum, 1, digits, unit[r])) << few << " " << count << " " << width;
              }
          }
        }
      }
}

/// The bits of the products of panels, whatever the infinities among the values.
TEST_P(OnRung, GemvOfPairs) {
  for (const int few : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 24})
    for (const int count : {1, 2, 15, 16, 17, 33, 63, 64})
      for (const int width : {1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 128, 200, 512}) {
        // Rows whole pages apart, which share sets of L1, or not.
        const Rows<bf16> rows(count, width, (few + width) % 3 > 0);
        if (count > 4) (*rows.row.back())[0] = cut(INFINITY);
        const auto addresses = repeated(rows);
        const int fours = (width + 15) / 16 * 8, pitch = (count + 15) / 16 * 16;
        const std::vector<bf16> queries = random_halves<bf16>(few * width);
        const Guarded<std::int32_t> query(std::vector<std::int32_t>(std::size_t((fours + 1) * few)), Edge::end);
        for (int r = 0; r < few; ++r)
          for (int c = 0; c < width; ++c)
            query[(1 + c / 2) * few + r] |= std::int32_t(std::uint32_t(queries[r * width + c].bits) << 16 * (c % 2));
        const Guarded<float> y(few * pitch, Edge::end);
        k.gemv_dots(query, few, addresses.data(), count, width, y, pitch, addresses.data(), width);
        std::vector<bf16> panel(std::size_t(std::max(width + 1, count + 1)) * kPanel);
        std::vector<float> expected(std::size_t(few) * kPanel);
        k.transpose(rows.pointer.data(), count, width, panel.data());
        k.product(queries.data(), width, few, panel.data(), width, expected.data(), kPanel, false);
        for (int r = 0; r < few; ++r)
          for (int j = 0; j < count; ++j) {
            const float got = y[r * pitch + j], want = expected[r * kPanel + j];
            ASSERT_TRUE(got == want || (got != got && want != want)) << few << " " << count << " " << width;
          }

        const int weights_pitch = (count + 1) / 2 * 2;
        const Guarded<bf16> weights(random_halves<bf16>(few * weights_pitch), Edge::end);
        for (int r = 0; r < few && count % 2; ++r) weights[r * weights_pitch + count] = bf16{};
        const Guarded<float> sums(few * kGemvColumns, Edge::end);
        for (int column = 0; column < width; column += kPanel) {
          const int columns = std::min(kPanel, width - column), first = column % kGemvColumns;
          std::vector<const bf16*> part;
          for (const bf16* row : rows.pointer) part.push_back(row + column);
          if (first == 0)
            k.gemv_sums(weights, weights_pitch, few, addresses.data(), count, column, std::min(kGemvColumns, width - column),
                        sums, addresses.data());
          k.interleave(part.data(), count, columns, panel.data());
          k.product(weights, weights_pitch, few, panel.data(), count, expected.data(), kPanel, false);
          for (int r = 0; r < few; ++r)
            ASSERT_EQ(std::memcmp(sums + r * kGemvColumns + first, expected.data() + r * kPanel, sizeof(float) * columns), 0)
                << few << " " << count << " " << width;
        }
      }
}

template <class T, class Transpose, class Interleave, class Product>
void check_gemv_widened(const Kernels& k, Kept kept, Transpose transpose, Interleave interleave, Product product) {
  using Panel = std::conditional_t<std::is_same_v<T, bf16>, bf16, float>;
  for (const int few : {1, 3, 4, 5, 6, 7, 12, 13, 24})
    for (const int count : {1, 2, 15, 16, 17, 33, 63, 64})
      for (const int width : {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 128, 200, 512}) {
        const Rows<T> rows(count, width);
        const auto addresses = repeated(rows);
        const int size = int(sizeof(T)), words = (width * size + 31) / 32 * 32 / size, pitch = (count + 15) / 16 * 16;
        const std::vector<float> queries = random_floats(few * width, 3);
        const Guarded<std::int32_t> query(std::vector<std::int32_t>(std::size_t((words + 1) * few)), Edge::end);
        for (int r = 0; r < few; ++r)
          for (int c = 0; c < width; ++c)
            query[(1 + c) * few + r] = std::bit_cast<std::int32_t>(queries[std::size_t(r * width + c)]);
        const Guarded<float> y(few * pitch, Edge::end);
        k.gemv_dots(query, few, kept, addresses.data(), count, width, y, pitch, addresses.data(), width);
        std::vector<Panel> panel(std::size_t(std::max(width + 1, count + 1)) * kPanel);
        std::vector<float> expected(std::size_t(few) * kPanel);
        transpose(rows.pointer.data(), count, width, panel.data());
        product(queries.data(), width, few, panel.data(), width, expected.data(), kPanel, false);
        for (int r = 0; r < few; ++r)
          for (int j = 0; j < count; ++j)
            ASSERT_EQ(y[r * pitch + j], expected[std::size_t(r * kPanel + j)]) << few << " " << count << " " << width;

        const std::vector<float> weights = random_floats(few * count, 1);
        const Guarded<float> sums(few * kGemvColumns, Edge::end);
        for (int column = 0; column < width; column += kPanel) {
          const int columns = std::min(kPanel, width - column), first = column % kGemvColumns;
          std::vector<const T*> part;
          for (const T* row : rows.pointer) part.push_back(row + column);
          if (first == 0)
            k.gemv_sums(weights.data(), count, few, kept, addresses.data(), count, column,
                        std::min(kGemvColumns, width - column), sums, addresses.data());
          interleave(part.data(), count, columns, panel.data());
          product(weights.data(), count, few, panel.data(), count, expected.data(), kPanel, false);
          for (int r = 0; r < few; ++r)
            for (int c = 0; c < columns; ++c)
              ASSERT_EQ(sums[r * kGemvColumns + first + c], expected[std::size_t(r * kPanel + c)])
                  << few << " " << count << " " << width;
        }
      }
}

TEST_P(OnRung, GemvWidened) {
  check_gemv_widened<bf16>(k, Kept::bf16, k.transpose, k.interleave, k.product);
  check_gemv_widened<f16>(k, Kept::f16, k.transpose, k.interleave, k.product);
  check_gemv_widened<float>(k, Kept::f32, k.transpose, k.interleave, k.product);
}

/// Against the product on panels of the matrix: row-major and FRACTAL_NZ, flush with unmapped pages.
template <class A, class B, class C, class Pack>
void check_strip_product(const Kernels& k, const std::vector<A>& a, Pack pack_and_multiply) {
  constexpr int kRun = 32 / int(sizeof(B));
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 19, 25, 32})
    for (const int depth : {1, 2, 3, 4, 5, 31, 32, 33, 63, 66, 200, 511, 512, 513, 2600})
      for (const int columns : {1, 15, 16, 17, 32, 33, 63, 64, 65, 100, 128, 200, 448, 600}) {
        if (rows > k.strip_rows || (rows > 8 && (depth + columns + rows) % 2 == 1)) continue;  // every other of many
        if (depth > 66 && columns > 128 && rows < 7) continue;
        if (columns > 448 && (depth > 66 || rows < 7)) continue;  // more sums than a small frame has room for
        if (depth > kSumBlock && (columns > 65 || rows % 2 == 0)) continue;
        const int wide = (columns + kPanel - 1) / kPanel * kPanel;
        const int runs = (columns + kRun - 1) / kRun, deep = (depth + 15) / 16 * 16;
        std::vector<B> w;
        if constexpr (sizeof(B) == 1) w = random_codes(std::size_t(depth) * columns);
        else w = random_halves<bf16>(depth * columns);
        const Guarded<A> left(std::vector<A>(a.begin(), a.begin() + rows * depth), Edge::end);
        std::vector<C> expected(std::size_t(rows) * wide);
        pack_and_multiply(left, rows, w, depth, columns, expected.data(), wide);
        std::vector<C> added = expected;
        for (C& x : added) x += C{};  // -0 becomes +0
        const auto wanted = [&](const C* got, const std::vector<C>& c, const char* what) {
          for (int r = 0; r < rows; ++r)
            ASSERT_EQ(std::memcmp(got + r * wide, c.data() + r * wide, sizeof(C) * columns), 0)
                << what << " " << rows << "x" << depth << "x" << columns;
        };
        for (const Edge edge : {Edge::begin, Edge::end}) {
          const Guarded<B> lying(w, edge), nz(std::size_t(runs) * deep * kRun, edge);
          for (int p = 0; p < depth; ++p)
            for (int j = 0; j < columns; ++j) nz[(j / kRun * deep + p) * kRun + j % kRun] = w[p * columns + j];
          const Guarded<C> c(std::size_t(rows) * wide, edge);
          k.strip_product(left, depth, rows, Strip<B>{lying, columns}, depth, columns, c, wide, false, lying);
          wanted(c, expected, "row-major");
          std::fill_n(static_cast<C*>(c), rows * wide, C{});
          k.strip_product(left, depth, rows, Strip<B>{nz, kRun, deep * kRun}, depth, columns, c, wide, true, nz);
          wanted(c, added, "FRACTAL_NZ");
        }
      }
}

/// Rows of pages, which share sets of the caches: they are read line by line wherever they begin, some more at a time for
/// many rows of the left, and on from block to block, long ones or short ones.
template <class A, class B, class C, class Pack>
void check_wide_strip_product(const Kernels& k, const std::vector<A>& a, Pack pack_and_multiply) {
  constexpr int kPage = 4096 / int(sizeof(B)), kLine = 64 / int(sizeof(B));
  const int pitch = 2 * kPage;
  for (const int columns : {kPage, kPage / 2 + 3, kPage / 4 - 1}) {
    const int depth = columns == kPage ? 230 : kSumBlock + 70;
    std::vector<B> w;
    if constexpr (sizeof(B) == 1) w = random_codes(std::size_t(depth) * columns);
    else w = random_halves<bf16>(depth * columns);
    const int wide = (columns + kPanel - 1) / kPanel * kPanel;
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 23, 32}) {
      if (rows > k.strip_rows || rows * columns > kStripSums) continue;
      std::vector<C> expected(std::size_t(rows) * wide), c(expected.size());
      pack_and_multiply(a.data(), rows, w, depth, columns, expected.data(), wide);
      for (const int over : {0, kLine / 4, kLine - 1}) {
        std::vector<B> room(std::size_t(depth) * pitch + 2 * kLine);
        B* const lying = room.data() + kLine - reinterpret_cast<std::uintptr_t>(room.data()) % 64 / sizeof(B) + over;
        for (int p = 0; p < depth; ++p) std::copy_n(w.data() + p * columns, columns, lying + p * pitch);
        for (const int block : {32, 64}) {
          if (rows > 4 && block == 64) continue;  // theirs are as long anyway
          const Tuning before = tuning;
          tuning.strip_block = block;
          std::fill(c.begin(), c.end(), C{});
          k.strip_product(a.data(), depth, rows, Strip<B>{lying, pitch}, depth, columns, c.data(), wide, false, lying);
          tuning = before;
          for (int r = 0; r < rows; ++r)
            ASSERT_EQ(std::memcmp(c.data() + r * wide, expected.data() + r * wide, sizeof(C) * columns), 0)
                << rows << "x" << columns << " " << over << " " << block;
        }
      }
    }
  }
}

TEST_P(OnRung, StripsOfCodesHaveTheSumsOfPanels) {
  const std::vector<std::uint8_t> a = [] {
    std::vector<std::uint8_t> x(kStripRows * 2600);
    for (std::uint8_t& v : x) v = std::uint8_t(random_bits() % 3 ? random_bits() : 0);
    return x;
  }();
  const auto multiply = [](const std::uint8_t* a, int rows, const std::vector<std::int8_t>& w, int depth, int columns,
                           std::int32_t* c, int pitch) {
    for (int r = 0; r < rows; ++r) {
      std::fill_n(c + r * pitch, columns, 0);
      for (int p = 0; p < depth; ++p)
        for (int j = 0; j < columns; ++j) c[r * pitch + j] += (a[r * depth + p] - 128) * w[p * columns + j];
    }
  };
  check_strip_product<std::uint8_t, std::int8_t, std::int32_t>(k, a, multiply);
  check_wide_strip_product<std::uint8_t, std::int8_t, std::int32_t>(k, a, multiply);
}

TEST_P(OnRung, StripsOfPairsHaveTheBitsOfPanels) {
  const std::vector<bf16> a = random_halves<bf16>(kStripRows * 2600);
  const auto multiply = [&](const bf16* a, int rows, const std::vector<bf16>& w, int depth, int columns, float* c, int pitch) {
    std::vector<bf16> panel(Panel<bf16>::elements(depth));
    for (int p = 0; p * kPanel < columns; ++p) {
      pack_panel_bf16({w.data(), columns, false, depth, columns}, p, panel.data());
      k.product(a, depth, rows, panel.data(), depth, c + p * kPanel, pitch, false);
    }
  };
  check_strip_product<bf16, bf16, float>(k, a, multiply);
  check_wide_strip_product<bf16, bf16, float>(k, a, multiply);
}

TEST_P(OnRung, SplitsAndJoinsCodes) {
  for (const int digits : {1, 2, 3}) {
    const float top = digits == 1 ? 127 : digits == 2 ? 32512 : 0x1p21f;
    for (int n = 0; n <= 100; ++n)
      for (const Edge edge : kEdges) {
        const Guarded<float> x(random_floats(n, 3), edge);
        if (n > 1) x[0] = 3, x[1] = -3;
        const std::ptrdiff_t pitch = n + 3;
        const Guarded<std::uint8_t> codes((digits - 1) * pitch + n, edge);
        k.split_codes(x, n, top / 3, digits, codes, pitch);
        const Guarded<std::int32_t> wide((digits - 1) * pitch + n, edge);
        for (int i = 0; i < n; ++i) {
          int whole = 0;
          for (int d = 0; d < digits; ++d) {
            wide[d * pitch + i] = int(codes[d * pitch + i]) - 128;
            whole = whole * 256 + wide[d * pitch + i];
          }
          ASSERT_EQ(whole, int(std::nearbyint(x[i] * (top / 3)))) << x[i];
          for (int d = 0; d < digits; ++d) wide[d * pitch + i] *= 1 + int(random_bits() % 60000);
        }
        const Guarded<float> y(n, edge);
        k.join_codes(wide, pitch, n, digits, 0.7f, y);
        for (int i = 0; i < n; ++i) {
          double sum = 0, size = 0;
          for (int d = 0; d < digits; ++d) {
            sum = sum * 256 + wide[d * pitch + i];
            size = size * 256 + std::abs(wide[d * pitch + i]);
          }
          ASSERT_NEAR(y[i], 0.7f * sum, size * 0x1p-22);
        }
        for (int i = 0; i < n; ++i) ASSERT_EQ(y[i], joined_of(wide + i, pitch, digits, 0.7f));
      }
  }
}

TEST_P(OnRung, PanelsOfRowsF16) { check_wide_panels<f16>(k.transpose, k.interleave); }
TEST_P(OnRung, PanelsOfRowsF32) { check_wide_panels<float>(k.transpose, k.interleave); }
TEST_P(OnRung, PanelsOfRowsBf16) {
  check_panels<bf16>(k.transpose, k.interleave);
  check_wide_panels<bf16>(k.transpose, k.interleave);
}
TEST_P(OnRung, PanelsOfRowsI8) {
  check_panels<std::int8_t>(k.transpose, k.interleave);
  check_wide_panels<std::int8_t>(k.transpose, k.interleave);
}

}  // namespace
}  // namespace dsakit
