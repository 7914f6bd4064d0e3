// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_prolog_v3/runs.hpp"

// What portable tolerates by name, and what strict refuses.
namespace dsakit::prolog_v3 {
namespace {

using A = MlaPrologV3Args;
using O = MlaPrologV3Outs;
using Values = std::vector<float>;

/// The smallest sizes that the device takes.
Case smallest(int row) {
  return {.row = row,
          .b = 1,
          .s = 2,
          .hidden = 1024,
          .rank = 1536,
          .heads = 1,
          .nope = 128,
          .rope = 64,
          .latent = 512,
          .tile = 128,
          .blocks = 2,
          .block_size = 16,
          .smooth = row >= 2,
          .alpha = 1};
}

/// A case with FRACTAL_NZ weights, called in strict.
struct Strict {
  Data data;
  Array dq, uq_qr, dkv_kr;

  explicit Strict(const Case& c)
      : data(c),
        dq(fractal_nz(data.weight_dq)),
        uq_qr(fractal_nz(data.weight_uq_qr)),
        dkv_kr(fractal_nz(data.weight_dkv_kr)) {}
  Change with(const Change& more = as_it_is) const {
    return [this, more](A& a, O& o) {
      a.weight_dq = tagged_nz(dq, data.weight_dq), a.weight_uq_qr = tagged_nz(uq_qr, data.weight_uq_qr);
      a.weight_dkv_kr = dkv_kr;  // the storage itself
      a.level = Level::strict;
      more(a, o);
    };
  }
  void refused(Status status, const char* parameter, const Change& more = as_it_is) const {
    SCOPED_TRACE(parameter);
    const std::string sentence = expect_refused(data, with(more), status, parameter);
    if (status == Status::unsupported) {
      EXPECT_TRUE(sentence.ends_with("[strict: Atlas A2/A3]")) << sentence;
    }
  }
};

TEST(MlaPrologV3Levels, StrictTakesWhatTheDeviceTakes) {
  for (int row = 1; row <= 7; ++row) {
    const Strict strict(smallest(row));
    const Written wanted = run(strict.data);
    EXPECT_NE(wanted.first_difference(strict.data.initial), "");
    EXPECT_EQ(run(strict.data, {}, strict.with()).first_difference(wanted), "") << row;
  }
}

TEST(MlaPrologV3Levels, LimitsOfTheDevice) {
  auto refused = [](const char* parameter, int row, const std::function<void(Case&)>& change) {
    Case c = smallest(row);
    change(c);
    const Strict strict(c);
    run(strict.data);  // portable has nothing against it
    strict.refused(Status::unsupported, parameter);
  };
  refused("weight_uk", 1, [](Case& c) { c.heads = 3; });
  refused("weight_uk", 1, [](Case& c) { c.nope = 64; });
  refused("token_x", 5, [](Case& c) { c.hidden = 1000; });
  refused("rmsnorm_gamma_cq", 2, [](Case& c) { c.rank = 1024; });
  refused("weight_uk", 1, [](Case& c) { c.latent = 256; });
  refused("rope_sin", 1, [](Case& c) { c.rope = 32; });
  refused("kv_cache", 1, [](Case& c) { c.block_size = 20; });
  refused("kv_cache", 7, [](Case& c) { c.block_size = 1040; });
  refused("tile_size", 4, [](Case& c) { c.tile = 64; });

  const Strict strict(smallest(1));
  for (const auto& [name, t] : {std::pair{"weight_dq", &A::weight_dq},
                                {"weight_uq_qr", &A::weight_uq_qr},
                                {"weight_dkv_kr", &A::weight_dkv_kr}})
    strict.refused(Status::unsupported, name,
                   [&, t = t](A& a, O&) { a.*t = strict.data.args(strict.data.initial).*t; });
  strict.refused(Status::invalid_stride, "kv_cache", [](A& a, O&) {
    a.kv_cache.stride[1] *= 2, a.kv_cache.shape[1] = a.kr_cache.shape[1] = 16,
                               a.kv_cache.shape[0] = a.kr_cache.shape[0] = 1;
  });
  Strict blocks([] {
    Case c = smallest(1);
    c.cache_mode = "PA_BLK_BSND";
    return c;
  }());
  blocks.refused(Status::invalid_shape, "cache_index", [](A& a, O&) {
    static const std::int64_t longer[] = {0, 1, 1};  // lengths 1, 0, 1 need two
    a.cache_index = tensor(longer, {3});
  });
  blocks.refused(Status::unsupported, "actual_seq_len", [](A& a, O&) {  // V22
    static const std::vector<std::int32_t> totals = [] {
      std::vector<std::int32_t> two(65537, 2);
      two[0] = 1;
      return two;
    }();
    a.actual_seq_len = tensor(totals.data(), {65537});
  });
}

TEST(MlaPrologV3Levels, TolerancesEndInStrict) {
  const Values ones(2048, 1);
  const Strict packed(smallest(4)), plain(smallest(2)), wide(smallest(3)), full(smallest(6));
  auto none = [](DType dtype) { return shaped(dtype, {0}); };
  packed.refused(Status::invalid_argument, "k_nope_clip_alpha", [](A& a, O&) { a.k_nope_clip_alpha = {}; });  // T1
  packed.refused(Status::invalid_argument, "quant_scale_ckv", [&](A& a, O&) {
    a.quant_scale_ckv = tensor(ones.data(), {1, 512});
  });
  packed.refused(Status::invalid_argument, "kr_cache", [](A& a, O&) { a.kr_cache = {}; });  // T3
  packed.refused(Status::invalid_dtype, "kr_cache", [&](A& a, O&) { a.kr_cache = none(DType::f32); });
  packed.refused(Status::invalid_dtype, "kr_cache", [](A& a, O&) { a.kr_cache = a.kv_cache; });
  packed.refused(Status::aliased, "kr_cache",
                 [](A& a, O&) { a.kr_cache = a.kv_cache, a.kr_cache.dtype = DType::bf16; });
  plain.refused(Status::invalid_argument, "quant_scale_ckv",
                [&](A& a, O&) { a.quant_scale_ckv = none(DType::f32); });  // T5
  plain.refused(Status::invalid_argument, "k_nope_clip_alpha",
                [&](A& a, O&) { a.k_nope_clip_alpha = none(DType::f32); });
  plain.refused(Status::invalid_argument, "actual_seq_len", [&](A& a, O&) { a.actual_seq_len = none(DType::i32); });
  auto flat = [](Tensor A::*t) {  // T6
    return [t](A& a, O&) {
      (a.*t) =
          Tensor{.data = (a.*t).data, .dtype = (a.*t).dtype, .rank = 1, .shape = {(a.*t).elements()}, .stride = {1}};
    };
  };
  full.refused(Status::invalid_shape, "dequant_scale_x", flat(&A::dequant_scale_x));
  full.refused(Status::invalid_shape, "dequant_scale_w_dq", flat(&A::dequant_scale_w_dq));
  full.refused(Status::invalid_shape, "dequant_scale_w_uq_qr", flat(&A::dequant_scale_w_uq_qr));
  full.refused(Status::invalid_shape, "dequant_scale_w_dkv_kr", flat(&A::dequant_scale_w_dkv_kr));
  full.refused(Status::invalid_shape, "smooth_scales_cq", flat(&A::smooth_scales_cq));
  full.refused(Status::invalid_shape, "quant_scale_ckv", [](A& a, O&) {
    a.quant_scale_ckv = tensor(static_cast<float*>(a.quant_scale_ckv.data), {1, 1});
  });
  wide.refused(Status::invalid_shape, "quant_scale_ckv", flat(&A::quant_scale_ckv));
  wide.refused(Status::invalid_shape, "quant_scale_ckr", flat(&A::quant_scale_ckr));
  packed.refused(Status::invalid_shape, "k_nope_clip_alpha", [](A& a, O&) {
    a.k_nope_clip_alpha = tensor(static_cast<float*>(a.k_nope_clip_alpha.data), {1, 1});
  });
}

TEST(MlaPrologV3Levels, TolerancesOfPortable) {
  for (const int row : {4, 7}) {
    const Data d({.row = row, .alpha = 1, .exact = true});
    const Written wanted = reference_of(d);
    const Values scales(128, 3);
    auto same = [&](const Change& change) {
      expect_everywhere(d, wanted, change);
      EXPECT_EQ(reference_of(d, change).first_difference(wanted), "");
    };
    same([](A& a, O&) { a.k_nope_clip_alpha = {}; });                              // T1
    same([&](A& a, O&) { a.quant_scale_ckv = tensor(scales.data(), {1, 128}); });  // T2
    same([](A& a, O&) { a.kr_cache = {}; });                                       // T3
    same([](A& a, O&) { a.kr_cache = shaped(DType::i8, {6, 5, 1, 0}); });
    same([](A& a, O&) { a.kr_cache = a.kv_cache; });
    for (const DType wrong : {DType::bf16, DType::i8})
      expect_refused(
          d,
          [&](A& a, O&) {
            a.quant_scale_ckv = tensor(scales.data(), {1, 128}), a.quant_scale_ckv.dtype = wrong;
          },
          Status::invalid_dtype, "quant_scale_ckv");
    expect_refused(
        d,
        [&](A& a, O&) {
          a.quant_scale_ckv = tensor(scales.data(), {1, 127});
        },
        Status::invalid_shape, "quant_scale_ckv");

    Context context({.threads = 1});
    Written w = d.initial;
    A a = d.args(w);
    mla_prolog_v3(a, w.outs(), context);
    EXPECT_TRUE(context.warnings().empty());
    a.quant_scale_ckv = tensor(scales.data(), {1, 128});
    mla_prolog_v3(a, w.outs(), context), mla_prolog_v3(a, w.outs(), context);
    ASSERT_EQ(context.warnings().size(), 1u);
    EXPECT_NE(context.warnings()[0].find("quant_scale_ckv"), std::string::npos);
  }
  for (int row = 1; row <= 7; ++row) {
    const Data d({.row = row, .batched = row % 2 == 0, .smooth = row >= 2, .alpha = 1, .exact = true});
    const Written wanted = reference_of(d);
    for (const int form : {0, 1, 2}) {
      const Change change = [&](A& a, O&) {
        for (Tensor A::*t :
             {&A::dequant_scale_x, &A::dequant_scale_w_dq, &A::dequant_scale_w_uq_qr, &A::dequant_scale_w_dkv_kr,
              &A::quant_scale_ckv, &A::quant_scale_ckr, &A::smooth_scales_cq, &A::k_nope_clip_alpha}) {
          Tensor& scale = a.*t;
          if (!scale) {  // T5
            if (form == 0) scale = shaped(DType::f32, {0});
            else if (form == 1) scale = shaped(DType::f32, {1, 0});
            continue;
          }
          const std::int64_t n = scale.elements();  // T6
          auto* data = static_cast<float*>(scale.data);
          scale = form == 0 ? tensor(data, {n}) : form == 1 ? tensor(data, {n, 1}) : tensor(data, {1, n});
          if (t == &A::dequant_scale_x)
            scale = form == 0 ? tensor(data, {n}) : form == 1 ? tensor(data, {n, 1}) : tensor(data, {2, 4});
        }
        if (row == 1 && form == 0) a.actual_seq_len = shaped(DType::i32, {0});
      };
      SCOPED_TRACE("R" + std::to_string(row) + " form " + std::to_string(form));
      EXPECT_EQ(run(d, {}, change).first_difference(wanted), "");
      EXPECT_EQ(reference_of(d, change).first_difference(wanted), "");
    }
  }
}

/// A call as an engine writes it, with every tolerance at once, has the bits of the strict one.
TEST(MlaPrologV3Levels, TheCallOfAnEngine) {
  const Strict strict(smallest(7));
  const Data& d = strict.data;
  const Written wanted = run(d, {}, strict.with());
  const Array& channel = d.scale_dkv_kr;
  const Change as_written = [&](A& a, O&) {
    a.k_nope_clip_alpha = {}, a.quant_scale_ckv = tensor(channel.as<float>(), {1, 512});
    a.kr_cache = a.kv_cache, a.quant_scale_ckr = {}, a.actual_seq_len = {};
  };
  for (const Kernels* k : supported_kernels())
    EXPECT_EQ(run(d, {.isa = k->isa}, as_written).first_difference(run(d, {.isa = k->isa}, strict.with())), "");
  EXPECT_EQ(run(d, {}, as_written).first_difference(wanted), "");
  auto refused = [&](Status status, const char* parameter, const char* advice, const Change& more) {
    const std::string sentence = expect_refused(
        d, [&](A& a, O& o) { as_written(a, o), more(a, o); }, status, parameter);
    EXPECT_NE(sentence.find(advice), std::string::npos) << sentence;
  };
  std::vector<bf16> other(2 * 1024 * 576);
  refused(Status::invalid_dtype, "token_x", "dynamic_quant", [&](A& a, O&) {
    a.token_x = tensor(other.data(), {2, 1024});
  });
  refused(Status::invalid_dtype, "token_x", "weight_quant_mode 1", [&](A& a, O&) {
    a.token_x = tensor(other.data(), {2, 1024});
  });
  refused(Status::invalid_dtype, "kv_cache", "pack_kv_rows", [&](A& a, O&) {
    a.kv_cache = a.kr_cache = tensor(other.data(), {2, 16, 1, 576});
  });
  for (const auto& [name, t] : {std::pair{"rmsnorm_gamma_cq", &A::rmsnorm_gamma_cq},
                                {"rmsnorm_gamma_ckv", &A::rmsnorm_gamma_ckv},
                                {"rope_sin", &A::rope_sin},
                                {"rope_cos", &A::rope_cos}})
    refused(Status::invalid_argument, name, "", [&, t = t](A& a, O&) { a.*t = {}; });
}

}  // namespace
}  // namespace dsakit::prolog_v3
