// SPDX-License-Identifier: Apache-2.0
#include "dsakit/mla_prolog_v3.hpp"

#include "ops/mla_prolog_v3/runs.hpp"
#include "ops/prolog/formula.hpp"

namespace dsakit::prolog_v3 {
namespace {

/// f for every row of the mode table, cache mode, and both shapes of token_x.
void each_case(Case c, const std::function<void(const Case&)>& f) {
  for (c.row = 1; c.row <= 7; ++c.row)
    for (int m = 0; m < cache_modes_of(c.row); ++m)
      for (const bool batched : {false, true}) {
        c.cache_mode = kCacheModes[m], c.batched = batched;
        if (c.cache_mode == (batched ? "TND" : "BSND")) continue;
        SCOPED_TRACE(c.name());
        f(c);
      }
}

TEST(MlaPrologV3, EqualsTheReferenceWhereSumsAreExact) {
  each_case({.exact = true, .seed = 7}, [](const Case& c) {
    const Data data(c);
    expect_everywhere(data, reference_of(data));
  });
}

TEST(MlaPrologV3, SizesOfEveryKind) {
  const Case cases[] = {
      {.b = 1, .s = 1},
      {.b = 0, .s = 4},
      {.b = 3, .s = 0},
      {.blocks = 0},
      {.b = 1, .s = 7, .hidden = 37, .rank = 50, .heads = 1, .nope = 7, .rope = 2, .latent = 96, .tile = 96},
      {.b = 1,
       .s = 9,
       .hidden = 1,
       .rank = 1,
       .heads = 2,
       .nope = 1,
       .rope = 6,
       .latent = 32,
       .tile = 1,
       .blocks = 9,
       .block_size = 1},
      {.b = 29,
       .s = 10,
       .hidden = 16,
       .rank = 24,
       .heads = 2,
       .nope = 8,
       .rope = 32,
       .latent = 64,
       .tile = 64,
       .blocks = 70},
      {.b = 1, .s = 2, .hidden = 1200, .rank = 70, .heads = 5, .nope = 66, .rope = 64, .latent = 192, .block_size = 16},
  };
  for (Case c : cases)
    for (c.row = 1; c.row <= 7; ++c.row)
      for (const bool batched : {false, true})
        for (const char* mode : {"PA_BSND", "PA_BLK_BSND"}) {
          c.exact = true, c.batched = batched, c.cache_mode = mode, c.seed = 3;
          if (c.packed() && c.by_block()) continue;
          SCOPED_TRACE(c.name() + ", hidden " + std::to_string(c.hidden));
          const Data data(c);
          const Written wanted = reference_of(data);
          for (const Kernels* k : supported_kernels())
            EXPECT_EQ(run(data, {.threads = 2, .isa = k->isa}).first_difference(wanted), "") << k->isa;
        }
}

/// Correction factors, smoothing, clipping, and no query_norm.
TEST(MlaPrologV3, Options) {
  for (int row = 1; row <= 7; ++row) {
    const Case plain{.row = row, .exact = true, .seed = 21};
    const Data data(plain);
    const Written wanted = reference_of(data);
    auto other = [&](Case c) {
      const Data changed(c);
      const Written w = reference_of(changed);
      expect_everywhere(changed, w);
      return w;
    };
    Case c = plain;
    c.qc = 10, c.kc = 0.3;
    const Written corrected = other(c);
    EXPECT_FALSE(corrected.query == wanted.query);
    EXPECT_FALSE(corrected.kv_cache == wanted.kv_cache);
    c.qc = 1 + 0x1p-24, c.kc = 1 - 0x1p-24;  // the first is 1 in fp32, the second nearer to it than the rule asks
    EXPECT_EQ(other(c).first_difference(wanted), "");
    c.qc = c.kc = 1 + 0x1p-23;
    other(c);
    c.qc = c.kc = 0;
    const Written zero = other(c);
    for (std::int64_t i = 0; i < zero.query.size(); ++i) ASSERT_EQ(zero.query.at(i), 0);
    c = plain, c.query_norm = false;
    const Written without = other(c);
    EXPECT_EQ(without.query_norm.size(), 0);
    EXPECT_EQ(without.dequant_scale_q_norm.size(), 0);
    EXPECT_EQ(without.query_norm.shape.dtype, row == 1 ? DType::bf16 : DType::i8);
    EXPECT_TRUE(without.query == wanted.query && without.query_rope == wanted.query_rope);
    EXPECT_TRUE(without.kv_cache == wanted.kv_cache && without.kr_cache == wanted.kr_cache);
    if (row >= 2) c = plain, c.smooth = true, other(c);
    if (row == 4 || row == 7)
      for (const float alpha : {1.0f, 1.5f, 1e-3f, 1e-38f, 3e38f}) c = plain, c.alpha = alpha, other(c);
  }
}

/// Shapes and dtypes of what comes back.
TEST(MlaPrologV3, Results) {
  for (int row = 1; row <= 7; ++row)
    for (const bool batched : {false, true}) {
      const Case c{.row = row, .batched = batched, .b = 3, .s = 2};
      const Written w = Data(c).initial;
      auto expect = [&](const Array& a, DType dtype, std::vector<std::int64_t> shape) {
        EXPECT_EQ(a.shape.dtype, dtype) << row;
        EXPECT_EQ(std::vector<std::int64_t>(a.shape.shape.begin(), a.shape.shape.begin() + a.shape.rank), shape) << row;
      };
      auto shape = [&](std::initializer_list<std::int64_t> more) {
        std::vector<std::int64_t> s = batched ? std::vector<std::int64_t>{3, 2} : std::vector<std::int64_t>{6};
        s.insert(s.end(), more);
        return s;
      };
      expect(w.query, row == 6 ? DType::i8 : DType::bf16, shape({3, 128}));
      expect(w.query_rope, DType::bf16, shape({3, 32}));
      expect(w.dequant_scale_q_nope, DType::f32,
             row == 6 ? std::vector<std::int64_t>{6, 3, 1} : std::vector<std::int64_t>{0});
      expect(w.query_norm, row == 1 ? DType::bf16 : DType::i8, shape({96}));
      expect(w.dequant_scale_q_norm, DType::f32,
             row == 1 ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{6, 1});
    }
}

/// Random data. Where the products with x are int8, everything is equal but the query, whose sums are bf16 products.
TEST(MlaPrologV3, RoundsAsTheReferenceButForTheOrderOfSums) {
  for (int row = 1; row <= 7; ++row) {
    const Case c{.row = row, .b = 5, .s = 8, .hidden = 520, .blocks = 9, .seed = 3};
    const Data data(c);
    const Written wanted = reference_of(data);
    for (const Kernels* k : supported_kernels())
      for (const bool same : {false, true}) {
        SCOPED_TRACE(c.name() + ", " + k->isa);
        const Written got = run(data, {.isa = k->isa, .same_products = same});
        const Caches a(c, got), b(c, wanted);
        const double share = c.full() ? 0 : 0.02;
        expect_close("query", got.query, wanted.query, 0.02);
        expect_close("query_rope", got.query_rope, wanted.query_rope, 0.02);
        expect_close("dequant_scale_q_nope", got.dequant_scale_q_nope, wanted.dequant_scale_q_nope, 0.1);
        expect_close("query_norm", got.query_norm, wanted.query_norm, share);
        expect_close("dequant_scale_q_norm", got.dequant_scale_q_norm, wanted.dequant_scale_q_norm, c.full() ? 0 : 0.2);
        expect_close("latent", a.latent, b.latent, share), expect_close("rope key", a.rope, b.rope, share);
        expect_close("tile scales", a.scales, b.scales, c.full() ? 0 : 0.2);
        if (!c.full()) continue;
        EXPECT_TRUE(got.query_norm == wanted.query_norm && got.dequant_scale_q_norm == wanted.dequant_scale_q_norm);
        EXPECT_TRUE(got.kv_cache == wanted.kv_cache && got.kr_cache == wanted.kr_cache);
        EXPECT_TRUE(row == 6 || got.query_rope == wanted.query_rope);
      }
  }
}

/// The stages behind query_norm, judged from the codes that the call itself returned: int8 products and RoPE exactly,
/// the product with weight_uk but for roundings that the order of its sum decides.
TEST(MlaPrologV3, EveryStageFromItsActualInput) {
  using namespace prolog::formula;
  for (const int row : {2, 5, 6}) {
    const Case c{.row = row, .b = 1, .s = 33, .hidden = 300, .blocks = 9, .seed = 5};
    const Data d(c);
    const std::int64_t width = c.nope + c.rope, wide = c.wide();
    for (const Kernels* k : supported_kernels()) {
      SCOPED_TRACE(c.name() + ", " + k->isa);
      const Written got = run(d, {.isa = k->isa});
      int differ = 0;
      for (std::int64_t t = 0; t < c.tokens(); ++t)
        for (std::int64_t h = 0; h < c.heads; ++h) {
          const std::int64_t th = t * c.heads + h;
          Row m;
          for (std::int64_t j = 0; j < width; ++j) {
            std::int64_t acc = 0;
            for (std::int64_t i = 0; i < c.rank; ++i)
              acc += got.query_norm.as<std::int8_t>()[t * c.rank + i] *
                     d.weight_uq_qr.as<std::int8_t>()[i * wide + h * width + j];
            m.push_back(
                dequantise(acc, got.dequant_scale_q_norm.as<float>()[t], d.scale_uq_qr.as<float>()[h * width + j]));
          }
          const Row rotated =
              bf16_of(rope_to_half(Row(m.begin() + c.nope, m.end()), row_of(d.rope_cos.as<bf16>() + t * c.rope, c.rope),
                                   row_of(d.rope_sin.as<bf16>() + t * c.rope, c.rope)));
          const float scale = row == 6 ? got.dequant_scale_q_nope.as<float>()[th] : 0;
          for (std::int64_t j = 0; j < c.rope; ++j) {
            const float r = rotated[std::size_t(j)];
            const float wanted = row == 6 ? r * (d.ckv_scale.as<float>()[0] / scale) : r;
            ASSERT_EQ(got.query_rope.at(th * c.rope + j), bf16_of(wanted));
          }
          Row qn, low, high;
          for (std::int64_t j = 0; j < c.latent; ++j) {
            double sum = 0, magnitude = 0;
            for (std::int64_t i = 0; i < c.nope; ++i) {
              const double term = double(bf16_of(m[std::size_t(i)])) * d.weight_uk.at((h * c.nope + i) * c.latent + j);
              sum += term, magnitude += std::fabs(term);
            }
            const double error = 2 * 0x1p-24 * std::sqrt(double(c.nope)) * magnitude;
            qn.push_back(bf16_of(sum)), low.push_back(bf16_of(sum - error)), high.push_back(bf16_of(sum + error));
          }
          std::vector<std::int8_t> codes(qn.size());
          const float head_scale = headq(qn.data(), c.latent, codes.data());
          if (row == 6 && scale != head_scale) {  // the largest value itself is one that the order decides
            ++differ;
            continue;
          }
          for (std::size_t j = 0; j < qn.size(); ++j) {
            const double y = got.query.at(th * c.latent + std::int64_t(j));
            if (y == double(row == 6 ? float(codes[j]) : qn[j])) continue;
            ++differ;
            const float code = float(codes[j]);
            ASSERT_TRUE(row == 6 ? low[j] != high[j] && std::fabs(y - code) <= 1 : y >= low[j] && y <= high[j]);
          }
        }
      EXPECT_LE(differ, int(0.002 * double(got.query.size())));
    }
  }
}

}  // namespace
}  // namespace dsakit::prolog_v3
