// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/fused_infer_attention_score_v2/refusals.hpp"

// Rows S-37 and S-49..S-62 of the validation table.
namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using A = FusedInferAttentionScoreV2Args;
using O = FusedInferAttentionScoreV2Outs;
constexpr auto kAll = Who::everybody, kStrict = Who::strict;
constexpr Status kArgument = Status::invalid_argument, kShape = Status::invalid_shape, kDtype = Status::invalid_dtype,
                 kChip = Status::unsupported;
constexpr DType kF16 = DType::f16, kBf16 = DType::bf16, kF32 = DType::f32, kInt4 = DType::i32;

const Spec kTokens = but(kCodes, [](Spec& s) { s.km = s.vm = 1, s.ks = {2, 40}, s.scale_type = kF32; });
const Spec kCodePages = but(kCodes, [](Spec& s) {
  s.kl = {40, 100}, s.rank = 4, s.bs = 32, s.km = s.vm = 4, s.ks = {7, 32}, s.scale_type = kF32;
});
const Spec kSeveral = but(kCodes, [](Spec& s) { s.type = s.scale_type = kBf16, s.s1 = 5; });
const Spec kNz = but(kCodes, [](Spec& s) {
  s.type = s.scale_type = kBf16, s.nq = 10, s.nk = 1, s.ks = {1, 128}, s.offsets = false, s.kl = {40, 100}, s.rank = 5;
  s.inner_precise = 1, s.lse = false;
});

