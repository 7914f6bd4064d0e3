// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "core/check.hpp"
#include "ops/fused_infer_attention_score_v2/refusals.hpp"

// Rows S-29..S-39 of the validation table, and what comes after S-62.
namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using A = FusedInferAttentionScoreV2Args;
using O = FusedInferAttentionScoreV2Outs;
constexpr auto kAll = Who::everybody, kStrict = Who::strict;
constexpr Status kArgument = Status::invalid_argument, kShape = Status::invalid_shape, kDtype = Status::invalid_dtype,
                 kChip = Status::unsupported;

TEST(FusedInferRefusals, Masks) {
  const auto masked = [](auto change) { return but(kMasked, change); };
  const auto causal = [](auto change) { return but(kCausal, change); };
  const Spec pse = but(kDense, [](Spec& s) { s.pse = {2, 4, 5, 40}; });
  expect_refused({
      {"S-29 mask", kAll, but(kFolded, [](Spec& s) { s.stencil = true; }), kArgument, "atten_mask"},
      {"S-29 mode 1", kAll, kFolded, kArgument, "sparse_mode", "", [](Case&, A& a, O&) { a.sparse_mode = 1; }},
      {"S-29 mode 2", kStrict, but(kFolded, [](Spec& s) { s.mode = 2, s.stencil = true; }), kChip, "sparse_mode"},
      {"S-29 mode 4", kStrict, but(kFolded, [](Spec& s) { s.mode = 4, s.stencil = true; }), kChip, "sparse_mode"},
      {"S-30", kAll, kDense, kArgument, "sparse_mode", "", [](Case&, A& a, O&) { a.sparse_mode = 5; }},
      {"S-30 negative", kAll, kDense, kArgument, "sparse_mode", "", [](Case&, A& a, O&) { a.sparse_mode = -1; }},
      {"mode 9", kAll, kDense, kChip, "sparse_mode", "", [](Case&, A& a, O&) { a.sparse_mode = 9; }},
      {"S-31 mode 1", kAll, kDense, kShape, "atten_mask", "", [](Case&, A& a, O&) { a.sparse_mode = 1; }},
      {"S-31 mode 1 single", kAll, kSingle, kShape, "atten_mask", "", [](Case&, A& a, O&) { a.sparse_mode = 1; }},
      {"S-31 full mask", kAll, masked([](Spec& s) { s.mode = 3; }), kShape, "atten_mask"},
      {"S-31 stencil", kAll, kCausal, kShape, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.shape[0] = 1024; }},
      {"S-31 absent", kStrict, causal([](Spec& s) { s.stencil = false; }), kShape, "atten_mask"},
      {"S-32 rank", kAll, kMasked, kShape, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.rank = 1; }},
      {"S-32 rank 5", kAll, kMasked, kShape, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.rank = 5; }},
      {"S-32 batch", kAll, masked([](Spec& s) {
         s.b = 3, s.mask = {3, 1, 5, 40};
       }),
       kShape, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.shape[0] = 2; }},
      {"S-32 heads", kAll, kMasked, kShape, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.shape[1] = 4; }},
      {"S-32 rows", kAll, kMasked, kShape, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.shape[2] = 4; }},
      {"S-32 rows of rank 2", kAll, masked([](Spec& s) {
         s.mask = {5, 40};
       }),
       kShape, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.shape[0] = 1; }},
      {"S-32 columns", kAll, kMasked, kShape, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.shape[3] = 39; }},
      {"S-32 single batch", kAll,
       but(kSingle,
           [](Spec& s) {
             s.mask = {2, 40};
           }),
       kShape, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.shape[0] = 3; }},
      {"S-32 pages", kStrict,
       but(kPaged,
           [](Spec& s) {
             s.mask = {2, 100};
           }),
       kShape, "atten_mask"},
      {"S-33", kAll, kMasked, kDtype, "atten_mask", "", [](Case&, A& a, O&) { a.atten_mask.dtype = DType::f16; }},
      {"S-33 stencil", kAll, kCausal, kDtype, "atten_mask", "",
       [](Case&, A& a, O&) { a.atten_mask.dtype = DType::i32; }},
      {"S-34", kAll, kMasked, kArgument, "pre_tokens", "",
       [](Case&, A& a, O&) { a.pre_tokens = 2, a.next_tokens = -3; }},
      {"S-34 mode 4", kAll, causal([](Spec& s) { s.mode = 4; }), kArgument, "pre_tokens", "",
       [](Case&, A& a, O&) { a.pre_tokens = INT64_MIN, a.next_tokens = 0; }},
      {"S-35 mode 0 next", kStrict, masked([](Spec& s) { s.next = -5; }), kArgument, "next_tokens"},
      {"S-35 mode 0 pre", kStrict, masked([](Spec& s) { s.pre = -40; }), kArgument, "pre_tokens"},
      {"S-35 mode 4 next", kStrict, causal([](Spec& s) { s.mode = 4, s.next = -40; }), kArgument, "next_tokens"},
      {"S-35 mode 4 pre", kStrict, causal([](Spec& s) { s.mode = 4, s.pre = -5; }), kArgument, "pre_tokens"},
      {"S-36 mode 3", kAll, causal([](Spec& s) {
         s.kl = {40, 4}, s.os = {1}, s.out_offset = true;
       }),
       kArgument, "quant_offset_out"},
      {"S-36 mode 0 next", kAll, masked([](Spec& s) { s.next = -1, s.os = {1}, s.out_offset = true; }), kArgument,
       "quant_offset_out"},
      {"S-36 mode 0 pre", kAll, masked([](Spec& s) {
         s.kl = {40, 2}, s.pre = 2, s.os = {1}, s.out_offset = true;
       }),
       kArgument, "quant_offset_out"},
      {"S-36 mode 4 pre", kAll, causal([](Spec& s) { s.mode = 4, s.pre = -1, s.os = {1}, s.out_offset = true; }),
       kArgument, "quant_offset_out"},
      {"S-36 mode 4 next", kAll, causal([](Spec& s) {
         s.mode = 4, s.kl = {40, 3}, s.next = 1, s.os = {1}, s.out_offset = true;
       }),
       kArgument, "quant_offset_out"},
      {"S-36 no keys", kStrict, causal([](Spec& s) {
         s.kl = {40, 0}, s.os = {1}, s.out_offset = true;
       }),
       kArgument, "quant_offset_out", "", nullptr},
      {"S-38 rank", kAll, pse, kShape, "pse_shift", "", [](Case&, A& a, O&) { a.pse_shift.rank = 3; }},
      {"S-38 batch", kAll,
       but(pse,
           [](Spec& s) {
             s.b = 3, s.pse = {3, 4, 5, 40};
           }),
       kShape, "pse_shift", "", [](Case&, A& a, O&) { a.pse_shift.shape[0] = 2; }},
      {"S-38 heads", kAll, pse, kShape, "pse_shift", "", [](Case&, A& a, O&) { a.pse_shift.shape[1] = 1; }},
      {"S-38 rows", kAll, pse, kShape, "pse_shift", "", [](Case&, A& a, O&) { a.pse_shift.shape[2] = 4; }},
      {"S-38 columns", kAll, pse, kShape, "pse_shift", "", [](Case&, A& a, O&) { a.pse_shift.shape[3] = 39; }},
      {"S-38 dtype", kAll, pse, kDtype, "pse_shift", "", [](Case&, A& a, O&) { a.pse_shift.dtype = DType::f32; }},
      {"S-39", kAll, kFolded, kArgument, "pse_shift", "",
       [](Case&, A& a, O&) {
         a.pse_shift = shaped(DType::bf16, {1, 4, 7, 21});
       }},
      {"S-39 rope", kStrict,
       but(kAbsorbed,
           [](Spec& s) {
             s.pse = {2, 32, 1, 128};
           }),
       kChip, "pse_shift"},
      {"S-39 codes", kStrict,
       but(kCodes,
           [](Spec& s) {
             s.pse = {2, 4, 1, 40};
           }),
       kChip, "pse_shift"},
      {"S-39 pages of rank 5", kStrict,
       but(kPaged,
           [](Spec& s) {
             s.rank = 5, s.pse = {2, 4, 1, 128};
           }),
       kChip, "pse_shift"},
  });
}

