// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/float16.hpp"
#include "ops/deviation.hpp"
#include "ops/weight.hpp"

// The formulas of the prologs as the documents write them, for the references: plain loops, sums of products in double,
// fp32 where an order of fp32 operations is prescribed. Nothing of the fast path.
namespace dsakit::prolog::formula {

using Row = std::vector<float>;

inline float bf16_of(double x) { return to_float(to_bf16_once(x)); }
inline float bf16_of(float x) { return to_float(to_bf16(x)); }
inline Row bf16_of(Row x) {
  for (float& v : x) v = bf16_of(v);
  return x;
}
inline Row row_of(const bf16* x, std::int64_t n) {
  Row y(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = to_float(x[i]);
  return y;
}

/// sum over i in [from, to) of x[i] * w[i, column], in double.
inline double product(const Row& x, const Weight& w, std::int64_t matrix, std::int64_t column, std::int64_t from,
                      std::int64_t to) {
  double sum = 0;
  for (std::int64_t i = from; i < to; ++i) sum += double(x[std::size_t(i)]) * double(w.at(matrix, i, column));
  return sum;
}

/// Canonical row sum.
inline float canonical_sum(const Row& terms) {
  float lane[16] = {};
  for (std::size_t i = 0; i < terms.size(); ++i) lane[i % 16] = lane[i % 16] + terms[i];
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
  return lane[0];
}

/// PyPTO: the mean of the squares is a sum of weighted ones, and the result has 16 bits.
inline Row norm_p(const Row& x, const Row& gamma, float epsilon);

inline Row norm(const Row& x, const Row& gamma, float epsilon) {
  if (reference::deviation.other_family) {
    const reference::Deviating documented({});
    return norm_p(x, gamma, epsilon);
  }
  Row q = x, y = x;
  for (float& v : q) v = v * v;
  const float r = std::sqrt(canonical_sum(q) * (1.0f / float(x.size())) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] / r * gamma[i];
  return y;
}

inline Row norm_p(const Row& x, const Row& gamma, float epsilon) {
  if (reference::deviation.other_family) {
    const reference::Deviating documented({});
    return norm(x, gamma, epsilon);
  }
  Row q = x, y = x;
  for (float& v : q) v = v * v * (1.0f / float(x.size()));
  const float r = 1.0f / std::sqrt(canonical_sum(q) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = gamma[i] * (x[i] * r);
  return bf16_of(y);
}

inline Row layer_norm(const Row& k, const Row& gamma, const Row& beta, float epsilon) {
  const float each = 1.0f / float(k.size());
  Row terms = k, d = k, y = k;
  for (float& v : terms) v = v * each;
  const float mean = reference::deviation.keeps_mean ? 0 : canonical_sum(terms);
  for (std::size_t i = 0; i < k.size(); ++i) d[i] = k[i] - mean, terms[i] = d[i] * d[i] * each;
  const float root = std::sqrt(canonical_sum(terms) + epsilon);
  for (std::size_t i = 0; i < k.size(); ++i) y[i] = d[i] / root * gamma[i] + beta[i];
  return y;
}

/// Half to even, saturating; NaN is 0.
inline std::int8_t i8(float v) {
  const float r = reference::deviation.rounded(v);
  return r != r ? 0 : std::int8_t(std::fmin(std::fmax(r, -128.0f), 127.0f));
}

/// Through float16, ties away from zero both times: 2.4995 is 2.5 in float16, hence 3.
inline std::int8_t i8_away(float v) {
  if (v != v || v == 0) return 0;
  if (reference::deviation.away) {
    const reference::Deviating documented({});
    return i8(v);
  }
  const double x = std::fmin(std::fmax(v, -1000.0f), 1000.0f);  // beyond, int8 is full anyway
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
  return std::int8_t(std::fmin(std::fmax(std::round(std::round(x / unit) * unit), -128.0), 127.0));
}

inline float largest_of(const float* x, std::int64_t n) {
  float a = 0;
  for (std::int64_t i = 0; i < n; ++i)
    if (std::fabs(x[i]) > a) a = std::fabs(x[i]);
  return a;
}

/// Codes of x[0..n-1] by `code` of x times 127/a, where a is the largest magnitude; the scale, in the form `scale`, as
/// the result. A group so small that 127/a overflows (of zeros, for one) is 0, and so is its scale.
template <class Code>
float quantised(const float* x, std::int64_t n, std::int8_t* codes, Code code, reference::Deviation::Scale scale) {
  const reference::Deviation& d = reference::deviation;
  const float a = std::fmax(largest_of(x, n), d.floor), steps = d.steps(127), multiplier = steps / a;
  const float s = d.scale_of(a, steps, scale);
  const bool tiny = !std::isfinite(multiplier);
  for (std::int64_t i = 0; i < n; ++i) codes[i] = tiny ? 0 : code(d.divides ? x[i] / s : x[i] * multiplier);
  return tiny ? 0 : s;
}
inline float rowq_p(const float* x, std::int64_t n, std::int8_t* codes) {
  return quantised(x, n, codes, i8, reference::Deviation::Scale::inverse);
}
inline float rowq(const float* x, std::int64_t n, std::int8_t* codes) {
  return quantised(x, n, codes, i8, reference::Deviation::Scale::quotient);
}
/// The same with i8_away: the no-rope query of one head.
inline float headq(const float* x, std::int64_t n, std::int8_t* codes) {
  return quantised(x, n, codes, i8_away, reference::Deviation::Scale::quotient);
}

/// One tile of a packed row: clipped at alpha times its largest magnitude; the scale as the result.
inline float tileq(const float* x, std::int64_t n, float alpha, std::int8_t* codes) {
  const reference::Deviation& d = reference::deviation;
  const float limit = std::fmax(largest_of(x, n), d.floor) * alpha;
  const float scale = d.scale_of(limit, d.steps(127), reference::Deviation::Scale::product), inverse = 1.0f / scale;
  const bool none = !std::isfinite(limit) || !std::isfinite(inverse);
  for (std::int64_t i = 0; i < n; ++i) {
    const float y = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
    codes[i] = none ? 0 : i8(d.divides ? y / scale : y * inverse);
  }
  return none ? 0 : scale;
}

/// int32 -> fp32, times the token's scale, times the channel's.
inline float dequantise(std::int64_t acc, float token, float channel) {
  return float(std::int32_t(acc)) * token * channel;
}

/// De-interleaves, then rotates halves.
inline Row rope_to_half(const Row& v, const Row& cos, const Row& sin) {
  const std::size_t half = v.size() / 2;
  Row out(v.size());
  for (std::size_t j = 0; j < half; ++j) {
    const float even = v[2 * j], odd = v[2 * j + 1];
    out[j] = even * cos[j] - odd * sin[j];
    out[half + j] = odd * cos[half + j] + even * sin[half + j];
  }
  return out;
}

}  // namespace dsakit::prolog::formula
