// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/float16.hpp"
#include "run/taps.hpp"

namespace dsakit::attention::sparse {
namespace {

using Rounding = dsakit::reference::ProbabilityRounding;

/// `count` elements from `first` on of a row that may lie at any address.
template <class T>
Numbers read(const std::byte* row, int first, int count) {
  Numbers x(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, row + std::size_t(first + i) * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, std::int8_t>) x[std::size_t(i)] = value;
    else x[std::size_t(i)] = to_float(value);
  }
  return x;
}
Numbers read(DType type, const std::byte* row, int count) {
  return type == DType::f16 ? read<f16>(row, 0, count) : read<bf16>(row, 0, count);
}
/// Nearest fp16, ties away from zero, as the device rounds keys and unnormalised probabilities.
double to_f16_away(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 11, -24));
  return to_float(to_f16(float(std::round(x / unit) * unit)));
}
double rounded(DType type, double x, bool away) {
  if (type == DType::bf16) return to_float(to_bf16_once(x));
  return away ? to_f16_away(x) : to_float(to_f16_once(x));
}

}  // namespace

Numbers read(DType type, const Rows& rows, std::int64_t row, int count) {
  return read(type, reinterpret_cast<const std::byte*>(rows.row<const std::uint16_t>(row)), count);
}

Key key_of(const Problem& p, std::int64_t row, bool as_on_device) {
  Key key;
  if (p.rope) key.rope = read(p.type, p.keys.rope_at(row), p.rope);
  if (p.keys.tile == 0) {
    key.latent = read(p.type, p.keys.latent_at(row), p.latent);
    return key;
  }
  key.latent = read<std::int8_t>(p.keys.latent_at(row), 0, p.latent);
  for (int c = 0; c < p.latent; ++c) {
    const double scale = read<float>(p.keys.scales_at(row), c / p.keys.tile, 1)[0];
    double& x = key.latent[std::size_t(c)];
    x = as_on_device ? rounded(p.type, double(float(x) * float(scale)), true) : x * scale;
  }
  return key;
}

namespace {

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Softmax of one head: its sums, and sum_j p_j * latent_j, not yet divided by the sum unless p is normalised.
struct Softmax {
  double most = -INFINITY, sum = 0;
  Numbers values;
};

Softmax combine(const Problem& p, const Numbers& score, const std::vector<Key>& keys, double sink, Rounding rounding) {
  const std::size_t n = score.size(), tile = rounding == Rounding::unnormalised_tile2048 ? 2048 : n;
  Softmax s{sink, sink > -INFINITY ? 1.0 : 0.0, Numbers(std::size_t(p.latent), 0.0)};
  for (std::size_t first = 0; first < n; first += tile) {
    const std::size_t end = std::min(n, first + tile);
    const double most = std::fmax(s.most, *std::max_element(&score[first], &score[0] + end));
    const double fade = most == s.most ? 1 : std::exp(s.most - most);
    s.sum *= fade, s.most = most;
    for (double& x : s.values) x *= fade;
    Numbers weight;
    for (std::size_t j = first; j < end; ++j) s.sum += weight.emplace_back(std::exp(score[j] - most));
    for (std::size_t j = first; j < end; ++j) {
      double w = weight[j - first];
      if (rounding == Rounding::normalised) w = rounded(p.type, w / s.sum, false);
      if (rounding == Rounding::unnormalised_tile2048) w = rounded(p.type, w, true);
      for (int c = 0; c < p.latent; ++c) s.values[std::size_t(c)] += w * keys[j].latent[std::size_t(c)];
    }
  }
  if (rounding != Rounding::normalised)
    for (double& x : s.values) x /= s.sum;
  return s;
}

}  // namespace

void reference(const Problem& p, std::int64_t t, const Token& token, Rounding rounding) {
  if (rounding == Rounding::none) rounding = p.rounding.probability;
  std::vector<Key> keys;
  std::vector<std::int64_t> listed;  // the place of each in the list
  each_attended(token, 0, token.count, [&](std::int64_t x, std::int64_t position) {
    listed.push_back(x);
    keys.push_back(key_of(p, p.key_row(token, position), rounding != Rounding::none));
  });
  for (std::int64_t h = 0; h < p.heads; ++h) {
    const std::int64_t row = t * p.heads + h;
    const double sink = p.sinks ? double(p.sinks[h]) : -INFINITY;
    const bool has_sink = sink > -INFINITY && token.sequence >= 0;
    Softmax s{has_sink ? sink : 0, has_sink ? 1.0 : 0.0, Numbers(std::size_t(p.latent), 0.0)};
    if (!keys.empty()) {
      const Numbers query = read(p.type, p.query, row, p.latent);
      const Numbers query_rope = p.rope ? read(p.type, p.query_rope, row, p.rope) : Numbers();
      Numbers score;
      for (const Key& key : keys)
        score.push_back((dot(query, key.latent) + dot(query_rope, key.rope)) * double(p.scale));
      for (std::size_t j = 0; j < score.size(); ++j) show("1.scores", row, score[j], listed[j]);
      s = combine(p, score, keys, sink, rounding);
    }
    for (std::size_t c = 0; c < s.values.size(); ++c) {
      if (p.type == DType::f16) p.out.row<f16>(row)[c] = to_f16_once(p.rounding.away ? to_f16_away(s.values[c]) : s.values[c]);
      else p.out.row<bf16>(row)[c] = to_bf16_once(s.values[c]);
    }
    if (float most = float(s.most), sum = float(s.sum); s.sum > 0) show("2.max", row, most), show("3.sum", row, sum);
    if (p.max.tensor) *p.max.row<float>(row) = float(s.most);
    if (p.sum.tensor) *p.sum.row<float>(row) = float(s.sum);
  }
}

}  // namespace dsakit::attention::sparse
