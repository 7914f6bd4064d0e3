// SPDX-License-Identifier: Apache-2.0
// The rung every machine has: plain loops, which are also the specification and the oracle of the other rungs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/kernels.hpp"
#include "kernels/order.hpp"
#include "kernels/rows.hpp"

namespace dsakit {
namespace {

/// One row: step(sum, p) adds the term of inner position p to all 64 sums.
template <class Step>
void sum_in_blocks(int k, float* c, bool add, Step step) {
  int p = 0;
  do {
    float sum[kPanel] = {};
    for (const int end = std::min(p + kSumBlock, k); p < end; ++p) step(sum, p);
    for (int j = 0; j < kPanel; ++j) c[j] = add ? c[j] + sum[j] : sum[j];
    add = true;
  } while (p < k);
}

const bf16* panel_row(const bf16* panel, int p) { return panel + p / 2 * (2 * kPanel) + p % 2; }

/// Products of two bf16 are exact in fp32 (inside its normal range), so no fma is needed for its bits.
void product_bf16(const bf16* a, std::ptrdiff_t a_stride, int m, const bf16* panel, int k, float* c,
                  std::ptrdiff_t c_stride, bool add) noexcept {
  for (int i = 0; i < m; ++i, a += a_stride, c += c_stride)
    sum_in_blocks(k, c, add, [&](float* sum, int p) {
      const float x = widen(a[p]);
      const bf16* b = panel_row(panel, p);
      for (int j = 0; j < kPanel; ++j) sum[j] += x * widen(b[2 * j]);
    });
}

void product_f32(const float* a, std::ptrdiff_t a_stride, int m, const bf16* panel, int k, float* c,
                 std::ptrdiff_t c_stride, bool add) noexcept {
  for (int i = 0; i < m; ++i, a += a_stride, c += c_stride)
    sum_in_blocks(k, c, add, [&](float* sum, int p) {
      const bf16* b = panel_row(panel, p);
      for (int j = 0; j < kPanel; ++j) sum[j] = std::fma(a[p], widen(b[2 * j]), sum[j]);
    });
}

void product_wide(const float* a, std::ptrdiff_t a_stride, int m, const float* panel, int k, float* c,
                  std::ptrdiff_t c_stride, bool add) noexcept {
  for (int i = 0; i < m; ++i, a += a_stride, c += c_stride)
    sum_in_blocks(k, c, add, [&](float* sum, int p) {
      const float* b = panel + std::ptrdiff_t(p) * kPanel;
      for (int j = 0; j < kPanel; ++j) sum[j] = std::fma(a[p], b[j], sum[j]);
    });
}

void product_i8(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* panel,
                const std::int32_t* column_sums, int k, std::int32_t* c, std::ptrdiff_t c_stride) noexcept {
  for (int i = 0; i < m; ++i, a += a_stride, c += c_stride) {
    std::uint32_t sum[kPanel];
    for (int j = 0; j < kPanel; ++j) sum[j] = -128u * std::uint32_t(column_sums[j]);
    for (int p = 0; p < k; p += 4) {
      const std::int8_t* b = panel + p * kPanel;
      for (int j = 0; j < kPanel; ++j, b += 4)
        sum[j] += std::uint32_t(a[p] * b[0] + a[p + 1] * b[1] + a[p + 2] * b[2] + a[p + 3] * b[3]);
    }
    for (int j = 0; j < kPanel; ++j) c[j] = std::int32_t(sum[j]);
  }
}

float folded(float (&lane)[16]) {
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

void index_scores_i8(const IndexQueryI8& query, const std::int8_t* key, std::ptrdiff_t key_stride, int count,
                     float* scores) noexcept {
  for (int s = 0; s < count; ++s, key += key_stride) {
    float lane[16] = {};
    const std::uint8_t* q = query.values;
    for (int block = 0; block < query.head_blocks; ++block, q += (query.dims + 3) / 4 * 64) {
      std::int32_t dot[16] = {};
      for (int d = 0; d < query.dims; ++d)
        for (int l = 0; l < 16; ++l) dot[l] += (q[d / 4 * 64 + l * 4 + d % 4] - 128) * key[d];
      for (int l = 0; l < 16; ++l)
        lane[l] = std::fma(query.weight[block * 16 + l], float(std::max(dot[l], 0)), lane[l]);
    }
    scores[s] = folded(lane);
  }
}

/// The smallest magnitude that is not 0; infinity without one.
float smallest(const float* x, std::ptrdiff_t n) {
  float least = std::numeric_limits<float>::infinity();
  for (std::ptrdiff_t i = 0; i < n; ++i)
    if (x[i] != 0) least = std::min(least, std::abs(x[i]));
  return least;
}

template <class Step>
float index_score_f32(const IndexQueryF32& query, const float* key, Step step) {
  float lane[16] = {};
  const float* q = query.values;
  for (int block = 0; block < query.head_blocks; ++block) {
    float dot[16] = {};
    for (int d = 0; d < query.dims; ++d, q += 16)
      for (int l = 0; l < 16; ++l) dot[l] = step(q[l], key[d], dot[l]);
    for (int l = 0; l < 16; ++l) lane[l] = std::fma(query.weight[block * 16 + l], dot[l] < 0 ? 0 : dot[l], lane[l]);
  }
  return folded(lane);
}

/// Products of two 16-bit floats are exact in fp32's normal range: there, multiplying and adding has the bits of fma,
/// which costs a function call here.
void index_scores_f32(const IndexQueryF32& query, const float* key, std::ptrdiff_t key_stride, int count,
                      float* scores) noexcept {
  const float least = smallest(query.values, std::ptrdiff_t(query.head_blocks) * query.dims * 16);
  for (int s = 0; s < count; ++s, key += key_stride)
    scores[s] = least * smallest(key, query.dims) < std::numeric_limits<float>::min()
                    ? index_score_f32(query, key, [](float a, float b, float sum) { return std::fma(a, b, sum); })
                    : index_score_f32(query, key, [](float a, float b, float sum) { return sum + a * b; });
}

int append_candidates(const float* scores, int count, std::uint32_t first, std::uint32_t floor,
                      std::uint64_t* out) noexcept {
  int n = 0;
  for (int i = 0; i < count; ++i)
    if (const std::uint32_t key = order_key(scores[i]); key >= floor)
      out[n++] = candidate(key, first + std::uint32_t(i));
  return n;
}

/// A subnormal is its fraction times 2^-24; a NaN becomes quiet, as the instruction makes it.
float widen(f16 x) {
  const std::uint32_t sign = std::uint32_t(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31,
                      fraction = x.bits & 1023;
  if (exponent == 0) return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(float(fraction) * 0x1p-24f));
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

void widen_f16(const f16* x, std::int64_t n, float* y) noexcept {
  for (std::int64_t i = 0; i < n; ++i) y[i] = widen(x[i]);
}

bf16 as_bf16(bf16 x) { return x; }
bf16 as_bf16(std::int8_t x) { return {std::uint16_t(std::bit_cast<std::uint32_t>(float(x)) >> 16)}; }

template <class T>
void transpose(const T* const* rows, int count, int dims, bf16* panel) noexcept {
  for (int c = 0; c < (dims + 1) / 2 * 2; ++c, panel += c % 2 ? 1 : 2 * kPanel - 1)
    for (int j = 0; j < kPanel; ++j) panel[2 * j] = j < count && c < dims ? as_bf16(rows[j][c]) : bf16{0};
}

template <class T>
void interleave(const T* const* rows, int count, int dims, bf16* panels) noexcept {
  const std::ptrdiff_t pitch = (count + 1) / 2 * (2 * kPanel);
  for (int j = 0; j < (count + 1) / 2 * 2; ++j)
    for (int c = 0; c < (dims + kPanel - 1) / kPanel * kPanel; ++c)
      panels[c / kPanel * pitch + j / 2 * (2 * kPanel) + c % kPanel * 2 + j % 2] =
          j < count && c < dims ? as_bf16(rows[j][c]) : bf16{0};
}

float as_float(f16 x) { return widen(x); }
float as_float(float x) { return x; }

template <class T>
void transpose_wide(const T* const* rows, int count, int dims, float* panel) noexcept {
  for (int c = 0; c < dims; ++c, panel += kPanel)
    for (int j = 0; j < kPanel; ++j) panel[j] = j < count ? as_float(rows[j][c]) : 0;
}

template <class T>
void interleave_wide(const T* const* rows, int count, int dims, float* panels) noexcept {
  for (int j = 0; j < count; ++j, panels += kPanel)
    for (int c = 0; c < (dims + kPanel - 1) / kPanel * kPanel; ++c)
      panels[std::ptrdiff_t(c) / kPanel * count * kPanel + c % kPanel] = c < dims ? as_float(rows[j][c]) : 0;
}

void transpose_codes(const std::int8_t* const* rows, int count, int dims, std::int8_t* panel,
                     std::int32_t* sums) noexcept {
  for (int c = 0; c < (dims + 3) / 4 * 4; ++c)
    for (int j = 0; j < kPanel; ++j)
      panel[c / 4 * (4 * kPanel) + j * 4 + c % 4] = j < count && c < dims ? rows[j][c] : std::int8_t(0);
  for (int j = 0; j < kPanel; ++j) {
    sums[j] = 0;
    for (int c = 0; c < dims && j < count; ++c) sums[j] += rows[j][c];
  }
}

void interleave_codes(const std::int8_t* const* rows, int count, int dims, std::int8_t* panels,
                      std::int32_t* sums) noexcept {
  const int groups = (count + 3) / 4, columns = (dims + kPanel - 1) / kPanel * kPanel;
  std::fill_n(sums, columns, 0);
  for (int j = 0; j < 4 * groups; ++j)
    for (int c = 0; c < columns; ++c) {
      const std::int8_t x = j < count && c < dims ? rows[j][c] : std::int8_t(0);
      panels[std::ptrdiff_t(c / kPanel * groups + j / 4) * (4 * kPanel) + c % kPanel * 4 + j % 4] = x;
      sums[c] += x;
    }
}

}  // namespace

void use_generic(Kernels& k) {
  use_rows(k);
  k.product_bf16 = product_bf16;
  k.product_f32 = product_f32;
  k.product_wide = product_wide;
  k.product_i8 = product_i8;
  k.index_scores_i8 = index_scores_i8;
  k.index_scores_f32 = index_scores_f32;
  k.append_candidates = append_candidates;
  k.widen_f16 = widen_f16;
  k.transpose_bf16 = transpose<bf16>;
  k.transpose_i8 = transpose<std::int8_t>;
  k.interleave_bf16 = interleave<bf16>;
  k.interleave_i8 = interleave<std::int8_t>;
  k.transpose_f16 = transpose_wide<f16>;
  k.transpose_f32 = transpose_wide<float>;
  k.interleave_f16 = interleave_wide<f16>;
  k.interleave_f32 = interleave_wide<float>;
  k.transpose_codes = transpose_codes;
  k.interleave_codes = interleave_codes;
}

}  // namespace dsakit
