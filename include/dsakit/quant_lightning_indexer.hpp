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

/// For every query token, the positions of the `sparse_count` keys that score highest:
///
///   score[s] = key_scale[s] * sum_h weights[h] * query_scale[h] * relu(dot(query[h], key[s]))
///
/// Integer dots are exact; the sum over heads is sixteen fp32 fma chains folded in halves on every machine, so
/// every machine selects the same list. Best first; ties go to the lower position; rows with fewer visible keys end
/// in -1. Names, defaults and meaning follow torch_npu.npu_quant_lightning_indexer. docs/operators/lightning_indexer.md
struct QuantLightningIndexerArgs {
  Tensor query;                       // i8   [B,S1,N1,D] or [T1,N1,D]
  Tensor key;                         // i8   [B,S2,1,D], [T2,1,D] or pages [block_num,block_size,1,D]
  Tensor weights;                     // f16 bf16 f32  [B,S1,N1] or [T1,N1]
  Tensor query_dequant_scale;         // f16 f32       like weights
  Tensor key_dequant_scale;           // f16 f32       key without its last axis
  std::int64_t query_quant_mode = 0;  // 0: per token and head
  std::int64_t key_quant_mode = 0;
  Tensor actual_seq_lengths_query{};  // i32 [B]: counts (BSND) or running totals (TND)
  Tensor actual_seq_lengths_key{};    // i32 [B]
  Tensor block_table{};               // i32 [B, pages per sequence], with PA_BSND only
  std::string_view layout_query = "BSND";  // BSND, TND
  std::string_view layout_key = "BSND";    // BSND, TND, PA_BSND
  std::int64_t sparse_count = 2048;
  std::int64_t sparse_mode = 3;       // 0: all keys; 3: causal, aligned at the bottom right
  std::int64_t pre_tokens = kAllTokens;
  std::int64_t next_tokens = kAllTokens;
  std::string_view numerics = "fp32";  // "device": fp16 intermediates, to reproduce an NPU's selection
  Level level = Level::portable;
};

struct QuantLightningIndexerOuts {
  Tensor sparse_indices;              // i32 [B,S1,1,sparse_count] or [T1,1,sparse_count]
};

void quant_lightning_indexer(const QuantLightningIndexerArgs&, const QuantLightningIndexerOuts&,
                             Context& = default_context());

/// Checks the call and fills in the dtype and shape of every output that is absent.
void infer(const QuantLightningIndexerArgs&, QuantLightningIndexerOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, QuantLightningIndexerArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("query", a.query, Role::in);
  v("key", a.key, Role::in);
  v("weights", a.weights, Role::in);
  v("query_dequant_scale", a.query_dequant_scale, Role::in);
  v("key_dequant_scale", a.key_dequant_scale, Role::in);
  v("query_quant_mode", a.query_quant_mode, Role::attribute);
  v("key_quant_mode", a.key_quant_mode, Role::attribute);
  v("actual_seq_lengths_query", a.actual_seq_lengths_query, Role::in_opt);
  v("actual_seq_lengths_key", a.actual_seq_lengths_key, Role::in_opt);
  v("block_table", a.block_table, Role::in_opt);
  v("layout_query", a.layout_query, Role::attribute);
  v("layout_key", a.layout_key, Role::attribute);
  v("sparse_count", a.sparse_count, Role::attribute);
  v("sparse_mode", a.sparse_mode, Role::attribute);
  v("pre_tokens", a.pre_tokens, Role::attribute);
  v("next_tokens", a.next_tokens, Role::attribute);
  v("numerics", a.numerics, Role::attribute);
  v("level", a.level, Role::attribute);
  v("sparse_indices", o.sparse_indices, Role::out);
}
constexpr int positional(const QuantLightningIndexerArgs&) { return 7; }

namespace reference {
/// The same operator, written to be read: plain loops, exact where the contract fixes bits, double elsewhere.
/// Orders of magnitude slower; the judge of the one above.
void quant_lightning_indexer(const QuantLightningIndexerArgs&, const QuantLightningIndexerOuts&);
}

}  // namespace dsakit
