// SPDX-License-Identifier: Apache-2.0
#include "dsakit/mla_prolog_quant.hpp"

#include "ops/prolog/formula.hpp"
#include "ops/prolog/runs.hpp"

namespace dsakit {
namespace {

using namespace prolog;

const Operator kOperator = [](Data& d, Written& w, Context& c) { mla_prolog_quant(d.mla_args(w), d.mla_outs(w), c); };

Written reference_of(Data& d) {
  Written w = d.initial;
  reference::mla_prolog_quant(d.mla_args(w), d.mla_outs(w));
  return w;
}

TEST(MlaPrologQuant, EqualsTheReferenceWhereSumsAreExact) {
  const Case cases[] = {
      {},
      {.t = 1},
      {.t = 0},
      {.t = 9, .hidden = 37, .rank = 50, .heads = 3, .nope = 7, .rope = 6, .latent = 30, .groups = 3},
      {.t = 7, .hidden = 66, .rank = 65, .heads = 1, .nope = 1, .rope = 2, .latent = 1, .groups = 1},
      {.t = 6, .hidden = 1, .rank = 3, .heads = 2, .nope = 70, .rope = 4, .latent = 130, .groups = 2, .block_size = 1},
      {.t = 4, .blocks = 0},
      {.t = 290, .hidden = 16, .rank = 24, .heads = 2, .nope = 8, .rope = 4, .latent = 16, .blocks = 20},
      {.t = 3, .hidden = 1200, .rank = 96, .heads = 2, .nope = 48, .rope = 32, .latent = 128},
  };
  for (Case c : cases)
    for (bool quantised : {true, false}) {
      SCOPED_TRACE("hidden " + std::to_string(c.hidden) + ", t " + std::to_string(c.t));
      c.exact = true, c.quantised = quantised, c.seed = 7;
      Data data(c);
      expect_everywhere(kOperator, data, reference_of(data));
    }
}

TEST(MlaPrologQuant, RoundsAsTheReferenceButForTheOrderOfSums) {
  for (bool quantised : {true, false}) {
    Data data({.t = 40,
               .hidden = 520,
               .rank = 96,
               .nope = 48,
               .rope = 32,
               .latent = 128,
               .blocks = 9,
               .quantised = quantised,
               .seed = 3});
    const Written wanted = reference_of(data);
    for (const Kernels* k : supported_kernels()) {
      SCOPED_TRACE(k->isa);
      expect_close(run(kOperator, data, {.isa = k->isa}), wanted, 0.02);
    }
  }
}

/// The stages behind q_norm, judged from the codes that the call itself returned: the int8 product and RoPE exactly,
/// the product with w_uk but for roundings that the order of its sum decides.
TEST(MlaPrologQuant, EveryStageFromItsActualInput) {
  const Case c{.t = 33, .hidden = 300, .rank = 96, .nope = 48, .rope = 32, .latent = 128, .blocks = 9, .seed = 5};
  Data d(c);
  for (const Kernels* k : supported_kernels()) {
    SCOPED_TRACE(k->isa);
    const Written got = run(kOperator, d, {.isa = k->isa});
    int differ = 0;
    for (std::int64_t t = 0; t < c.t; ++t)
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const std::int64_t width = c.nope + c.rope, wide = c.heads * width;
        formula::Row q;
        for (std::int64_t j = 0; j < width; ++j) {
          std::int64_t acc = 0;
          for (std::int64_t i = 0; i < c.rank; ++i)
            acc += got.q_norm_i8[std::size_t(t * c.rank + i)] * d.w_uq[std::size_t(i * wide + h * width + j)];
          q.push_back(formula::bf16_of(
              formula::dequantise(acc, got.q_norm_scale[std::size_t(t)], d.dequant_scale[std::size_t(h * width + j)])));
        }
        const formula::Row rotated = formula::rope_to_half(formula::Row(q.begin() + c.nope, q.end()),
                                                           formula::row_of(&d.cos[std::size_t(t * c.rope)], c.rope),
                                                           formula::row_of(&d.sin[std::size_t(t * c.rope)], c.rope));
        for (std::int64_t j = 0; j < c.rope; ++j)
          ASSERT_EQ(got.query_rope[std::size_t((t * c.heads + h) * c.rope + j)].bits,
                    to_bf16(rotated[std::size_t(j)]).bits);
        for (std::int64_t j = 0; j < c.latent; ++j) {
          double sum = 0, magnitude = 0;
          for (std::int64_t i = 0; i < c.nope; ++i) {
            const double term =
                double(q[std::size_t(i)]) * double(to_float(d.w_uk[std::size_t((h * c.nope + i) * c.latent + j)]));
            sum += term, magnitude += std::fabs(term);
          }
          const bf16 y = got.query_nope[std::size_t((t * c.heads + h) * c.latent + j)];
          if (y.bits == to_bf16_once(sum).bits) continue;
          ++differ;
          const double error = 2 * 0x1p-24 * std::sqrt(double(c.nope)) * magnitude;
          ASSERT_TRUE(y.bits == to_bf16_once(sum - error).bits || y.bits == to_bf16_once(sum + error).bits);
        }
      }
    EXPECT_LE(differ, int(0.002 * double(c.t * c.heads * c.latent)));
  }
}

TEST(MlaPrologQuant, SameBitsForThreadsSplitsAndWeightFormats) {
  for (bool quantised : {true, false}) {
    const Case c{.t = 150,
                 .hidden = 70,
                 .rank = 52,
                 .heads = 3,
                 .nope = 10,
                 .rope = 6,
                 .latent = 66,
                 .groups = 3,
                 .blocks = 40,
                 .quantised = quantised,
                 .seed = 11};
    Data d(c);
    const std::int64_t wide = c.heads * (c.nope + c.rope);
    for (const Kernels* k : supported_kernels()) {
      SCOPED_TRACE(k->isa);
      const Written wanted = run(kOperator, d, {.threads = 1, .isa = k->isa});
      EXPECT_EQ(run(kOperator, d, {.threads = 3, .isa = k->isa}).first_difference(wanted), "");

      const Operator split = [](Data& data, Written& w, Context& context) {
        const MlaPrologQuantArgs a = data.mla_args(w);
        const MlaPrologQuantOuts o = data.mla_outs(w);
        auto part = [](Tensor t, std::int64_t first, std::int64_t count) {
          if (!t) return t;
          t.data = static_cast<std::byte*>(t.data) + first * t.stride[0] * size_of(t.dtype);
          t.shape[0] = count;
          return t;
        };
        for (std::int64_t first = 0, count; first < data.c.t; first += count) {
          count = std::min(data.c.t - first, first % 3 + 1);
          MlaPrologQuantArgs pa = a;
          MlaPrologQuantOuts po = o;
          for (Tensor* t : {&pa.token_x, &pa.cos, &pa.sin, &pa.cache_index, &po.q_norm_out, &po.q_norm_scale_out,
                            &po.query_nope_out, &po.query_rope_out})
            *t = part(*t, first, count);
          mla_prolog_quant(pa, po, context);
        }
      };
      EXPECT_EQ(run(split, d, {.isa = k->isa}).first_difference(wanted), "");

      const auto dq = fractal_nz(d.w_dq, c.hidden, c.rank), dkv = fractal_nz(d.w_dkv_kr, c.hidden, c.latent + c.rope);
      const auto uq = fractal_nz(d.w_uq_bf16, c.rank, wide);
      const auto uq_i8 = fractal_nz(d.w_uq, c.rank, wide);
      const Operator nz = [&](Data& data, Written& w, Context& context) {
        MlaPrologQuantArgs a = data.mla_args(w);
        const std::int64_t c0 = quantised ? 32 : 16;
        a.w_dq = as_nz(tensor(dq.data(), {c.hidden, c.rank}));
        a.w_uq_qr = quantised ? tensor(uq_i8.data(), {(wide + c0 - 1) / c0, (c.rank + 15) / 16, 16, c0})
                              : tensor(uq.data(), {(wide + c0 - 1) / c0, (c.rank + 15) / 16, 16, c0});
        a.w_dkv_kr = as_nz(tensor(dkv.data(), {c.hidden, c.latent + c.rope}));
        mla_prolog_quant(a, data.mla_outs(w), context);
      };
      EXPECT_EQ(run(nz, d, {.isa = k->isa}).first_difference(wanted), "");
      const Operator packed = [](Data& data, Written& w, Context& context) {
        MlaPrologQuantArgs a = data.mla_args(w);
        const PackedWeight w_dq(a.w_dq), w_uq(a.w_uq_qr), w_uk(a.w_uk), w_dkv(a.w_dkv_kr);
        a.w_dq = w_dq, a.w_uq_qr = w_uq, a.w_uk = w_uk, a.w_dkv_kr = w_dkv;
        mla_prolog_quant(a, data.mla_outs(w), context);
      };
      EXPECT_EQ(run(packed, d, {.isa = k->isa}).first_difference(wanted), "");
    }
  }
}

TEST(MlaPrologQuant, FixedProductsAreTheSameOnEveryRung) {
  Data d({.t = 20, .hidden = 600, .rank = 60, .blocks = 9, .seed = 2});
  const Written wanted = run(kOperator, d, {.isa = "generic", .same_products = true});
  for (const Kernels* k : supported_kernels())
    EXPECT_EQ(run(kOperator, d, {.isa = k->isa, .same_products = true}).first_difference(wanted), "") << k->isa;
}

TEST(MlaPrologQuant, CachesOfTheirOwnReceiveACopy) {
  for (bool quantised : {true, false}) {
    Data d({.quantised = quantised, .seed = 4});
    const Written in_place = run(kOperator, d);
    Written target = d.initial, source = d.initial;
    MlaPrologQuantArgs a = d.mla_args(source);
    MlaPrologQuantOuts o = d.mla_outs(target);
    auto scramble = [](auto& v) {
      if (!v.empty()) std::memset(v.data(), 0x55, v.size() * sizeof v[0]);
    };
    const MlaPrologQuantArgs of_target = d.mla_args(target);
    scramble(target.kv_i8), scramble(target.kv), scramble(target.kr);
    o.kv_cache_out = of_target.kv_cache, o.kr_cache_out = of_target.kr_cache;
    if (quantised) scramble(target.k_scale), o.k_scale_cache_out = of_target.k_scale_cache;
    mla_prolog_quant(a, o);
    EXPECT_EQ(target.first_difference(in_place), "");
    EXPECT_EQ(source.first_difference(d.initial), "");
  }
}

TEST(MlaPrologQuant, FoldedShapesAndStridedRows) {
  const Case c{.t = 6, .blocks = 6, .seed = 9};
  Data d(c);
  const Written wanted = run(kOperator, d);
  const Operator folded = [&](Data& data, Written& w, Context& context) {
    MlaPrologQuantArgs a = data.mla_args(w);
    MlaPrologQuantOuts o = data.mla_outs(w);
    // token_x: two rows of three with a gap, so that rows are not evenly spaced
    std::vector<bf16> gaps(std::size_t(8 * c.hidden), bf16{0x7fc0});
    for (std::int64_t t = 0; t < c.t; ++t)
      std::copy_n(data.x.begin() + t * c.hidden, c.hidden, gaps.begin() + (t / 3 * 4 + t % 3) * c.hidden);
    a.token_x = tensor(gaps.data(), {2, 3, c.hidden});
    a.token_x.stride[0] = 4 * c.hidden;
    a.cos = tensor(data.cos.data(), {2, 3, c.rope}), a.sin = tensor(data.sin.data(), {1, c.t, 1, c.rope});
    a.cache_index = tensor(data.index.data(), {2, 3});
    a.dequant_scale = tensor(data.dequant_scale.data(), {1, a.dequant_scale.shape[0]});
    a.kv_cache = tensor(w.kv_i8.data(), {c.blocks * c.block_size, c.latent});
    a.kr_cache = tensor(w.kr.data(), {c.blocks, c.block_size, c.rope});
    o.q_norm_out = tensor(w.q_norm_i8.data(), {2, 3, c.rank}),
    o.q_norm_scale_out = tensor(w.q_norm_scale.data(), {c.t});
    o.query_nope_out = tensor(w.query_nope.data(), {2, 3, c.heads, c.latent});
    mla_prolog_quant(a, o, context);
  };
  EXPECT_EQ(run(folded, d).first_difference(wanted), "");
}

TEST(MlaPrologQuant, InferAnswersTheCacheItself) {
  Data d({});
  Written w = d.initial;
  MlaPrologQuantOuts o{};
  const MlaPrologQuantArgs a = d.mla_args(w);
  infer(a, o);
  EXPECT_EQ(o.kv_cache_out.data, a.kv_cache.data);
  EXPECT_EQ(o.query_nope_out.shape[2], d.c.latent);
  Data plain({.quantised = false});
  MlaPrologQuantOuts p{};
  infer(plain.mla_args(w = plain.initial), p);
  EXPECT_EQ(p.q_norm_scale_out.rank, 1);
  EXPECT_EQ(p.q_norm_scale_out.elements(), 0);
  EXPECT_EQ(p.q_norm_out.dtype, DType::bf16);
  EXPECT_FALSE(p.k_scale_cache_out);
}

TEST(MlaPrologQuant, ZeroTokenIsZeroEverywhere) {
  Data d({.t = 1, .blocks = 3, .block_size = 2, .seed = 6});
  std::fill(d.x.begin(), d.x.end(), bf16{0});
  const Written got = run(kOperator, d);
  EXPECT_EQ(got.q_norm_i8, std::vector<std::int8_t>(std::size_t(d.c.rank), 0));
  EXPECT_EQ(got.q_norm_scale, std::vector<float>{0});
  for (bf16 v : got.query_nope) EXPECT_EQ(to_float(v), 0);
  for (std::int64_t g = 0; g < d.c.groups; ++g) EXPECT_EQ(got.k_scale[std::size_t(d.index[0] * d.c.groups + g)], 0);
}

TEST(MlaPrologQuant, Refusals) {
  Data d({.t = 6});
  auto refused = [&](auto change, Status status, const char* parameter, const char* position = "") {
    SCOPED_TRACE(parameter);
    expect_refused(
        [&](Data& data, Written& w, Context& context) {
          MlaPrologQuantArgs a = data.mla_args(w);
          MlaPrologQuantOuts o = data.mla_outs(w);
          change(a, o);
          mla_prolog_quant(a, o, context);
        },
        d, status, "mla_prolog_quant", parameter, position);
  };
  using A = MlaPrologQuantArgs;
  using O = MlaPrologQuantOuts;
  refused([](A& a, O&) { a.sin = {}; }, Status::invalid_argument, "sin");
  refused([](A& a, O&) { a.k_scale_cache = {}; }, Status::invalid_argument, "k_scale_cache");
  refused([](A&, O& o) { o.query_rope_out = {}; }, Status::invalid_argument, "query_rope_out");
  refused([](A& a, O&) { a.cache_mode = "PA_NZ"; }, Status::unsupported, "cache_mode");
  refused([](A& a, O&) { a.cache_mode = "BSND"; }, Status::invalid_argument, "cache_mode");
  refused([](A& a, O&) { a.w_dq.shape[1]++; }, Status::invalid_shape, "w_dq");
  refused([](A& a, O&) { a.w_dkv_kr.shape[0]--; }, Status::invalid_shape, "w_dkv_kr");
  refused([](A& a, O&) { a.cos.shape[1] = a.sin.shape[1] = 7; }, Status::invalid_shape, "cos");
  refused([](A& a, O&) { a.kv_cache.shape[2] = 2, a.kv_cache.shape[0] = 2; }, Status::invalid_shape, "kv_cache");
  refused([](A& a, O&) { a.kr_cache.shape[0]--; }, Status::invalid_shape, "kr_cache");
  refused([](A& a, O&) { a.k_scale_cache.shape[3] = 3; }, Status::invalid_shape, "k_scale_cache");
  refused([](A& a, O&) { a.token_x.shape[0] = -1; }, Status::invalid_shape, "token_x");
  refused([](A& a, O&) { a.kv_cache.dtype = DType::bf16; }, Status::invalid_dtype, "kv_cache");
  refused([](A& a, O&) { a.w_uq_qr.dtype = DType::bf16; }, Status::invalid_dtype, "w_uq_qr");
  refused([](A& a, O&) { a.cache_index.dtype = DType::i32; }, Status::invalid_dtype, "cache_index");
  refused([](A&, O& o) { o.q_norm_out.dtype = DType::u8; }, Status::invalid_dtype, "q_norm_out");
  refused([](A& a, O&) { a.epsilon_ckv = 0; }, Status::invalid_argument, "epsilon_ckv");
  refused([](A& a, O&) { a.epsilon_cq = std::nan(""); }, Status::invalid_argument, "epsilon_cq");
  refused([](A& a, O&) { a.kv_cache.read_only = true; }, Status::invalid_device, "kv_cache");
  refused(
      [](A& a, O& o) { o.kr_cache_out = a.kr_cache, o.kr_cache_out.data = static_cast<bf16*>(a.kr_cache.data) + 8; },
      Status::aliased, "kr_cache_out");
  refused([](A& a, O& o) { o.query_rope_out.data = a.kr_cache.data; }, Status::aliased, "query_rope_out");
  refused([](A& a, O&) { a.cos.data = a.kr_cache.data; }, Status::aliased, "kr_cache");
  refused([](A& a, O&) { a.level = Level::strict; }, Status::unsupported, "token_x");
  d.index[4] = d.c.blocks * d.c.block_size;
  refused([](A&, O&) {}, Status::invalid_slot, "cache_index", "[4]");

  d = Data({.t = 6});
  d.x[70] = bf16{0x7f80};
  Context checking({.threads = 1, .check_values = true});
  Written w = d.initial;
  try {
    mla_prolog_quant(d.mla_args(w), d.mla_outs(w), checking);
    ADD_FAILURE() << "accepted infinity under value checking";
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Status::invalid_value);
    EXPECT_STREQ(e.what(), "mla_prolog_quant: token_x[1][6] is inf, wanted a finite number");
  }
  EXPECT_EQ(w.first_difference(d.initial), "");
}

}  // namespace
}  // namespace dsakit
