// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/fused_infer_attention_score_v2/refusals.hpp"

// Rows S-1..S-23 of the validation table.
namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using A = FusedInferAttentionScoreV2Args;
using O = FusedInferAttentionScoreV2Outs;
constexpr auto kAll = Who::everybody, kStrict = Who::strict, kAlone = Who::strict_alone;
constexpr Status kArgument = Status::invalid_argument, kShape = Status::invalid_shape, kDtype = Status::invalid_dtype,
                 kChip = Status::unsupported;

TEST(FusedInferRefusals, LayoutsRanksAndHeads) {
  expect_refused({
      {"S-1 query", kAll, kDense, kArgument, "query", "", [](Case&, A& a, O&) { a.query = {}; }},
      {"S-1 key", kAll, kDense, kArgument, "key", "", [](Case&, A& a, O&) { a.key = {}; }},
      {"S-1 value", kAll, kDense, kArgument, "value", "", [](Case&, A& a, O&) { a.value = {}; }},
      {"negative", kAll, kDense, kShape, "key", "", [](Case&, A& a, O&) { a.key.shape[2] = -1; }},
      {"overflow", kAll, kDense, kShape, "atten_mask", "",
       [](Case& c, A& a, O&) { a.atten_mask = c.query.t, a.atten_mask.shape[0] = INT64_MAX / 2; }},
      {"S-2", kAll, kDense, kArgument, "input_layout", "", [](Case&, A& a, O&) { a.input_layout = "SBH"; }},
      {"S-2 empty", kAll, kDense, kArgument, "input_layout", "", [](Case&, A& a, O&) { a.input_layout = ""; }},
      {"S-2 NTD", kStrict, but(kFolded, [](Spec& s) { s.layout = "NTD"; }), kChip, "input_layout"},
      {"S-2 BSH_BNSD", kStrict, but(kDense, [](Spec& s) { s.layout = "BSH_BNSD"; }), kChip, "input_layout"},
      {"S-2 BSND_BNSD", kStrict, but(kDense, [](Spec& s) { s.layout = "BSND_BNSD"; }), kChip, "input_layout"},
      {"S-2 NSD", kStrict, but(kDense, [](Spec& s) { s.layout = "NSD", s.b = 1; }), kChip, "input_layout"},
      {"S-3", kAll, kDense, kShape, "query", "", [](Case&, A& a, O&) { a.query.rank = 3; }},
      {"S-4 key", kAll, kDense, kShape, "key", "", [](Case&, A& a, O&) { a.key.rank = 3; }},
      {"S-4 value", kAll, kDense, kShape, "value", "", [](Case&, A& a, O&) { a.value.rank = 3; }},
      {"S-4 pages", kAll, kPaged, kShape, "key", "", [](Case&, A& a, O&) { a.key.rank = 2; }},
      {"S-4 value pages", kAll, kPaged, kShape, "value", "", [](Case&, A& a, O&) { a.value.rank = 3; }},
      {"S-5 none", kAll, kDense, kShape, "num_query_heads", "", [](Case&, A& a, O&) { a.num_query_heads = 0; }},
      {"S-5 negative", kAll, kDense, kShape, "num_query_heads", "", [](Case&, A& a, O&) { a.num_query_heads = -4; }},
      {"S-5 other", kAll, kDense, kShape, "num_query_heads", "", [](Case&, A& a, O&) { a.num_query_heads = 8; }},
      {"S-5 BSH", kAll, but(kDense, [](Spec& s) { s.layout = "BSH"; }), kShape, "num_query_heads", "",
       [](Case&, A& a, O&) { a.num_query_heads = 5; }},
      {"S-6 negative", kAll, kDense, kShape, "num_key_value_heads", "",
       [](Case&, A& a, O&) { a.num_key_value_heads = -1; }},
      {"S-6 other", kAll, kDense, kShape, "num_key_value_heads", "",
       [](Case&, A& a, O&) { a.num_key_value_heads = 4; }},
      {"S-6 as many as queries", kAll, kDense, kShape, "num_key_value_heads", "",
       [](Case&, A& a, O&) { a.num_key_value_heads = 0; }},
      {"S-6 BSH", kAll, but(kDense, [](Spec& s) { s.layout = "BSH"; }), kShape, "num_key_value_heads", "",
       [](Case&, A& a, O&) { a.num_key_value_heads = 3; }},
      {"S-6 pages", kAll, kPaged, kShape, "num_key_value_heads", "",
       [](Case&, A& a, O&) { a.num_key_value_heads = 1; }},
      {"S-6 pages of rows", kAll, but(kPaged, [](Spec& s) { s.rank = 3; }), kShape, "num_key_value_heads", "",
       [](Case&, A& a, O&) { a.num_key_value_heads = 3; }},
      {"S-6 int4", kAll, but(kCodes, [](Spec& s) { s.layout = "BSH", s.kv = DType::i32, s.nq = s.nk = 2, s.d = 64; }),
       kShape, "num_key_value_heads", "", [](Case&, A& a, O&) { a.key.shape[2] = a.value.shape[2] = 15; }},
      {"S-7", kAll, but(kDense, [](Spec& s) { s.nq = 6, s.nk = 4; }), kShape, "num_key_value_heads"},
      {"S-10 rows", kAll, kDense, kShape, "value", "", [](Case&, A& a, O&) { a.value.shape[2] = 39; }},
      {"S-10 heads", kAll, kDense, kShape, "num_key_value_heads", "", [](Case&, A& a, O&) { a.value.shape[1] = 1; }},
      {"S-10 pages", kAll, kPaged, kShape, "value", "", [](Case&, A& a, O&) { --a.value.shape[0]; }},
      {"S-10 dtype", kAll, kDense, kDtype, "value", "", [](Case&, A& a, O&) { a.value.dtype = DType::bf16; }},
      {"no columns", kAll, kDense, kShape, "value", "", [](Case&, A& a, O&) { a.value.shape[3] = 0; }},
      {"S-21 NZ key", kAll, kFull, kShape, "key", "",
       [](Case&, A& a, O&) { a.key.shape[2] = a.value.shape[2] = 32, a.key.shape[4] = a.value.shape[4] = 16; }},
      {"S-21 NZ value", kAll, kFull, kShape, "value", "", [](Case&, A& a, O&) { a.value.shape[4] = 16; }},
      {"S-21 NZ rope", kAll, kFull, kShape, "key_rope", "",
       [](Case&, A& a, O&) { a.key_rope.shape[2] = 2, a.key_rope.shape[4] = 32; }},
      {"int4 NZ", kAll,
       but(kCodes,
           [](Spec& s) {
             s.kl = {40, 40}, s.rank = 5;
           }),
       kChip, "key", "",
       [](Case&, A& a, O&) {
         a.key.dtype = a.value.dtype = DType::i32;
         for (Tensor* t : {&a.key, &a.value}) t->shape[4] = 8, t->shape[2] = 2;
       }},
      {"S-9", kAll, kDense, kShape, "key", "", [](Case&, A& a, O&) { a.key.shape[3] = a.value.shape[3] = 64; }},
      {"S-11", kAll, kDense, kShape, "key", "", [](Case&, A& a, O&) { a.key.shape[0] = a.value.shape[0] = 1; }},
  });
}

