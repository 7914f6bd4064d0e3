// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/fused_infer_attention_score_v2/refusals.hpp"

// Rows S-24..S-48 of the validation table.
namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using A = FusedInferAttentionScoreV2Args;
using O = FusedInferAttentionScoreV2Outs;
constexpr auto kAll = Who::everybody, kStrict = Who::strict;
constexpr Status kArgument = Status::invalid_argument, kShape = Status::invalid_shape, kDtype = Status::invalid_dtype,
                 kChip = Status::unsupported, kLength = Status::invalid_seqlen;

auto set(Buffer Case::*list, std::int64_t i, std::int64_t value) {
  return [=](Case& c, A&, O&) { static_cast<std::int64_t*>((c.*list).t.data)[i] = value; };
}

TEST(FusedInferRefusals, Lengths) {
  const Spec listed = but(kDense, [](Spec& s) { s.ql = {5, 3}, s.kl = {40, 7}; });
  expect_refused({
      {"S-24 queries", kAll, kFolded, kArgument, "actual_seq_qlen", "",
       [](Case&, A& a, O&) { a.actual_seq_qlen = {}; }},
      {"S-24 keys", kAll, kFolded, kArgument, "actual_seq_kvlen", "", [](Case&, A& a, O&) { a.actual_seq_kvlen = {}; }},
      {"list dtype", kAll, kFolded, kDtype, "actual_seq_qlen", "",
       [](Case&, A& a, O&) { a.actual_seq_qlen.dtype = DType::f32; }},
      {"list rank", kAll, kFolded, kShape, "actual_seq_kvlen", "",
       [](Case&, A& a, O&) { a.actual_seq_kvlen.rank = 0; }},
      {"list memory", kAll, kFolded, kArgument, "actual_seq_kvlen", "",
       [](Case&, A& a, O&) { a.actual_seq_kvlen.data = nullptr; }},
      {"S-25 negative", kAll, kFolded, kLength, "actual_seq_qlen", "[0]", set(&Case::qlen, 0, -1)},
      {"S-25 decreasing", kAll, kFolded, kLength, "actual_seq_qlen", "[1]", set(&Case::qlen, 1, 2)},
      {"S-25 keys decreasing", kAll, kFolded, kLength, "actual_seq_kvlen", "[1]", set(&Case::kvlen, 1, 8)},
      {"S-25 sizes", kAll, kFolded, kLength, "actual_seq_kvlen", "",
       [](Case&, A& a, O&) { a.actual_seq_kvlen.shape[0] = 1; }},
      {"S-25 paged", kAll, kFoldedPaged, kLength, "actual_seq_kvlen", "",
       [](Case&, A& a, O&) { a.actual_seq_kvlen.shape[0] = 1; }},
      {"S-26 past T", kAll, kFolded, kLength, "actual_seq_qlen", "[1]", set(&Case::qlen, 1, 8)},
      {"S-26 keys past T", kAll, kFolded, kLength, "actual_seq_kvlen", "[1]", set(&Case::kvlen, 1, 22)},
      {"S-26 below T", kStrict, kFolded, kLength, "actual_seq_qlen", "[1]", set(&Case::qlen, 1, 6)},
      {"S-26 keys below T", kStrict, kFolded, kLength, "actual_seq_kvlen", "[1]", set(&Case::kvlen, 1, 20)},
      {"S-27 size", kAll,
       but(listed,
           [](Spec& s) {
             s.b = 3, s.ql = {5, 3, 1}, s.kl = {};
           }),
       kLength, "actual_seq_qlen", "", [](Case&, A& a, O&) { a.actual_seq_qlen.shape[0] = 2; }},
      {"S-27 keys size", kAll, listed, kLength, "actual_seq_kvlen", "",
       [](Case&, A& a, O&) { a.actual_seq_kvlen.shape[0] = 0; }},
      {"S-27 negative", kAll, listed, kLength, "actual_seq_qlen", "[1]", set(&Case::qlen, 1, -1)},
      {"S-27 past S1", kAll, listed, kLength, "actual_seq_qlen", "[0]", set(&Case::qlen, 0, 6)},
      {"S-27 past S2", kAll, listed, kLength, "actual_seq_kvlen", "[1]", set(&Case::kvlen, 1, 41)},
      {"S-27 paged", kAll, kPaged, kLength, "actual_seq_kvlen", "[0]", set(&Case::kvlen, 0, 8 * 16 + 1)},
      {"S-27 too few columns", kAll, kPaged, kLength, "actual_seq_kvlen", "[1]",
       [](Case&, A& a, O&) { a.block_table.shape[1] = 6; }},
      {"S-28", kStrict,
       but(kFolded,
           [](Spec& s) {
             s.kl = {9, 3}, s.mode = 3, s.stencil = true;
           }),
       kLength, "actual_seq_kvlen", "[1]"},
  });
}

