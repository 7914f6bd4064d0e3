// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "ops/fused_infer_attention_score_v2/door.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using std::to_string;

/// A list of integers that can be read: dtype, one axis, memory.
void list(const Check& c, const Tensor& t, const char* name) {
  c.dtype(t, name, {DType::i64, DType::i32});
  c.rank(t, name, 1, "a list");
  c.readable(t, name);
}

/// Running totals: from 0 up, at most `last` (strict: exactly). `rows` says what that is.
Lengths totals(const Door& d, const Tensor& t, const char* name, std::int64_t last, const char* rows) {
  const Lengths lengths(t, Lengths::Kind::totals, 0);
  const std::int64_t n = t.shape[0];
  for (std::int64_t b = 0, low = 0; b < n; ++b) {
    const std::int64_t at = lengths.at(b);
    if (at < low)
      d.c.fail(Status::invalid_seqlen, name, subscript({b}), "is " + to_string(at), "at least " + to_string(low),
               "running totals must not decrease");
    low = at;
  }
  const std::int64_t total = n > 0 ? lengths.at(n - 1) : 0;
  if (total > last || (d.c.strict() && total < last))
    d.c.fail(Status::invalid_seqlen, name, n > 0 ? subscript({n - 1}) : "", "is " + to_string(total),
             (d.c.strict() && total < last ? "" : "at most ") + to_string(last),
             total > last ? rows : "[strict: Atlas A2/A3]");
  return lengths;
}

/// Plain lengths in 0..most: one for all, or at least one each (`exact`: one each, no more).
Lengths counts(const Door& d, const Tensor& t, const char* name, std::int64_t batch, std::int64_t most,
               const char* rows, bool exact) {
  const std::int64_t n = t.shape[0];
  if (exact ? n != batch : n != 1 && n < batch)
    d.c.fail(Status::invalid_seqlen, name, "", "has " + to_string(n) + " entries",
             exact ? to_string(batch) : "1 or at least " + to_string(batch),
             exact ? "entries of actual_seq_qlen" : "B");
  const Lengths lengths(t, n == 1 && !exact ? Lengths::Kind::one : Lengths::Kind::counts, 0);
  for (std::int64_t b = 0; b < std::min(n, batch); ++b) {
    const std::int64_t at = lengths.at(b);
    if (at < 0 || at > most)
      d.c.fail(Status::invalid_seqlen, name, subscript({b}), "is " + to_string(at), "0.." + to_string(most), rows);
  }
  return lengths;
}

}  // namespace

void Door::lengths() {
  // S-24, S-41
  const Tensor &ql = a.actual_seq_qlen, &kl = a.actual_seq_kvlen, &table = a.block_table;
  for (const auto& [t, name] : {std::pair{&ql, "actual_seq_qlen"}, {&kl, "actual_seq_kvlen"}}) {
    if (*t) list(c, *t, name);
    else if (s.folded) c.fail(Status::invalid_argument, name, "", "is missing", "a list", "token-folded layouts");
    else if (s.paged && t == &kl)
      c.fail(Status::invalid_argument, name, "", "is missing", "a list", "block_table is given");
  }
  if (s.folded) s.batch = ql.shape[0];
  const bool nothing = !s.folded && (s.s1 == 0 || (s.width == 0 && !a.return_softmax_lse));
  s.sequences = nothing ? 0 : s.batch;

  // S-40, S-42: before the lengths, which they bound
  std::int64_t most_keys = s.s2;
  if (s.paged) {
    c.dtype(table, "block_table", {DType::i32});
    c.rank(table, "block_table", 2, "B rows");
    if (table.shape[0] != s.batch)
      wrong_shape(table, "block_table", to_string(s.batch) + " rows",
                  s.folded ? "entries of actual_seq_qlen" : "B of query");
    s.columns = table.shape[1];
    if (a.block_size <= 0 || a.block_size != s.page_rows)
      c.fail(Status::invalid_shape, "block_size", "", "is " + to_string(a.block_size),
             a.block_size <= 0 ? "at least 1" : to_string(s.page_rows), a.block_size <= 0 ? "" : "page axis of key");
    if (__builtin_mul_overflow(s.columns, s.page_rows, &most_keys)) most_keys = INT64_MAX;
  }

  // S-25..S-27
  if (s.folded) {
    s.query_rows = totals(*this, ql, "actual_seq_qlen", s.s1, "T of query");
    if (s.paged) {
      s.key_rows =
          counts(*this, kl, "actual_seq_kvlen", s.batch, most_keys, "columns of block_table times block_size", true);
    } else {
      if (kl.shape[0] != s.batch)
        c.fail(Status::invalid_seqlen, "actual_seq_kvlen", "", "has " + to_string(kl.shape[0]) + " entries",
               to_string(s.batch), "entries of actual_seq_qlen");
      s.key_rows = totals(*this, kl, "actual_seq_kvlen", s.s2, "T of key");
    }
  } else {
    s.query_rows.rows = s.s1, s.key_rows.rows = s.s2;
    if (ql && !s.decode) s.query_rows = counts(*this, ql, "actual_seq_qlen", s.batch, s.s1, "S1 of query", false);
    if (kl)
      s.key_rows = counts(*this, kl, "actual_seq_kvlen", s.batch, most_keys,
                          s.paged ? "columns of block_table times block_size" : "S2 of key", false);
  }
  for (std::int64_t b = 0; b < s.sequences; ++b) {
    s.longest_query = std::max(s.longest_query, s.query_rows.count(b));
    s.longest_key = std::max(s.longest_key, s.key_rows.count(b));
  }
  s.key_columns = s.paged || s.folded ? s.longest_key : s.s2;
  if (s.paged && c.strict()) {
    const std::int64_t pages = s.longest_key / s.page_rows + (s.longest_key % s.page_rows != 0);
    if (s.s1 == 1 && !s.folded && !s.rope) s.key_columns = most_keys;
    else if (__builtin_mul_overflow(pages, s.page_rows, &s.key_columns)) s.key_columns = INT64_MAX;
  }
}

