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

/// Each dot is one fp32 chain over D from +0, ascending (products of 16-bit floats are exact); the head sum is
/// sixteen fp32 fma chains folded in halves. Same bits, hence same selection, on every machine. Order, ties and
/// padding as quant_lightning_indexer; padded values are -inf. docs/operators/lightning_indexer.md
struct LightningIndexerArgs {
  Tensor query;
  Tensor key;
  Tensor weights;
  Tensor actual_seq_lengths_query{};
  Tensor actual_seq_lengths_key{};
  Tensor block_table{};
  std::string_view layout_query = "BSND";
  std::string_view layout_key = "BSND";
  std::int64_t sparse_count = 2048;
  std::int64_t sparse_mode = 3;
  std::int64_t pre_tokens = kAllTokens;
  std::int64_t next_tokens = kAllTokens;
  bool return_value = false;
  std::string_view numerics = "fp32";
  Level level = Level::portable;
};

struct LightningIndexerOuts {
  Tensor sparse_indices;
  Tensor sparse_values;
};

void lightning_indexer(const LightningIndexerArgs&, const LightningIndexerOuts&, Context& = default_context());
void infer(const LightningIndexerArgs&, LightningIndexerOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, LightningIndexerArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"query", Role::in, Kind::data, "bfloat16, float16", "[B, S1, N1, D] or [T1, N1, D]", "index queries"}, a.query);
  v({"key", Role::in, Kind::cache, "dtype of query", "[B, S2, 1, D], [T2, 1, D] or pages [block_num, block_size, 1, D]",
     "index keys, one head"},
    a.key);
  v({"weights", Role::in, Kind::data, "dtype of query, or float32", "[B, S1, N1] or [T1, N1]",
     "weight of each head, may be negative"},
    a.weights);
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
  v({"sparse_count", Role::attribute, Kind::number, "int", ">= 1; strict: <= 2048, or a multiple of 1024 up to 8192",
     "keys to select"},
    a.sparse_count);
  v({"sparse_mode", Role::attribute, Kind::mode, "int", "0, 3",
     "0: all keys are visible; 3: causal, aligned at the bottom right"},
    a.sparse_mode);
  v({"pre_tokens", Role::attribute, Kind::number, "int", "9223372036854775807",
     "keys before the diagonal: all of them"},
    a.pre_tokens);
  v({"next_tokens", Role::attribute, Kind::number, "int", "9223372036854775807",
     "keys behind the diagonal: all of them"},
    a.next_tokens);
  v({"return_value", Role::attribute, Kind::flag, "bool", "", "return the scores too"}, a.return_value);
  v({"numerics", Role::attribute, Kind::mode, "str", "fp32, fast",
     "fast: 16-bit dot products of the machine, same bits only on one machine"},
    a.numerics);
  v(kLevelField, a.level);
  v({"sparse_indices", Role::out, Kind::index, "int32", "[B, S1, 1, sparse_count] or [T1, 1, sparse_count]",
     "positions, best first, then -1"},
    o.sparse_indices);
  v({"sparse_values", Role::out, Kind::data, "dtype of query", "shape of sparse_indices; without return_value [0]",
     "their scores, then -inf"},
    o.sparse_values);
}
constexpr Description describe(const LightningIndexerArgs&) {
  return {
      .summary =
          "For every query token the positions of the sparse_count keys that score highest, from bfloat16 or float16",
      .formula = "score[s] = sum_h weights[h] * relu(dot(query[h], key[s]))",
      .errors =
          "INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given, an attribute is "
          "unknown\n"
          "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
          "UNSUPPORTED: float8 operands; strict: what Atlas A2/A3 does not take\n"
          "INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table\n"
          "INVALID_BLOCK: a block_table entry in use names no page of key",
      .source = "torch_npu.npu_lightning_indexer",
      .page = "lightning_indexer.md",
      .family = Family::torch_npu,
      .positional = 3};
}

namespace reference {
void lightning_indexer(const LightningIndexerArgs&, const LightningIndexerOuts&);
}

}  // namespace dsakit
