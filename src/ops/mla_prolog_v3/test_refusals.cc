// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_prolog_v3/refusals.hpp"

// One refusal per condition of the validation table, and that nothing was written: what is given, modes and dtypes.
namespace dsakit::prolog_v3 {
namespace {

TEST(MlaPrologV3Refusals, MissingTensors) {  // V1, V12, V14
  for (int r = 1; r <= 7; ++r) {
    const Data d = row(r, r == 2 ? "PA_BLK_NZ" : "PA_BSND");
    each_tensor(d, [&](const std::string& name, Tensor A::*t) {
      if (name == "smooth_scales_cq" || name == "k_nope_clip_alpha" || (d.c.packed() && name == "kr_cache")) return;
      refused(d, Status::invalid_argument, name.c_str(), [&](A& a, O&) { a.*t = {}; });
    });
    for (const char* name : {"query", "query_rope"})
      refused(d, Status::invalid_argument, name,
              [&](A&, O& o) { (*name == 'q' && name[5] ? o.query_rope : o.query) = {}; });
  }
}

TEST(MlaPrologV3Refusals, ScalesThatTheRowHasNot) {  // V12
  const std::vector<float> values(1024, 1);
  for (int r = 1; r <= 7; ++r) {
    const Data d = row(r);
    auto given = [&](const char* name, Tensor A::*t, std::int64_t n) {
      refused(d, Status::invalid_argument, name, [&](A& a, O&) { a.*t = tensor(values.data(), {1, n}); });
    };
    const bool full = r >= 5;
    if (r == 1)
      given("dequant_scale_w_uq_qr", &A::dequant_scale_w_uq_qr, d.c.wide()),
          given("smooth_scales_cq", &A::smooth_scales_cq, 20);
    if (!full) {
      refused(d, Status::invalid_argument, "dequant_scale_x", [&](A& a, O&) {
        a.dequant_scale_x = tensor(values.data(), {8, 1});
      });
      given("dequant_scale_w_dq", &A::dequant_scale_w_dq, 20);
      given("dequant_scale_w_dkv_kr", &A::dequant_scale_w_dkv_kr, 96);
    }
    if (r == 1 || r == 2 || r == 5) given("quant_scale_ckv", &A::quant_scale_ckv, 64);
    if (r != 3) given("quant_scale_ckr", &A::quant_scale_ckr, 32);
    if (!d.c.packed())
      refused(d, Status::invalid_argument, "k_nope_clip_alpha",
              [&](A& a, O&) { a.k_nope_clip_alpha = tensor(values.data(), {1}); });
  }
}

TEST(MlaPrologV3Refusals, Attributes) {
  const Data d = row(1);
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -1e-5, std::nan(""), inf, 1e-60, 1e60}) {
    refused(d, Status::invalid_argument, "rmsnorm_epsilon_cq", [&](A& a, O&) { a.rmsnorm_epsilon_cq = bad; });
    refused(d, Status::invalid_argument, "rmsnorm_epsilon_ckv", [&](A& a, O&) { a.rmsnorm_epsilon_ckv = bad; });
  }
  for (const double bad : {std::nan(""), inf, -inf, 1e39}) {
    refused(d, Status::invalid_argument, "qc_qr_scale", [&](A& a, O&) { a.qc_qr_scale = bad; });
    refused(d, Status::invalid_argument, "kc_scale", [&](A& a, O&) { a.kc_scale = bad; });
  }
  for (const std::int64_t tile : {0, -1, 1, 64, 127, 256})  // V18: rows without tiles
    refused(d, Status::invalid_argument, "tile_size", [&](A& a, O&) { a.tile_size = tile; });
  const Data tiled = row(4);
  for (const std::int64_t tile : {0, -32, 3, 65, 128})  // not a divisor of Hckv 64
    refused(tiled, Status::invalid_argument, "tile_size", [&](A& a, O&) { a.tile_size = tile; });
}

