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

/// The indexer on bf16 or fp16 operands:
///
///   score[s] = sum_h weights[h] * relu(dot(query[h], key[s]))
///
/// Each dot is one fp32 chain over D from +0, ascending (products of 16-bit floats are exact); the head sum is
/// sixteen fp32 fma chains folded in halves. Same bits, hence same selection, on every machine. Order, ties and
/// padding as quant_lightning_indexer; padded values are -inf. docs/operators/lightning_indexer.md
struct LightningIndexerArgs {
  Tensor query;                       // bf16 f16  [B,S1,N1,D] or [T1,N1,D]
  Tensor key;                         // as query  [B,S2,1,D], [T2,1,D] or pages [block_num,block_size,1,D]
  Tensor weights;                     // as query, or f32  [B,S1,N1] or [T1,N1]
  Tensor actual_seq_lengths_query{};  // i32 [B]: counts (BSND) or running totals (TND)
  Tensor actual_seq_lengths_key{};    // i32 [B]
  Tensor block_table{};               // i32 [B, pages per sequence], with PA_BSND only
  std::string_view layout_query = "BSND";  // BSND, TND
  std::string_view layout_key = "BSND";    // BSND, TND, PA_BSND
  std::int64_t sparse_count = 2048;
  std::int64_t sparse_mode = 3;       // 0: all keys; 3: causal, aligned at the bottom right
  std::int64_t pre_tokens = kAllTokens;
  std::int64_t next_tokens = kAllTokens;
  bool return_value = false;
  std::string_view numerics = "fp32";  // "fast": hardware 16-bit dot products, same bits only on one machine
  Level level = Level::portable;
};

struct LightningIndexerOuts {
  Tensor sparse_indices;              // i32 [B,S1,1,sparse_count] or [T1,1,sparse_count]
  Tensor sparse_values;               // dtype of query, shape of sparse_indices; without return_value [0]
};

void lightning_indexer(const LightningIndexerArgs&, const LightningIndexerOuts&, Context& = default_context());
void infer(const LightningIndexerArgs&, LightningIndexerOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, LightningIndexerArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("query", a.query, Role::in);
  v("key", a.key, Role::in);
  v("weights", a.weights, Role::in);
  v("actual_seq_lengths_query", a.actual_seq_lengths_query, Role::in_opt);
  v("actual_seq_lengths_key", a.actual_seq_lengths_key, Role::in_opt);
  v("block_table", a.block_table, Role::in_opt);
  v("layout_query", a.layout_query, Role::attribute);
  v("layout_key", a.layout_key, Role::attribute);
  v("sparse_count", a.sparse_count, Role::attribute);
  v("sparse_mode", a.sparse_mode, Role::attribute);
  v("pre_tokens", a.pre_tokens, Role::attribute);
  v("next_tokens", a.next_tokens, Role::attribute);
  v("return_value", a.return_value, Role::attribute);
  v("numerics", a.numerics, Role::attribute);
  v("level", a.level, Role::attribute);
  v("sparse_indices", o.sparse_indices, Role::out);
  v("sparse_values", o.sparse_values, Role::out);
}
constexpr int positional(const LightningIndexerArgs&) { return 3; }

namespace reference {
void lightning_indexer(const LightningIndexerArgs&, const LightningIndexerOuts&);
}

}  // namespace dsakit
