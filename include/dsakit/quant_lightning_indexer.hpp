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

/// Integer dots are exact; the sum over heads is sixteen fp32 fma chains folded in halves on every machine, so
/// every machine selects the same list. Best first; ties go to the lower position; rows with fewer visible keys end
/// in -1. Names, defaults and meaning follow torch_npu.npu_quant_lightning_indexer. docs/operators/lightning_indexer.md
struct QuantLightningIndexerArgs {
  Tensor query;
  Tensor key;
  Tensor weights;
  Tensor query_dequant_scale;
  Tensor key_dequant_scale;
  std::int64_t query_quant_mode = 0;
  std::int64_t key_quant_mode = 0;
  Tensor actual_seq_lengths_query{};
  Tensor actual_seq_lengths_key{};
  Tensor block_table{};
  std::string_view layout_query = "BSND";
  std::string_view layout_key = "BSND";
  std::int64_t sparse_count = 2048;
  std::int64_t sparse_mode = 3;
  std::int64_t pre_tokens = kAllTokens;
  std::int64_t next_tokens = kAllTokens;
  std::string_view numerics = "fp32";
  Level level = Level::portable;
};

struct QuantLightningIndexerOuts {
  Tensor sparse_indices;
};

void quant_lightning_indexer(const QuantLightningIndexerArgs&, const QuantLightningIndexerOuts&,
                             Context& = default_context());

/// Checks the call and fills in the dtype and shape of every output that is absent.
void infer(const QuantLightningIndexerArgs&, QuantLightningIndexerOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, QuantLightningIndexerArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"query", Role::in, Kind::data, "int8", "[B, S1, N1, D] or [T1, N1, D], D <= 131071", "index queries"}, a.query);
  v({"key", Role::in, Kind::cache, "int8", "[B, S2, 1, D], [T2, 1, D] or pages [block_num, block_size, 1, D]",
     "index keys, one head"},
    a.key);
  v({"weights", Role::in, Kind::data, "float16, bfloat16, float32", "[B, S1, N1] or [T1, N1]",
     "weight of each head, may be negative"},
    a.weights);
  v({"query_dequant_scale", Role::in, Kind::scale, "float16, float32", "like weights", "what a code of query is worth"},
    a.query_dequant_scale);
  v({"key_dequant_scale", Role::in, Kind::cache, "float16, float32", "key without its last axis",
     "what a code of key is worth"},
    a.key_dequant_scale);
  v({"query_quant_mode", Role::attribute, Kind::mode, "int", "0", "0: a scale per token and head"}, a.query_quant_mode);
  v({"key_quant_mode", Role::attribute, Kind::mode, "int", "0", "0: a scale per token and head"}, a.key_quant_mode);
  v({"actual_seq_lengths_query", Role::in_opt, Kind::lengths, "int32", "[B]",
     "lengths of the sequences of query: counts (BSND, may be absent), running totals (TND)"},
    a.actual_seq_lengths_query);
  v({"actual_seq_lengths_key", Role::in_opt, Kind::lengths, "int32", "[B]",
     "lengths of the sequences of key: counts (BSND, may be absent; PA_BSND), running totals (TND)"},
    a.actual_seq_lengths_key);
  v({"block_table", Role::in_opt, Kind::table, "int32", "[B, pages per sequence]",
     "pages of each sequence, with PA_BSND only"},
    a.block_table);
  v({"layout_query", Role::attribute, Kind::layout, "str", "BSND, TND", "axes of query"}, a.layout_query);
  v({"layout_key", Role::attribute, Kind::layout, "str", "BSND, TND, PA_BSND", "axes of key: as query, or pages"},
    a.layout_key);
  v({"sparse_count", Role::attribute, Kind::number, "int", ">= 1; strict: <= 2048", "keys to select"}, a.sparse_count);
  v({"sparse_mode", Role::attribute, Kind::mode, "int", "0, 3",
     "0: all keys are visible; 3: causal, aligned at the bottom right"},
    a.sparse_mode);
  v({"pre_tokens", Role::attribute, Kind::number, "int", "9223372036854775807",
     "keys before the diagonal: all of them"},
    a.pre_tokens);
  v({"next_tokens", Role::attribute, Kind::number, "int", "9223372036854775807",
     "keys behind the diagonal: all of them"},
    a.next_tokens);
  v({"numerics", Role::attribute, Kind::mode, "str", "fp32, device",
     "device: float16 intermediates, to reproduce an NPU's selection"},
    a.numerics);
  v(kLevelField, a.level);
  v({"sparse_indices", Role::out, Kind::index, "int32", "[B, S1, 1, sparse_count] or [T1, 1, sparse_count]",
     "positions, best first, then -1"},
    o.sparse_indices);
  v({"query_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"key_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
}
constexpr Description describe(const QuantLightningIndexerArgs&) {
  return {.summary = "For every query token the positions of the sparse_count keys that score highest, from int8",
          .formula = "score[s] = key_scale[s] * sum_h weights[h] * query_scale[h] * relu(dot(query[h], key[s]))",
          .errors =
              "INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given, an "
              "attribute is unknown\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: float8 operands; strict: what Atlas A2/A3 does not take\n"
              "INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table\n"
              "INVALID_BLOCK: a block_table entry in use names no page of key",
          .source = "torch_npu.npu_quant_lightning_indexer",
          .page = "lightning_indexer.md",
          .family = Family::torch_npu,
          .positional = 7};
}

namespace reference {
/// The same operator, written to be read: plain loops, exact where the contract fixes bits, double elsewhere.
/// Orders of magnitude slower; the judge of the one above.
void quant_lightning_indexer(const QuantLightningIndexerArgs&, const QuantLightningIndexerOuts&);
}  // namespace reference

}  // namespace dsakit
