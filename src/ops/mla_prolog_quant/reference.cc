// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "ops/mla_prolog_quant/problem.hpp"
#include "ops/prolog/formula.hpp"
#include "run/taps.hpp"

namespace dsakit::reference {
namespace {

using namespace prolog::formula;

void one_token(const prolog::MlaProblem& p, std::int64_t t) {
  const Row x = row_of(p.x.row<const bf16>(t), p.hidden);
  const Row cos = row_of(p.cos.row<const bf16>(t), p.rope), sin = row_of(p.sin.row<const bf16>(t), p.rope);

  // 1-3: the low-rank query
  Row c(static_cast<std::size_t>(p.rank));
  for (std::int64_t j = 0; j < p.rank; ++j) {
    const float s1 = float(product(x, p.w_dq, 0, j, 0, p.hidden / 2));
    const float s2 = float(product(x, p.w_dq, 0, j, p.hidden / 2, p.hidden));
    c[std::size_t(j)] = bf16_of(s1 + s2);
  }
  show("1.c", t, c);
  Row q_norm = norm_p(c, row_of(p.gamma_cq, p.rank), p.epsilon_cq);
  show("2.cq", t, q_norm);
  float scale = 0;
  if (p.quantised_query()) {
    auto* codes = p.q_norm.row<std::int8_t>(t);
    *p.q_norm_scale.row<float>(t) = scale = rowq_p(q_norm.data(), p.rank, codes);
    for (std::int64_t i = 0; i < p.rank; ++i) q_norm[std::size_t(i)] = float(codes[i]);
    show("3.query_norm", t, codes, q_norm);
    show("3.query_norm_scale", t, scale);
  } else {
    q_norm = bf16_of(q_norm);
    for (std::int64_t i = 0; i < p.rank; ++i) p.q_norm.row<bf16>(t)[i] = to_bf16(q_norm[std::size_t(i)]);
    show("3.query_norm", t, q_norm);
  }

  // 4-6: the heads
  const std::int64_t width = p.nope + p.rope;
  for (std::int64_t h = 0; h < p.heads; ++h) {
    Row q(static_cast<std::size_t>(width));
    for (std::int64_t j = 0; j < width; ++j) {
      const double sum = product(q_norm, p.w_uq_qr, 0, h * width + j, 0, p.rank);  // exact for int8
      q[std::size_t(j)] =
          p.quantised_query() ? bf16_of(dequantise(std::int64_t(sum), scale, *p.uq_qr_scale.row<const float>(h * width + j)))
                      : bf16_of(sum);
    }
    Row q_nope(q.begin(), q.begin() + p.nope), q_rope(q.begin() + p.nope, q.end());
    show("4.q_nope", t, q_nope, h * p.nope);
    show("4.q_rope", t, q_rope, h * p.rope);
    const std::int64_t out = t * p.heads + h;
    Row absorbed(static_cast<std::size_t>(p.latent)), rotated = bf16_of(rope_to_half(q_rope, cos, sin));
    for (std::int64_t j = 0; j < p.latent; ++j)
      absorbed[std::size_t(j)] = bf16_of(product(q_nope, p.w_uk, h, j, 0, p.nope));
    show("5.query", out, absorbed);
    show("6.query_rope", out, rotated);
    for (std::int64_t j = 0; j < p.latent; ++j) p.query_nope.row<bf16>(out)[j] = to_bf16(absorbed[std::size_t(j)]);
    for (std::int64_t j = 0; j < p.rope; ++j) p.query_rope.row<bf16>(out)[j] = to_bf16(rotated[std::size_t(j)]);
  }

  // 7-9: the latent and the rotated key
  const std::int64_t slot = p.kv_cache.count() > 0 ? *p.cache_index.row<const std::int64_t>(t) : -1;
  if (slot < 0) return;
  Row kv(static_cast<std::size_t>(p.latent + p.rope));
  for (std::int64_t j = 0; j < p.latent + p.rope; ++j)
    kv[std::size_t(j)] = bf16_of(product(x, p.w_dkv_kr, 0, j, 0, p.hidden));
  show("7.kv", t, kv);
  Row kr = bf16_of(rope_to_half(Row(kv.begin() + p.latent, kv.end()), cos, sin));
  show("8.kr", t, kr);
  for (std::int64_t j = 0; j < p.rope; ++j) p.kr_cache.first.row<bf16>(slot)[j] = to_bf16(kr[std::size_t(j)]);
  kv.resize(std::size_t(p.latent));
  Row k = norm_p(kv, row_of(p.gamma_ckv, p.latent), p.epsilon_ckv);
  show("9.ckv", t, k);
  if (p.quantised_query()) {
    const std::int64_t group = p.latent / p.groups;
    for (std::int64_t g = 0; g < p.groups; ++g)
      p.k_scale_cache.first.row<float>(slot)[g] =
          rowq_p(k.data() + g * group, group, p.kv_cache.first.row<std::int8_t>(slot) + g * group);
  } else {
    for (std::int64_t j = 0; j < p.latent; ++j) p.kv_cache.first.row<bf16>(slot)[j] = to_bf16(k[std::size_t(j)]);
  }
}

}  // namespace

void mla_prolog_quant(const MlaPrologQuantArgs& a, const MlaPrologQuantOuts& o) {
  const auto problem = mla_prolog_quant_op::check(a, o);
  for (int i = 0; i < problem.copy_count; ++i) {
    const auto& [from, to, width] = problem.copies[i];
    const Rows source = prolog::flat_rows(from, width), target = prolog::flat_rows(to, width);
    for (std::int64_t r = 0; r < source.count; ++r)
      std::memcpy(prolog::row_bytes(target, r), prolog::row_bytes(source, r), std::size_t(width * size_of(from.dtype)));
  }
  for (std::int64_t t = 0; t < problem.mla.tokens; ++t) one_token(problem.mla, t);
}

}  // namespace dsakit::reference
