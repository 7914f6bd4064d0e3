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

/// sparse_flash_attention on packed rows, one per token, as mla_prolog_v3 writes them: Dv int8 codes, then rope_head_dim
/// values of query's dtype, then one fp32 scale per tile of tile_size codes (little endian, 656 bytes for 512/64/128).
/// The key is code * scale, never rounded. docs/operators/sparse_flash_attention.md
struct KvQuantSparseFlashAttentionArgs {
  Tensor query;                       // bf16 f16  [B,S1,N1,Dv+Dr] or [T1,N1,Dv+Dr], latent part first
  Tensor key;                         // i8 [B,S2,1,row], [T2,1,row] or pages [block_num,block_size,1,row]
  Tensor value;                       // the key: same storage, or equal rows
  Tensor sparse_indices;              // i32 [B,S1,1,K] or [T1,1,K]
  double scale_value = std::numeric_limits<double>::quiet_NaN();  // required
  std::int64_t key_quant_mode = 0;    // required: 2, per tile of a token
  std::int64_t value_quant_mode = 0;  // required: 2
  Tensor key_dequant_scale{};         // always absent: the scales are in the rows
  Tensor value_dequant_scale{};
  Tensor block_table{};               // i32 [B, pages per sequence], with PA_BSND only
  Tensor actual_seq_lengths_query{};  // i32 [B]: counts (BSND) or running totals (TND)
  Tensor actual_seq_lengths_kv{};     // i32 [B]
  std::int64_t sparse_block_size = 1;
  std::string_view layout_query = "BSND";  // BSND, TND
  std::string_view layout_kv = "BSND";     // BSND, TND, PA_BSND
  std::int64_t sparse_mode = 3;       // 0: all keys; 3: causal, aligned at the bottom right
  std::int64_t pre_tokens = kAllTokens;
  std::int64_t next_tokens = kAllTokens;
  std::int64_t attention_mode = 0;    // only 2 (MLA absorb) exists; the documents' default is refused by name
  std::int64_t quant_scale_repo_mode = 1;  // 1: the scales are in the rows
  std::int64_t tile_size = 128;
  std::int64_t rope_head_dim = 64;
  Tensor sinks{};                     // f32 [N1]: one more logit per head, without a value
  bool return_softmax_lse = false;
  std::string_view index_check = "error";  // "mask": entries past the key length are ignored, as the device does
  Level level = Level::portable;
};

struct KvQuantSparseFlashAttentionOuts {
  Tensor attention_out;               // dtype of query, its shape with Dv as last axis
  Tensor softmax_max{};               // f32 [B,1,S1,N1] or [1,T1,N1]; without return_softmax_lse [0], or absent
  Tensor softmax_sum{};
};

void kv_quant_sparse_flash_attention(const KvQuantSparseFlashAttentionArgs&, const KvQuantSparseFlashAttentionOuts&,
                                     Context& = default_context());
void infer(const KvQuantSparseFlashAttentionArgs&, KvQuantSparseFlashAttentionOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, KvQuantSparseFlashAttentionArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("query", a.query, Role::in);
  v("key", a.key, Role::in);
  v("value", a.value, Role::in);
  v("sparse_indices", a.sparse_indices, Role::in);
  v("scale_value", a.scale_value, Role::attribute);
  v("key_quant_mode", a.key_quant_mode, Role::attribute);
  v("value_quant_mode", a.value_quant_mode, Role::attribute);
  v("key_dequant_scale", a.key_dequant_scale, Role::in_opt);
  v("value_dequant_scale", a.value_dequant_scale, Role::in_opt);
  v("block_table", a.block_table, Role::in_opt);
  v("actual_seq_lengths_query", a.actual_seq_lengths_query, Role::in_opt);
  v("actual_seq_lengths_kv", a.actual_seq_lengths_kv, Role::in_opt);
  v("sparse_block_size", a.sparse_block_size, Role::attribute);
  v("layout_query", a.layout_query, Role::attribute);
  v("layout_kv", a.layout_kv, Role::attribute);
  v("sparse_mode", a.sparse_mode, Role::attribute);
  v("pre_tokens", a.pre_tokens, Role::attribute);
  v("next_tokens", a.next_tokens, Role::attribute);
  v("attention_mode", a.attention_mode, Role::attribute);
  v("quant_scale_repo_mode", a.quant_scale_repo_mode, Role::attribute);
  v("tile_size", a.tile_size, Role::attribute);
  v("rope_head_dim", a.rope_head_dim, Role::attribute);
  v("sinks", a.sinks, Role::in_opt);
  v("return_softmax_lse", a.return_softmax_lse, Role::attribute);
  v("index_check", a.index_check, Role::attribute);
  v("level", a.level, Role::attribute);
  v("attention_out", o.attention_out, Role::out);
  v("softmax_max", o.softmax_max, Role::out);
  v("softmax_sum", o.softmax_sum, Role::out);
}
constexpr int positional(const KvQuantSparseFlashAttentionArgs&) { return 7; }

namespace reference {
void kv_quant_sparse_flash_attention(const KvQuantSparseFlashAttentionArgs&, const KvQuantSparseFlashAttentionOuts&,
                                     ProbabilityRounding = ProbabilityRounding::none);
}

}  // namespace dsakit
