// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "core/check.hpp"
#include "dsakit/error.hpp"
#include "kernels/kernels.hpp"
#include "ops/sparse_attention/cases.hpp"

namespace dsakit {
namespace {

using namespace sparse_attention;
using enum Status;
using Sfa = SparseFlashAttentionArgs;
using SfaOuts = SparseFlashAttentionOuts;
using Kv = KvQuantSparseFlashAttentionArgs;
using KvOuts = KvQuantSparseFlashAttentionOuts;

/// Sequences of 2 and 3 rows over 20 and 9 keys in pages of 4; every row attends to something.
Case small_case(bool packed) {
  Case c;
  c.batch.queries = {2, 3}, c.batch.keys = {20, 9}, c.batch.block_size = 4;
  c.batch.place();
  c.poison = false, c.entries = 4, c.tile = packed ? 8 : 0;
  c.fill();
  c.lists = {{0, 5, 18, -1}, {19, 1, -1, 7}, {6, 0, -1, 9}, {7, 7, 1, 2}, {8, 0, 3, -1}};
  c.place();
  return c;
}

/// A change of a call that either operator, or only the one it is written for, refuses.
struct Refusal {
  const char* name;
  Status status;
  const char *parameter, *position;
  std::function<void(Case&, Sfa&, SfaOuts&)> plain;
  std::function<void(Case&, Kv&, KvOuts&)> packed;