TEST(FusedInferRefusals, Pages) {
  const auto paged = [](auto change) { return but(kPaged, change); };
  expect_refused({
      {"S-40 dtype", kAll, kPaged, kDtype, "block_table", "",
       [](Case&, A& a, O&) { a.block_table.dtype = DType::i64; }},
      {"S-40 rank", kAll, kPaged, kShape, "block_table", "", [](Case&, A& a, O&) { a.block_table.rank = 1; }},
      {"S-40 rows", kAll, kPaged, kShape, "block_table", "", [](Case&, A& a, O&) { a.block_table.shape[0] = 1; }},
      {"S-40 rows folded", kAll, kFoldedPaged, kShape, "block_table", "",
       [](Case&, A& a, O&) { a.block_table.shape[0] = 1; }},
      {"S-41", kAll, kPaged, kArgument, "actual_seq_kvlen", "", [](Case&, A& a, O&) { a.actual_seq_kvlen = {}; }},
      {"S-42 none", kAll, kPaged, kShape, "block_size", "", [](Case&, A& a, O&) { a.block_size = 0; }},
      {"S-42 other", kAll, kPaged, kShape, "block_size", "", [](Case&, A& a, O&) { a.block_size = 32; }},
      {"S-43", kStrict, paged([](Spec& s) { s.s1 = 2, s.bs = 64; }), kChip, "block_size"},
      {"S-43 large", kStrict, paged([](Spec& s) { s.s1 = 2, s.bs = 640; }), kChip, "block_size"},
      {"S-43 single", kStrict, paged([](Spec& s) { s.bs = 24; }), kChip, "block_size"},
      {"S-43 single int8", kStrict,
       but(kCodes,
           [](Spec& s) {
             s.kl = {40, 100}, s.rank = 4, s.bs = 16;
           }),
       kChip, "block_size"},
      {"S-44", kStrict, paged([](Spec& s) {
         s.layout = "BSH", s.rank = 3, s.nq = s.nk = 130, s.d = 512, s.kl = {2, 2};
       }),
       kChip, "key"},
      {"S-44 large", Who::strict_alone, kPaged, kChip, "key", "",
       [](Case&, A& a, O&) { a.key.shape[0] = a.value.shape[0] = 1 << 24; }},
      {"S-45", kStrict, paged([](Spec& s) { s.shared_page = true; }), kShape, "key"},
      {"S-46 past", kAll, kPaged, Status::invalid_block, "block_table", "[1][6]",
       [](Case& c, A&, O&) { static_cast<std::int32_t*>(c.table.t.data)[c.columns + 6] = std::int32_t(c.pages); }},
      {"S-46 negative", kAll, kPaged, Status::invalid_block, "block_table", "[0][2]",
       [](Case& c, A&, O&) { static_cast<std::int32_t*>(c.table.t.data)[2] = -1; }},
      {"S-46 without queries", kAll,
       but(kFoldedPaged,
           [](Spec& s) {
             s.ql = {3, 0};
           }),
       Status::invalid_block, "block_table", "[1][1]",
       [](Case& c, A&, O&) { static_cast<std::int32_t*>(c.table.t.data)[c.columns + 1] = -1; }},
      {"S-47", kStrict, paged([](Spec& s) { s.layout = "BSND"; }), kChip, "key"},
      {"S-48 rank 5", kStrict, paged([](Spec& s) { s.rank = 5; }), kChip, "key"},
      {"S-48 int4", kStrict,
       but(kCodes,
           [](Spec& s) {
             s.kv = DType::i32, s.kl = {40, 100}, s.rank = 4, s.bs = 32;
           }),
       kChip, "key"},
      {"S-48 several rows", kStrict,
       but(kCodes,
           [](Spec& s) {
             s.s1 = 2, s.kl = {40, 100}, s.rank = 4;
           }),
       kChip, "key"},
  });
}

}  // namespace
}  // namespace dsakit::fused_infer_attention_score_v2_op
