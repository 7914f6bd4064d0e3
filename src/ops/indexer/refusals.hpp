// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "dsakit/modes.hpp"
#include "ops/indexer/cases.hpp"

// The refusals that both indexers share, asked of each. Names with a number are those of the negative cases of the
// specification. C is the Case of an operator.
namespace dsakit::indexer {

/// A good call with one thing wrong: refused in both levels.
template <class C>
struct Refusal {
  const char* name;
  Status status;
  const char* parameter;
  const char* position;
  std::function<void(C&, typename C::Args&, typename C::Outs&)> change;
};

/// Refused: the answer is this one, and nothing has been written.
template <class F>
void expect_refused(F call, const std::string& what, const char* op, Status status, const char* parameter,
                    const char* position = "", const char* says = "") {
  try {
    call();
    ADD_FAILURE() << what << " was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << what << ": " << e.what();
    EXPECT_EQ(e.op, op) << what;
    EXPECT_EQ(e.parameter, parameter) << what << ": " << e.what();
    EXPECT_EQ(e.position, position) << what << ": " << e.what();
    EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
  }
}

template <class C>
void expect_refusals(const std::function<C()>& make, const std::vector<Refusal<C>>& all,
                     std::initializer_list<Level> levels = {Level::portable, Level::strict}) {
  for (const Refusal<C>& refusal : all)
    for (Level level : levels) {
      C c = make();
      auto a = c.args();
      auto o = c.outs();
      a.level = level;
      refusal.change(c, a, o);
      const std::string what = std::string(refusal.name) + (level == Level::strict ? ", strict" : "");
      const auto before = c.lists();
      for (bool twin : {false, true})
        expect_refused([&] { twin ? C::twin(a, o) : C::call(a, o); }, what, C::kName, refusal.status, refusal.parameter,
                       refusal.position);
      EXPECT_TRUE(c.lists() == before) << what << " has written";
    }
}

/// Of a token-folded call with pages of 16: queries 2 and 1 of 5 rows, keys 40 and 33.
template <class C>
std::vector<Refusal<C>> paged_refusals() {
  using A = typename C::Args;
  using O = typename C::Outs;
  static std::int64_t many[] = {0, 0, 0, 0};
  static std::int32_t three[] = {2, 3, 3};
  auto wide = [](A& a, std::int64_t heads) {
    a.query.shape[1] = a.weights.shape[1] = heads;
    if constexpr (requires { a.query_dequant_scale; }) a.query_dequant_scale.shape[1] = heads;
  };
  return {
      {"query missing", Status::invalid_argument, "query", "", [](C&, A& a, O&) { a.query = {}; }},
      {"key missing", Status::invalid_argument, "key", "", [](C&, A& a, O&) { a.key = {}; }},
      {"weights missing", Status::invalid_argument, "weights", "", [](C&, A& a, O&) { a.weights = {}; }},
      {"out missing", Status::invalid_argument, "sparse_indices", "", [](C&, A&, O& o) { o.sparse_indices = {}; }},
      {"no memory", Status::invalid_argument, "key", "", [](C&, A& a, O&) { a.key.data = nullptr; }},
      {"packed", Status::invalid_argument, "key", "", [](C&, A& a, O&) { a.key.format = Format::NZ; }},
      {"layout", Status::invalid_argument, "layout_query", "", [](C&, A& a, O&) { a.layout_query = "BNSD"; }},
      {"key layout", Status::invalid_argument, "layout_key", "", [](C&, A& a, O&) { a.layout_key = "PA_NZ"; }},
      {"N11", Status::invalid_argument, "layout_key", "", [](C&, A& a, O&) { a.layout_key = "BSND"; }},
      {"N12 missing", Status::invalid_argument, "block_table", "", [](C&, A& a, O&) { a.block_table = {}; }},
      {"N12 given", Status::invalid_argument, "block_table", "", [](C&, A& a, O&) { a.layout_key = "TND"; }},
      {"N5 query", Status::invalid_argument, "actual_seq_lengths_query", "",
       [](C&, A& a, O&) { a.actual_seq_lengths_query = {}; }},
      {"N5 key", Status::invalid_argument, "actual_seq_lengths_key", "",
       [](C&, A& a, O&) { a.actual_seq_lengths_key = {}; }},
      {"negative dim", Status::invalid_shape, "query", "", [](C&, A& a, O&) { a.query.shape[0] = -1; }},
      {"rank 9", Status::invalid_shape, "weights", "", [](C&, A& a, O&) { a.weights.rank = 9; }},
      {"overflow", Status::invalid_shape, "key", "", [](C&, A& a, O&) { a.key.shape[0] = INT64_MAX / 2; }},
      {"query rank", Status::invalid_shape, "query", "", [](C&, A& a, O&) { a.query.rank = 4, a.query.shape[3] = 1; }},
      {"key rank", Status::invalid_shape, "key", "", [](C&, A& a, O&) { a.key.rank = 3; }},
      {"key width", Status::invalid_shape, "key", "", [](C&, A& a, O&) { a.key.shape[3] = 15; }},
      {"key heads", Status::invalid_shape, "key", "", [](C&, A& a, O&) { a.key.shape[2] = 2; }},
      {"weights rows", Status::invalid_shape, "weights", "", [](C&, A& a, O&) { --a.weights.shape[0]; }},
      {"weights heads", Status::invalid_shape, "weights", "", [](C&, A& a, O&) { --a.weights.shape[1]; }},
      {"N2 rank", Status::invalid_shape, "block_table", "", [](C&, A& a, O&) { a.block_table.rank = 1; }},
      {"table rows", Status::invalid_shape, "block_table", "", [](C&, A& a, O&) { ++a.block_table.shape[0]; }},
      {"lengths rank", Status::invalid_shape, "actual_seq_lengths_key", "",
       [](C&, A& a, O&) { a.actual_seq_lengths_key.rank = 2, a.actual_seq_lengths_key.shape[1] = 1; }},
      {"out slots", Status::invalid_shape, "sparse_indices", "", [](C&, A&, O& o) { --o.sparse_indices.shape[2]; }},
      {"out rows", Status::invalid_shape, "sparse_indices", "", [](C&, A&, O& o) { --o.sparse_indices.shape[0]; }},
      {"query dtype", Status::invalid_dtype, "query", "", [](C&, A& a, O&) { a.query.dtype = DType::u8; }},
      {"key dtype", Status::invalid_dtype, "key", "", [](C&, A& a, O&) { a.key.dtype = DType::u16; }},
      {"weights dtype", Status::invalid_dtype, "weights", "", [](C&, A& a, O&) { a.weights.dtype = DType::f64; }},
      {"N2 dtype", Status::invalid_dtype, "block_table", "",
       [](C&, A& a, O&) {
         a.block_table = tensor(many, {2, 2});
       }},
      {"query lengths dtype", Status::invalid_dtype, "actual_seq_lengths_query", "",
       [](C&, A& a, O&) { a.actual_seq_lengths_query = tensor(many, {2}); }},
      {"key lengths dtype", Status::invalid_dtype, "actual_seq_lengths_key", "",
       [](C&, A& a, O&) { a.actual_seq_lengths_key = tensor(many, {2}); }},
      {"out dtype", Status::invalid_dtype, "sparse_indices", "",
       [](C&, A&, O& o) { o.sparse_indices.dtype = DType::i64; }},
      {"width 0", Status::invalid_shape, "query", "", [](C&, A& a, O&) { a.query.shape[2] = a.key.shape[3] = 0; }},
      {"no heads", Status::invalid_shape, "query", "", [=](C&, A& a, O&) { wide(a, 0); }},
      {"a row of 2^35", Status::invalid_shape, "query", "", [=](C&, A& a, O&) { wide(a, std::int64_t{1} << 28); }},
      {"N9 0", Status::invalid_argument, "sparse_count", "", [](C&, A& a, O&) { a.sparse_count = 0; }},
      {"N9 -1", Status::invalid_argument, "sparse_count", "", [](C&, A& a, O&) { a.sparse_count = -1; }},
      {"count overflow", Status::invalid_shape, "sparse_indices", "", [](C&, A& a, O&) { a.sparse_count = INT64_MAX; }},
      {"N10 mode", Status::invalid_argument, "sparse_mode", "", [](C&, A& a, O&) { a.sparse_mode = 1; }},
      {"N10 next", Status::invalid_argument, "next_tokens", "", [](C&, A& a, O&) { a.next_tokens = 0; }},
      {"N10 pre", Status::invalid_argument, "pre_tokens", "", [](C&, A& a, O&) { a.pre_tokens = kAllTokens - 1; }},
      {"numerics", Status::invalid_argument, "numerics", "", [](C&, A& a, O&) { a.numerics = "exact"; }},
      {"N3 decreasing", Status::invalid_seqlen, "actual_seq_lengths_query", "[1]",
       [](C& c, A&, O&) {
         c.batch.lengths_query = {2, 1};
       }},
      {"N3 negative", Status::invalid_seqlen, "actual_seq_lengths_query", "[0]",
       [](C& c, A&, O&) { c.batch.lengths_query[0] = -1; }},
      {"N3 last", Status::invalid_seqlen, "actual_seq_lengths_query", "[1]",
       [](C& c, A&, O&) { c.batch.lengths_query[1] = 6; }},
      {"N4 B+1", Status::invalid_seqlen, "actual_seq_lengths_key", "",
       [](C&, A& a, O&) { a.actual_seq_lengths_key = tensor(three, {3}); }},
      {"N4 B+1 totals", Status::invalid_seqlen, "actual_seq_lengths_key", "",
       [](C&, A& a, O&) { a.actual_seq_lengths_query = tensor(three, {3}); }},
      {"key length negative", Status::invalid_seqlen, "actual_seq_lengths_key", "[1]",
       [](C& c, A&, O&) { c.batch.lengths_key[1] = -1; }},
      {"key length past the table", Status::invalid_seqlen, "actual_seq_lengths_key", "[0]",
       [](C& c, A&, O&) { c.batch.lengths_key[0] = 81; }},
      {"N2 columns", Status::invalid_seqlen, "actual_seq_lengths_key", "[0]",
       [](C&, A& a, O&) { a.block_table.shape[1] = 2; }},
      {"N1 -1", Status::invalid_block, "block_table", "[1][2]",
       [](C& c, A&, O&) { c.batch.block_table[std::size_t(c.batch.columns) + 2] = -1; }},
      {"N1 block_num", Status::invalid_block, "block_table", "[0][1]",
       [](C& c, A&, O&) { c.batch.block_table[1] = std::int32_t(c.batch.pages); }},
      {"lowest of two", Status::invalid_block, "block_table", "[0][2]",
       [](C& c, A&, O&) { c.batch.block_table[2] = c.batch.block_table[std::size_t(c.batch.columns)] = INT32_MAX; }},
      {"page of a sequence without queries", Status::invalid_block, "block_table", "[1][0]",
       [](C& c, A&, O&) {
         c.batch.lengths_query = {3, 3}, c.batch.block_table[std::size_t(c.batch.columns)] = -1;
       }},
      {"innermost stride", Status::invalid_stride, "query", "", [](C&, A& a, O&) { a.query.stride[2] = 2; }},
      {"table stride", Status::invalid_stride, "block_table", "", [](C&, A& a, O&) { a.block_table.stride[1] = 2; }},
      {"lengths stride", Status::invalid_stride, "actual_seq_lengths_key", "",
       [](C&, A& a, O&) { a.actual_seq_lengths_key.stride[0] = 0; }},
      {"negative stride", Status::invalid_stride, "weights", "", [](C&, A& a, O&) { a.weights.stride[0] = -4; }},
      {"output stride 0", Status::invalid_stride, "sparse_indices", "",
       [](C&, A&, O& o) { o.sparse_indices.stride[0] = 0; }},
      {"misaligned", Status::misaligned, "weights", "",
       [](C&, A& a, O&) { a.weights.data = static_cast<char*>(a.weights.data) + 1; }},
      {"read-only out", Status::invalid_device, "sparse_indices", "",
       [](C&, A&, O& o) { o.sparse_indices.read_only = true; }},
      {"out on query", Status::aliased, "sparse_indices", "",
       [](C&, A& a, O& o) { o.sparse_indices.data = a.query.data; }},
      {"out on key", Status::aliased, "sparse_indices", "", [](C&, A& a, O& o) { o.sparse_indices.data = a.key.data; }},
      {"out on weights", Status::aliased, "sparse_indices", "",
       [](C&, A& a, O& o) { o.sparse_indices.data = a.weights.data; }},
      {"out on lengths", Status::aliased, "sparse_indices", "",
       [](C&, A& a, O& o) { o.sparse_indices.data = a.actual_seq_lengths_key.data; }},
      {"out on the table", Status::aliased, "sparse_indices", "",
       [](C&, A& a, O& o) { o.sparse_indices.data = a.block_table.data; }},
  };
}

/// Of the same batch in BSND: [2, 4] query rows and [2, 42] keys.
template <class C>
std::vector<Refusal<C>> dense_refusals() {
  using A = typename C::Args;
  using O = typename C::Outs;
  static std::int32_t numbers[] = {0, 0, 0, 0, 0, 0};
  return {
      {"N4 query", Status::invalid_seqlen, "actual_seq_lengths_query", "[1]",
       [](C& c, A&, O&) { c.batch.lengths_query[1] = 5; }},
      {"N4 key", Status::invalid_seqlen, "actual_seq_lengths_key", "[0]",
       [](C& c, A&, O&) { c.batch.lengths_key[0] = 43; }},
      {"N4 B+1", Status::invalid_seqlen, "actual_seq_lengths_query", "",
       [](C&, A& a, O&) { a.actual_seq_lengths_query = tensor(numbers, {3}); }},
      {"N11", Status::invalid_argument, "layout_key", "", [](C&, A& a, O&) { a.layout_query = "TND"; }},
      {"N12 given", Status::invalid_argument, "block_table", "",
       [](C&, A& a, O&) {
         a.block_table = tensor(numbers, {2, 3});
       }},
      {"N12 missing", Status::invalid_argument, "block_table", "", [](C&, A& a, O&) { a.layout_key = "PA_BSND"; }},
      {"batch of the keys", Status::invalid_shape, "key", "", [](C&, A& a, O&) { a.key.shape[0] = 1; }},
  };
}

/// A limit of the chip: accepted in portable, refused in strict.
template <class C>
struct Limit {
  const char* name;
  Status status;
  const char* parameter;
  std::function<void(C&)> size;  // before the data
  std::function<void(C&, typename C::Args&, typename C::Outs&)> change = {};
  std::int64_t padding = 2;
};

/// A copy of `t` with room behind every step of its first axis.
inline Tensor apart(Tensor t, std::vector<char>& memory) {
  const std::int64_t bytes = t.stride[0] * size_of(t.dtype);
  memory.assign(std::size_t(2 * bytes * t.shape[0]), 0);
  for (std::int64_t i = 0; i < t.shape[0]; ++i)
    std::memcpy(memory.data() + 2 * i * bytes, static_cast<const char*>(t.data) + i * bytes, std::size_t(bytes));
  t.data = memory.data(), t.stride[0] *= 2;
  return t;
}

/// `fill_case` makes the data once the sizes are decided. The call as it is satisfies strict, and so do the limits
/// themselves.
template <class C>
void expect_limits(const std::function<C()>& make, const std::function<void(C&)>& fill_case,
                   std::vector<Limit<C>> all) {
  using A = typename C::Args;
  using O = typename C::Outs;
  static std::vector<char> memory;
  const auto none = Status::ok;
  const auto sized = [](auto f) { return std::function<void(C&)>(f); };
  const auto as_is = sized([](C&) {});
  const auto pages = [](std::int64_t size) { return [=](C& c) { c.batch.block_size = size; }; };
  const auto dense = sized([](C& c) { c.batch.layout_query = c.batch.layout_key = "BSND"; });
  const std::vector<Limit<C>> shared{
      {"as it is", none, "", as_is},
      {"64 heads", none, "", [](C& c) { c.heads = 64; }},
      {"2048 slots", none, "", [](C& c) { c.count = 2048; }},
      {"pages of 1024", none, "", pages(1024)},
      {"dense", none, "", dense},
      {"room between pages", none, "", as_is,
       [](C&, A& a, O&) {
         a.key = apart(a.key, memory);
         if constexpr (requires { a.key_dequant_scale; }) {
           static std::vector<char> scales;
           a.key_dequant_scale = apart(a.key_dequant_scale, scales);
         }
       }},
      {"D 64", Status::unsupported, "query", [](C& c) { c.dims = 64; }},
      {"D 256", Status::unsupported, "query", [](C& c) { c.dims = 256; }},
      {"N1 65", Status::unsupported, "query", [](C& c) { c.heads = 65; }},
      {"N9 2049", Status::unsupported, "sparse_count", [](C& c) { c.count = 2049; }},
      {"pages of 8", Status::unsupported, "key", pages(8)},
      {"pages of 24", Status::unsupported, "key", pages(24)},
      {"pages of 1040", Status::unsupported, "key", pages(1040)},
      {"no tokens",
       Status::unsupported,
       "query",
       [](C& c) {
         c.batch.queries = {0, 0};
       },
       {},
       0},
      {"no sequences", Status::unsupported, "actual_seq_lengths_query",
       [](C& c) { c.batch.queries.clear(), c.batch.keys.clear(); }},
      {"no keys",
       Status::unsupported,
       "key",
       [=](C& c) {
         dense(c), c.batch.keys = {0, 0};
       },
       {},
       0},
      {"no pages", Status::unsupported, "key",
       [](C& c) {
         c.batch.keys = {0, 0};
       },
       [](C&, A& a, O&) {
         a.key.shape[0] = 0;
         if constexpr (requires { a.key_dequant_scale; }) a.key_dequant_scale.shape[0] = 0;
       }},
      {"room between rows of query", Status::invalid_stride, "query", as_is,
       [](C&, A& a, O&) { a.query = apart(a.query, memory); }},
      {"broadcast weights", Status::invalid_stride, "weights", as_is, [](C&, A& a, O&) { a.weights.stride[0] = 0; }},
      {"room between dense keys", Status::invalid_stride, "key", dense,
       [](C&, A& a, O&) { a.key = apart(a.key, memory); }},
      {"room between lists", Status::invalid_stride, "sparse_indices", as_is,
       [](C& c, A&, O& o) {
         c.out.resize(c.out.size() * 2);
         o.sparse_indices.data = c.out.data(), o.sparse_indices.stride[0] *= 2;
       }},
      {"folded weights", Status::invalid_shape, "weights", dense,
       [](C& c, A& a, O&) {
         a.weights.rank = 2, a.weights.shape[0] = c.batch.query_rows, a.weights.shape[1] = c.heads;
         make_contiguous(a.weights);
       }},
  };
  all.insert(all.end(), shared.begin(), shared.end());
  for (const Limit<C>& limit : all) {
    C c = make();
    limit.size(c);
    c.batch.place(limit.padding);
    fill_case(c);
    auto a = c.args();
    auto o = c.outs();
    if (limit.change) limit.change(c, a, o);
    C::twin(a, o);
    const auto wanted = c.lists();
    C::call(a, o);
    EXPECT_TRUE(c.lists() == wanted) << limit.name;
    a.level = Level::strict;
    if (limit.status == none) {
      std::fill(c.out.begin(), c.out.end(), 12345);
      C::call(a, o);
    } else {
      for (bool twin : {false, true})
        expect_refused([&] { twin ? C::twin(a, o) : C::call(a, o); }, limit.name, C::kName, limit.status,
                       limit.parameter, "", limit.status == Status::invalid_shape ? "" : "[strict: Atlas A2/A3]");
    }
    EXPECT_TRUE(c.lists() == wanted) << limit.name;
  }
}

}  // namespace dsakit::indexer