void Door::pages() const {
  if (!s.paged) return;
  const auto is_rows = is(s.page_rows);
  if (c.strict()) {
    // S-43, S-44
    const bool single = s.s1 == 1 && !s.folded, int8_nz = nz() && s.quantised;
    if (!absorbed() && !int8_nz) {
      const int unit = single ? (a.key.dtype == DType::i8 ? 32 : 16) : 128;
      limit(s.page_rows % unit == 0 && (single || s.page_rows <= 512), "block_size", is_rows,
            unit == 128  ? "a multiple of 128 up to 512"
            : unit == 32 ? "a multiple of 32"
                         : "a multiple of 16");
    }
    for (const Tensor* t : {&a.key, &a.value}) {
      const char* name = t == &a.key ? "key" : "value";
      limit(
          t->rank != 3 || t->shape[2] <= 65535, name, [=] { return "has rows of " + to_string(t->shape[2]); },
          "at most 65535 in pages of rank 3");
      limit(
          !single || t->elements() < INT64_C(1) << 31, name,
          [=] { return "has " + to_string(t->elements()) + " elements"; }, "below 2^31 for a single token");
    }
    // S-45
    std::int64_t used = 0;
    for (std::int64_t b = 0; b < s.sequences; ++b) used += used_pages(b);
    limit(
        s.pages >= used, Status::invalid_shape, "key", [&] { return "has " + to_string(s.pages) + " pages"; },
        "one page for each block_size positions of each sequence");
  }
  // S-46
  const Tensor& t = a.block_table;
  c.readable(t, "block_table");
  for (std::int64_t b = 0; b < s.sequences; ++b) {
    const std::int32_t* row = static_cast<const std::int32_t*>(t.data) + b * t.stride[0];
    for (std::int64_t i = 0, used = used_pages(b); i < used; ++i)
      if (row[i] < 0 || row[i] >= s.pages)
        c.fail(Status::invalid_block, "block_table", subscript({b, i}), "is " + to_string(row[i]),
               s.pages > 0 ? "0.." + to_string(s.pages - 1) : "no page in use",
               "pages of key; sequence " + to_string(b) + ", positions " + to_string(i * s.page_rows) + ".." +
                   to_string(std::min((i + 1) * s.page_rows, s.key_rows.count(b)) - 1));
  }
  // S-47, S-48
  if (!c.strict()) return;
  const Axes in = s.layout->in;
  limit(
      a.key.rank != 4 || (in != Axes::BSH && in != Axes::BSND), "key", [] { return std::string("has rank 4"); },
      "pages of rank 3 with BSH and BSND");
  limit(
      !nz() || absorbed() || s.quantised, "key", [] { return std::string("has rank 5"); },
      "pages of rank 3 or 4 but for absorbed attention and int8 keys");
  limit(
      !s.int4, "key", [] { return std::string("has dtype int32 in pages"); }, "contiguous int4");
  limit(
      !s.quantised || nz() || (s.s1 == 1 && !s.folded), "key", [] { return std::string("is quantised in pages"); },
      "one row of queries, or pages of rank 5");
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
