// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/check.hpp"
#include "core/paged.hpp"
#include "core/view.hpp"

// What lightning_indexer and quant_lightning_indexer share: their arguments behind the door.
namespace dsakit::indexer {

/// Tokens per sequence as the caller gave them: counts, running totals, or nothing (each sequence has `whole`).
struct Lengths {
  const std::int32_t* data = nullptr;
  bool totals = false;
  std::int64_t whole = 0;

  /// Tokens before sequence b; with counts every sequence has its own `whole` places.
  std::int64_t first(std::int64_t b) const { return totals ? (b > 0 ? data[b - 1] : 0) : b * whole; }
  std::int64_t count(std::int64_t b) const { return totals ? data[b] - first(b) : data ? data[b] : whole; }
};

/// A sequence: its query rows `first_row` .. `first_row + rows - 1`, of which those behind the first `queries` are
/// padding, and its keys, which begin `first_key` rows into PagedRows.
struct Sequence {
  std::int64_t index, first_row, rows, queries, first_key, keys;
  bool causal;

  /// Keys that row i sees: positions 0 .. visible - 1.
  std::int64_t visible(std::int64_t i) const {
    if (i >= queries) return 0;
    return causal ? std::clamp<std::int64_t>(keys - queries + i + 1, 0, keys) : keys;
  }
};

/// All sequences. Token-folded query rows behind the last running total form one more, without queries or keys.
struct Sequences {
  Lengths query, key;
  std::int64_t batch = 0, total_rows = 0;
  bool causal = false;

  std::int64_t count() const { return batch + query.totals; }
  Sequence at(std::int64_t b) const {
    if (b == batch) {
      const std::int64_t first = query.first(b);
      return {b, first, total_rows - first, 0, 0, 0, causal};
    }
    const std::int64_t queries = query.count(b);
    return {b,
            query.first(b),
            query.totals ? queries : query.whole,
            queries,
            key.totals ? key.first(b) : 0,
            key.count(b),
            causal};
  }
};

/// One value per query row and head, or per query row and list slot, whatever axes the caller used for them.
struct Grid {
  Rows rows{Tensor{}, 0};
  std::int64_t step = 1;

  std::int64_t offset(std::int64_t row, std::int64_t i) const { return rows.offset(row) + i * step; }
  float at(std::int64_t row, std::int64_t i) const { return float_at(rows.tensor, offset(row, i)); }
};

struct Problem {
  Sequences sequences;
  std::int64_t heads = 0, dims = 0, count = 0;  // count: slots of a list
  DType type = DType::i8;                       // of query and key
  Rows query{Tensor{}, 0};
  std::int64_t head_stride = 0;
  PagedRows keys{};
  Grid weights, query_scale;  // query_scale, key_scales: quant_lightning_indexer
  Tensor key_scale;
  PagedRows key_scales{};       // data is that of key_scale
  Grid indices, values;         // values.rows.tensor absent: not wanted
  bool other_numerics = false;  // "fast" or "device"

  template <class T>
  const T* head(std::int64_t row, std::int64_t h) const {
    return query.row<const T>(row) + h * head_stride;
  }
  template <class T>
  const T* key(const Sequence& s, std::int64_t j) const {
    return static_cast<const T*>(keys.data) + keys.offset(s.index, s.first_key + j);
  }
  float key_scale_at(const Sequence& s, std::int64_t j) const {
    return float_at(key_scale, key_scales.offset(s.index, s.first_key + j));
  }
};

/// The arguments of either operator. `quantised` tells which one it is.
struct Arguments {
  bool quantised;
  const Tensor &query, &key, &weights, &query_scale, &key_scale;
  std::int64_t query_quant_mode, key_quant_mode;
  const Tensor &lengths_query, &lengths_key, &block_table;
  std::string_view layout_query, layout_key;
  std::int64_t sparse_count, sparse_mode, pre_tokens, next_tokens;
  bool return_value;
  std::string_view numerics;
  Tensor& indices;
  Tensor* values;
  bool infer;  // absent outputs receive dtype and shape
  bool check_values;
};

/// Asks everything of section "Errors" of docs/operators/lightning_indexer.md, in its order. Allocates nothing while
/// nothing is wrong.
Problem check(const Check&, const Arguments&);

/// The last of these questions: the numbers themselves, of the rows that a call uses.
void check_numbers(const Check&, const Arguments&, const Problem&);

}  // namespace dsakit::indexer