TEST(FusedInferRefusals, Dequantisation) {
  const auto codes = [](auto change) { return but(kCodes, change); };
  const auto drop = [](Tensor A::*t) { return [=](Case&, A& a, O&) { a.*t = {}; }; };
  expect_refused({
      {"S-49 key", kAll, kCodes, kArgument, "dequant_scale_key", "", drop(&A::dequant_scale_key)},
      {"S-49 value", kAll, kCodes, kArgument, "dequant_scale_value", "", drop(&A::dequant_scale_value)},
      {"S-49 in vain", kAll, kDense, kArgument, "dequant_scale_key", "",
       [](Case& c, A& a, O&) { a.dequant_scale_key = c.query.t; }},
      {"S-49 value in vain", kAll, kDense, kArgument, "dequant_scale_value", "",
       [](Case& c, A& a, O&) { a.dequant_scale_value = c.query.t; }},
      {"S-50 key mode", kAll, kDense, kArgument, "key_quant_mode", "", [](Case&, A& a, O&) { a.key_quant_mode = 1; }},
      {"S-50 value mode", kAll, kDense, kArgument, "value_quant_mode", "",
       [](Case&, A& a, O&) { a.value_quant_mode = 1; }},
      {"S-50 query mode", kAll, kDense, kArgument, "query_quant_mode", "",
       [](Case&, A& a, O&) { a.query_quant_mode = 3; }},
      {"S-50 query mode with codes", kAll, kCodes, kArgument, "query_quant_mode", "",
       [](Case&, A& a, O&) { a.query_quant_mode = 3; }},
      {"S-62 offset of the key alone", kAll, kCodes, kArgument, "dequant_offset_value", "",
       drop(&A::dequant_offset_value)},
      {"S-62 offset of the value alone", kAll, kCodes, kArgument, "dequant_offset_key", "",
       drop(&A::dequant_offset_key)},
      {"S-62 offset without scale", kAll, kDense, kArgument, "dequant_offset_key", "",
       [](Case& c, A& a, O&) { a.dequant_offset_key = c.query.t; }},
      {"S-51", kAll, kCodes, kArgument, "key_quant_mode", "", [](Case&, A& a, O&) { a.key_quant_mode = 9; }},
      {"S-51 reserved", kAll, kCodes, kChip, "key_quant_mode", "", [](Case&, A& a, O&) { a.key_quant_mode = 6; }},
      {"S-51 reserved", kAll, kCodes, kChip, "value_quant_mode", "", [](Case&, A& a, O&) { a.value_quant_mode = 8; }},
      {"S-51 negative", kAll, kCodes, kArgument, "value_quant_mode", "",
       [](Case&, A& a, O&) { a.value_quant_mode = -1; }},
      {"S-54", kAll, kCodes, kArgument, "value_quant_mode", "", [](Case&, A& a, O&) { a.value_quant_mode = 2; }},
      {"S-54 the other way", kAll, kTokens, kArgument, "value_quant_mode", "",
       [](Case&, A& a, O&) { a.value_quant_mode = 0; }},
      {"S-53", kAll, kTokens, kArgument, "block_table", "",
       [](Case&, A& a, O&) { a.key_quant_mode = a.value_quant_mode = 4; }},
      {"S-54 pair of bf16", kStrict, codes([](Spec& s) {
         s.type = s.scale_type = kBf16, s.vm = 1, s.vs = {2, 40}, s.value_scale_type = kF32;
       }),
       kChip, "value_quant_mode"},
      {"S-54 int4 by head", kStrict, codes([](Spec& s) { s.kv = kInt4, s.km = s.vm = 2, s.ks = {2}; }), kChip,
       "key_quant_mode"},
      {"S-54 int4 by tensor", kStrict, codes([](Spec& s) { s.kv = kInt4, s.ks = {1}; }), kChip, "key_quant_mode"},
      {"S-54 several rows by head", kStrict, but(kSeveral, [](Spec& s) { s.km = s.vm = 2, s.ks = {2}; }), kChip,
       "key_quant_mode"},
      {"S-54 several rows of int4", kStrict, but(kSeveral, [](Spec& s) { s.kv = kInt4; }), kChip, "key"},
      {"S-54 several rows of fp16", kStrict, but(kSeveral, [](Spec& s) { s.type = s.scale_type = kF16; }), kChip,
       "query"},
      {"S-54 17 rows", kStrict, but(kSeveral, [](Spec& s) { s.s1 = 17; }), kChip, "query"},
      {"S-54 several rows to codes", kStrict, but(kSeveral, [](Spec& s) { s.os = {1}; }), kChip, "quant_scale_out"},
      {"S-54 several rows, rank 3", kStrict,
       but(kSeveral,
           [](Spec& s) {
             s.km = s.vm = 1, s.ks = {1, 2, 40}, s.scale_type = kF32;
           }),
       kShape, "dequant_scale_key"},
      {"5.3 NZ query", kStrict, but(kNz, [](Spec& s) { s.type = s.scale_type = kF16; }), kChip, "query"},
      {"5.3 NZ width", kStrict,
       but(kNz,
           [](Spec& s) {
             s.d = 64, s.ks = {1, 64};
           }),
       kChip, "query"},
      {"5.3 NZ mode", kStrict, but(kNz, [](Spec& s) { s.km = s.vm = 2, s.ks = {1}; }), kChip, "key_quant_mode"},
      {"5.3 NZ offsets", kStrict, but(kNz, [](Spec& s) { s.offsets = true; }), kChip, "dequant_offset_key"},
      {"5.3 NZ rows", kStrict, but(kNz, [](Spec& s) { s.s1 = 17, s.mode = 3, s.stencil = true; }), kChip, "query"},
      {"5.3 NZ layout", kStrict,
       but(kNz, [](Spec& s) { s.layout = "BSND_NBSD", s.s1 = 2, s.mode = 3, s.stencil = true; }), kChip,
       "input_layout"},
      {"5.3 NZ heads", kStrict, but(kNz, [](Spec& s) { s.nq = 12; }), kChip, "num_query_heads"},
      {"5.3 NZ page", kStrict, but(kNz, [](Spec& s) { s.bs = 256; }), kChip, "block_size"},
      {"5.3 NZ precision", kStrict, but(kNz, [](Spec& s) { s.inner_precise = 0; }), kChip, "inner_precise"},
      {"5.3 NZ single mask", kStrict,
       but(kNz,
           [](Spec& s) {
             s.mask = {2, 256};
           }),
       kChip, "sparse_mode"},
      {"5.3 NZ several", kStrict, but(kNz, [](Spec& s) { s.s1 = 2; }), kChip, "sparse_mode"},
      {"5.3 NZ lse", kStrict, but(kNz, [](Spec& s) { s.lse = true; }), kChip, "return_softmax_lse"},
      {"5.3 NZ to codes", kStrict, but(kNz, [](Spec& s) { s.os = {1}; }), kChip, "quant_scale_out"},
  });
  const auto reshape = [](Tensor A::*t, std::initializer_list<std::int64_t> shape) {
    const Tensor wanted = shaped(DType::f32, shape);
    return [=](Case&, A& a, O&) { (a.*t).rank = wanted.rank, (a.*t).shape = wanted.shape; };
  };
  const auto key = &A::dequant_scale_key, value = &A::dequant_scale_value, offset = &A::dequant_offset_key;
  expect_refused({
      {"S-52 channel", kAll, kCodes, kShape, "dequant_scale_key", "", reshape(key, {2, 127})},
      {"S-52 channel rank", kAll, kCodes, kShape, "dequant_scale_key", "", reshape(key, {1, 1, 1, 2, 128})},
      {"S-52 channel order", kAll, kCodes, kShape, "dequant_scale_key", "", reshape(key, {128, 2})},
      {"S-52 channel two", kAll, kCodes, kShape, "dequant_scale_key", "", reshape(key, {2})},
      {"S-52 token", kAll, kTokens, kShape, "dequant_scale_key", "", reshape(key, {2, 39})},
      {"S-52 token batch", kAll, kTokens, kShape, "dequant_scale_key", "", reshape(key, {1, 40})},
      {"S-52 token rank", kAll, kTokens, kShape, "dequant_scale_value", "", reshape(value, {2, 1, 40})},
      {"S-52 head", kAll, codes([](Spec& s) { s.km = s.vm = 2, s.ks = {2}; }), kShape, "dequant_scale_key", "",
       reshape(key, {1})},
      {"S-52 token and head", kAll, codes([](Spec& s) {
         s.km = s.vm = 3, s.ks = {2, 2, 40}, s.scale_type = kF32;
       }),
       kShape, "dequant_scale_key", "", reshape(key, {2, 1, 40})},
      {"S-52 page", kAll, kCodePages, kShape, "dequant_scale_key", "", reshape(key, {7, 31})},
      {"S-52 page and head", kAll,
       but(kCodePages,
           [](Spec& s) {
             s.km = s.vm = 5, s.ks = {7, 2, 32};
           }),
       kShape, "dequant_scale_key", "", reshape(key, {7, 1, 32})},
      {"S-52 two shapes", kAll, kCodes, kShape, "dequant_scale_value", "",
       [&](Case& c, A& a, O& o) { reshape(value, {256})(c, a, o), reshape(&A::dequant_offset_value, {256})(c, a, o); }},
      {"S-52 dtype", kAll, kCodes, kDtype, "dequant_scale_key", "",
       [](Case&, A& a, O&) { a.dequant_scale_key.dtype = DType::i8; }},
      {"S-52 chip's dtype", kStrict, codes([](Spec& s) { s.scale_type = kF32; }), kDtype, "dequant_scale_key"},
      {"S-52 chip's dtype by token", kStrict, but(kTokens, [](Spec& s) { s.scale_type = kF16; }), kDtype,
       "dequant_scale_key"},
      {"S-55 shape", kAll, kCodes, kShape, "dequant_offset_key", "", reshape(offset, {256})},
      {"S-55 dtype", kAll, kCodes, kDtype, "dequant_offset_key", "",
       [](Case&, A& a, O&) { a.dequant_offset_key.dtype = kBf16; }},
  });
}