TEST(FusedInferRefusals, DtypesAndRope) {
  expect_refused({
      {"S-12", kAll, kDense, kDtype, "query", "", [](Case&, A& a, O&) { a.query.dtype = DType::i16; }},
      {"S-12 double", kAll, kDense, kDtype, "query", "", [](Case&, A& a, O&) { a.query.dtype = DType::f64; }},
      {"S-13", kAll, kDense, kDtype, "key", "", [](Case&, A& a, O&) { a.key.dtype = a.value.dtype = DType::bf16; }},
      {"S-13 uint8", kAll, kDense, kDtype, "key", "", [](Case&, A& a, O&) { a.key.dtype = a.value.dtype = DType::u8; }},
      {"S-13 int8 query", kAll, kFull, kDtype, "key", "",
       [](Case&, A& a, O&) {
         a.key.dtype = a.value.dtype = DType::bf16;
         for (Tensor* t : {&a.key, &a.value}) t->shape[4] = 16, t->shape[2] = 32;
       }},
      {"S-14 query_rope", kAll, kFull, kArgument, "query_rope", "", [](Case&, A& a, O&) { a.query_rope = {}; }},
      {"S-14 both", kAll, kFull, kArgument, "query_rope", "", [](Case&, A& a, O&) { a.query_rope = a.key_rope = {}; }},
      {"S-15 alone", kAll, kAbsorbed, kArgument, "query_rope", "", [](Case&, A& a, O&) { a.query_rope = {}; }},
      {"S-15 other alone", kAll, kAbsorbed, kArgument, "key_rope", "", [](Case&, A& a, O&) { a.key_rope = {}; }},
      {"S-15 query rows", kAll, kAbsorbed, kShape, "query_rope", "", [](Case&, A& a, O&) { --a.query_rope.shape[0]; }},
      {"S-15 query rank", kAll, kAbsorbed, kShape, "query_rope", "", [](Case&, A& a, O&) { --a.query_rope.rank; }},
      {"S-15 key rows", kAll, kAbsorbed, kShape, "key_rope", "", [](Case&, A& a, O&) { --a.key_rope.shape[0]; }},
      {"S-15 widths", kAll, kAbsorbed, kShape, "key_rope", "", [](Case&, A& a, O&) { a.key_rope.shape[2] = 32; }},
      {"S-15 heads", kAll, but(kDense, [](Spec& s) { s.layout = "BSH", s.dr = 64; }), kShape, "query_rope", "",
       [](Case&, A& a, O&) { a.query_rope.shape[2] = 255; }},
      {"S-15 key heads", kAll, but(kDense, [](Spec& s) { s.layout = "BSH", s.dr = 64; }), kShape, "key_rope", "",
       [](Case&, A& a, O&) { a.key_rope.shape[2] = 127; }},
      {"S-15 dtype", kAll, kAbsorbed, kDtype, "query_rope", "",
       [](Case&, A& a, O&) { a.query_rope.dtype = DType::f16; }},
      {"S-15 key dtype", kAll, kAbsorbed, kDtype, "key_rope", "",
       [](Case&, A& a, O&) { a.key_rope.dtype = DType::f16; }},
      {"S-15 int8 query", kAll, kFull, kDtype, "query_rope", "",
       [](Case&, A& a, O&) { a.query_rope.dtype = DType::f16; }},
  });
}

