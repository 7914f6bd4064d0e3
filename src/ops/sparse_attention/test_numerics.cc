// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "dsakit/error.hpp"
#include "kernels/test_rungs.hpp"
#include "ops/attention/rounding.hpp"
#include "ops/sparse_attention/cases.hpp"

// numerics "device" and "golden": the fast path is its reference but for the order of fp32 sums.
namespace dsakit {
namespace {

using namespace sparse_attention;

class SparseAttentionNumerics : public EveryRung {};

/// A probability at the edge of a rounding may fall to either side: some results are a step apart, few of them.
void expect_alike(const Case& c, const Result& ours, const Result& wanted) {
  const double step = c.type == DType::f16 ? 0x1p-10 : 0x1p-7;
  double most = 0, squares = 0, ours_squares = 0;
  for (std::size_t i = 0; i < wanted.out.size(); ++i) {
    most = std::fmax(most, std::fabs(wanted.out[i]));
    squares += double(wanted.out[i]) * wanted.out[i];
    ours_squares += std::pow(double(ours.out[i]) - wanted.out[i], 2);
  }
  for (std::size_t i = 0; i < wanted.out.size(); ++i)
    ASSERT_NEAR(ours.out[i], wanted.out[i], step * std::fabs(wanted.out[i]) + step / 8 * most) << i;
  EXPECT_LE(ours_squares, squares * step * step / 16);
  for (std::size_t i = 0; i < wanted.most.size(); ++i) {
    ASSERT_NEAR(ours.most[i], wanted.most[i], 1e-5 + 1e-5 * std::fabs(wanted.most[i]));
    ASSERT_NEAR(ours.sum[i], wanted.sum[i], 1e-4 * wanted.sum[i]);
  }
}

TEST_P(SparseAttentionNumerics, EqualTheirReference) {
  for (const char* numerics : {"device", "golden"})
    for (std::uint64_t seed = 1; seed <= 24; ++seed) {
      Case c = random_case(seed);
      c.numerics = numerics, c.lse = true;
      SCOPED_TRACE(std::string(numerics) + ", seed " + std::to_string(seed));
      const Result wanted = c.run(ProbabilityRounding::none);
      EXPECT_EQ(
          c.run(c.numerics == "golden" ? ProbabilityRounding::normalised : ProbabilityRounding::unnormalised_tile2048),
          wanted);
      Context one({.threads = 1, .isa = kernels().isa});
      const Result ours = c.run(one);
      if (c.data != Data::large && c.data != Data::wide_scales) expect_alike(c, ours, wanted);
      for (const int threads : {2, 3}) {
        Context more({.threads = threads, .isa = kernels().isa});
        EXPECT_EQ(c.run(more), ours) << threads << " threads";
      }
    }
}

/// Lists of more than one tile of the device, and more heads than a task has.
TEST_P(SparseAttentionNumerics, ManyTilesAndHeads) {
  for (const char* numerics : {"device", "golden"})
    for (const DType type : {DType::bf16, DType::f16})
      for (const int tile : {0, 16}) {
        Case c;
        c.batch.queries = {1, 2}, c.batch.keys = {4500, 70}, c.batch.layout_query = c.batch.layout_key = "TND";
        c.batch.place();
        c.type = type, c.tile = tile, c.dv = 32, c.dr = 8, c.heads = 33, c.entries = 4400, c.numerics = numerics;
        c.scale = 1, c.with_sinks = true;
        c.fill();
        const Result wanted = c.run(ProbabilityRounding::none);
        Context one({.threads = 1, .isa = kernels().isa}), three({.threads = 3, .isa = kernels().isa});
        const Result ours = c.run(one);
        expect_alike(c, ours, wanted);
        EXPECT_EQ(c.run(three), ours);
      }
}
INSTANTIATE_TEST_SUITE_P(Any, SparseAttentionNumerics, for_every_rung(), rung_name);

TEST(SparseAttentionRounding, TiesOfFp16) {
  using attention::to_f16_away;
  for (const auto& [x, wanted] : {std::pair{1 + 0x1p-11f, 1 + 0x1p-10f},
                                  {-1 - 0x1p-11f, -1 - 0x1p-10f},
                                  {1 + 0x1p-11f - 0x1p-23f, 1.0f},
                                  {0x1p-25f, 0x1p-24f},
                                  {0x1.8p-24f, 0x1p-23f},
                                  {0x1.fffffep-26f, 0.0f},
                                  {65519.0f, 65504.0f},
                                  {65520.0f, INFINITY},
                                  {0.0f, 0.0f}})
    EXPECT_EQ(to_float(to_f16_away(x)), wanted) << x;
  EXPECT_TRUE(std::isnan(to_float(to_f16_away(NAN))));
  // Everywhere else it is the nearest, as ever.
  Random r(1);
  for (int i = 0; i < 100000; ++i) {
    const float x = r.uniform(-2, 2) * std::ldexp(1.0f, int(r.below(30)) - 20);
    const float near = to_float(to_f16(x)), away = to_float(to_f16_away(x));
    EXPECT_TRUE(near == away || (std::fabs(near - x) == std::fabs(away - x) && std::fabs(away) > std::fabs(near))) << x;
  }
}

/// The dequantised key of a token that is alone is the result: rounded to the query's type, ties of fp16 away.
TEST(SparseAttentionRounding, KeysAreRoundedToTheQuerysType) {
  Case c;
  c.batch.queries = {1}, c.batch.keys = {1}, c.batch.layout_query = c.batch.layout_key = "BSND";
  c.batch.place();
  c.type = DType::f16, c.tile = 16, c.heads = 1, c.entries = 1;
  c.fill();
  c.lists = {{0}}, c.codes.assign(16, 1), c.scales = {1 + 0x1p-11f};
  Context context;
  for (const auto& [numerics, wanted] :
       {std::pair{"exact", 1.0f}, {"device", 1 + 0x1p-10f}, {"golden", 1 + 0x1p-10f}}) {
    c.numerics = numerics;
    EXPECT_EQ(c.run(context).out[0], wanted) << numerics;
    EXPECT_EQ(c.run(ProbabilityRounding::none).out[0], wanted) << numerics;
  }
  c.numerics = "chip", c.place();
  try {
    attend(c.kv_args(), c.outs<KvQuantSparseFlashAttentionOuts>(), context);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Status::invalid_argument);
    EXPECT_EQ(e.parameter, "numerics");
  }
}

}  // namespace
}  // namespace dsakit