TEST(FusedInferRefusals, FullyQuantised) {
  const auto give = [](Tensor A::*t) { return [=](Case& c, A& a, O&) { a.*t = c.ks.t; }; };
  const auto drop = [](Tensor A::*t) { return [=](Case&, A& a, O&) { a.*t = {}; }; };
  expect_refused({
      {"S-56 in vain", kAll, kCodes, kArgument, "dequant_scale_query", "", give(&A::dequant_scale_query)},
      {"S-56 query", kAll, kFull, kArgument, "dequant_scale_query", "", drop(&A::dequant_scale_query)},
      {"S-56 key", kAll, kFull, kArgument, "dequant_scale_key", "", drop(&A::dequant_scale_key)},
      {"S-56 value", kAll, kFull, kArgument, "dequant_scale_value", "", drop(&A::dequant_scale_value)},
      {"S-56 query mode", kAll, kFull, kArgument, "query_quant_mode", "",
       [](Case&, A& a, O&) { a.query_quant_mode = 0; }},
      {"S-56 key mode", kAll, kFull, kArgument, "key_quant_mode", "", [](Case&, A& a, O&) { a.key_quant_mode = 1; }},
      {"S-56 value mode", kAll, kFull, kArgument, "value_quant_mode", "",
       [](Case&, A& a, O&) { a.value_quant_mode = 2; }},
      {"S-56 query shape", kAll, kFull, kShape, "dequant_scale_query", "",
       [](Case&, A& a, O&) { a.dequant_scale_query.shape[2] = 31; }},
      {"S-56 query rank", kAll, kFull, kShape, "dequant_scale_query", "",
       [](Case&, A& a, O&) { a.dequant_scale_query.rank = 2; }},
      {"S-56 BSH shape", kAll, but(kFull, [](Spec& s) { s.layout = "BSH"; }), kShape, "dequant_scale_query", "",
       [](Case&, A& a, O&) { a.dequant_scale_query.shape[2] = 31; }},
      {"S-56 key shape", kAll, kFull, kShape, "dequant_scale_key", "",
       [](Case&, A& a, O&) { a.dequant_scale_key.shape[0] = 2; }},
      {"S-56 query dtype", kAll, kFull, kDtype, "dequant_scale_query", "",
       [](Case&, A& a, O&) { a.dequant_scale_query.dtype = kBf16; }},
      {"S-56 value dtype", kAll, kFull, kDtype, "dequant_scale_value", "",
       [](Case&, A& a, O&) { a.dequant_scale_value.dtype = kBf16; }},
      {"S-57 offset", kAll, kFull, kChip, "dequant_offset_key", "", give(&A::dequant_offset_key)},
      {"S-57 value offset", kAll, kFull, kChip, "dequant_offset_value", "", give(&A::dequant_offset_value)},
      {"S-57 to codes", kAll, kFull, kChip, "quant_scale_out", "", give(&A::quant_scale_out)},
      {"S-57 offset of codes", kAll, kFull, kChip, "quant_offset_out", "", give(&A::quant_offset_out)},
      {"S-57 bias", kAll, but(kFull, [](Spec& s) { s.layout = "BSND"; }), kChip, "pse_shift", "",
       [](Case&, A& a, O&) {
         a.pse_shift = shaped(kBf16, {2, 32, 1, 128});
       }},
      {"5.4 NZ", kStrict, but(kFull, [](Spec& s) { s.rank = 3; }), kChip, "key"},
  });
}

