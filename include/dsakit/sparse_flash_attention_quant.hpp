// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/probability_rounding.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// MLA attention of each query row over the listed positions of its sequence, in absorbed form: the latent row is
/// key (beside its rope part) and value, for all heads.
///
///   s[h,j] = (query_nope[h] . k[j] + query_rope[h] . key_rope[j]) * softmax_scale,   k = code * scale of its tile
///   out[h] = sum_j softmax(s[h])[j] * k[j]
///
/// Row i of a sequence uses the first min(max(kv_act_seqs[b] - s1 + 1 + i, 0), topk) entries of its list, as they
/// are; each must lie in 0..kv_act_seqs[b]-1. fp32 accumulation in chunks of 256 list positions merged in ascending
/// order: bits do not depend on threads, batch split, paging or other rows. docs/operators/sparse_flash_attention.md
struct SparseFlashAttentionQuantArgs {
  Tensor query_nope;     // bf16 [b*s1*nq, Dv]
  Tensor query_rope;     // bf16 [b*s1*nq, Dr]
  Tensor key_nope_2d;    // i8 or bf16 [block_num*block_size, Dv]
  Tensor key_rope_2d;    // bf16 [block_num*block_size, Dr]
  Tensor k_nope_scales{};  // f32 [block_num*block_size, Dv/G]; bf16 latent: absent or without elements
  Tensor topk_indices;   // i32 [b*s1, n_kv*K]
  Tensor block_table;    // i32 [b, max_blocks]
  Tensor kv_act_seqs;    // i32 [b]
  std::int64_t b = 0;
  std::int64_t s1 = 0;
  std::int64_t nq = 0;
  std::int64_t n_kv = 1;
  double softmax_scale = std::numeric_limits<double>::quiet_NaN();  // required
  std::int64_t topk = 0;
  std::int64_t block_size = 0;
  Level level = Level::portable;
};

struct SparseFlashAttentionQuantOuts {
  Tensor attention_out;  // bf16 [b, s1, nq, Dv]
};

void sparse_flash_attention_quant(const SparseFlashAttentionQuantArgs&, const SparseFlashAttentionQuantOuts&,
                                  Context& = default_context());
void infer(const SparseFlashAttentionQuantArgs&, SparseFlashAttentionQuantOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, SparseFlashAttentionQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("query_nope", a.query_nope, Role::in);
  v("query_rope", a.query_rope, Role::in);
  v("key_nope_2d", a.key_nope_2d, Role::in);
  v("key_rope_2d", a.key_rope_2d, Role::in);
  v("k_nope_scales", a.k_nope_scales, Role::in_opt);
  v("topk_indices", a.topk_indices, Role::in);
  v("block_table", a.block_table, Role::in);
  v("kv_act_seqs", a.kv_act_seqs, Role::in);
  v("b", a.b, Role::attribute);
  v("s1", a.s1, Role::attribute);
  v("nq", a.nq, Role::attribute);
  v("n_kv", a.n_kv, Role::attribute);
  v("softmax_scale", a.softmax_scale, Role::attribute);
  v("topk", a.topk, Role::attribute);
  v("block_size", a.block_size, Role::attribute);
  v("level", a.level, Role::attribute);
  v("attention_out", o.attention_out, Role::out);
}
constexpr int positional(const SparseFlashAttentionQuantArgs&) { return 8; }

namespace reference {
void sparse_flash_attention_quant(const SparseFlashAttentionQuantArgs&, const SparseFlashAttentionQuantOuts&,
                                  ProbabilityRounding = ProbabilityRounding::none);
}

}  // namespace dsakit