  template <class F>
  Refusal(const char* name, Status status, const char* parameter, const char* position, F f)
      : name(name), status(status), parameter(parameter), position(position) {
    if constexpr (std::is_invocable_v<F, Case&, Sfa&, SfaOuts&>) plain = f;
    if constexpr (std::is_invocable_v<F, Case&, Kv&, KvOuts&>) packed = f;
  }
};

template <class Args, class Outs, class Change>
void expect_refusal(const Refusal& r, const Change& change, Args a, Outs o, Case& c) {
  SCOPED_TRACE(r.name);
  change(c, a, o);
  const auto out = c.out_memory;
  const auto most = c.most_memory, sum = c.sum_memory;
  Context context;
  for (const bool twin : {false, true}) {
    try {
      if (twin) attend(a, o, ProbabilityRounding::none);
      else attend(a, o, context);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, r.status) << e.what();
      EXPECT_EQ(e.parameter, r.parameter) << e.what();
      if (*r.position != '*') {
        EXPECT_EQ(e.position, r.position) << e.what();
      }
      EXPECT_EQ(e.op, c.packed() ? "kv_quant_sparse_flash_attention" : "sparse_flash_attention");
    }
  }
  EXPECT_EQ(c.out_memory, out);
  EXPECT_EQ(c.most_memory, most);
  EXPECT_EQ(c.sum_memory, sum);
}

void expect_refusals(const std::vector<Refusal>& all) {
  for (const Refusal& r : all) {
    Case plain = small_case(false), packed = small_case(true);
    if (r.plain) expect_refusal(r, r.plain, plain.args(), plain.outs<SfaOuts>(), plain);
    if (r.packed) expect_refusal(r, r.packed, packed.kv_args(), packed.outs<KvOuts>(), packed);
  }
}

std::string brackets(const Tensor& t) { return dsakit::brackets({t.shape.data(), std::size_t(t.rank)}); }

/// One mistake of each row of the table in "Errors", in its order.
const std::vector<Refusal> kRows{
    {"1 required", invalid_argument, "query", "", [](Case&, auto& a, auto&) { a.query = {}; }},
    {"1 required", invalid_argument, "key", "", [](Case&, auto& a, auto&) { a.key = {}; }},
    {"1 required", invalid_argument, "value", "", [](Case&, auto& a, auto&) { a.value = {}; }},
    {"1 required", invalid_argument, "sparse_indices", "", [](Case&, auto& a, auto&) { a.sparse_indices = {}; }},
    {"1 rope required", invalid_argument, "query_rope", "", [](Case&, Sfa& a, SfaOuts&) { a.query_rope = {}; }},
    {"1 rope required", invalid_argument, "key_rope", "", [](Case&, Sfa& a, SfaOuts&) { a.key_rope = {}; }},
    {"1 result", invalid_argument, "attention_out", "", [](Case&, auto&, auto& o) { o.attention_out = {}; }},
    {"1 result", invalid_argument, "softmax_max", "", [](Case&, auto&, auto& o) { o.softmax_max = {}; }},
    {"1 result", invalid_argument, "softmax_sum", "", [](Case&, auto&, auto& o) { o.softmax_sum = {}; }},
    {"1 no table", invalid_argument, "block_table", "", [](Case&, auto& a, auto&) { a.block_table = {}; }},
    {"1 no lengths", invalid_argument, "actual_seq_lengths_kv", "",
     [](Case&, auto& a, auto&) { a.actual_seq_lengths_kv = {}; }},
    {"2", invalid_argument, "attention_mode", "", [](Case&, auto& a, auto&) { a.attention_mode = 0; }},
    {"3", invalid_argument, "layout_query", "", [](Case&, auto& a, auto&) { a.layout_query = "BNSD"; }},
    {"4 K", invalid_shape, "sparse_indices", "",
     [](Case&, auto& a, auto&) { a.sparse_indices.shape[a.sparse_indices.rank - 2] = 2; }},
    {"5 dtype", invalid_dtype, "sparse_indices", "",
     [](Case&, auto& a, auto&) { a.sparse_indices.dtype = DType::f32; }},
    {"6", invalid_dtype, "value", "", [](Case&, auto& a, auto&) { a.value.dtype = DType::u16; }},
    {"7", invalid_argument, "key_quant_mode", "", [](Case&, Kv& a, KvOuts&) { a.key_quant_mode = 1; }},
    {"7", invalid_argument, "value_quant_mode", "", [](Case&, Kv& a, KvOuts&) { a.value_quant_mode = 0; }},
    {"7", invalid_argument, "quant_scale_repo_mode", "", [](Case&, Kv& a, KvOuts&) { a.quant_scale_repo_mode = 0; }},
    {"7", invalid_argument, "key_dequant_scale", "", [](Case&, Kv& a, KvOuts&) { a.key_dequant_scale = a.key; }},
    {"7", invalid_argument, "value_dequant_scale", "", [](Case&, Kv& a, KvOuts&) { a.value_dequant_scale = a.key; }},
    {"7", invalid_argument, "rope_head_dim", "", [](Case&, Kv& a, KvOuts&) { a.rope_head_dim = 20; }},
    {"7", invalid_argument, "tile_size", "", [](Case&, Kv& a, KvOuts&) { a.tile_size = 5; }},
    {"4 result", invalid_shape, "attention_out", "", [](Case&, auto&, auto& o) { --o.attention_out.shape[0]; }},
    {"11", invalid_argument, "sparse_block_size", "", [](Case&, auto& a, auto&) { a.sparse_block_size = 3; }},
    {"14", invalid_argument, "sparse_mode", "", [](Case&, auto& a, auto&) { a.sparse_mode = 2; }},
    {"14", invalid_argument, "pre_tokens", "", [](Case&, auto& a, auto&) { a.pre_tokens = 1; }},
    {"14", invalid_argument, "next_tokens", "", [](Case&, auto& a, auto&) { a.next_tokens = 0; }},
    {"14", invalid_argument, "scale_value", "", [](Case&, auto& a, auto&) { a.scale_value = NAN; }},
    {"14", invalid_argument, "index_check", "", [](Case&, auto& a, auto&) { a.index_check = "none"; }},
    {"15", invalid_seqlen, "actual_seq_lengths_query", "[1]",
     [](Case& c, auto&, auto&) { c.batch.lengths_query[1] = 1; }},
    {"15", invalid_seqlen, "actual_seq_lengths_kv", "[0]", [](Case& c, auto&, auto&) { c.batch.lengths_key[0] = -1; }},
    {"16", invalid_index, "sparse_indices", "[0][0][1]", [](Case& c, auto&, auto&) { c.list_memory[1] = -2; }},
    {"16", invalid_block, "block_table", "[0][4]",
     [](Case& c, auto&, auto&) { c.table_memory[4] = std::int32_t(c.batch.pages); }},
    {"18 shape", invalid_shape, "sinks", "",
     [](Case& c, auto& a, auto&) { c.sinks.assign(4, 0), a.sinks = tensor(c.sinks.data(), {4}); }},
    {"20 memory", invalid_stride, "key", "", [](Case&, auto& a, auto&) { a.key.stride[0] = -4; }},
    {"20 overlap", aliased, "softmax_max", "", [](Case&, auto&, auto& o) { o.softmax_max.data = o.softmax_sum.data; }},
    {"6 rows", invalid_argument, "value", "*",
     [](Case& c, auto& a, auto&) {
       // Row 0 of the first page of sequence 1 is attended; only its last element is different.
       static std::vector<std::int8_t> rows;
       static std::vector<std::uint16_t> key;
       rows = c.row_memory, key = c.key_memory;
       const auto end = std::size_t(c.batch.key_place[20] + 1);
       if (c.packed()) a.value.data = rows.data(), rows[end * std::size_t(c.row_bytes()) - 1] ^= 1;
       else a.value.data = key.data(), key[end * std::size_t(c.dv) - 1] ^= 1;
     }},
};

TEST(SparseAttentionErrors, AreNamedAndWriteNothing) { expect_refusals(kRows); }

/// With a mistake in a row and in all rows behind it, the first is the answer.
TEST(SparseAttentionErrors, TheFirstRowIsTheAnswer) {
  for (std::size_t first = 0; first < kRows.size(); ++first) {
    Refusal all = kRows[first];
    all.plain = nullptr, all.packed = nullptr;
    if (kRows[first].plain)
      all.plain = [=](Case& c, Sfa& a, SfaOuts& o) {
        for (std::size_t i = kRows.size(); i-- > first;)
          if (kRows[i].plain) kRows[i].plain(c, a, o);
      };
    if (kRows[first].packed)
      all.packed = [=](Case& c, Kv& a, KvOuts& o) {
        for (std::size_t i = kRows.size(); i-- > first;)
          if (kRows[i].packed) kRows[i].packed(c, a, o);
      };
    expect_refusals({all});
  }
}

TEST(SparseAttentionErrors, MemoryAndShapes) {
  expect_refusals({
      {"no lengths", invalid_argument, "actual_seq_lengths_query", "",
       [](Case&, auto& a, auto&) { a.actual_seq_lengths_query = {}; }},
      {"no memory", invalid_argument, "key", "", [](Case&, auto& a, auto&) { a.key.data = nullptr; }},
      {"negative dimension", invalid_shape, "query", "", [](Case&, auto& a, auto&) { a.query.shape[0] = -1; }},
      {"overflow", invalid_shape, "key", "", [](Case&, auto& a, auto&) { a.key.shape[0] = INT64_MAX / 2; }},
      {"query rank", invalid_shape, "query", "", [](Case&, auto& a, auto&) { a.query.rank = 2; }},
      {"no heads", invalid_shape, "query", "", [](Case&, auto& a, auto&) { a.query.shape[1] = 0; }},
      {"query tokens", invalid_shape, "sparse_indices", "", [](Case&, auto& a, auto&) { --a.sparse_indices.shape[0]; }},
      {"rope tokens", invalid_shape, "query_rope", "", [](Case&, Sfa& a, SfaOuts&) { --a.query_rope.shape[0]; }},
      {"key width", invalid_shape, "key", "", [](Case&, Sfa& a, SfaOuts&) { --a.key.shape[3]; }},
      {"key_rope pages", invalid_shape, "key_rope", "", [](Case&, Sfa& a, SfaOuts&) { --a.key_rope.shape[0]; }},
      {"value shape", invalid_shape, "value", "", [](Case&, auto& a, auto&) { --a.value.shape[0]; }},
      {"table rows", invalid_shape, "block_table", "", [](Case&, auto& a, auto&) { ++a.block_table.shape[0]; }},
      {"table dtype", invalid_dtype, "block_table", "",
       [](Case&, auto& a, auto&) { a.block_table.dtype = DType::u32; }},
      {"lengths dtype", invalid_dtype, "actual_seq_lengths_kv", "",
       [](Case&, auto& a, auto&) { a.actual_seq_lengths_kv.dtype = DType::f32; }},
      {"lengths count", invalid_seqlen, "actual_seq_lengths_kv", "",
       [](Case&, auto& a, auto&) { a.actual_seq_lengths_kv.shape[0] = 1; }},
      {"out width", invalid_shape, "attention_out", "", [](Case&, auto&, auto& o) { --o.attention_out.shape[2]; }},
      {"out dtype", invalid_dtype, "attention_out", "",
       [](Case&, auto&, auto& o) { o.attention_out.dtype = DType::f16; }},
      {"softmax shape", invalid_shape, "softmax_max", "", [](Case&, auto&, auto& o) { --o.softmax_max.shape[2]; }},
      {"softmax dtype", invalid_dtype, "softmax_sum", "",
       [](Case&, auto&, auto& o) { o.softmax_sum.dtype = DType::i32; }},
      {"softmax unwanted", invalid_shape, "softmax_max", "",
       [](Case&, auto& a, auto&) { a.return_softmax_lse = false; }},
      {"sinks dtype", invalid_dtype, "sinks", "",
       [](Case& c, auto& a, auto&) {
         c.sinks.assign(3, 0), a.sinks = tensor(c.sinks.data(), {3}), a.sinks.dtype = DType::i32;
       }},
      {"sinks NaN", invalid_argument, "sinks", "[2]",
       [](Case& c, auto& a, auto&) {
         c.sinks = {0, 1, NAN}, a.sinks = tensor(c.sinks.data(), {3});
       }},
      {"innermost stride", invalid_stride, "query", "", [](Case&, auto& a, auto&) { a.query.stride[2] = 2; }},
      {"misaligned", misaligned, "sparse_indices", "",
       [](Case&, auto& a, auto&) { a.sparse_indices.data = static_cast<char*>(a.sparse_indices.data) + 1; }},
      {"shared output", invalid_stride, "attention_out", "",
       [](Case&, auto&, auto& o) { o.attention_out.stride[0] = 0; }},
      {"read-only output", invalid_device, "softmax_sum", "",
       [](Case&, auto&, auto& o) { o.softmax_sum.read_only = true; }},
      {"output over input", aliased, "attention_out", "",
       [](Case& c, auto&, auto& o) { o.attention_out.data = c.query_memory.data(); }},
      {"weight format", invalid_argument, "key", "", [](Case&, auto& a, auto&) { a.key.format = Format::NZ; }},
      {"layout pair", invalid_argument, "layout_kv", "",
       [](Case&, auto& a, auto&) { a.layout_kv = "BSND", a.block_table = {}; }},
      {"block size 0", invalid_shape, "key", "",
       [](Case&, auto& a, auto&) {
         a.key.shape[1] = a.value.shape[1] = 0;
         if constexpr (requires { a.key_rope; }) a.key_rope.shape[1] = 0;
       }},
      {"blocks past 2^31", invalid_index, "sparse_indices", "[0][0][1]",
       [](Case& c, auto& a, auto&) { a.layout_query = "TND", c.list_memory[1] = INT32_MAX; }},
      {"scale beyond fp32", invalid_argument, "scale_value", "", [](Case&, auto& a, auto&) { a.scale_value = 1e300; }},
      {"rope width", invalid_argument, "rope_head_dim", "", [](Case&, Kv& a, KvOuts&) { a.rope_head_dim = -1; }},
      {"tile 0", invalid_argument, "tile_size", "", [](Case&, Kv& a, KvOuts&) { a.tile_size = 0; }},
  });
}

// ---- the negative cases of the acceptance table
// ----------------------------------------------------------------------

TEST(SparseAttentionErrors, N1_Indices) {
  expect_refusals(
      {{"length", invalid_index, "sparse_indices", "[1][0][0]", [](Case& c, auto&, auto&) { c.list_memory[4] = 20; }},
       {"largest", invalid_index, "sparse_indices", "[0][0][2]",
        [](Case& c, auto&, auto&) { c.list_memory[2] = INT32_MAX; }},
       {"-2", invalid_index, "sparse_indices", "[0][0][0]",
        [](Case& c, auto& a, auto&) { c.list_memory[0] = -2, a.index_check = "mask"; }},
       {"the lowest position", invalid_index, "sparse_indices", "[0][0][2]",
        [](Case& c, auto&, auto&) { c.list_memory[4] = -7, c.list_memory[2] = 20; }}});
  Case c = small_case(false);
  c.batch.layout_query = c.batch.layout_key = "BSND";  // positions are those of the caller's shape
  c.batch.place(), c.place();
  c.list_memory[std::size_t(c.batch.query_place[3] * 4 + 2)] = 9;
  Context context;
  try {
    attend(c.args(), c.outs<SfaOuts>(), context);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.position, "[1][1][0][2]");
  }
}

