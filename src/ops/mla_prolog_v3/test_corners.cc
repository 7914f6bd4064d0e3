// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "ops/mla_prolog_v3/runs.hpp"

// The corner cases of the documentation, and data that punishes shortcuts.
namespace dsakit::prolog_v3 {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void each_row(Case c, const std::function<void(Data&)>& f) {
  for (c.row = 1; c.row <= 7; ++c.row) {
    SCOPED_TRACE("R" + std::to_string(c.row));
    Data data(c);
    f(data);
  }
}
Case exact() { return {.b = 1, .s = 6, .exact = true, .seed = 13}; }

bool zero(const Array& a, std::int64_t first, std::int64_t n) {
  for (std::int64_t i = first; i < first + n; ++i)
    if (a.at(i) != 0) return false;
  return true;
}

TEST(MlaPrologV3Corners, ZeroToken) {
  each_row(exact(), [](Data& d) {
    const Case& c = d.c;
    std::memset(d.token_x.bytes.data() + 5 * c.hidden * size_of(d.token_x.shape.dtype), 0,
                std::size_t(c.hidden * size_of(d.token_x.shape.dtype)));
    const Written wanted = reference_of(d);
    expect_everywhere(d, wanted);
    EXPECT_TRUE(zero(wanted.query, 5 * c.heads * c.latent, c.heads * c.latent));
    EXPECT_TRUE(zero(wanted.query_rope, 5 * c.heads * c.rope, c.heads * c.rope));
    EXPECT_TRUE(zero(wanted.query_norm, 5 * c.rank, c.rank));
    if (c.row >= 2) {
      EXPECT_EQ(wanted.dequant_scale_q_norm.at(5), 0);
    }
    if (c.row == 6) {
      EXPECT_TRUE(zero(wanted.dequant_scale_q_nope, 5 * c.heads, c.heads));
    }
    const std::int64_t slot = d.cache_index.as<std::int64_t>()[5];
    const Caches caches(c, wanted);
    EXPECT_TRUE(zero(caches.latent, slot * c.latent, c.latent));
    EXPECT_TRUE(zero(caches.rope, slot * c.rope, c.rope));
    if (c.packed()) {
      EXPECT_TRUE(zero(caches.scales, slot * c.latent / c.tile, c.latent / c.tile));
    }
  });
}

TEST(MlaPrologV3Corners, ZeroTileAndZeroHead) {
  each_row(exact(), [](Data& d) {
    const Case& c = d.c;
    const Written before = reference_of(d);
    std::fill_n(d.gamma_ckv.as<bf16>() + c.tile, c.tile, bf16{0});                 // tile 1
    std::memset(d.weight_uk.bytes.data(), 0, std::size_t(c.nope * c.latent * 2));  // head 0
    const Written wanted = reference_of(d);
    expect_everywhere(d, wanted);
    for (std::int64_t t = 0; t < c.tokens(); ++t) {
      EXPECT_TRUE(zero(wanted.query, t * c.heads * c.latent, c.latent));
      if (c.row != 6) continue;
      EXPECT_EQ(wanted.dequant_scale_q_nope.at(t * c.heads), 0);
      EXPECT_TRUE(zero(wanted.query_rope, t * c.heads * c.rope, c.rope));
      EXPECT_FALSE(zero(wanted.query_rope, (t * c.heads + 1) * c.rope, c.rope));
    }
    const std::int64_t slot = d.cache_index.as<std::int64_t>()[5], tiles = c.latent / c.tile;
    const Caches a(c, wanted), b(c, before);
    EXPECT_TRUE(zero(a.latent, slot * c.latent + c.tile, c.tile));
    for (std::int64_t j = 0; j < c.tile; ++j)
      EXPECT_EQ(a.latent.at(slot * c.latent + j), b.latent.at(slot * c.latent + j));
    if (!c.packed()) return;
    EXPECT_EQ(a.scales.at(slot * tiles + 1), 0);
    EXPECT_EQ(a.scales.at(slot * tiles), b.scales.at(slot * tiles));
  });
}

/// A token with NaN or infinity spoils its own outputs only, the same way every time; its stored codes are from NaN: 0.
TEST(MlaPrologV3Corners, NonFiniteTokens) {
  for (const float bad : {std::nanf(""), kInf, -kInf})
    each_row({.b = 1, .s = 9, .seed = 13}, [&](Data& d) {
      const Case& c = d.c;
      for (const Kernels* k : supported_kernels()) {
        Data spoiled = d;
        spoiled.cache_index.as<std::int64_t>()[6] = 1;  // nobody else's
        d.cache_index.as<std::int64_t>()[6] = 1;
        if (c.full()) spoiled.scale_x.as<float>()[6] = bad;
        else spoiled.token_x.as<bf16>()[6 * c.hidden + 3] = to_bf16(bad);
        const Written good = run(d, {.threads = 1, .isa = k->isa}), got = run(spoiled, {.threads = 1, .isa = k->isa});
        EXPECT_EQ(run(spoiled, {.threads = 3, .isa = k->isa}).first_difference(got), "");
        Written others = got;
        Written::each(others, good, [&](const char* name, const Array& mine, const Array& theirs) {
          if (mine.size() == 0) return;
          const bool cache = std::string_view(name).ends_with("cache");
          const std::size_t rows = std::size_t(cache ? c.blocks * c.block_size : c.tokens()),
                            row = mine.bytes.size() / rows;
          const std::size_t at = cache ? 1 : 6;
          std::memcpy(const_cast<std::byte*>(mine.bytes.data()) + at * row, theirs.bytes.data() + at * row, row);
        });
        EXPECT_EQ(others.first_difference(good), "") << k->isa;
        if (c.row == 3 || c.row == 6) {
          EXPECT_TRUE(zero(got.kv_cache, c.latent, c.latent)) << k->isa;
        }
      }
    });
}

/// Static scales: too large, zero, negative.
TEST(MlaPrologV3Corners, StaticScales) {
  for (const int row : {3, 6})
    for (const float scale : {1e30f, 0.0f, -0.0f, -45.0f, 1e-30f, kInf}) {
      Case c = exact();
      c.row = row;
      Data d(c);
      std::fill_n(d.ckv_scale.as<float>(), d.ckv_scale.size(), scale);
      if (row == 3) std::fill_n(d.ckr_scale.as<float>(), d.ckr_scale.size(), scale);
      const Written wanted = reference_of(d);
      expect_everywhere(d, wanted);
      const std::int64_t slot = d.cache_index.as<std::int64_t>()[5];
      if (scale == 0) {
        EXPECT_TRUE(zero(wanted.kv_cache, slot * c.latent, c.latent));
        EXPECT_TRUE(zero(row == 3 ? wanted.kr_cache : wanted.query_rope, row == 3 ? slot * c.rope : 0, c.rope));
      }
      if (scale == 1e30f)
        for (std::int64_t j = 0; j < c.latent; ++j) {
          const double code = wanted.kv_cache.at(slot * c.latent + j);
          EXPECT_TRUE(code == 127 || code == -128 || code == 0) << code;
        }
    }
}

/// Magnitudes near the ends of fp32, in the latent and in the low-rank query. Tiny queries only where they become
/// codes: hardware bf16 products flush subnormals.
TEST(MlaPrologV3Corners, MagnitudesAtTheEnds) {
  for (const float size : {1e-38f, 1e-37f, 3.8e-37f, 1e-30f, 1e30f, 1e38f})
    each_row(exact(), [&](Data& d) {
      const Case& c = d.c;
      for (std::int64_t j = 0; j < c.latent; ++j)
        d.gamma_ckv.as<bf16>()[j] = to_bf16(to_float(d.gamma_ckv.as<bf16>()[j]) * 0.125f * size);
      if (c.row >= 2 && size < 1e37f)
        for (std::int64_t j = 0; j < c.rank; ++j)
          d.gamma_cq.as<bf16>()[j] = to_bf16(to_float(d.gamma_cq.as<bf16>()[j]) * 0.125f * size);
      if (c.row >= 2 && size < 1)  // keep what the bf16 product sees normal
        for (std::int64_t j = 0; j < c.wide(); ++j) d.scale_uq_qr.as<float>()[j] *= 1e12f;
      expect_everywhere(d, reference_of(d));
    });
}

/// int8 at its ends: sums beyond 2^24, which the conversion to fp32 rounds.
TEST(MlaPrologV3Corners, FullRangeCodes) {
  for (const int row : {5, 6, 7})
    for (const auto& [x, w] : {std::pair{127, 127}, {-128, -128}, {-128, 127}}) {
      Case c = exact();
      c.row = row, c.hidden = 2001, c.b = 1, c.s = 3;
      Data d(c);
      d.token_x.fill(x), d.weight_dq.fill(w), d.weight_dkv_kr.fill(w);
      std::fill_n(d.weight_uq_qr.as<std::int8_t>(), c.wide(), std::int8_t(-128));
      expect_everywhere(d, reference_of(d));
    }
}

/// One element 2^15 times the rest, and one whose products cancel.
TEST(MlaPrologV3Corners, HugeElements) {
  each_row(exact(), [](Data& d) {
    if (d.c.full()) return;
    for (std::int64_t t = 0; t < d.c.tokens(); ++t) d.token_x.as<bf16>()[t * d.c.hidden + t] = to_bf16(0x1p15f);
    expect_everywhere(d, reference_of(d));
  });
}

/// Ties in every rounding to int8: half to even everywhere but in R6's query.
TEST(MlaPrologV3Corners, Ties) {
  each_row(
      {.b = 1, .s = 1, .hidden = 1, .rank = 8, .heads = 1, .nope = 1, .rope = 2, .latent = 8, .tile = 8, .alpha = 1},
      [](Data& d) {
        const float halves[] = {127, 0.5f, 1.5f, -2.5f, -0.5f, -63.5f, 62.5f, 3.5f};
        for (Array* a : {&d.token_x, &d.weight_dq, &d.weight_dkv_kr, &d.weight_uk})
          for (std::int64_t i = 0; i < a->size(); ++i)
            if (a->shape.dtype == DType::i8) a->as<std::int8_t>()[i] = 1;
            else a->as<bf16>()[i] = to_bf16(1);
        for (Array* a : {&d.scale_x, &d.scale_dq, &d.scale_dkv_kr, &d.ckv_scale})
          std::fill_n(a->as<float>(), a->size(), 1.0f);
        for (int j = 0; j < 8; ++j) d.gamma_cq.as<bf16>()[j] = d.gamma_ckv.as<bf16>()[j] = to_bf16(halves[j]);
        const Change exactly = [](MlaPrologV3Args& a, MlaPrologV3Outs&) {
          a.rmsnorm_epsilon_cq = a.rmsnorm_epsilon_ckv = 1e-30;
        };
        const int wanted[] = {127, 0, 2, -2, 0, -64, 62, 4};
        for (const Kernels* k : supported_kernels()) {
          const Written w = run(d, {.isa = k->isa}, exactly);
          EXPECT_EQ(w.first_difference(reference_of(d, exactly)), "") << k->isa;
          const std::int64_t slot = d.cache_index.as<std::int64_t>()[0];
          const Caches caches(d.c, w);
          for (int j = 0; j < 8; ++j) {
            if (d.c.row >= 2) {
              EXPECT_EQ(w.query_norm.at(j), wanted[j]) << k->isa;
            }
            if (d.c.kvq() == 1 || d.c.kvq() == 2) {
              EXPECT_EQ(caches.latent.at(slot * 8 + j), wanted[j]) << k->isa;
            }
          }
        }
      });
}

/// True rotations, whose halves agree, where the other tests have random ones.
TEST(MlaPrologV3Corners, TrueRotations) {
  each_row(exact(), [](Data& d) {
    const std::int64_t half = d.c.rope / 2;
    for (std::int64_t t = 0; t < d.c.tokens(); ++t)
      for (std::int64_t j = 0; j < half; ++j) {
        const double angle = double(1000 + t) * std::pow(10000.0, -double(j) / double(half));
        for (const std::int64_t at : {t * d.c.rope + j, t * d.c.rope + j + half}) {
          d.rope_cos.as<bf16>()[at] = to_bf16(float(std::cos(angle)));
          d.rope_sin.as<bf16>()[at] = to_bf16(float(std::sin(angle)));
        }
      }
    expect_everywhere(d, reference_of(d));
  });
}

/// Empty calls and caches without blocks look at no index.
TEST(MlaPrologV3Corners, NothingToStore) {
  each_row({.blocks = 0, .exact = true}, [](Data& d) {
    std::fill_n(d.cache_index.as<std::int64_t>(), d.cache_index.size(), INT64_MAX);
    const Written wanted = reference_of(d);
    EXPECT_NE(wanted.first_difference(d.initial), "");
    expect_everywhere(d, wanted);
  });
}

}  // namespace
}  // namespace dsakit::prolog_v3