TEST(MlaPrologV3Refusals, CacheModes) {  // V4, V5, V14
  const Data d = row(1);
  for (const char* mode : {"", "PA", "pa_bsnd", "PA_BSND ", "BNSD"})
    refused(d, Status::invalid_argument, "cache_mode", [&](A& a, O&) { a.cache_mode = mode; });
  for (const int r : {4, 7})
    for (const char* mode : {"PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ"})
      refused(row(r), Status::invalid_argument, "cache_mode", [&](A& a, O&) { a.cache_mode = mode; });
  const Data tnd = row(1, "TND"), bsnd = row(1, "BSND", true), blocks = row(1, "PA_BLK_BSND");
  refused(tnd, Status::invalid_shape, "token_x", [&](A& a, O&) {
    a.token_x = shaped(DType::bf16, {2, 4, 24}), a.token_x.data = Tensor(tnd.token_x).data;
  });
  refused(bsnd, Status::invalid_shape, "token_x", [&](A& a, O&) {
    a.token_x = shaped(DType::bf16, {8, 24}), a.token_x.data = Tensor(bsnd.token_x).data;
  });
  refused(tnd, Status::invalid_shape, "kv_cache", [](A& a, O&) {
    a.kv_cache = tensor(static_cast<bf16*>(a.kv_cache.data), {8, 1, 1, 64});
  });
  refused(bsnd, Status::invalid_shape, "kv_cache", [](A& a, O&) {
    a.kv_cache = tensor(static_cast<bf16*>(a.kv_cache.data), {8, 1, 64});
  });
  refused(d, Status::invalid_shape, "kv_cache", [](A& a, O&) {
    a.kv_cache = tensor(static_cast<bf16*>(a.kv_cache.data), {30, 1, 64});
  });
  for (const Data* unpaged : {&tnd, &bsnd}) {
    refused(*unpaged, Status::invalid_argument, "cache_index", [&](A& a, O&) { a.cache_index = d.cache_index; });
    refused(*unpaged, Status::invalid_argument, "actual_seq_len",
            [&](A& a, O&) { a.actual_seq_len = blocks.actual_seq_len; });
  }
  refused(d, Status::invalid_argument, "actual_seq_len", [&](A& a, O&) { a.actual_seq_len = blocks.actual_seq_len; });
  refused(row(1, "PA_BLK_NZ", true), Status::invalid_argument, "actual_seq_len",
          [&](A& a, O&) { a.actual_seq_len = blocks.actual_seq_len; });
}

TEST(MlaPrologV3Refusals, DtypeOfEveryTensor) {  // V10
  for (int r = 1; r <= 7; ++r)
    for (const char* mode : {"PA_BSND", "PA_BLK_BSND"}) {
      if ((r == 4 || r == 7) && std::string_view(mode) != "PA_BSND") continue;
      const Data d = row(r, mode);
      each_tensor(d, [&](const std::string& name, Tensor A::*t) {
        if (d.c.packed() && name == "kr_cache") return;
        const Tensor right = d.args(d.initial).*t;
        for (const DType wrong : {DType::u8, DType::i8, DType::f16, DType::bf16, DType::f32, DType::i32, DType::i64,
                                  DType::f8_e4m3, DType::other})
          if (wrong != right.dtype)
            refused(d, Status::invalid_dtype, name.c_str(), [&](A& a, O&) { (a.*t).dtype = wrong; });
      });
      for (const char* name : {"query", "query_rope", "query_norm", "dequant_scale_q_norm", "dequant_scale_q_nope"})
        expect_refused(
            d,
            [&](A&, O& o) {
              Tensor& t = *name == 'd'     ? name[18] == 'r' ? o.dequant_scale_q_norm : o.dequant_scale_q_nope
                          : name[5] == 0   ? o.query
                          : name[6] == 'r' ? o.query_rope
                                           : o.query_norm;
              t.dtype = DType::f64;
            },
            Status::invalid_dtype, name);
    }
}

}  // namespace
}  // namespace dsakit::prolog_v3