TEST(SparseAttentionErrors, N2_Pages) {
  expect_refusals(
      {{"-1", invalid_block, "block_table", "[0][1]", [](Case& c, auto&, auto&) { c.table_memory[1] = -1; }},
       {"past the end", invalid_block, "block_table", "[1][0]",
        [](Case& c, auto&, auto&) { c.table_memory[std::size_t(c.batch.columns)] = std::int32_t(c.batch.pages); }}});
}

TEST(SparseAttentionErrors, N3_AttentionMode) {
  expect_refusals({{"0", invalid_argument, "attention_mode", "", [](Case&, auto& a, auto&) { a.attention_mode = 0; }},
                   {"1", invalid_argument, "attention_mode", "", [](Case&, auto& a, auto&) { a.attention_mode = 1; }}});
}

TEST(SparseAttentionErrors, N4_QuantModes) {
  expect_refusals({{"1", invalid_argument, "key_quant_mode", "", [](Case&, Kv& a, KvOuts&) { a.key_quant_mode = 1; }},
                   {"scale", invalid_argument, "key_dequant_scale", "",
                    [](Case& c, Kv& a, KvOuts&) { a.key_dequant_scale = tensor(c.scales.data(), {1}); }}});
}

TEST(SparseAttentionErrors, N5_ValueOfItsOwn) {
  for (const bool packed : {false, true}) {
    Case c = small_case(packed);
    Context context;
    const auto result = [&](std::int64_t token, const std::string& position) {
      auto rows = c.row_memory;
      auto key = c.key_memory;
      const auto at = std::size_t(c.batch.key_place[std::size_t(token)]);
      if (packed) rows[at * std::size_t(c.row_bytes()) + 17] ^= 1;
      else key[at * std::size_t(c.dv) + 7] ^= 1;
      try {
        if (packed) {
          auto a = c.kv_args();
          a.value.data = rows.data();
          attend(a, c.outs<KvOuts>(), context);
        } else {
          auto a = c.args();
          a.value.data = key.data();
          attend(a, c.outs<SfaOuts>(), context);
        }
        return position == "";
      } catch (const Error& e) {
        EXPECT_EQ(e.status, invalid_argument);
        EXPECT_EQ(e.parameter, "value");
        EXPECT_EQ(e.position, position);
        return position != "";
      }
    };
    const std::int64_t row = c.batch.key_place[5];
    const std::string used = "[" + std::to_string(row / 4) + "][" + std::to_string(row % 4) + "][0]";
    EXPECT_TRUE(result(5, used + (packed ? "[17]" : "[7]")));
    EXPECT_TRUE(result(4, ""));  // a row that no list names
    c.entries = 1;               // fewer listed than there are rows, so they are compared one by one
    for (auto& list : c.lists) list.assign(1, 5);
    c.place();
    EXPECT_TRUE(result(5, used + (packed ? "[17]" : "[7]")));
    EXPECT_TRUE(result(4, ""));
  }
}

