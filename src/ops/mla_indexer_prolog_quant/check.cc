// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "ops/lightning_indexer_prolog_quant/problem.hpp"
#include "ops/mla_indexer_prolog_quant/parts.hpp"
#include "ops/mla_indexer_prolog_quant/problem.hpp"
#include "ops/mla_prolog_quant/problem.hpp"

namespace dsakit {
namespace mla_indexer_prolog_quant_op {
namespace {

namespace mla = mla_prolog_quant_op;
namespace lip = lightning_indexer_prolog_quant_op;

constexpr lip::Names kNames = {"token_x", "ip_k_cache", "ip_k_scale_cache", "cache_index", "rope_layout_indexer"};

struct Sizes {
  mla::Sizes mla;
  lip::Sizes indexer;
};

/// The part of the door that concerns inputs and caches, in the order of the two operators' tables.
Sizes check_inputs(const Check& check, const MlaIndexerPrologQuantArgs& a, const MlaIndexerPrologQuantOuts& o) {
  const MlaPrologQuantArgs mla_form = mla_args(a, o);
  const LightningIndexerPrologQuantArgs indexer_form = indexer_args(a);
  const LightningIndexerPrologQuantOuts caches = indexer_outs(o);
  const Tensors tensors(a, o);
  check_given(check, tensors);
  check_countable(check, tensors);
  if (a.dequant_scale.elements() == 0)
    check.fail(Status::invalid_argument, "dequant_scale", "", "has no elements", "a scale per column of w_uq_qr",
               "only mla_prolog_quant has a mode without quantisation");
  lip::check_hadamard_presence(check, indexer_form);
  mla::check_cache_mode(check, a.cache_mode);
  Sizes s;
  s.mla = mla::check_shapes(check, mla_form);
  s.indexer = lip::check_shapes(check, indexer_form, caches, kNames, s.mla.rank);
  const std::int64_t wanted = s.mla.cache.block_size, got = s.indexer.cache.block_size;
  if (wanted >= 0 && got >= 0 && wanted != got)
    check.fail(Status::invalid_shape, "ip_k_cache", "", "has block_size " + std::to_string(got), std::to_string(wanted),
               "kv_cache: one cache_index serves both");
  mla::check_dtypes(check, mla_form, s.mla);
  lip::check_dtypes(check, indexer_form, caches, kNames);
  return s;
}

}  // namespace

Problem check(const MlaIndexerPrologQuantArgs& a, const MlaIndexerPrologQuantOuts& o) {
  const Check check("mla_indexer_prolog_quant", a.level);
  const Sizes s = check_inputs(check, a, o);
  check.required(o.query_nope, "query_nope");
  check.required(o.query_rope, "query_rope");
  check.sizes(o.query_nope, "query_nope");
  check.sizes(o.query_rope, "query_rope");
  check.rows(o.query_nope, "query_nope", s.mla.tokens, {s.mla.heads, s.mla.latent}, "t of token_x, N and Hckv of w_uk");
  check.rows(o.query_rope, "query_rope", s.mla.tokens, {s.mla.heads, s.mla.rope}, "t of token_x, N of w_uk, Dr of cos");
  check.dtype(o.query_nope, "query_nope", {DType::bf16});
  check.dtype(o.query_rope, "query_rope", {DType::bf16});
  const LightningIndexerPrologQuantOuts outs = indexer_outs(o);
  lip::check_outs(check, outs, s.indexer, kNames);
  const Tensors tensors(a, o);
  check_memory(check, tensors, Caches::free_first_axis);
  check_separate(check, tensors, Named::later);
  check.positive(float(a.epsilon_cq), "epsilon_cq");
  check.positive(float(a.epsilon_ckv), "epsilon_ckv");
  prolog::check_slots(check, a.cache_index, "cache_index", s.mla.cache);
  lip::check_attributes(check, indexer_args(a), s.indexer, kNames);

  Problem p{mla::resolve(check, mla_args(a, o), s.mla), lip::resolve(check, indexer_args(a), outs, s.indexer)};
  p.mla.query_nope = prolog::flat_rows(o.query_nope, s.mla.latent);
  p.mla.query_rope = prolog::flat_rows(o.query_rope, s.mla.rope);
  return p;
}

void check_values(const MlaIndexerPrologQuantArgs& a, const Problem& problem) {
  const Check check("mla_indexer_prolog_quant", a.level);
  check_finite(check, Tensors::inputs<MlaIndexerPrologQuantOuts>(a));
  mla::check_weight_values(check, problem.mla);
  lip::check_weight_values(check, problem.indexer);
}

}  // namespace mla_indexer_prolog_quant_op

void infer(const MlaIndexerPrologQuantArgs& a, MlaIndexerPrologQuantOuts& o) {
  const Check check("mla_indexer_prolog_quant", a.level);
  const auto [mla, indexer] = mla_indexer_prolog_quant_op::check_inputs(check, a, o);
  if (!o.query_nope) o.query_nope = shaped(DType::bf16, {mla.tokens, mla.heads, mla.latent});
  if (!o.query_rope) o.query_rope = shaped(DType::bf16, {mla.tokens, mla.heads, mla.rope});
  if (!o.q_int8) o.q_int8 = shaped(DType::i8, {mla.tokens, indexer.heads, indexer.dim});
  if (!o.q_scale) o.q_scale = shaped(DType::f16, {mla.tokens, indexer.heads, 1});
  if (!o.weights) o.weights = shaped(DType::f16, {mla.tokens, indexer.heads});
}

}  // namespace dsakit
