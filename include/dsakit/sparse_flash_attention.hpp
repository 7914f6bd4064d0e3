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
  Tensor query;
  Tensor key;
  Tensor value;
  Tensor sparse_indices;
  double scale_value = std::numeric_limits<double>::quiet_NaN();
  Tensor block_table{};
  Tensor actual_seq_lengths_query{};
  Tensor actual_seq_lengths_kv{};
  Tensor query_rope{};
  Tensor key_rope{};
  std::int64_t sparse_block_size = 1;
  std::string_view layout_query = "BSND";
  std::string_view layout_kv = "BSND";
  std::int64_t sparse_mode = 3;
  std::int64_t pre_tokens = kAllTokens;
  std::int64_t next_tokens = kAllTokens;
  std::int64_t attention_mode = 0;
  bool return_softmax_lse = false;
  Tensor sinks{};
  std::string_view index_check = "error";
  std::string_view numerics = "exact";
  Level level = Level::portable;
};

struct SparseFlashAttentionOuts {
  Tensor attention_out;
  Tensor softmax_max{};
  Tensor softmax_sum{};
};

void sparse_flash_attention(const SparseFlashAttentionArgs&, const SparseFlashAttentionOuts&,
                            Context& = default_context());
void infer(const SparseFlashAttentionArgs&, SparseFlashAttentionOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, SparseFlashAttentionArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"query", Role::in, Kind::data, "bfloat16, float16", "[B, S1, N1, Dv] or [T1, N1, Dv]", "absorbed queries"},
    a.query);
  v({"key", Role::in, Kind::cache, "dtype of query",
     "[B, S2, 1, Dv], [T2, 1, Dv] or pages [block_num, block_size, 1, Dv]", "latent rows"},
    a.key);
  v({"value", Role::in, Kind::cache, "dtype of key", "shape of key", "the key: the same memory, or equal rows"},
    a.value);
  v({"sparse_indices", Role::in, Kind::index, "int32", "[B, S1, 1, K] or [T1, 1, K]",
     "blocks of positions to attend to, -1 ends a list"},
    a.sparse_indices);
  v({"scale_value", Role::attribute, Kind::number, "float", "finite", "factor of the scores, as given",
     kWithoutDefault},
    a.scale_value);
  v({"block_table", Role::in_opt, Kind::table, "int32", "[B, pages per sequence]",
     "pages of each sequence, with PA_BSND only"},
    a.block_table);
  v({"actual_seq_lengths_query", Role::in_opt, Kind::lengths, "int32", "[B]",
     "lengths of the sequences of query: counts (BSND, may be absent), running totals (TND)"},
    a.actual_seq_lengths_query);
  v({"actual_seq_lengths_kv", Role::in_opt, Kind::lengths, "int32", "[B]",
     "lengths of the sequences of key: counts (BSND, may be absent; PA_BSND), running totals (TND)"},
    a.actual_seq_lengths_kv);
  v({"query_rope", Role::in, Kind::data, "dtype of query", "query with Dr as last axis", "rotated part of the queries"},
    a.query_rope);
  v({"key_rope", Role::in, Kind::cache, "dtype of query", "key with Dr as last axis", "rotated part of the keys"},
    a.key_rope);
  v({"sparse_block_size", Role::attribute, Kind::number, "int", ">= 1; strict: a power of two up to 128",
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
  v({"return_softmax_lse", Role::attribute, Kind::flag, "bool", "", "fill softmax_max and softmax_sum"},
    a.return_softmax_lse);
  v({"sinks", Role::in_opt, Kind::data, "float32", "[N1]", "one more logit per head, without a value"}, a.sinks);
  v({"index_check", Role::attribute, Kind::mode, "str", "error, mask",
     "mask: entries past the key length are ignored, as the device does"},
    a.index_check);
  v({"numerics", Role::attribute, Kind::mode, "str", "exact, device, golden",
     "device, golden: with the intermediate roundings of the kernel or of the published comparison, to compare with them"},
    a.numerics);
  v(kLevelField, a.level);
  v({"attention_out", Role::out, Kind::data, "dtype of query", "shape of query",
     "attention, still in the latent space"},
    o.attention_out);
  v({"softmax_max", Role::out, Kind::data, "float32", "[B, 1, S1, N1] or [1, T1, N1]; without return_softmax_lse [0]",
     "largest score of each head"},
    o.softmax_max);
  v({"softmax_sum", Role::out, Kind::data, "float32", "shape of softmax_max", "sum of exp(score - softmax_max)"},
    o.softmax_sum);
}
constexpr Description describe(const SparseFlashAttentionArgs&) {
  return {.summary = "Attention of each query row over the listed positions of latent rows, MLA in absorbed form",
          .formula =
              "s[h,j] = (query[h] . key[j] + query_rope[h] . key_rope[j]) * scale_value\n"
              "out[h] = sum_j softmax(s[h])[j] * key[j]",
          .errors =
              "INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given, an "
              "attribute is unknown, value is not key\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: strict: what Atlas A2/A3 does not take\n"
              "INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table\n"
              "INVALID_INDEX, INVALID_BLOCK: an entry in use names no visible position, its page is none of key",
          .source = "torch_npu.npu_sparse_flash_attention",
          .page = "sparse_flash_attention.md",
          .family = Family::torch_npu,
          .positional = 5};
}

namespace reference {
void sparse_flash_attention(const SparseFlashAttentionArgs&, const SparseFlashAttentionOuts&,
                            ProbabilityRounding = ProbabilityRounding::none);
}

}  // namespace dsakit