TEST(SparseAttentionErrors, N6_Rope) {
  expect_refusals({{"missing", invalid_argument, "query_rope", "", [](Case&, Sfa& a, SfaOuts&) { a.query_rope = {}; }},
                   {"width", invalid_shape, "key_rope", "", [](Case&, Sfa& a, SfaOuts&) { a.key_rope.shape[3] = 2; }}});
}

TEST(SparseAttentionErrors, N7_Lengths) {
  expect_refusals({{"decreasing", invalid_seqlen, "actual_seq_lengths_query", "[1]",
                    [](Case& c, auto&, auto&) {
                      c.batch.lengths_query = {5, 4};
                    }},
                   {"past T", invalid_seqlen, "actual_seq_lengths_query", "[1]",
                    [](Case& c, auto&, auto&) { c.batch.lengths_query[1] = 8; }},
                   {"more than the pages", invalid_seqlen, "actual_seq_lengths_kv", "[0]",
                    [](Case& c, auto&, auto&) { c.batch.lengths_key[0] = std::int32_t(c.batch.columns * 4 + 1); }}});
}

TEST(SparseAttentionErrors, N8_BlockTable) {
  expect_refusals({{"missing", invalid_argument, "block_table", "", [](Case&, auto& a, auto&) { a.block_table = {}; }},
                   {"given", invalid_argument, "block_table", "", [](Case&, auto& a, auto&) { a.layout_kv = "TND"; }}});
}

