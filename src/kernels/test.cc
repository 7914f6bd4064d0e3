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
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/order.hpp"
#include "kernels/pack.hpp"

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

std::mt19937 random_bits(7);

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
bf16 to_bf16(float x) { return {std::uint16_t(std::bit_cast<std::uint32_t>(x) >> 16)}; }
float to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t(x.bits) << 16); }
std::vector<bf16> random_bf16(std::size_t n) {
  std::vector<bf16> x(n);
  const std::vector<float> f = random_floats(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = to_bf16(f[i]);
  return x;
}

bool same(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b); }
bool same(bf16 a, bf16 b) { return a.bits == b.bits; }
template <class T>
bool same(T a, T b) { return a == b; }
template <class T>
::testing::AssertionResult same(const std::vector<T>& a, const std::vector<T>& b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i)
    if (i >= a.size() || i >= b.size() || !same(a[i], b[i])) return ::testing::AssertionFailure() << "at " << i;
  return ::testing::AssertionSuccess();
}

/// Every test runs at every rung this machine has.
class Rung : public ::testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& k = *GetParam();
  const Kernels& generic = *supported_kernels()[0];
};
INSTANTIATE_TEST_SUITE_P(Kernels, Rung, ::testing::ValuesIn(supported_kernels().begin(), supported_kernels().end()),
                         [](const auto& info) { return std::string(info.param->isa); });

constexpr Edge kEdges[] = {Edge::begin, Edge::end};
const int kWidths[] = {1, 2, 3, 5, 16, 31, 63, 64, 65, 511, 512, 513, 1025, 1537};

// ---- products ---------------------------------------------------------------------------------------------------

TEST_P(Rung, ProductI8IsExact) {
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
        k.product_i8(a, a_stride, m, panel, sums, depth, c, c_stride);
        for (int i = 0; i < m; ++i)
          for (int j = 0; j < kPanel; ++j) {
            int expected = 0;
            for (int p = 0; p < depth; ++p) expected += (a[i * a_stride + p] - 128) * weight[p * kPanel + j];
            ASSERT_EQ(c[i * c_stride + j], expected) << depth << " " << m << " " << i << " " << j;
          }
      }
}

/// The bound: each of the k + blocks additions and each product rounds at most once to fp32 (the bf16 dot
/// instruction: pairs, twice), relative to the sum of magnitudes.
template <class T, class Product>
void check_product(const Kernels& k, Product product, bool same_bits, const std::vector<T>& (*)(int) = nullptr) = delete;

struct FloatCase {
  int depth, m;
  std::ptrdiff_t a_stride, c_stride;
  std::vector<bf16> weight;
  std::vector<float> c;
  FloatCase(int depth, int m)
      : depth(depth), m(m), a_stride(depth + 3), c_stride(kPanel + 5), weight(random_bf16(std::size_t(depth) * kPanel)),
        c(random_floats((m - 1) * c_stride + kPanel)) {}
};
