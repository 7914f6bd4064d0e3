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

/// Hidden keys are left out, never multiplied by 0: what stands
/// there cannot reach a result. Rows without a key: 0 and the sentinel +inf (single-token decode without keys:
/// -3.4e38). fp32 accumulation in chunks of 256 key positions merged in ascending order: bits do not depend on threads,
/// batch split, paging or other rows. Names, defaults and meaning follow
/// torch_npu.npu_fused_infer_attention_score_v2. docs/operators/fused_infer_attention_score_v2.md
struct FusedInferAttentionScoreV2Args {
  Tensor query;
  Tensor key;
  Tensor value;
  Tensor query_rope{};
  Tensor key_rope{};
  Tensor pse_shift{};
  Tensor atten_mask{};
  Tensor actual_seq_qlen{};
  Tensor actual_seq_kvlen{};
  Tensor block_table{};
  Tensor dequant_scale_query{};
  Tensor dequant_scale_key{};
  Tensor dequant_offset_key{};
  Tensor dequant_scale_value{};
  Tensor dequant_offset_value{};
  Tensor dequant_scale_key_rope{};
  Tensor quant_scale_out{};
  Tensor quant_offset_out{};
  std::int64_t num_query_heads = 1;
  std::int64_t num_key_value_heads = 0;
  double softmax_scale = 1;
  std::int64_t pre_tokens = 2147483647;
  std::int64_t next_tokens = 2147483647;
  std::string_view input_layout = "BSH";
  std::int64_t sparse_mode = 0;
  std::int64_t block_size = 0;
  std::int64_t query_quant_mode = 0;
  std::int64_t key_quant_mode = 0;
  std::int64_t value_quant_mode = 0;
  std::int64_t inner_precise = 0;
  bool return_softmax_lse = false;
  Tensor learnable_sink{};
  Level level = Level::portable;
};

struct FusedInferAttentionScoreV2Outs {
  Tensor attention_out;
  Tensor softmax_lse{};
};

void fused_infer_attention_score_v2(const FusedInferAttentionScoreV2Args&, const FusedInferAttentionScoreV2Outs&,
                                    Context& = default_context());

