// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "core/float16.hpp"
#include "ops/sparse_flash_attention_quant/problem.hpp"

namespace dsakit::reference {
namespace {

using Problem = sparse_flash_attention_quant_op::Problem;

/// What one row attends to, and its latents in double: as they are, or rounded to bf16 as the device forms do.
struct Attended {
  std::vector<std::vector<double>> latent, rope;

  Attended(const Problem& p, std::int64_t t, bool rounded) {
    const attention::Problem& a = p.attention;
    const attention::Token token = p.token(t);
    for (std::int64_t j = 0; j < token.count; ++j) {
      const std::int64_t row = a.keys.rows.offset(token.sequence, token.list[j]);
      latent.emplace_back(a.latent), rope.emplace_back(a.rope);
      for (int c = 0; c < a.latent; ++c) latent.back()[c] = element(a.keys, row, c, rounded);
      for (int c = 0; c < a.rope; ++c) rope.back()[c] = to_float(a.keys.rope.row<const bf16>(row)[c]);
    }
  }

  static double element(const attention::Keys& keys, std::int64_t row, int c, bool rounded) {
    if (keys.tile == 0) return to_float(keys.latent.row<const bf16>(row)[c]);
    const std::int8_t code = keys.latent.row<const std::int8_t>(row)[c];
    const float scale = keys.scales.row<const float>(row)[c / keys.tile];
    return rounded ? double(to_float(to_bf16(float(code) * scale))) : double(code) * double(scale);
  }
};

double dot(const bf16* a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < b.size(); ++i) sum += double(to_float(a[i])) * b[i];
  return sum;
}

double as_bf16(double x) { return to_float(to_bf16(float(x))); }

/// sum_j p_j * value_j / sum_j p_j over one row of scores.
std::vector<double> combine(const std::vector<double>& score, const Attended& keys, int width,
                            ProbabilityRounding rounding) {
  const std::size_t n = score.size(), tile = rounding == ProbabilityRounding::unnormalised_tile2048 ? 2048 : n;
  std::vector<double> out(std::size_t(width), 0.0);
  double most = -INFINITY, sum = 0;
  for (std::size_t first = 0; first < n; first += tile) {
    const std::size_t end = std::min(n, first + tile);
    double tile_most = most;
    for (std::size_t j = first; j < end; ++j) tile_most = std::fmax(tile_most, score[j]);
    const double fade = std::exp(most - tile_most);
    sum *= fade;
    for (double& x : out) x *= fade;
    most = tile_most;
    std::vector<double> p(end - first);
    for (std::size_t j = first; j < end; ++j) sum += p[j - first] = std::exp(score[j] - most);
    for (std::size_t j = first; j < end; ++j) {
      double weight = p[j - first];
      if (rounding == ProbabilityRounding::normalised) weight = as_bf16(weight / sum);
      if (rounding == ProbabilityRounding::unnormalised_tile2048) weight = as_bf16(weight);
      for (int c = 0; c < width; ++c) out[c] += weight * keys.latent[j][c];
    }
  }
  if (rounding != ProbabilityRounding::normalised)
    for (double& x : out) x /= sum;
  return out;
}

}  // namespace

void sparse_flash_attention_quant(const SparseFlashAttentionQuantArgs& args, const SparseFlashAttentionQuantOuts& outs,
                                  ProbabilityRounding rounding) {
  const Problem p = sparse_flash_attention_quant_op::check(args, outs);
  const attention::Problem& a = p.attention;
  for (std::int64_t t = 0; t < a.tokens; ++t) {
    const Attended keys(p, t, rounding != ProbabilityRounding::none);
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const std::int64_t row = t * a.heads + h;
      bf16* out = a.out.row<bf16>(row);
      std::vector<double> score;
      for (std::size_t j = 0; j < keys.latent.size(); ++j)
        score.push_back((dot(a.query.row<const bf16>(row), keys.latent[j]) +
                         (a.rope ? dot(a.query_rope.row<const bf16>(row), keys.rope[j]) : 0)) * double(a.scale));
      const std::vector<double> values =
          score.empty() ? std::vector<double>(std::size_t(a.latent), 0.0) : combine(score, keys, a.latent, rounding);
      for (int c = 0; c < a.latent; ++c) out[c] = to_bf16_once(values[c]);
    }
  }
}

}  // namespace dsakit::reference
