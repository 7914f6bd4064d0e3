// SPDX-License-Identifier: Apache-2.0
#include "ops/sequences.hpp"

#include <limits>
#include <string>

namespace dsakit {

using std::to_string;

void plain(const Check& c, const Tensor& t, const char* name) {
  c.sizes(t, name);
  if (t.format != Format::ND)
    c.fail(Status::invalid_argument, name, "", "is in a weight's format", "a plain strided tensor");
}

void BatchDoor::layouts() const {
  c.one_of(layout_query, "layout_query", {"BSND", "TND"});
  c.one_of(layout_key, layout_key_name, {"BSND", "TND", "PA_BSND"});
  if (!paged && layout_key != layout_query)
    c.fail(Status::invalid_argument, layout_key_name, "", "is '" + std::string(layout_key) + "'",
           std::string(layout_query) + " or PA_BSND", "layout_query is " + std::string(layout_query));
  if (shard.ranks > 1 && folded_keys)
    c.fail(Status::unsupported, layout_key_name, "", "is 'TND'", "BSND or PA_BSND",
           "several ranks have keys: running totals of whole sequences are not those of one rank's rows");
}

void BatchDoor::presence() const {
  if (paged) required(block_table, "block_table", "the keys are PA_BSND");
  else if (layout_key == "BSND" || layout_key == "TND")
    c.absent(block_table, "block_table", "the keys are not PA_BSND");
  if (folded) required(lengths_query, "actual_seq_lengths_query", "layout_query is TND");
  if (folded_keys) required(lengths_key, lengths_key_name, "the keys are TND");
  if (paged) required(lengths_key, lengths_key_name, "the keys are PA_BSND");
  if (shard.ranks > 1) required(lengths_key, lengths_key_name, "several ranks have keys");
}

void BatchDoor::required(const Tensor& t, const char* name, const char* why) const {
  if (!t) c.fail(Status::invalid_argument, name, "", "is missing", "a tensor", why);
}

void BatchDoor::query_shape(const Tensor& q) {
  c.rank(q, "query", folded ? 3 : 4, folded ? "T, N1, D" : "B, S1, N1, D");
  heads = q.shape[q.rank - 2], dims = q.shape[q.rank - 1];
  s1 = q.shape[folded ? 0 : 1], rows = folded ? s1 : q.shape[0] * s1;
  if (lengths_query) c.rank(lengths_query, "actual_seq_lengths_query", 1, "one per sequence");
  if (lengths_key) c.rank(lengths_key, lengths_key_name, 1, "one per sequence");
  batch = folded ? lengths_query.shape[0] : q.shape[0];
}

void BatchDoor::key_shape(const Tensor& k, std::int64_t width, const char* why) {
  c.rank(k, "key", folded_keys ? 3 : 4,
         paged         ? "block_num, block_size, 1, D"
         : folded_keys ? "T, 1, D"
                       : "B, S2, 1, D");
  pages = k.shape[0], s2 = k.shape[folded_keys ? 0 : 1];
  if (folded_keys) c.shape(k, "key", {s2, 1, width}, why);
  else c.shape(k, "key", {paged ? pages : batch, s2, 1, width}, why);
  if (!paged && !lengths_key && s2 > std::numeric_limits<std::int32_t>::max())
    c.fail(Status::invalid_shape, "key", "", "has " + to_string(s2) + " positions", "at most 2147483647");
  if (!paged) return;
  c.rank(block_table, "block_table", 2, "B, pages of a sequence");
  // Lengths that disagree about B are their own mistake, reported later.
  if (!folded || lengths_key.shape[0] == batch)
    c.shape(block_table, "block_table", {batch, block_table.shape[1]}, "B sequences");
}

Rows BatchDoor::per_token(const Tensor& t, const char* name, std::initializer_list<std::int64_t> width, const char* why,
                          const char* why_folded) const {
  if (!folded) {
    std::int64_t shape[8] = {batch, s1};
    std::copy(width.begin(), width.end(), shape + 2);
    const int rank = 2 + int(width.size());
    const bool exact = t.rank == rank && std::equal(shape, shape + rank, t.shape.begin());
    if (exact) return Rows(t, int(width.size()));
    std::int64_t elements = 1;
    for (int axis = 0; axis < rank; ++axis) elements *= shape[axis];
    if (c.strict() || t.elements() != elements) {
      const std::string folds = brackets({shape, std::size_t(rank)});
      const bool same_rows = t.elements() == elements && t.rank >= int(width.size()) &&
                             std::equal(width.begin(), width.end(), t.shape.begin() + t.rank - int(width.size()));
      c.fail(Status::invalid_shape, name, "", "has shape " + brackets({t.shape.data(), std::size_t(t.rank)}), folds,
             same_rows ? why + ("; reshape(" + folds.substr(1, folds.size() - 2) + ") has it") : std::string(why));
    }
  }
  return c.rows(t, name, rows, width, folded ? why_folded : why);
}

void BatchDoor::dtypes() const {
  if (lengths_query) c.dtype(lengths_query, "actual_seq_lengths_query", {DType::i32});
  if (lengths_key) c.dtype(lengths_key, lengths_key_name, {DType::i32});
  if (paged) c.dtype(block_table, "block_table", {DType::i32});
}

void BatchDoor::mask(std::int64_t sparse_mode, std::int64_t pre_tokens, std::int64_t next_tokens) const {
  if (sparse_mode != 0 && sparse_mode != 3)
    c.fail(Status::invalid_argument, "sparse_mode", "", "is " + to_string(sparse_mode), "0 or 3");
  for (auto [value, name] : {std::pair{pre_tokens, "pre_tokens"}, {next_tokens, "next_tokens"}})
    if (value != kAllTokens)
      c.fail(Status::invalid_argument, name, "", "is " + to_string(value), to_string(kAllTokens));
}

void BatchDoor::block_size() const {
  if (!paged) return;
  if (s2 < 1) c.fail(Status::invalid_shape, "key", "", "has block_size 0", "at least 1");
  if (c.strict() && (s2 % 16 != 0 || s2 > 1024))
    c.chip(false, "key", "has block_size " + to_string(s2), "a multiple of 16 up to 1024");
}

/// `limit` bounds a count, or the last running total.
Lengths BatchDoor::lengths(const Tensor& t, const char* name, bool totals, std::int64_t whole, std::int64_t limit,
                           const char* limit_is) const {
  if (!t) return {nullptr, false, whole};
  if (t.shape[0] != batch)
    c.fail(Status::invalid_seqlen, name, "", "has " + to_string(t.shape[0]) + " entries", to_string(batch),
           folded ? "entries of actual_seq_lengths_query" : "B of query");
  c.readable(t, name);
  const auto* v = static_cast<const std::int32_t*>(t.data);
  for (std::int64_t b = 0, low = 0; b < batch; ++b) {
    if (v[b] >= low && v[b] <= limit) {
      if (totals) low = v[b];
      continue;
    }
    const bool decreases = totals && v[b] >= 0 && v[b] < low;
    c.fail(Status::invalid_seqlen, name, subscript({b}), "is " + to_string(v[b]),
           decreases ? "at least " + to_string(low) : "0.." + to_string(limit),
           decreases ? "running totals must not decrease" : limit_is);
  }
  return {v, totals, whole};
}

Sequences BatchDoor::sequences(std::int64_t sparse_mode) const {
  Sequences s;
  s.batch = batch, s.total_rows = rows, s.causal = sparse_mode == 3;
  s.query = lengths(lengths_query, "actual_seq_lengths_query", folded, s1, s1, folded ? "T of query" : "S1 of query");
  // The longest sequence of which this rank has so many rows.
  const auto whole = [&](std::int64_t held) {
    return shard.ranks > 1 ? shard.global(std::min<std::int64_t>(held, INT32_MAX)) : held;
  };
  if (!paged) {
    s.key = lengths(lengths_key, lengths_key_name, folded_keys, s2, whole(s2), folded_keys ? "T of key" : "S2 of key");
    return s;
  }
  std::int64_t limit = 0;
  if (__builtin_mul_overflow(block_table.shape[1], s2, &limit)) limit = INT64_MAX;
  s.key = lengths(lengths_key, lengths_key_name, false, 0, whole(limit), "columns of block_table times block_size of key");
  c.readable(block_table, "block_table");
  return s;
}

void BatchDoor::bad_page(std::int64_t b, std::int64_t page, std::int64_t keys) const {
  const std::int64_t entry = static_cast<const std::int32_t*>(block_table.data)[b * block_table.stride[0] + page];
  c.fail(Status::invalid_block, "block_table", subscript({b, page}), "is " + to_string(entry),
         pages > 0 ? "0.." + to_string(pages - 1) : "no page in use",
         "pages of key; sequence " + to_string(b) + ", positions " + to_string(page * s2) + ".." +
             to_string(page * s2 + std::min(s2, keys - page * s2) - 1));
}

}  // namespace dsakit