TEST(SparseAttentionErrors, N10_Dtypes) {
  expect_refusals(
      {{"fp8 latent", invalid_dtype, "key", "", [](Case&, Sfa& a, SfaOuts&) { a.key.dtype = DType::f8_e4m3; }},
       {"fp8 rows", unsupported, "key", "", [](Case&, Kv& a, KvOuts&) { a.key.dtype = DType::f8_e4m3; }},
       {"bytes", invalid_dtype, "key", "", [](Case&, Kv& a, KvOuts&) { a.key.dtype = DType::u8; }},
       {"fp16 key", invalid_dtype, "key", "", [](Case&, Sfa& a, SfaOuts&) { a.key.dtype = DType::f16; }},
       {"fp32 query", invalid_dtype, "query", "", [](Case&, auto& a, auto&) { a.query.dtype = DType::u16; }},
       {"rope", invalid_dtype, "query_rope", "", [](Case&, Sfa& a, SfaOuts&) { a.query_rope.dtype = DType::f16; }}});
}

TEST(SparseAttentionErrors, N11_RowBytes) {
  // 16 codes in tiles of 8, rope 4: 32 bytes.
  expect_refusals(
      {{"shorter", invalid_shape, "key", "", [](Case&, Kv& a, KvOuts&) { a.key.shape[3] = a.value.shape[3] = 31; }},
       {"longer", invalid_shape, "key", "", [](Case&, Kv& a, KvOuts&) { a.key.shape[3] = a.value.shape[3] = 33; }},
       {"other tiles", invalid_shape, "key", "", [](Case&, Kv& a, KvOuts&) { a.tile_size = 4; }}});
}

TEST(SparseAttentionErrors, N12_Sizes) {
  expect_refusals(
      {{"K in strict", invalid_shape, "sparse_indices", "",
        [](Case&, auto& a, auto&) { a.sparse_indices.shape[2] = 0, a.level = Level::strict; }},
       {"N2", invalid_shape, "key", "", [](Case&, auto& a, auto&) { a.key.shape[2] = 2, a.key.shape[0] /= 2; }},
       {"N2 of the lists", invalid_shape, "sparse_indices", "",
        [](Case&, auto& a, auto&) { a.sparse_indices.shape[1] = 2; }}});
}

TEST(SparseAttentionErrors, N13_SparseBlocks) {
  expect_refusals(
      {{"3 of 4", invalid_argument, "sparse_block_size", "", [](Case&, auto& a, auto&) { a.sparse_block_size = 3; }},
       {"8 of 4", invalid_argument, "sparse_block_size", "", [](Case&, auto& a, auto&) { a.sparse_block_size = 8; }},
       {"0", invalid_argument, "sparse_block_size", "", [](Case&, auto& a, auto&) { a.sparse_block_size = 0; }},
       {"past the blocks", invalid_index, "sparse_indices", "[0][0][1]",
        [](Case&, auto& a, auto&) { a.sparse_block_size = 4; }}});  // 5 * 4 of 20
}

TEST(SparseAttentionErrors, N15_Attributes) {
  expect_refusals({{"scale", invalid_argument, "scale_value", "", [](Case&, auto& a, auto&) { a.scale_value = NAN; }},
                   {"window", invalid_argument, "next_tokens", "", [](Case&, auto& a, auto&) { a.next_tokens = 0; }},
                   {"mode", invalid_argument, "sparse_mode", "", [](Case&, auto& a, auto&) { a.sparse_mode = 2; }}});
}

// ---- strict
// -----------------------------------------------------------------------------------------------------------

/// What strict accepts. `packed` also serves float16.
Case chip_case(bool packed, std::int64_t heads = 4, int dv = 512, int dr = 64, std::int64_t block_size = 16) {
  Case c;
  c.batch.queries = {2}, c.batch.keys = {40}, c.batch.block_size = block_size, c.batch.layout_query = "BSND";
  c.batch.place();
  c.heads = heads, c.dv = dv, c.dr = dr, c.tile = packed ? 128 : 0, c.lse = false;
  c.fill();
  for (auto& list : c.lists) list = {3, 2, 1, 0, 9, 8, 30, 38, 37, -1, 5, 5};
  c.place();
  return c;
}

template <class Change>
void expect_limit(Case c, const char* parameter, Status status, Change change) {
  SCOPED_TRACE(parameter);
  const auto check = [&](auto a, auto o) {
    change(a, o);
    Context context;
    attend(a, o, context);  // portable
    a.level = Level::strict;
    const auto out = c.out_memory;
    try {
      attend(a, o, context);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, status) << e.what();
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_NE(std::string(e.what()).find("[strict: Atlas A2/A3]"), std::string::npos) << e.what();
    }
    EXPECT_EQ(c.out_memory, out);
  };
  if (c.packed()) check(c.kv_args(), c.outs<KvOuts>());
  else check(c.args(), c.outs<SfaOuts>());
}

TEST(SparseAttentionErrors, StrictAcceptsWhatTheDeviceDoes) {
  for (const bool packed : {false, true}) {
    Case c = chip_case(packed);
    Context context;
    if (packed) {
      auto a = c.kv_args();
      a.level = Level::strict;
      attend(a, c.outs<KvOuts>(), context);
    } else {
      auto a = c.args();
      a.level = Level::strict;
      attend(a, c.outs<SfaOuts>(), context);
    }
    const Result strict = c.result();
    EXPECT_EQ(strict, c.run(context));
  }
}