/// Checks what needs no memory and fills in dtype and shape of every output that is absent.
void infer(const FusedInferAttentionScoreV2Args&, FusedInferAttentionScoreV2Outs&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, FusedInferAttentionScoreV2Args>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"query", Role::in, Kind::data, "float16, bfloat16, float32, or int8 (fully quantised MLA)",
     "as input_layout says: (B, S1, Nq*D) for BSH", "queries"},
    a.query);
  v({"key", Role::in, Kind::cache, "dtype of query, int8, or int32 holding 8 int4",
     "as query with Nk heads and S2 rows, or pages of rank 3, 4 or 5", "keys"},
    a.key);
  v({"value", Role::in, Kind::cache, "dtype of key", "as key, with its own width Dv", "values"}, a.value);
  v({"query_rope", Role::in_opt, Kind::data, "dtype of query (int8: bfloat16)", "query with Dr in place of D",
     "rotated part of the queries"},
    a.query_rope);
  v({"key_rope", Role::in_opt, Kind::cache, "dtype of key (int8: bfloat16)", "key with Dr in place of D",
     "rotated part of the keys"},
    a.key_rope);
  v({"pse_shift", Role::in_opt, Kind::data, "dtype of query", "[B or 1, Nq, >= S1, >= S2]", "added to the scores"},
    a.pse_shift);
  v({"atten_mask", Role::in_opt, Kind::mask, "bool, uint8, int8",
     "sparse_mode 2..4: [2048, 2048]; else (B or 1, >= S1, >= S2) and shorter forms", "nonzero hides a key"},
    a.atten_mask);
  v({"actual_seq_qlen", Role::in_opt, Kind::lengths, "int64, int32", "[B] or longer, or [1]",
     "lengths of the query sequences; token-folded layouts: running totals"},
    a.actual_seq_qlen);
  v({"actual_seq_kvlen", Role::in_opt, Kind::lengths, "int64, int32", "[B] or longer, or [1]",
     "lengths of the key sequences; token-folded layouts without block_table: running totals"},
    a.actual_seq_kvlen);
  v({"block_table", Role::in_opt, Kind::table, "int32", "[B, pages per sequence]",
     "pages of each sequence; makes key and value pools of pages"},
    a.block_table);
  v({"dequant_scale_query", Role::in_opt, Kind::scale, "float32", "query without its last axis; BSH: (B, S1, Nq)",
     "what a code of an int8 query is worth"},
    a.dequant_scale_query);
  v({"dequant_scale_key", Role::in_opt, Kind::scale, "float32, float16, bfloat16", "as key_quant_mode says",
     "what a code of key is worth"},
    a.dequant_scale_key);
  v({"dequant_offset_key", Role::in_opt, Kind::data, "dtype of its scale", "shape of its scale",
     "added to a code of key before scaling"},
    a.dequant_offset_key);
  v({"dequant_scale_value", Role::in_opt, Kind::scale, "float32, float16, bfloat16", "as value_quant_mode says",
     "what a code of value is worth"},
    a.dequant_scale_value);
  v({"dequant_offset_value", Role::in_opt, Kind::data, "dtype of its scale", "shape of its scale",
     "added to a code of value before scaling"},
    a.dequant_offset_value);
  v({"dequant_scale_key_rope", Role::in_opt, Kind::reserved, "", "absent", "reserved"}, a.dequant_scale_key_rope);
  v({"quant_scale_out", Role::in_opt, Kind::scale, "float32, bfloat16", "one element, or Nq*Dv",
     "makes attention_out int8"},
    a.quant_scale_out);
  v({"quant_offset_out", Role::in_opt, Kind::data, "dtype of quant_scale_out", "shape of quant_scale_out",
     "added after scaling"},
    a.quant_offset_out);
  v({"num_query_heads", Role::attribute, Kind::number, "int", ">= 1", "Nq"}, a.num_query_heads);
  v({"num_key_value_heads", Role::attribute, Kind::number, "int", "a divisor of Nq; 0: Nq",
     "Nk; query head h reads key head h / (Nq / Nk)"},
    a.num_key_value_heads);
  v({"softmax_scale", Role::attribute, Kind::number, "float", "finite",
     "factor of the scores, as given, never derived"},
    a.softmax_scale);
  v({"pre_tokens", Role::attribute, Kind::number, "int", "", "of a band: keys before the diagonal"}, a.pre_tokens);
  v({"next_tokens", Role::attribute, Kind::number, "int", "", "of a band: keys behind the diagonal"}, a.next_tokens);
  v({"input_layout", Role::attribute, Kind::layout, "str", "BSH, BSND, BNSD, TND, NTD, NSD, or <in>_<out> of them",
     "axes of query, and of attention_out"},
    a.input_layout);
  v({"sparse_mode", Role::attribute, Kind::mode, "int", "0..4",
     "0: band and full mask; 1: full mask; 2, 3: causal, top-left, bottom-right; 4: band"},
    a.sparse_mode);
  v({"block_size", Role::attribute, Kind::number, "int", "rows of a page; 0 without block_table", "rows of a page"},
    a.block_size);
  v({"query_quant_mode", Role::attribute, Kind::mode, "int", "0, 3",
     "3: an int8 query with a scale per token and head"},
    a.query_quant_mode);
  v({"key_quant_mode", Role::attribute, Kind::mode, "int", "0..5",
     "a scale per 0: channel or tensor, 1: token, 2: head, 3: token and head, 4, 5: as 1, 3 by page"},
    a.key_quant_mode);
  v({"value_quant_mode", Role::attribute, Kind::mode, "int", "as key_quant_mode", "likewise for value"},
    a.value_quant_mode);
  v({"inner_precise", Role::attribute, Kind::mode, "int", "0..3", "a hint: results do not depend on it"},
    a.inner_precise);
  v({"return_softmax_lse", Role::attribute, Kind::flag, "bool", "", "fill softmax_lse"}, a.return_softmax_lse);
  v(kLevelField, a.level);
  v({"attention_out", Role::out, Kind::data, "dtype of query (int8: bfloat16; quant_scale_out: int8)",
     "query, or as input_layout says, with Dv in place of D", "attention; rows without a key are 0"},
    o.attention_out);
  v({"softmax_lse", Role::out, Kind::data, "float32", "(B, Nq, S1, 1) or (T1, Nq, 1); without return_softmax_lse [1]",
     "logarithm of the sum of exp(score); rows without a key +inf"},
    o.softmax_lse);
  v({"query_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"key_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"value_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"query_rope_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"key_rope_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"key_shared_prefix_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"value_shared_prefix_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"dequant_scale_query_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"dequant_scale_key_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"dequant_scale_value_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"dequant_scale_key_rope_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"learnable_sink", Role::in_opt, Kind::data, "float32, or dtype of query (int8: of query_rope)",
     "[Nq]; strict: absent", "one more logit per query head, without a value"},
    a.learnable_sink);
  v({"quant_scale_p", Role::reserved, Kind::scale, "", "", "reserved"}, kAbsent);
  v({"out_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
}
constexpr Description describe(const FusedInferAttentionScoreV2Args&) {
  return {.summary = "Dense attention for inference: every query row over all keys of its sequence that it may see",
          .formula =
              "s[k] = softmax_scale * (query . key[k] + query_rope . key_rope[k]) + pse_shift[q,k]\n"
              "attention_out = sum_k softmax(s)[k] * value[k], softmax_lse = ln sum_k exp(s[k])\n"
              "learnable_sink: one more s, without a value, where a row sees a key",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, an attribute is unknown or out of "
              "range\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: reserved parameters; strict: what Atlas A2/A3 does not take\n"
              "INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table\n"
              "INVALID_BLOCK: a block_table entry in use names no page",
          .source = "torch_npu.npu_fused_infer_attention_score_v2",
          .page = "fused_infer_attention_score_v2.md",
          .family = Family::torch_npu,
          .positional = 3};
}

namespace reference {
/// In double, but for what the page fixes in fp32: dequantised keys and values, and the int8 output.
void fused_infer_attention_score_v2(const FusedInferAttentionScoreV2Args&, const FusedInferAttentionScoreV2Outs&);
}  // namespace reference

}  // namespace dsakit