TEST(FusedInferRefusals, LimitsOfTheChip) {
  const auto absorbed = [](auto change) { return but(kAbsorbed, change); };
  const auto dense = [](auto change) { return but(kDense, change); };
  const auto folded = [](auto change) { return but(kFolded, change); };
  expect_refused({
      {"S-8", kStrict, dense([](Spec& s) { s.nq = 130, s.d = 16; }), kChip, "num_query_heads"},
      {"S-16", kStrict, absorbed([](Spec& s) { s.dr = 32; }), kChip, "query_rope"},
      {"S-17", kStrict, absorbed([](Spec& s) { s.d = 256; }), kChip, "query"},
      {"S-18 key heads", kStrict, absorbed([](Spec& s) { s.nk = 2; }), kChip, "num_key_value_heads"},
      {"S-18 heads", kStrict, absorbed([](Spec& s) { s.nq = 16; }), kChip, "num_query_heads"},
      {"S-18 value", kStrict, absorbed([](Spec& s) { s.dv = 256; }), kChip, "value"},
      {"S-18 contiguous", kStrict, absorbed([](Spec& s) { s.rank = 0, s.s2 = 100; }), kChip, "block_table"},
      {"S-18 page", kStrict, absorbed([](Spec& s) { s.bs = 32; }), kChip, "block_size"},
      {"S-18 page of rank 5", kStrict, absorbed([](Spec& s) { s.rank = 5, s.bs = 16; }), kChip, "block_size"},
      {"S-18 layout", kStrict, absorbed([](Spec& s) { s.layout = "BNSD_BSND"; }), kChip, "input_layout"},
      {"S-18 NTD_TND", kStrict, absorbed([](Spec& s) {
         s.layout = "NTD_TND", s.ql = {1, 1};
       }),
       kChip, "input_layout"},
      {"S-18 NZ BNSD", kStrict, absorbed([](Spec& s) { s.layout = "BNSD", s.rank = 5; }), kChip, "input_layout"},
      {"S-18 lse", kStrict, absorbed([](Spec& s) { s.lse = true; }), kChip, "return_softmax_lse"},
      {"S-18 mode", kStrict, absorbed([](Spec& s) { s.s1 = 2; }), kChip, "sparse_mode"},
      {"S-18 single mode", kStrict, absorbed([](Spec& s) { s.mode = 3, s.stencil = true; }), kChip, "sparse_mode"},
      {"S-18 rows", kStrict, absorbed([](Spec& s) { s.layout = "BSND", s.s1 = 17, s.mode = 3, s.stencil = true; }),
       kChip, "query"},
      {"S-18 split paged", kStrict, but(kSplit, [](Spec& s) { s.rank = 3; }), kChip, "block_table"},
      {"S-18 split layout", kStrict, but(kSplit, [](Spec& s) { s.layout = "TND_NTD"; }), kChip, "input_layout"},
      {"S-18 split mode", kStrict, but(kSplit, [](Spec& s) { s.mode = 4, s.stencil = true; }), kChip, "sparse_mode"},
      {"S-19", kStrict, folded([](Spec& s) { s.d = 64; }), kChip, "query"},
      {"S-19 192", kStrict, folded([](Spec& s) { s.d = 192, s.dv = 64; }), kChip, "query"},
      {"S-19 192 paged", kStrict, folded([](Spec& s) { s.d = 192, s.dv = 128, s.rank = 3; }), kChip, "block_table"},
      {"S-19 192 out", kStrict, folded([](Spec& s) { s.layout = "TND_NTD", s.d = 192, s.dv = 128, s.lse = false; }),
       kChip, "input_layout"},
      {"S-19 192 mode", kStrict, folded([](Spec& s) { s.d = 192, s.dv = 128, s.mode = 2, s.stencil = true; }), kChip,
       "sparse_mode"},
      {"section 6", kStrict, dense([](Spec& s) { s.dv = 64; }), kChip, "value"},
      {"S-20 width", kStrict, dense([](Spec& s) { s.d = 528; }), kChip, "query"},
      {"S-20 heads", kStrict, dense([](Spec& s) { s.nq = 258, s.nk = 129, s.d = 16; }), kChip, "num_query_heads"},
      {"S-20 batch", kAlone, kDense, kChip, "query", "",
       [](Case&, A& a, O&) { a.query.shape[0] = a.key.shape[0] = a.value.shape[0] = 65537; }},
      {"S-20 keys", kAlone, kSingle, kChip, "key", "",
       [](Case&, A& a, O&) { a.key.shape[2] = a.value.shape[2] = 262145; }},
      {"S-20 rows", kAlone, kDense, kChip, "query", "", [](Case&, A& a, O&) { a.query.shape[2] = 20971521; }},
      {"S-20 tokens", kAlone, kFolded, kChip, "query", "", [](Case&, A& a, O&) { a.query.shape[0] = (1 << 20) + 1; }},
      {"S-20 key tokens", kAlone, kFolded, kChip, "key", "",
       [](Case&, A& a, O&) { a.key.shape[0] = a.value.shape[0] = (1 << 20) + 1; }},
      {"S-20 lists", kStrict, folded([](Spec& s) { s.ql = Shape(4097, 1), s.kl = Shape(4097, 1), s.nq = s.nk = 1; }),
       kChip, "actual_seq_qlen"},
      {"S-21 width", kStrict, dense([](Spec& s) { s.d = 24; }), kShape, "query"},
      {"S-21 int8", kStrict,
       but(kCodes,
           [](Spec& s) {
             s.d = 48, s.ks = {2, 48};
           }),
       kShape, "query"},
      {"S-21 int4", kStrict,
       but(kCodes,
           [](Spec& s) {
             s.kv = DType::i32, s.d = 96, s.ks = {2, 96};
           }),
       kShape, "query"},
      {"S-22 BNSD_BSND", kStrict, but(kSingle, [](Spec& s) { s.layout = "BNSD_BSND"; }), kChip, "input_layout"},
      {"S-22 one row", kStrict, but(kSingle, [](Spec& s) { s.layout = "BNSD_NBSD", s.lse = false; }), kChip,
       "input_layout"},
      {"S-22 17 rows", kStrict, dense([](Spec& s) { s.layout = "BNSD_NBSD", s.s1 = 17, s.lse = false; }), kChip,
       "input_layout"},
      {"S-68", kStrict, dense([](Spec& s) { s.layout = "BNSD_NBSD"; }), kChip, "return_softmax_lse"},
      {"S-68 TND_NTD", kStrict, folded([](Spec& s) { s.layout = "TND_NTD"; }), kChip, "return_softmax_lse"},
      {"S-23", kStrict, folded([](Spec& s) { s.type = DType::f16; }), kDtype, "query"},
      {"S-66", kStrict, dense([](Spec& s) { s.type = DType::f32; }), kDtype, "query"},
  });
}

}  // namespace
}  // namespace dsakit::fused_infer_attention_score_v2_op
