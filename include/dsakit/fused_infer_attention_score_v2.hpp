// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// Dense attention for inference: every query row over all keys of its sequence that it may see.
///
///   s[k] = softmax_scale * (query . key[k] + query_rope . key_rope[k]) + pse_shift[q,k]
///   out  = sum_k softmax(s)[k] * value[k]        softmax_lse = ln sum_k exp(s[k])
///
/// Query head h reads key and value head h / (Nq / Nk). Hidden keys are left out, never multiplied by 0: what stands
/// there cannot reach a result. Rows without a key: 0 and the sentinel +inf (single-token decode without keys:
/// -3.4e38). fp32 accumulation in chunks of 256 key positions merged in ascending order: bits do not depend on threads,
/// batch split, paging or other rows. Names, defaults and meaning follow
/// torch_npu.npu_fused_infer_attention_score_v2. docs/operators/fused_infer_attention_score_v2.md
struct FusedInferAttentionScoreV2Args {
  Tensor query;                  // f16 bf16 f32, or i8 (fully quantised MLA); shape: input_layout
  Tensor key;                    // as query, i8, or i32 holding 8 int4; contiguous as query, or pages of rank 3, 4, 5
  Tensor value;                  // as key, with its own width
  Tensor query_rope{};           // as query (i8: bf16), rope width in place of D
  Tensor key_rope{};             // as key, likewise
  Tensor pse_shift{};            // dtype of query  [B or 1, Nq, >= S1, >= S2]
  Tensor atten_mask{};           // bool u8 i8, nonzero = hidden: [2048,2048] for modes 2..4, else see the page
  Tensor actual_seq_qlen{};      // i64 (or i32): lengths; token-folded layouts: running totals
  Tensor actual_seq_kvlen{};     // i64 (or i32): likewise, but plain lengths with block_table
  Tensor block_table{};          // i32 [B, pages per sequence]: makes the cache paged
  Tensor dequant_scale_query{};  // f32, i8 query only: query without its last axis (BSH: [B,S1,Nq])
  Tensor dequant_scale_key{};    // f32 f16 bf16, quantised key; shape: key_quant_mode
  Tensor dequant_offset_key{};   // as its scale; x = (code + offset) * scale
  Tensor dequant_scale_value{};  // likewise
  Tensor dequant_offset_value{};
  Tensor dequant_scale_key_rope{};  // reserved: must be absent
  Tensor quant_scale_out{};         // f32 bf16, one element or Nq*Dv: attention_out becomes i8
  Tensor quant_offset_out{};        // as quant_scale_out
  std::int64_t num_query_heads = 1;
  std::int64_t num_key_value_heads = 0;   // 0: num_query_heads
  double softmax_scale = 1;               // as given, never derived
  std::int64_t pre_tokens = 2147483647;   // of a band: keys before the diagonal
  std::int64_t next_tokens = 2147483647;  // and behind it
  std::string_view input_layout = "BSH";  // BSH BSND BNSD TND NTD NSD, also <in>_<out>
  std::int64_t sparse_mode = 0;  // 0: band and full mask; 1: full mask; 2, 3: causal, top-left, bottom-right; 4: band
  std::int64_t block_size = 0;
  std::int64_t query_quant_mode = 0;  // 3: i8 query, a scale per token and head
  std::int64_t key_quant_mode = 0;    // 0 channel or tensor, 1 token, 2 head, 3 token and head, 4, 5: 1 and 3 by page
  std::int64_t value_quant_mode = 0;
  std::int64_t inner_precise = 0;  // 0..3, a hint: results do not depend on it
  bool return_softmax_lse = false;
  Level level = Level::portable;
};

struct FusedInferAttentionScoreV2Outs {
  Tensor attention_out;  // dtype of query (i8: of query_rope; quant_scale_out: i8)
  Tensor softmax_lse{};  // f32 [B,Nq,S1,1] or [T,Nq,1]; without return_softmax_lse absent, or [1] and left as it is
};

void fused_infer_attention_score_v2(const FusedInferAttentionScoreV2Args&, const FusedInferAttentionScoreV2Outs&,
                                    Context& = default_context());

/// Checks what needs no memory and fills in dtype and shape of every output that is absent.
void infer(const FusedInferAttentionScoreV2Args&, FusedInferAttentionScoreV2Outs&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, FusedInferAttentionScoreV2Args>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("query", a.query, Role::in);
  v("key", a.key, Role::in);
  v("value", a.value, Role::in);
  v("query_rope", a.query_rope, Role::in_opt);
  v("key_rope", a.key_rope, Role::in_opt);
  v("pse_shift", a.pse_shift, Role::in_opt);
  v("atten_mask", a.atten_mask, Role::in_opt);
  v("actual_seq_qlen", a.actual_seq_qlen, Role::in_opt);
  v("actual_seq_kvlen", a.actual_seq_kvlen, Role::in_opt);
  v("block_table", a.block_table, Role::in_opt);
  v("dequant_scale_query", a.dequant_scale_query, Role::in_opt);
  v("dequant_scale_key", a.dequant_scale_key, Role::in_opt);
  v("dequant_offset_key", a.dequant_offset_key, Role::in_opt);
  v("dequant_scale_value", a.dequant_scale_value, Role::in_opt);
  v("dequant_offset_value", a.dequant_offset_value, Role::in_opt);
  v("dequant_scale_key_rope", a.dequant_scale_key_rope, Role::in_opt);
  v("quant_scale_out", a.quant_scale_out, Role::in_opt);
  v("quant_offset_out", a.quant_offset_out, Role::in_opt);
  v("num_query_heads", a.num_query_heads, Role::attribute);
  v("num_key_value_heads", a.num_key_value_heads, Role::attribute);
  v("softmax_scale", a.softmax_scale, Role::attribute);
  v("pre_tokens", a.pre_tokens, Role::attribute);
  v("next_tokens", a.next_tokens, Role::attribute);
  v("input_layout", a.input_layout, Role::attribute);
  v("sparse_mode", a.sparse_mode, Role::attribute);
  v("block_size", a.block_size, Role::attribute);
  v("query_quant_mode", a.query_quant_mode, Role::attribute);
  v("key_quant_mode", a.key_quant_mode, Role::attribute);
  v("value_quant_mode", a.value_quant_mode, Role::attribute);
  v("inner_precise", a.inner_precise, Role::attribute);
  v("return_softmax_lse", a.return_softmax_lse, Role::attribute);
  v("level", a.level, Role::attribute);
  v("attention_out", o.attention_out, Role::out);
  v("softmax_lse", o.softmax_lse, Role::out);
}
constexpr int positional(const FusedInferAttentionScoreV2Args&) { return 3; }

namespace reference {
/// In double, but for what the page fixes in fp32: dequantised keys and values, and the int8 output.
void fused_infer_attention_score_v2(const FusedInferAttentionScoreV2Args&, const FusedInferAttentionScoreV2Outs&);
}  // namespace reference

}  // namespace dsakit