TEST(FusedInferRefusals, CodesOut) {
  const Spec tensorwise = but(kDense, [](Spec& s) { s.os = {1}, s.out_offset = true; });
  const Spec channels = but(kDense, [](Spec& s) { s.os = {4, 128}, s.out_offset = true, s.lse = false; });
  expect_refused({
      {"S-58", kAll, tensorwise, kShape, "quant_scale_out", "", [](Case&, A& a, O&) { a.quant_scale_out = {}; }},
      {"S-58 sizes", kAll, channels, kShape, "quant_offset_out", "",
       [](Case&, A& a, O&) { a.quant_offset_out.rank = 1, a.quant_offset_out.shape[0] = 1; }},
      {"S-58 dtypes", kAll, tensorwise, kDtype, "quant_offset_out", "",
       [](Case&, A& a, O&) { a.quant_offset_out.dtype = kBf16; }},
      {"S-59 size", kAll, channels, kShape, "quant_scale_out", "",
       [](Case&, A& a, O&) { a.quant_scale_out.shape[1] = 127; }},
      {"S-59 order", kAll, channels, kShape, "quant_scale_out", "",
       [](Case&, A& a, O&) { a.quant_scale_out.shape[0] = 128, a.quant_scale_out.shape[1] = 4; }},
      {"S-59 BSH's", kAll, channels, kShape, "quant_scale_out", "",
       [](Case&, A& a, O&) { a.quant_scale_out.rank = 1, a.quant_scale_out.shape[0] = 512; }},
      {"S-59 empty", kAll, tensorwise, kShape, "quant_scale_out", "",
       [](Case&, A& a, O&) { a.quant_scale_out.shape[0] = 0; }},
      {"S-59 dtype", kAll, tensorwise, kDtype, "quant_scale_out", "",
       [](Case&, A& a, O&) { a.quant_scale_out.dtype = kF16; }},
      {"S-59 bf16", kStrict, but(tensorwise, [](Spec& s) { s.os_type = kBf16; }), kDtype, "quant_scale_out"},
      {"S-37", kStrict, but(kCausal, [](Spec& s) { s.mode = 4, s.next = -1, s.os = {1}; }), kChip, "quant_scale_out"},
      {"S-60 lse", kStrict, but(channels, [](Spec& s) { s.lse = true; }), kChip, "quant_scale_out"},
      {"S-60 width", kStrict,
       but(channels,
           [](Spec& s) {
             s.d = 48, s.os = {4, 48};
           }),
       kChip, "quant_scale_out"},
      {"S-61 rope", kStrict, but(kAbsorbed, [](Spec& s) { s.os = {1}; }), kChip, "quant_scale_out"},
      {"S-61 folded", kStrict, but(kFolded, [](Spec& s) { s.os = {1}; }), kChip, "quant_scale_out"},
      {"S-61 int4", kStrict, but(kCodes, [](Spec& s) { s.kv = kInt4, s.os = {1}; }), kChip, "quant_scale_out"},
  });
}

}  // namespace
}  // namespace dsakit::fused_infer_attention_score_v2_op
