// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "core/check.hpp"
#include "core/view.hpp"
#include "dsakit/ownership.hpp"

// Ragged batches as the torch_npu operators that read a paged cache describe them: layout strings, lengths, block
// table.
namespace dsakit {

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
/// padding, and its keys, which begin `first_key` rows into PagedRows. Where several ranks have keys, they are this rank's.
struct SequenceRows {
  std::int64_t index = 0, first_row = 0, rows = 0, queries = 0, first_key = 0, keys = 0;
  bool causal = false;
  std::int64_t length = keys;  // of the sequence: keys of all ranks
  Ownership shard{};

  /// Positions of the sequence that row i sees: 0 .. seen - 1.
  std::int64_t seen(std::int64_t i) const {
    if (i >= queries) return 0;
    return causal ? std::clamp<std::int64_t>(length - queries + i + 1, 0, length) : length;
  }
  /// Keys that row i sees: number 0 .. visible - 1.
  std::int64_t visible(std::int64_t i) const { return shard.below(seen(i)); }
};

/// All sequences. Token-folded query rows behind the last running total form one more, without queries or keys.
struct Sequences {
  Lengths query, key;
  std::int64_t batch = 0, total_rows = 0;
  bool causal = false;
  Ownership shard{};  // of keys; `key` has the lengths of whole sequences

  /// Without query rows there is no work, whatever B says.
  std::int64_t count() const { return total_rows > 0 ? batch + query.totals : 0; }
  SequenceRows at(std::int64_t b) const {
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
            shard.below(key.count(b)),
            causal,
            key.count(b),
            shard};
  }
};

/// The door of such a batch: what the operators ask in common, each at its place in its own order.
struct BatchDoor {
  const Check& c;
  std::string_view layout_query, layout_key;
  const Tensor &lengths_query, &lengths_key, &block_table;
  const char *layout_key_name, *lengths_key_name;
  Ownership shard{};  // of keys
  const bool folded = layout_query == "TND", folded_keys = layout_key == "TND", paged = layout_key == "PA_BSND";
  std::int64_t batch = 0, s1 = 0, rows = 0;  // s1: query rows of a sequence, TND: of all
  std::int64_t heads = 0, dims = 0;          // of query
  std::int64_t pages = 0, s2 = 0;            // s2: keys of a sequence, of a page, or (TND) of all

  void layouts() const;   // known and compatible
  void presence() const;  // lengths and table where the layouts want them
  // These two set what stands above.
  void query_shape(const Tensor& query);                                   // and that of the lengths
  void key_shape(const Tensor& key, std::int64_t width, const char* why);  // and that of the table
  void dtypes() const;                                                     // of lengths and table
  void mask(std::int64_t sparse_mode, std::int64_t pre_tokens, std::int64_t next_tokens) const;
  void block_size() const;  // of paged keys
  /// One row of `width` per query token; `folded` is the shape with the tokens as one axis.
  Rows per_token(const Tensor& t, const char* name, std::initializer_list<std::int64_t> width, const char* why,
                 const char* why_folded) const;
  /// Reads both length vectors, and sees that the table can be read.
  Sequences sequences(std::int64_t sparse_mode) const;
  /// Refuses the entry of page `page` of sequence b, which has `keys` keys.
  [[noreturn]] void bad_page(std::int64_t b, std::int64_t page, std::int64_t keys) const;

 private:
  void required(const Tensor& t, const char* name, const char* why) const;
  Lengths lengths(const Tensor& t, const char* name, bool totals, std::int64_t whole, std::int64_t limit,
                  const char* limit_is) const;
};

/// A strided tensor whose sizes fit: before shapes are compared.
void plain(const Check& c, const Tensor& t, const char* name);

}  // namespace dsakit