TEST(FusedInferRefusals, RemainingAttributesAndMemory) {
  expect_refused({
      {"S-63", kAll, kDense, kArgument, "inner_precise", "", [](Case&, A& a, O&) { a.inner_precise = 4; }},
      {"S-63 negative", kAll, kDense, kArgument, "inner_precise", "", [](Case&, A& a, O&) { a.inner_precise = -1; }},
      {"S-63 single", kStrict, but(kSingle, [](Spec& s) { s.inner_precise = 2; }), kArgument, "inner_precise"},
      {"sink on chip", kStrict, but(kDense, [](Spec& s) { s.sinks = DType::f32, s.lse = false; }), kChip,
       "learnable_sink"},
      {"sink heads", kAll, kDense, Status::invalid_shape, "learnable_sink", "",
       [](Case& c, A& a, O&) { c.sink.make(DType::f32, {5}), a.learnable_sink = c.sink.t, a.level = Level::portable; }},
      {"sink dtype", kAll, kDense, Status::invalid_dtype, "learnable_sink", "",
       [](Case& c, A& a, O&) {
         c.sink.make(DType::bf16, {4}), a.learnable_sink = c.sink.t, a.level = Level::portable;
       }},
      {"sink nan", kAll, kDense, kArgument, "learnable_sink", "[2]",
       [](Case& c, A& a, O&) {
         c.sink.make(DType::f32, {4}), c.sink.put(2, NAN), a.learnable_sink = c.sink.t, a.level = Level::portable;
       }},
      {"S-64", kAll, kDense, kChip, "dequant_scale_key_rope", "",
       [](Case& c, A& a, O&) { a.dequant_scale_key_rope = c.query.t; }},
      {"S-65 innermost", kAll, kDense, Status::invalid_stride, "query", "",
       [](Case&, A& a, O&) { a.query.stride[3] = 2; }},
      {"S-65 negative", kAll, kDense, Status::invalid_stride, "value", "",
       [](Case&, A& a, O&) { a.value.stride[2] = -128; }},
      {"S-65 gaps", kStrict, kDense, Status::invalid_stride, "key", "",
       [](Case&, A& a, O&) { a.key.shape[2] = a.value.shape[2] = 39; }},
      {"no memory", kAll, kDense, kArgument, "key", "", [](Case&, A& a, O&) { a.key.data = nullptr; }},
      {"misaligned", kAll, kDense, Status::misaligned, "query", "",
       [](Case&, A& a, O&) { a.query.data = static_cast<char*>(a.query.data) + 1; }},
      {"a weight", kAll, kDense, kArgument, "key", "", [](Case&, A& a, O&) { a.key.format = Format::NZ; }},
      {"S-67", kAll, kDense, kShape, "query", "", [](Case&, A& a, O&) { a.query.shape[3] = a.key.shape[3] = 0; }},
      {"S-69", kAll, kDense, kArgument, "softmax_scale", "", [](Case&, A& a, O&) { a.softmax_scale = NAN; }},
      {"S-69 float32", kAll, kDense, kArgument, "softmax_scale", "", [](Case&, A& a, O&) { a.softmax_scale = 1e39; }},
      {"out missing", kAll, kDense, kArgument, "attention_out", "", [](Case&, A&, O& o) { o.attention_out = {}; }},
      {"lse missing", kAll, kDense, kArgument, "softmax_lse", "", [](Case&, A&, O& o) { o.softmax_lse = {}; }},
      {"out shape", kAll, kDense, kShape, "attention_out", "", [](Case&, A&, O& o) { --o.attention_out.shape[2]; }},
      {"out rank", kAll, kDense, kShape, "attention_out", "", [](Case&, A&, O& o) { o.attention_out.rank = 3; }},
      {"out dtype", kAll, kDense, kDtype, "attention_out", "",
       [](Case&, A&, O& o) { o.attention_out.dtype = DType::bf16; }},
      {"lse shape", kAll, kDense, kShape, "softmax_lse", "", [](Case&, A&, O& o) { o.softmax_lse.shape[3] = 8; }},
      {"lse dtype", kAll, kDense, kDtype, "softmax_lse", "", [](Case&, A&, O& o) { o.softmax_lse.dtype = DType::f16; }},
      {"lse unwanted", kAll, but(kDense, [](Spec& s) { s.lse = false; }), kShape, "softmax_lse", "",
       [](Case& c, A&, O& o) { o.softmax_lse = c.query.t, o.softmax_lse.dtype = DType::f32; }},
      {"read-only", kAll, kDense, Status::invalid_device, "attention_out", "",
       [](Case&, A&, O& o) { o.attention_out.read_only = true; }},
      {"shared rows", kAll, kDense, Status::invalid_stride, "attention_out", "",
       [](Case&, A& a, O& o) { o.attention_out.stride[2] = a.level == Level::portable ? 64 : 0; }},
      {"aliased", kAll, kDense, Status::aliased, "attention_out", "",
       [](Case&, A& a, O& o) { o.attention_out.data = a.query.data; }},
      {"lse aliased", kAll, kDense, Status::aliased, "softmax_lse", "",
       [](Case&, A& a, O& o) { o.softmax_lse.data = a.value.data; }},
      {"results aliased", kAll, kDense, Status::aliased, "softmax_lse", "",
       [](Case&, A&, O& o) { o.softmax_lse.data = o.attention_out.data; }},
  });
}

