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

/// sparse_flash_attention on packed rows, one per token, as mla_prolog_v3 writes them: Dv int8 codes, then
/// rope_head_dim values of query's dtype, then one fp32 scale per tile of tile_size codes (little endian, 656 bytes for
/// 512/64/128). The key is code * scale, never rounded. docs/operators/sparse_flash_attention.md
struct KvQuantSparseFlashAttentionArgs {
  Tensor query;
  Tensor key;
  Tensor value;
  Tensor sparse_indices;
  double scale_value = std::numeric_limits<double>::quiet_NaN();
  std::int64_t key_quant_mode = 0;
  std::int64_t value_quant_mode = 0;
  Tensor key_dequant_scale{};
  Tensor value_dequant_scale{};
  Tensor block_table{};
  Tensor actual_seq_lengths_query{};
  Tensor actual_seq_lengths_kv{};
  std::int64_t sparse_block_size = 1;
  std::string_view layout_query = "BSND";
  std::string_view layout_kv = "BSND";
  std::int64_t sparse_mode = 3;
  std::int64_t pre_tokens = kAllTokens;
  std::int64_t next_tokens = kAllTokens;
  std::int64_t attention_mode = 0;
  std::int64_t quant_scale_repo_mode = 1;
  std::int64_t tile_size = 128;
  std::int64_t rope_head_dim = 64;
  Tensor sinks{};
  bool return_softmax_lse = false;
  std::string_view index_check = "error";
  std::string_view numerics = "exact";
  Level level = Level::portable;
};

struct KvQuantSparseFlashAttentionOuts {
  Tensor attention_out;
  Tensor softmax_max{};
  Tensor softmax_sum{};
};

void kv_quant_sparse_flash_attention(const KvQuantSparseFlashAttentionArgs&, const KvQuantSparseFlashAttentionOuts&,
                                     Context& = default_context());
