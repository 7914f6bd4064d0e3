// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/lightning_indexer_prolog_quant/problem.hpp"
#include "ops/prolog/formula.hpp"
#include "run/taps.hpp"

namespace dsakit::reference {
namespace {

using namespace prolog::formula;

Row rope_first(const prolog::IndexerProblem& p, std::int64_t t, const Row& x) {
  const bf16 *cos = p.cos.row<const bf16>(t), *sin = p.sin.row<const bf16>(t);
  const std::int64_t m = p.rope / 2;
  Row o = x;
  for (std::int64_t j = 0; j < m; ++j) {
    const bool half = p.layout == RopeLayout::half;
    const std::int64_t in1 = half ? j : 2 * j, in2 = half ? j + m : 2 * j + 1;
    const bool paired = p.layout == RopeLayout::interleaved;
    const std::int64_t out1 = paired ? 2 * j : j, out2 = paired ? 2 * j + 1 : j + m;
    const float a = x[std::size_t(in1)], b = x[std::size_t(in2)];
    o[std::size_t(out1)] = bf16_of(a * to_float(cos[j]) - b * to_float(sin[j]));
    o[std::size_t(out2)] = bf16_of(b * to_float(cos[j + m]) + a * to_float(sin[j + m]));
  }
  return o;
}

Row transformed(const Row& x, const Tensor& hadamard) {
  if (!hadamard) return x;
  const auto matrix = view<const bf16, 2>(hadamard);
  Row y(x.size());
  for (std::size_t c = 0; c < x.size(); ++c) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += double(x[i]) * double(to_float(matrix(i, c)));
    y[c] = bf16_of(sum);
  }
  return y;
}

Row vector_of(const Tensor& t) {
  Row y(std::size_t(t.shape[0]));
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = float_at(t, std::int64_t(i));
  return y;
}

void one_token(const prolog::IndexerProblem& p, std::int64_t t) {
  const Row x = row_of(p.x.row<const bf16>(t), p.hidden);
  const std::int8_t* codes = p.q_norm.row<const std::int8_t>(t);
  const Row q_norm(codes, codes + p.rank);

  for (std::int64_t h = 0; h < p.heads; ++h) {  // Q1-Q5
    Row q(static_cast<std::size_t>(p.dim));
    for (std::int64_t c = 0; c < p.dim; ++c) {
      const double acc = product(q_norm, p.w_qb, 0, h * p.dim + c, 0, p.rank);
      q[std::size_t(c)] = bf16_of(dequantise(std::int64_t(acc), *p.q_norm_scale.row<const float>(t),
                                             *p.channel_scale.row<const float>(h * p.dim + c)));
    }
    show("Q2.q", t, q, h * p.dim);
    q = rope_first(p, t, q);
    show("Q3.q", t, q, h * p.dim);
    q = transformed(q, p.hadamard_q);
    show("Q4.q", t, q, h * p.dim);
    const std::int64_t out = t * p.heads + h;
    *p.q_scale.row<f16>(out) = to_f16(rowq_p(q.data(), p.dim, p.q_int8.row<std::int8_t>(out)));
  }

  for (std::int64_t h = 0; h < p.heads; ++h)  // W1, W2
    p.weights.row<f16>(t)[h] = to_f16(bf16_of(product(x, p.w_proj, 0, h, 0, p.hidden)) * p.head_scale);

  const std::int64_t slot = p.k_cache.count > 0 ? *p.cache_index.row<const std::int64_t>(t) : -1;
  if (slot < 0) return;
  Row k(static_cast<std::size_t>(p.dim));  // K1-K5
  for (std::int64_t c = 0; c < p.dim; ++c) k[std::size_t(c)] = float(product(x, p.wk, 0, c, 0, p.hidden));
  show("K1.k", t, k);
  k = bf16_of(layer_norm(k, vector_of(p.gamma), vector_of(p.beta), p.epsilon));
  show("K2.k", t, k);
  k = rope_first(p, t, k);
  show("K3.k", t, k);
  k = transformed(k, p.hadamard_k);
  show("K4.k", t, k);
  const float scale = rowq_p(k.data(), p.dim, p.k_cache.row<std::int8_t>(slot));
  if (p.k_scale_cache.tensor.dtype == DType::f16) *p.k_scale_cache.row<f16>(slot) = to_f16(scale);
  else *p.k_scale_cache.row<float>(slot) = scale;
}

}  // namespace

void lightning_indexer_prolog_quant(const LightningIndexerPrologQuantArgs& a,
                                    const LightningIndexerPrologQuantOuts& o) {
  const auto problem = lightning_indexer_prolog_quant_op::check(a, o);
  for (std::int64_t t = 0; t < problem.tokens; ++t) one_token(problem, t);
}

}  // namespace dsakit::reference
