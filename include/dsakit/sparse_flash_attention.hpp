// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/probability_rounding.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// MLA attention of each query row over the listed positions of its sequence, in absorbed form: the latent row is key
/// (beside its rope part) and value, for all heads.
///
///   s[h,j] = (query[h] . key[j] + query_rope[h] . key_rope[j]) * scale_value
///   out[h] = sum_j softmax(s[h])[j] * key[j]
///
/// A list entry e names the tokens e * sparse_block_size .. + sparse_block_size - 1; -1 ends the list; what the row
/// cannot see is left out. fp32 accumulation in chunks of 256 list positions merged in ascending order: bits do not
/// depend on threads, batch split, layout, paging or other rows. docs/operators/sparse_flash_attention.md
struct SparseFlashAttentionArgs {
  Tensor query;                       // bf16 f16  [B,S1,N1,Dv] or [T1,N1,Dv]
  Tensor key;                         // as query  [B,S2,1,Dv], [T2,1,Dv] or pages [block_num,block_size,1,Dv]
  Tensor value;                       // the key: same storage, or equal rows
  Tensor sparse_indices;              // i32 [B,S1,1,K] or [T1,1,K]
  double scale_value = std::numeric_limits<double>::quiet_NaN();  // required
  Tensor block_table{};               // i32 [B, pages per sequence], with PA_BSND only
  Tensor actual_seq_lengths_query{};  // i32 [B]: counts (BSND) or running totals (TND)
  Tensor actual_seq_lengths_kv{};     // i32 [B]
  Tensor query_rope{};                // required: as query, width Dr
  Tensor key_rope{};                  // required: as key, width Dr
  std::int64_t sparse_block_size = 1;
  std::string_view layout_query = "BSND";  // BSND, TND
  std::string_view layout_kv = "BSND";     // BSND, TND, PA_BSND
  std::int64_t sparse_mode = 3;       // 0: all keys; 3: causal, aligned at the bottom right
  std::int64_t pre_tokens = kAllTokens;
  std::int64_t next_tokens = kAllTokens;
  std::int64_t attention_mode = 0;    // only 2 (MLA absorb) exists; the documents' default is refused by name
  bool return_softmax_lse = false;
  Tensor sinks{};                     // f32 [N1]: one more logit per head, without a value
  std::string_view index_check = "error";  // "mask": entries past the key length are ignored, as the device does
  Level level = Level::portable;
};

struct SparseFlashAttentionOuts {
  Tensor attention_out;               // like query
  Tensor softmax_max{};               // f32 [B,1,S1,N1] or [1,T1,N1]; without return_softmax_lse [0], or absent
  Tensor softmax_sum{};
};

void sparse_flash_attention(const SparseFlashAttentionArgs&, const SparseFlashAttentionOuts&,
                            Context& = default_context());
void infer(const SparseFlashAttentionArgs&, SparseFlashAttentionOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, SparseFlashAttentionArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("query", a.query, Role::in);
  v("key", a.key, Role::in);
  v("value", a.value, Role::in);
  v("sparse_indices", a.sparse_indices, Role::in);
  v("scale_value", a.scale_value, Role::attribute);
  v("block_table", a.block_table, Role::in_opt);
  v("actual_seq_lengths_query", a.actual_seq_lengths_query, Role::in_opt);
  v("actual_seq_lengths_kv", a.actual_seq_lengths_kv, Role::in_opt);
  v("query_rope", a.query_rope, Role::in);
  v("key_rope", a.key_rope, Role::in);
  v("sparse_block_size", a.sparse_block_size, Role::attribute);
  v("layout_query", a.layout_query, Role::attribute);
  v("layout_kv", a.layout_kv, Role::attribute);
  v("sparse_mode", a.sparse_mode, Role::attribute);
  v("pre_tokens", a.pre_tokens, Role::attribute);
  v("next_tokens", a.next_tokens, Role::attribute);
  v("attention_mode", a.attention_mode, Role::attribute);
  v("return_softmax_lse", a.return_softmax_lse, Role::attribute);
  v("sinks", a.sinks, Role::in_opt);
  v("index_check", a.index_check, Role::attribute);
  v("level", a.level, Role::attribute);
  v("attention_out", o.attention_out, Role::out);
  v("softmax_max", o.softmax_max, Role::out);
  v("softmax_sum", o.softmax_sum, Role::out);
}
constexpr int positional(const SparseFlashAttentionArgs&) { return 5; }

namespace reference {
void sparse_flash_attention(const SparseFlashAttentionArgs&, const SparseFlashAttentionOuts&,
                            ProbabilityRounding = ProbabilityRounding::none);
}

}  // namespace dsakit
