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
/// Entries of a list are used as they are; each must lie in 0..kv_act_seqs[b]-1. fp32 accumulation in chunks of 256
/// list positions merged in ascending order: bits do not depend on threads, batch split, paging or other rows.
/// docs/operators/sparse_flash_attention.md
struct SparseFlashAttentionQuantArgs {
  Tensor query_nope;
  Tensor query_rope;
  Tensor key_nope_2d;
  Tensor key_rope_2d;
  Tensor k_nope_scales{};
  Tensor topk_indices;
  Tensor block_table;
  Tensor kv_act_seqs;
  std::int64_t b = 0;
  std::int64_t s1 = 0;
  std::int64_t nq = 0;
  std::int64_t n_kv = 1;
  double softmax_scale = std::numeric_limits<double>::quiet_NaN();
  std::int64_t topk = 0;
  std::int64_t block_size = 0;
  std::string_view numerics = "exact";
  Level level = Level::portable;
};

struct SparseFlashAttentionQuantOuts {
  Tensor attention_out;
};

void sparse_flash_attention_quant(const SparseFlashAttentionQuantArgs&, const SparseFlashAttentionQuantOuts&,
                                  Context& = default_context());
void infer(const SparseFlashAttentionQuantArgs&, SparseFlashAttentionQuantOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, SparseFlashAttentionQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"query_nope", Role::in, Kind::data, "bfloat16", "[b*s1*nq, Dv]", "absorbed queries"}, a.query_nope);
  v({"query_rope", Role::in, Kind::data, "bfloat16", "[b*s1*nq, Dr]", "rotated part of the queries"}, a.query_rope);
  v({"key_nope_2d", Role::in, Kind::cache, "int8, bfloat16", "[block_num*block_size, Dv]", "latent rows"},
    a.key_nope_2d);
  v({"key_rope_2d", Role::in, Kind::cache, "bfloat16", "[block_num*block_size, Dr]", "rotated part of the keys"},
    a.key_rope_2d);
  v({"k_nope_scales", Role::in_opt, Kind::cache, "float32",
     "[block_num*block_size, Dv/G]; bfloat16 latent: absent or no elements", "what a code of each tile of G is worth"},
    a.k_nope_scales);
  v({"topk_indices", Role::in, Kind::index, "int32", "[b*s1, n_kv*K], K >= topk",
     "positions to attend to, as many as the row sees"},
    a.topk_indices);
  v({"block_table", Role::in, Kind::table, "int32", "[b, max_blocks]", "pages of each sequence"}, a.block_table);
  v({"kv_act_seqs", Role::in, Kind::lengths, "int32", "[b]", "lengths of the sequences of keys"}, a.kv_act_seqs);
  v({"b", Role::attribute, Kind::number, "int", ">= 0", "sequences", kWithoutDefault}, a.b);
  v({"s1", Role::attribute, Kind::number, "int", ">= 0", "query tokens of each sequence", kWithoutDefault}, a.s1);
  v({"nq", Role::attribute, Kind::number, "int", ">= 1; strict: 128", "query heads", kWithoutDefault}, a.nq);
  v({"n_kv", Role::attribute, Kind::number, "int", "1", "key heads"}, a.n_kv);
  v({"softmax_scale", Role::attribute, Kind::number, "float", "finite", "factor of the scores, as given",
     kWithoutDefault},
    a.softmax_scale);
  v({"topk", Role::attribute, Kind::number, "int", ">= 1; strict: 2048", "the most entries of a list that are used",
     kWithoutDefault},
    a.topk);
  v({"block_size", Role::attribute, Kind::number, "int", ">= 1; strict: 128", "rows of a page", kWithoutDefault},
    a.block_size);
  v({"numerics", Role::attribute, Kind::mode, "str", "exact, device, golden",
     "device, golden: with the intermediate roundings of the kernel or of the published comparison, to compare with them"},
    a.numerics);
  v(kLevelField, a.level);
  v({"attention_out", Role::out, Kind::data, "bfloat16", "[b, s1, nq, Dv]", "attention, still in the latent space"},
    o.attention_out);
}
constexpr Description describe(const SparseFlashAttentionQuantArgs&) {
  return {
      .summary = "Attention of each query row over the listed positions of paged latent caches, MLA in absorbed form",
      .formula =
          "s[h,j] = (query_nope[h] . k[j] + query_rope[h] . key_rope[j]) * softmax_scale, k = code * scale of its "
          "tile\n"
          "out[h] = sum_j softmax(s[h])[j] * k[j]\n"
          "row i of a sequence uses the first min(max(kv_act_seqs[b] - s1 + 1 + i, 0), topk) entries of its list",
      .errors =
          "INVALID_ARGUMENT: a tensor is missing, an attribute is out of range, scales do not go with the latent\n"
          "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
          "UNSUPPORTED: strict: what the device does not take\n"
          "INVALID_SEQLEN: kv_act_seqs exceeds the columns of block_table\n"
          "INVALID_INDEX, INVALID_BLOCK: an entry in use names no position, its page is none of the cache",
      .source = "the PyPTO example for DeepSeek-V3.2",
      .page = "sparse_flash_attention.md",
      .family = Family::pypto,
      .positional = 8};
}

namespace reference {
void sparse_flash_attention_quant(const SparseFlashAttentionQuantArgs&, const SparseFlashAttentionQuantOuts&,
                                  ProbabilityRounding = ProbabilityRounding::none);
}

}  // namespace dsakit