TEST(SparseAttentionErrors, StrictLimits) {
  const auto nothing = [](auto&, auto&) {};
  for (const bool packed : {false, true}) {
    expect_limit(chip_case(packed, 3), "query", unsupported, nothing);
    expect_limit(chip_case(packed, 256), "query", unsupported, nothing);
    expect_limit(chip_case(packed, 48), "query", unsupported, nothing);
    expect_limit(chip_case(packed, 4, 256), "query", unsupported, nothing);
    expect_limit(chip_case(packed, 4, 512, 32), packed ? "rope_head_dim" : "query_rope", unsupported, nothing);
    expect_limit(chip_case(packed, 4, 512, 64, 8), "key", unsupported, nothing);
    expect_limit(chip_case(packed, 4, 512, 64, 2048), "key", unsupported, nothing);
    Case c = chip_case(packed);
    const std::vector<float> sinks(4);
    expect_limit(c, "sinks", unsupported, [&](auto& a, auto&) { a.sinks = tensor(sinks.data(), {4}); });
    c = chip_case(packed, 4, 512, 64, 48);  // blocks of 3, of 32
    for (auto& list : c.lists) list.assign(12, -1), list[0] = 1;
    c.place();
    expect_limit(c, "sparse_block_size", unsupported, [](auto& a, auto&) { a.sparse_block_size = 3; });
    c = chip_case(packed, 4, 512, 64, packed ? 32 : 256);
    for (auto& list : c.lists) list.assign(12, -1), list[0] = 0;
    c.place();
    expect_limit(c, "sparse_block_size", unsupported, [&](auto& a, auto&) { a.sparse_block_size = packed ? 32 : 256; });
    c = chip_case(packed);  // heads apart from each other
    c.query_memory.resize(c.query_memory.size() * 2);
    expect_limit(c, "query", invalid_stride, [](auto& a, auto&) {
      for (int axis : {0, 1, 2}) a.query.stride[std::size_t(axis)] *= 2;
    });
    c = chip_case(packed);
    c.batch.queries = {0}, c.batch.keys = {0}, c.lists.clear(), c.query.clear(), c.query_rope.clear();
    c.batch.s1 = c.batch.s2 = c.batch.columns = 0;
    c.batch.place(0), c.place();
    expect_limit(c, "query", unsupported, nothing);
  }
  Case c = chip_case(true);
  c.tile = 64, c.fill(), c.place();
  expect_limit(c, "tile_size", unsupported, nothing);
}

TEST(SparseAttentionErrors, N9_SoftmaxOfPagedKeys) {
  Case c = chip_case(false);
  c.lse = true;
  expect_limit(c, "return_softmax_lse", unsupported, [](auto&, auto&) {});
}

/// Row 0 sees 39 keys: what its first 39 entries do not hold, the device would not see.
TEST(SparseAttentionErrors, N16_EntriesTheDeviceDrops) {
  for (const bool packed : {false, true}) {
    Case c = chip_case(packed);
    c.entries = 48;
    for (auto& list : c.lists) {
      list.clear();
      for (int e = 0; e < 48; ++e) list.push_back(e == 40 ? 0 : e < 39 ? e : -1);
      list[39] = 39;  // hidden from row 0, seen by row 1 where it is the last that counts
    }
    c.lists[1].resize(40), c.lists[1].resize(48, -1);
    c.place();
    expect_limit(c, "sparse_indices", unsupported, [](auto&, auto&) {});
    Context context;
    try {
      if (packed) {
        auto a = c.kv_args();
        a.level = Level::strict, attend(a, c.outs<KvOuts>(), context);
      } else {
        auto a = c.args();
        a.level = Level::strict, attend(a, c.outs<SfaOuts>(), context);
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.position, "[0][0][0][40]");
    }
  }
}

/// A cache whose pages lie apart is a case for the packed rows of every chip, not for separate latents.
TEST(SparseAttentionErrors, StrictPagesApart) {
  for (const bool packed : {false, true}) {
    Case c = chip_case(packed);
    Context context;
    const Result wanted = c.run(context);
    const auto apart = [&](auto& memory, Tensor t) {
      const auto page = std::size_t(t.stride[0]), pages = std::size_t(t.shape[0]);
      auto wide = memory;
      wide.resize(page * pages * 2);
      for (std::size_t p = 0; p < pages; ++p)
        std::copy_n(memory.begin() + long(p * page), page, wide.begin() + long(2 * p * page));
      memory = wide;
      t.data = memory.data(), t.stride[0] *= 2;
      return t;
    };
    if (packed) {
      auto a = c.kv_args();
      a.key = a.value = apart(c.row_memory, a.key), a.level = Level::strict;
      attend(a, c.outs<KvOuts>(), context);
    } else {
      auto a = c.args();
      a.key = a.value = apart(c.key_memory, a.key);
      attend(a, c.outs<SfaOuts>(), context);
      a.level = Level::strict;
      EXPECT_THROW(attend(a, c.outs<SfaOuts>(), context), Error);
    }
    EXPECT_EQ(c.result(), wanted);
  }
}

// ---- sentences, shapes without data, values
// ---------------------------------------------------------------------------