void infer(const KvQuantSparseFlashAttentionArgs&, KvQuantSparseFlashAttentionOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, KvQuantSparseFlashAttentionArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"query", Role::in, Kind::data, "bfloat16, float16", "[B, S1, N1, Dv+Dr] or [T1, N1, Dv+Dr]",
     "absorbed queries, latent part first"},
    a.query);
  v({"key", Role::in, Kind::cache, "int8", "[B, S2, 1, row], [T2, 1, row] or pages [block_num, block_size, 1, row]",
     "packed rows: Dv codes, Dr values of query's dtype, Dv/tile_size float32 scales"},
    a.key);
  v({"value", Role::in, Kind::cache, "dtype of key", "shape of key; portable: or its codes alone [.., Dv]",
     "the key: the same memory, or equal rows"},
    a.value);
  v({"sparse_indices", Role::in, Kind::index, "int32", "[B, S1, 1, K] or [T1, 1, K]",
     "blocks of positions to attend to, -1 ends a list"},
    a.sparse_indices);
  v({"scale_value", Role::attribute, Kind::number, "float", "finite", "factor of the scores, as given",
     kWithoutDefault},
    a.scale_value);
  v({"key_quant_mode", Role::attribute, Kind::mode, "int", "2", "2: a scale per tile of a token", kWithoutDefault},
    a.key_quant_mode);
  v({"value_quant_mode", Role::attribute, Kind::mode, "int", "2", "2: a scale per tile of a token", kWithoutDefault},
    a.value_quant_mode);
  v({"key_dequant_scale", Role::in_opt, Kind::scale, "", "absent", "always absent: the scales are in the rows"},
    a.key_dequant_scale);
  v({"value_dequant_scale", Role::in_opt, Kind::scale, "", "absent", "always absent: the scales are in the rows"},
    a.value_dequant_scale);
  v({"block_table", Role::in_opt, Kind::table, "int32", "[B, pages per sequence]",
     "pages of each sequence, with PA_BSND only"},
    a.block_table);
  v({"actual_seq_lengths_query", Role::in_opt, Kind::lengths, "int32", "[B]",
     "lengths of the sequences of query: counts (BSND, may be absent), running totals (TND)"},
    a.actual_seq_lengths_query);
  v({"actual_seq_lengths_kv", Role::in_opt, Kind::lengths, "int32", "[B]",
     "lengths of the sequences of key: counts (BSND, may be absent; PA_BSND), running totals (TND)"},
    a.actual_seq_lengths_kv);
  v({"sparse_block_size", Role::attribute, Kind::number, "int", ">= 1; strict: a power of two up to 16",
     "positions that one entry of sparse_indices names"},
    a.sparse_block_size);
  v({"layout_query", Role::attribute, Kind::layout, "str", "BSND, TND", "axes of query"}, a.layout_query);
  v({"layout_kv", Role::attribute, Kind::layout, "str", "BSND, TND, PA_BSND", "axes of key: as query, or pages"},
    a.layout_kv);
  v({"sparse_mode", Role::attribute, Kind::mode, "int", "0, 3",
     "0: all keys are visible; 3: causal, aligned at the bottom right"},
    a.sparse_mode);
  v({"pre_tokens", Role::attribute, Kind::number, "int", "9223372036854775807",
     "keys before the diagonal: all of them"},
    a.pre_tokens);
  v({"next_tokens", Role::attribute, Kind::number, "int", "9223372036854775807",
     "keys behind the diagonal: all of them"},
    a.next_tokens);
  v({"attention_mode", Role::attribute, Kind::mode, "int", "2",
     "2: MLA in absorbed form, the only mode; the documents' default is refused"},
    a.attention_mode);
  v({"quant_scale_repo_mode", Role::attribute, Kind::mode, "int", "1", "1: the scales are in the rows"},
    a.quant_scale_repo_mode);
  v({"tile_size", Role::attribute, Kind::number, "int", ">= 1, divides Dv; strict: 128", "codes that share a scale"},
    a.tile_size);
  v({"rope_head_dim", Role::attribute, Kind::number, "int", ">= 0; strict: 64", "Dr"}, a.rope_head_dim);
  v({"sinks", Role::in_opt, Kind::data, "float32", "[N1]", "one more logit per head, without a value"}, a.sinks);
  v({"return_softmax_lse", Role::attribute, Kind::flag, "bool", "", "return softmax_max and softmax_sum too"},
    a.return_softmax_lse);
  v({"index_check", Role::attribute, Kind::mode, "str", "error, mask",
     "mask: entries past the key length are ignored, as the device does"},
    a.index_check);
  v({"numerics", Role::attribute, Kind::mode, "str", "exact, device, golden",
     "device, golden: with the intermediate roundings of the kernel or of the published comparison, to compare with them"},
    a.numerics);
  v(kLevelField, a.level);
  v({"attention_out", Role::out, Kind::data, "dtype of query", "query with Dv as last axis",
     "attention, still in the latent space"},
    o.attention_out);
  v({"softmax_max", Role::out, Kind::data, "float32", "[B, 1, S1, N1] or [1, T1, N1]; without return_softmax_lse [0]",
     "largest score of each head"},
    o.softmax_max);
  v({"softmax_sum", Role::out, Kind::data, "float32", "shape of softmax_max", "sum of exp(score - softmax_max)"},
    o.softmax_sum);
  v({"key_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"value_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
}
constexpr Description describe(const KvQuantSparseFlashAttentionArgs&) {
  return {.summary = "Attention of each query row over the listed positions of packed int8 rows, MLA in absorbed form",
          .formula =
              "k[j] = code * scale of its tile, never rounded\n"
              "s[h,j] = (query[h] . [k[j], rope of key[j]]) * scale_value\n"
              "out[h] = sum_j softmax(s[h])[j] * k[j]",
          .errors =
              "INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given, an "
              "attribute is unknown, value is not key\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: float8 rows; strict: what Atlas A2/A3 does not take\n"
              "INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table\n"
              "INVALID_INDEX, INVALID_BLOCK: an entry in use names no visible position, its page is none of key",
          .source = "torch_npu.npu_kv_quant_sparse_flash_attention",
          .page = "sparse_flash_attention.md",
          .family = Family::torch_npu,
          .positional = 7};
}

namespace reference {
void kv_quant_sparse_flash_attention(const KvQuantSparseFlashAttentionArgs&, const KvQuantSparseFlashAttentionOuts&,
                                     ProbabilityRounding = ProbabilityRounding::none);
}

}  // namespace dsakit