TEST(FusedInferRefusals, Values) {
  struct Wild {
    const char* parameter;
    Buffer Case::*tensor;
    Spec spec;
    std::function<std::int64_t(const Case&)> at;
    float value;
  };
  const Spec tokens = but(kCodes,
                          [](Spec&s) {
                            s.km = s.vm = 1, s.ks = {2, 40};
                          }),
             tokens_and_heads = but(kCodes,
                                    [](Spec&s) {
                                      s.km = s.vm = 3, s.ks = {2, 2, 40};
                                    }),
             biased = but(kDense, [](Spec&s) {
               s.pse = {2, 4, 5, 40};
             });
  const std::vector<Wild> all{
      {"query", &Case::query, kDense, [](const Case& c) { return c.query_at(128, 1, 3, 2, 4); }, NAN},
      {"query_rope", &Case::query_rope, kAbsorbed, [](const Case& c) { return c.query_at(64, 0, 1, 0, 2); }, INFINITY},
      {"key", &Case::key, kDense, [](const Case& c) { return c.key_at(c.key, 128, 1, 1, 30, 2); }, NAN},
      {"key", &Case::key, kPaged, [](const Case& c) { return c.key_at(c.key, 128, 1, 1, 90, 2); }, NAN},
      {"value", &Case::value, kFoldedPaged, [](const Case& c) { return c.key_at(c.value, 128, 1, 0, 6, 127); },
       -INFINITY},
      {"key_rope", &Case::key_rope, kFull, [](const Case& c) { return c.key_at(c.key_rope, 64, 1, 0, 90, 2); }, NAN},
      {"dequant_scale_key", &Case::ks, kCodes, [](const Case&) { return 133; }, NAN},
      {"dequant_scale_key", &Case::ks, kCodes, [](const Case&) { return 133; }, -1},
      {"dequant_offset_value", &Case::vo, kCodes, [](const Case&) { return 7; }, INFINITY},
      {"dequant_scale_query", &Case::sq, kFull, [](const Case&) { return 37; }, NAN},
      {"dequant_scale_value", &Case::vs, tokens, [](const Case&) { return 47; }, -1},
      {"dequant_offset_key", &Case::ko, tokens_and_heads, [](const Case&) { return 159; }, NAN},
      {"pse_shift", &Case::pse, biased, [](const Case&) { return 1599; }, INFINITY},
  };
  Context context({.threads = 1, .check_values = true});
  const auto refuse = [&](Case& c, const std::string& parameter, const std::string& position) {
    EXPECT_NO_THROW(fused_infer_attention_score_v2(c.args(), c.outs())) << parameter;
    const std::vector<std::byte> before = c.attention.bytes;
    try {
      fused_infer_attention_score_v2(c.args(), c.outs(), context);
      ADD_FAILURE() << parameter << " accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_value) << e.what();
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_EQ(e.position, position) << e.what();
    }
    EXPECT_EQ(c.attention.bytes, before);
  };
  for (const Wild& w : all) {
    Case c(w.spec);
    for (Buffer* scales : {&c.ks, &c.vs})
      for (std::int64_t i = 0; i < scales->t.elements(); ++i) scales->put(i, std::fabs(scales->get(i)));
    EXPECT_NO_THROW(fused_infer_attention_score_v2(c.args(), c.outs(), context)) << w.parameter;
    Buffer& tensor = c.*w.tensor;
    tensor.put(w.at(c), w.value);
    refuse(c, w.parameter, subscript(tensor.t, w.at(c)));
  }
  for (const auto& [column, bit] : {std::pair{2, 1}, {4, 0}}) {
    Case c(kCausal);
    c.mask.bytes[std::size_t(3 * 2048 + column)] = std::byte(bit);
    refuse(c, "atten_mask", subscript({3, column}));
  }
  // What nobody sees may be anything.
  Case hidden(but(kMasked, [](Spec& s) { s.fill = MaskFill::columns; }));
  EXPECT_NO_THROW(fused_infer_attention_score_v2(hidden.args(), hidden.outs(), context));
}

}  // namespace
}  // namespace dsakit::fused_infer_attention_score_v2_op