TEST(SparseAttentionErrors, Sentences) {
  const auto sentence = [](bool packed, auto change) -> std::string {
    Case c = small_case(packed);
    Context context;
    const auto call = [&](auto a, auto o) {
      change(c, a);
      attend(a, o, context);
    };
    try {
      if (packed) call(c.kv_args(), c.outs<KvOuts>());
      else call(c.args(), c.outs<SfaOuts>());
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(sentence(false, [](Case& c, auto&) { c.list_memory[6] = 4096, c.list_memory[5] = 4096; }),
            "sparse_flash_attention: sparse_indices[1][0][1] is 4096, wanted below 20 (key length of sequence 0)");
  EXPECT_EQ(sentence(false, [](Case& c, auto&) { c.list_memory[1] = -3; }),
            "sparse_flash_attention: sparse_indices[0][0][1] is -3, wanted -1 or 0..19 (key length of sequence 0)");
  EXPECT_EQ(
      sentence(true, [](Case&, auto& a) { a.sparse_block_size = 4; }),
      "kv_quant_sparse_flash_attention: sparse_indices[0][0][1] is 5, wanted below 5 (key length of sequence 0, 20 "
      "in blocks of 4)");
  EXPECT_EQ(sentence(true, [](Case&, auto& a) { a.attention_mode = 0; }),
            "kv_quant_sparse_flash_attention: attention_mode is 0, wanted 2 (MLA in absorbed form, the only mode; the "
            "default of the documents is not one)");
  EXPECT_EQ(
      sentence(true,
               [](Case&, auto& a) {
                 if constexpr (requires { a.tile_size; }) a.tile_size = 4;
               }),
      "kv_quant_sparse_flash_attention: key has rows of 32 bytes, wanted 40 (16 codes, 4 rope values of two bytes, 4 "
      "scales of four)");
  EXPECT_EQ(sentence(false, [](Case& c, auto&) { c.table_memory[1] = -1; }),
            "sparse_flash_attention: block_table[0][1] is -1, wanted 0..10 (pages of key; sequence 0, positions 4..7)");
}

TEST(SparseAttentionErrors, InferAnswersWithoutData) {
  for (const bool packed : {false, true}) {
    Case c = small_case(packed);
    c.list_memory[0] = -9;  // not looked at
    const auto check = [&](auto a, auto o) {
      infer(a, o);
      EXPECT_EQ(o.attention_out.dtype, DType::bf16);
      EXPECT_EQ(brackets(o.attention_out), "[7, 3, 16]");
      EXPECT_EQ(brackets(o.softmax_max), "[1, 7, 3]");
      EXPECT_EQ(brackets(o.softmax_sum), "[1, 7, 3]");
      o = {}, a.return_softmax_lse = false;
      infer(a, o);
      EXPECT_EQ(brackets(o.softmax_sum), "[0]");
      EXPECT_EQ(o.softmax_sum.dtype, DType::f32);
      a.sparse_mode = 1;
      EXPECT_THROW(infer(a, o), Error);
    };
    if (packed) check(c.kv_args(), KvOuts{});
    else check(c.args(), SfaOuts{});
  }
}

TEST(SparseAttentionErrors, ValuesWhenAsked) {
  Context careful({.check_values = true}), lax;
  const auto check = [&](bool packed, auto change, const char* parameter, const std::string& position) {
    Case c = small_case(packed);
    change(c);
    const auto call = [&](Context& context) {
      if (packed) attend(c.kv_args(), c.outs<KvOuts>(), context);
      else attend(c.args(), c.outs<SfaOuts>(), context);
    };
    call(lax);
    try {
      call(careful);
      EXPECT_STREQ(parameter, "");
    } catch (const Error& e) {
      EXPECT_EQ(e.status, invalid_value);
      EXPECT_EQ(e.parameter, parameter);
      EXPECT_EQ(e.position, position);
    }
  };
  const std::uint16_t nan = 0x7fc0;
  Case c = small_case(true);
  const auto row = [&](std::size_t token) { return std::size_t(c.batch.key_place[token]); };
  const auto place = [&](std::size_t token, int column) {
    return "[" + std::to_string(row(token) / 4) + "][" + std::to_string(row(token) % 4) + "][0][" +
           std::to_string(column) + "]";
  };
  for (const bool packed : {false, true})
    check(
        packed, [](Case&) {}, "", "");
  check(
      false, [&](Case& c) { c.query_memory[17] = nan; }, "query", "[0][1][1]");
  check(
      true, [&](Case& c) { c.query_memory[17] = nan; }, "query", "[0][0][17]");
  check(
      false, [&](Case& c) { c.query_rope_memory[5] = nan; }, "query_rope", "[0][1][1]");
  check(
      false, [&](Case& c) { c.key_memory[row(5) * 16 + 3] = nan; }, "key", place(5, 3));
  check(
      false, [&](Case& c) { c.key_rope_memory[row(5) * 4 + 3] = nan; }, "key_rope", place(5, 3));
  check(
      false, [&](Case& c) { c.key_memory[row(4) * 16 + 3] = nan; }, "", "");  // of a row nobody names
  check(
      true, [&](Case& c) { c.row_memory[row(5) * 32 + 19] = 0x7f, c.row_memory[row(5) * 32 + 18] = -64; }, "key",
      place(5, 18));
  check(
      true, [&](Case& c) { c.row_memory[row(5) * 32 + 27] ^= -128; }, "key", place(5, 24));  // a negative scale
}

/// strict wants a list; portable takes none as an empty one.
TEST(SparseAttentionErrors, ListsWithoutEntries) {
  const auto none = [](Case&, auto& a, auto&) { a.sparse_indices.shape[a.sparse_indices.rank - 1] = 0; };
  const auto strict = [=](Case& c, auto& a, auto& o) { none(c, a, o), a.level = Level::strict; };
  for (const bool packed : {false, true}) {
    Case c = small_case(packed);
    c.dv = 512, c.dr = 64, c.tile = packed ? 128 : 0, c.heads = 2;  // as strict wants them
    c.fill(), c.place();
    const Refusal r{"K 0", invalid_shape, "sparse_indices", "", strict};
    if (packed) expect_refusal(r, r.packed, c.kv_args(), c.outs<KvOuts>(), c);
    else expect_refusal(r, r.plain, c.args(), c.outs<SfaOuts>(), c);
  }
  for (const bool packed : {false, true})
    for (const bool sinks : {false, true}) {
      Case c = small_case(packed);
      c.with_sinks = sinks, c.fill();
      for (auto& list : c.lists) list.assign(list.size(), -1);
      const Result wanted = c.run(ProbabilityRounding::none);
      EXPECT_EQ(wanted.out, std::vector<float>(wanted.out.size()));
      EXPECT_EQ(wanted.sum[1], 0) << "a sink of -inf is none";
      EXPECT_EQ(wanted.sum[0], sinks ? 1 : 0);
      for (const Kernels* k : supported_kernels())
        for (const int threads : {0, 1, 2, 3}) {  // 0: the reference
          c.place();
          Context context({.threads = std::max(threads, 1), .isa = k->isa});
          const auto call = [&](auto a, auto o) {
            none(c, a, o);
            threads ? attend(a, o, context) : attend(a, o, ProbabilityRounding::none);
          };
          if (packed) call(c.kv_args(), c.outs<KvOuts>());
          else call(c.args(), c.outs<SfaOuts>());
          EXPECT_EQ(c.result(), wanted) << k->isa << ", threads " << threads;
        }
    }
}

/// As upstream callers have it that clone the codes before they pack them.
TEST(SparseAttentionErrors, ValueOfCodesAlone) {
  Case c = small_case(true);
  Context context;
  const Result wanted = c.run(context);
  std::vector<std::int8_t> codes;
  for (std::size_t at = 0; at < c.row_memory.size(); at += std::size_t(c.row_bytes()))
    codes.insert(codes.end(), c.row_memory.begin() + std::ptrdiff_t(at),
                 c.row_memory.begin() + std::ptrdiff_t(at) + c.dv);
  const auto with_codes = [&](const std::vector<std::int8_t>& memory) {
    auto a = c.kv_args();
    a.value.data = const_cast<std::int8_t*>(memory.data()), a.value.shape[a.value.rank - 1] = c.dv;
    make_contiguous(a.value);
    return a;
  };
  c.place();
  attend(with_codes(codes), c.outs<KvOuts>(), context);
  EXPECT_EQ(c.result(), wanted);
  c.place();
  auto alone = c.kv_args();
  alone.value = c.kv_args().key, alone.value.shape[alone.value.rank - 1] = c.dv;  // a view of the rows
  attend(alone, c.outs<KvOuts>(), context);
  EXPECT_EQ(c.result(), wanted);
  auto other = codes;
  other[std::size_t(c.batch.key_place[5] * c.dv + 7)] ^= 1;
  const std::int64_t row = c.batch.key_place[5];
  const std::string used = "[" + std::to_string(row / 4) + "][" + std::to_string(row % 4) + "][0][7]";
  const Refusal differs{"codes differ", invalid_argument, "value", used.c_str(), [](Case&, Kv&, KvOuts&) {}};
  c.place();
  expect_refusal(differs, differs.packed, with_codes(other), c.outs<KvOuts>(), c);
  const Refusal shape{"codes in strict", invalid_shape, "value", "",
                      [](Case&, Kv& a, KvOuts&) { a.level = Level::strict; }};
  expect_refusal(shape, shape.packed, with_codes(codes), c.outs<KvOuts>(), c);
  const Refusal less{"fewer", invalid_shape, "value", "",
                     [](Case&, Kv& a, KvOuts&) { --a.value.shape[a.value.rank - 1]; }};
  expect_refusal(less, less.packed, with_codes(codes), c.outs<KvOuts>(), c);
}

TEST(SparseAttentionErrors, NothingToDo) {
  for (const bool packed : {false, true}) {
    Case c = small_case(packed);
    c.batch = {};
    c.batch.layout_query = c.batch.layout_key = "BSND";
    c.lists.clear(), c.query.clear(), c.query_rope.clear(), c.codes.clear(), c.scales.clear(), c.latent.clear();
    c.key_rope.clear();
    for (const std::vector<std::int32_t>& empty : {std::vector<std::int32_t>{}, std::vector<std::int32_t>{0}}) {
      c.batch.queries = c.batch.keys = empty;  // no sequences; no tokens
      c.batch.place(0);
      Context context;
      EXPECT_EQ(c.run(context).out.size(), 0u);
      EXPECT_EQ(c.run(ProbabilityRounding::none).out.size(), 0u);
    }
    c.batch.queries = {2}, c.batch.keys = {0};  // queries without keys
    c.batch.place(0);
    c.query.assign(std::size_t(2 * 3 * 16), 0), c.query_rope.assign(2 * 3 * 4, 0);
    c.lists.assign(2, {7, 7, 7, 7});  // not read
    Context context;
    EXPECT_EQ(c.run(context).out, std::vector<float>(2 * 3 * 16));
  }
}

/// The workspace keeps to the ceiling however large the heads and rows are.
TEST(SparseAttentionErrors, WorkspaceAndInterruption) {
  Case c;
  c.batch.queries = {64}, c.batch.keys = {400}, c.batch.layout_query = c.batch.layout_key = "BSND";
  c.batch.place();
  c.heads = 128, c.dv = 512, c.dr = 64, c.entries = 300, c.type = DType::f16;
  c.fill();
  Context context({.threads = 64});
  context.set_interrupt([](void*) { return true; }, nullptr);
  try {
    c.run(context);
  } catch (const Error& e) {
    EXPECT_EQ(e.status, interrupted);
  }
  EXPECT_LE(context.workspace_bytes(), (std::size_t{64} << 20) + 2 * 2 * c.out_memory.size());
}

}  // namespace
}  // namespace dsakit
