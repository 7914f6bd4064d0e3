// SPDX-License-Identifier: Apache-2.0
#include "dsakit/mla_prolog_v2.hpp"

#include "ops/mla_prolog_v3/runs.hpp"

namespace dsakit::prolog_v3 {
namespace {

/// The same call in the older form.
MlaPrologV2Args as_v2(const MlaPrologV3Args& a) {
  MlaPrologV2Args b{a.token_x,
                    a.weight_dq,
                    a.weight_uq_qr,
                    a.weight_uk,
                    a.weight_dkv_kr,
                    a.rmsnorm_gamma_cq,
                    a.rmsnorm_gamma_ckv,
                    a.rope_sin,
                    a.rope_cos,
                    a.cache_index,
                    a.kv_cache,
                    a.kr_cache,
                    a.dequant_scale_x,
                    a.dequant_scale_w_dq,
                    a.dequant_scale_w_uq_qr,
                    a.dequant_scale_w_dkv_kr,
                    a.quant_scale_ckv,
                    a.quant_scale_ckr,
                    a.smooth_scales_cq};
  b.cache_mode = a.cache_mode;
  return b;
}

TEST(MlaPrologV2, HasTheBitsOfV3) {
  for (const int row : {1, 2, 3, 5, 6})
    for (const char* mode : {"PA_BSND", "PA_NZ"})
      for (const bool by_reference : {false, true}) {
        Data d({.row = row,
                .cache_mode = mode,
                .batched = row == 3,
                .query_norm = false,
                .smooth = row == 5,
                .exact = true});
        const Written wanted = run(d);
        Written got = d.initial;
        MlaPrologV2Args a = as_v2(d.args(got));
        const Array every(std::vector<float>(128, row == 6 ? d.ckv_scale.as<float>()[0] : 0), {1, 128});
        if (row == 6) a.quant_scale_ckv = every;
        MlaPrologV2Outs o{};
        infer(a, o);
        EXPECT_EQ(o.kv_cache_out.data, a.kv_cache.data);
        EXPECT_EQ(o.kr_cache_out.data, a.kr_cache.data);
        if (row != 6) got.dequant_scale_q_nope = Array(std::vector<float>{99}, {1});
        EXPECT_EQ(o.dequant_scale_q_nope.elements(), got.dequant_scale_q_nope.size());
        o = {got.query, got.query_rope, got.kv_cache, got.kr_cache, got.dequant_scale_q_nope};
        by_reference ? reference::mla_prolog_v2(a, o) : mla_prolog_v2(a, o);
        if (row != 6) {
          EXPECT_EQ(got.dequant_scale_q_nope.at(0), 0);
          got.dequant_scale_q_nope = wanted.dequant_scale_q_nope;
        }
        EXPECT_EQ(got.first_difference(wanted), "") << row << " " << mode;
      }
}

/// Narrower than v3, with parameters named as they are spelled here.
TEST(MlaPrologV2, Refusals) {
  struct V2 {
    Data d;
    Written w = d.initial;
    Array unused{std::vector<float>{99}, {1}};
    MlaPrologV2Args a{};
    MlaPrologV2Outs o{};
    explicit V2(const Case& c) : d(c) {
      a = as_v2(d.args(w));
      o = {w.query, w.query_rope, w.kv_cache, w.kr_cache,
           c.kvq() == 1 ? Tensor(w.dequant_scale_q_nope) : Tensor(unused)};
    }
    void refused(Status status, const char* parameter, const char* position, const std::function<void(V2&)>& change) {
      SCOPED_TRACE(parameter);
      change(*this);
      for (const bool by_reference : {false, true}) try {
          by_reference ? reference::mla_prolog_v2(a, o) : mla_prolog_v2(a, o);
          ADD_FAILURE() << "accepted";
        } catch (const Error& e) {
          EXPECT_EQ(e.status, status) << e.what();
          EXPECT_EQ(e.op, "mla_prolog_v2") << e.what();
          EXPECT_EQ(e.parameter, parameter) << e.what();
          EXPECT_EQ(e.position, position) << e.what();
        }
      EXPECT_EQ(w.first_difference(d.initial), "");
      EXPECT_EQ(unused.at(0), 99);
    }
  };
  const Case c{.row = 6, .query_norm = false};
  for (const char* mode : {"TND", "BSND", "PA_BLK_BSND", "PA_BLK_NZ"})
    V2(c).refused(Status::invalid_argument, "cache_mode", "", [&](V2& v) { v.a.cache_mode = mode; });
  std::vector<float> scales(128, 2);
  scales[77] = 3;
  V2(c).refused(Status::invalid_argument, "quant_scale_ckv", "[0][77]", [&](V2& v) {
    v.a.quant_scale_ckv = tensor(scales.data(), {1, 128});
  });
  V2(c).refused(Status::invalid_argument, "cache_index", "", [](V2& v) { v.a.cache_index = {}; });
  V2(c).refused(Status::invalid_argument, "dequant_scale_x", "", [](V2& v) { v.a.dequant_scale_x = {}; });
  V2(c).refused(Status::invalid_dtype, "weight_uq_qr", "", [](V2& v) { v.a.weight_uq_qr.dtype = DType::bf16; });
  V2(c).refused(Status::invalid_slot, "cache_index", "[7]", [](V2& v) { v.d.cache_index.as<std::int64_t>()[7] = 30; });
  V2(c).refused(Status::unsupported, "token_x", "", [](V2& v) { v.a.level = Level::strict; });
  std::vector<bf16> elsewhere(6 * 5 * 128);
  const Case plain{.row = 1, .query_norm = false};
  V2(plain).refused(Status::invalid_argument, "kv_cache_out", "",
                    [&](V2& v) { v.o.kv_cache_out.data = elsewhere.data(); });
}

/// Zeros of the sizes that strict asks for.
TEST(MlaPrologV2, Strict) {
  auto array = [](DType dtype, std::initializer_list<std::int64_t> shape) { return Array(shaped(dtype, shape)); };
  auto nz = [](const Array& a) {
    Tensor t = a;
    t.format = Format::NZ;
    return t;
  };
  const Array x = array(DType::i8, {1, 17, 7168}), dq = array(DType::i8, {7168, 1536}),
              uq = array(DType::i8, {1536, 192});
  const Array uk = array(DType::bf16, {1, 128, 512}), dkv = array(DType::i8, {7168, 576}),
              turns = array(DType::bf16, {1, 17, 64});
  const Array cq = array(DType::bf16, {1536}), ckv = array(DType::bf16, {512}), index = array(DType::i64, {1, 17});
  const Array kv = array(DType::i8, {2, 128, 1, 512}), kr = array(DType::bf16, {2, 128, 1, 64});
  const Array scale_x = array(DType::f32, {17, 1}), scale_dq = array(DType::f32, {1, 1536}),
              scale_uq = array(DType::f32, {1, 192});
  const Array scale_dkv = array(DType::f32, {1, 576}), ckv_scale = array(DType::f32, {1, 512});
  MlaPrologV2Args a{x,     nz(dq), nz(uq), uk,      nz(dkv),  cq,       ckv,       turns,    turns,
                    index, kv,     kr,     scale_x, scale_dq, scale_uq, scale_dkv, ckv_scale};
  a.level = Level::strict;
  auto refused = [](const MlaPrologV2Args& args, const char* parameter) {
    MlaPrologV2Outs o{};
    try {
      infer(args, o);
      Array query(o.query), rope(o.query_rope), scale(o.dequant_scale_q_nope);
      o.query = query, o.query_rope = rope, o.dequant_scale_q_nope = scale;
      mla_prolog_v2(args, o);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::unsupported) << e.what();
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_TRUE(std::string(e.what()).ends_with("[strict: Atlas A2/A3]")) << e.what();
    }
  };
  refused(a, "token_x");  // S is 17
  for (Tensor* t : {&a.token_x, &a.rope_sin, &a.rope_cos, &a.cache_index}) t->shape[1] = 16;
  a.dequant_scale_x.shape[0] = 16;
  MlaPrologV2Outs o{};
  infer(a, o);
  Array query(o.query), rope(o.query_rope), scale(o.dequant_scale_q_nope);
  query.fill(9);
  o.query = query, o.query_rope = rope, o.dequant_scale_q_nope = scale;
  mla_prolog_v2(a, o);
  for (std::int64_t i = 0; i < query.size(); ++i) ASSERT_EQ(query.at(i), 0);
  a.kv_cache = tensor(static_cast<std::int8_t*>(a.kv_cache.data), {8, 32, 1, 512});
  a.kr_cache = tensor(static_cast<bf16*>(a.kr_cache.data), {8, 32, 1, 64});
  refused(a, "kv_cache");  // blocks of 32
}

}  // namespace
}  // namespace dsakit::prolog_v3
