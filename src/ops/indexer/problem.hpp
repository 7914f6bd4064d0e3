// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/check.hpp"
#include "core/paged.hpp"
#include "core/view.hpp"
#include "dsakit/context.hpp"
#include "ops/door.hpp"
#include "ops/sequences.hpp"

// What lightning_indexer and quant_lightning_indexer share: their arguments behind the door.
namespace dsakit::indexer {

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
  std::uint64_t* candidates = nullptr;  // [rows][count], if wanted: the lists as candidates (kernels/order.hpp), then 0
  bool other_numerics = false;  // "fast" or "device"
  /// TND rows, where the last running total does not reach them: a word of warning.
  std::int64_t rows_behind_keys = 0, rows_behind_queries = 0;

  template <class T>
  const T* head(std::int64_t row, std::int64_t h) const {
    return query.row<const T>(row) + h * head_stride;
  }
  template <class T>
  const T* key(const SequenceRows& s, std::int64_t j) const {
    return static_cast<const T*>(keys.data) + keys.offset(s.index, s.first_key + j);
  }
  float key_scale_at(const SequenceRows& s, std::int64_t j) const {
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
  Ownership shard{};  // of keys, where several ranks have some; the lengths are those of whole sequences
};

/// Asks everything of section "Errors" of docs/operators/lightning_indexer.md, in its order. Allocates nothing while
/// nothing is wrong. `inputs` and `all` are the tensors of the call without and with its results.
Problem check(const Check&, const Tensors& inputs, const Tensors& all, const Arguments&);

/// The list of a query row, of its n best candidates.
void write_list(const Problem&, std::int64_t row, const std::uint64_t* best, std::int64_t n) noexcept;

/// What portable accepts with a word: running totals that end early, which counts per sequence look like.
void warn(const char* op, const Problem&, Context&);

/// The last of these questions: the numbers themselves, of the rows that a call uses.
void check_numbers(const Check&, const Arguments&, const Problem&);

}  // namespace dsakit::indexer
