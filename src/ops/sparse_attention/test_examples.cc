// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <optional>

#include "dsakit/error.hpp"
#include "kernels/kernels.hpp"
#include "ops/sparse_attention/cases.hpp"

namespace dsakit {
namespace {

using namespace sparse_attention;
using Values = std::vector<float>;

struct Answer {
  Values out, most, sum;
  bool operator==(const Answer&) const = default;
  friend void PrintTo(const Answer& a, std::ostream* to) {
    for (const Values* v : {&a.out, &a.most, &a.sum}) *to << ::testing::PrintToString(*v) << " ";
  }
};

/// One head, one sequence in order; scores come through a rope part of width 1.
struct Small {
  Values latent = {1, 2, 3, 4, 5, 6};  // [keys][dv]
  int dv = 2;
  std::vector<std::int32_t> list;  // [lq][K]
  std::int64_t lq = 1, mode = 0, block = 1;
  Values scores = {};
  double scale = 1;
  std::optional<float> sink = {};
  std::string_view index_check = "error";

  template <class How>
  Answer operator()(How&& how) const {
    const std::int64_t n = std::int64_t(latent.size()) / dv;
    std::vector<bf16> key, rope(static_cast<std::size_t>(n)), query(std::size_t(lq * dv)),
        one(std::size_t(lq), to_bf16(1)), out(query);
    for (const float x : latent) key.push_back(to_bf16(x));
    for (std::size_t i = 0; i < scores.size(); ++i) rope[i] = to_bf16(scores[i]);
    Answer a{{}, Values(std::size_t(lq), -9), Values(std::size_t(lq), -9)};
    const float sinks = sink.value_or(0);
    SparseFlashAttentionArgs args{.query = tensor(query.data(), {1, lq, 1, dv}),
                                  .key = tensor(key.data(), {1, n, 1, dv}),
                                  .value = tensor(key.data(), {1, n, 1, dv}),
                                  .sparse_indices = tensor(list.data(), {1, lq, 1, std::int64_t(list.size()) / lq}),
                                  .scale_value = scale,
                                  .query_rope = tensor(one.data(), {1, lq, 1, 1}),
                                  .key_rope = tensor(rope.data(), {1, n, 1, 1}),
                                  .sparse_block_size = block,
                                  .sparse_mode = mode,
                                  .attention_mode = 2,
                                  .return_softmax_lse = true,
                                  .index_check = index_check};
    if (sink) args.sinks = tensor(&sinks, {1});
    attend(args,
           {.attention_out = tensor(out.data(), {1, lq, 1, dv}),
            .softmax_max = tensor(a.most.data(), {1, 1, lq, 1}),
            .softmax_sum = tensor(a.sum.data(), {1, 1, lq, 1})},
           how);
    for (const bf16 x : out) a.out.push_back(to_float(x));
    return a;
  }
};

std::string isa_of(const ::testing::TestParamInfo<const Kernels*>& info) { return info.param->isa; }

/// The worked examples hold for the fast path and for the reference.
class SparseAttentionExamples : public ::testing::TestWithParam<const Kernels*> {
 protected:
  Answer both(const Small& s) {
    Context context({.threads = 2, .isa = GetParam()->isa});
    const Answer fast = s(context);
    EXPECT_EQ(fast, s(ProbabilityRounding::none));
    return fast;
  }
};
INSTANTIATE_TEST_SUITE_P(Rungs, SparseAttentionExamples,
                         ::testing::ValuesIn(supported_kernels().begin(), supported_kernels().end()), isa_of);

TEST_P(SparseAttentionExamples, E1_Flat) {
  Small s{.list = {2, 0, -1, 1}};
  EXPECT_EQ(both(s), (Answer{{3, 4}, {0}, {2}}));
  s.sink = 0.0f;
  EXPECT_EQ(both(s), (Answer{{2, 2.671875f}, {0}, {3}}));  // [2, 2.6667]
  s.sink = -INFINITY;
  EXPECT_EQ(both(s), (Answer{{3, 4}, {0}, {2}}));
}

TEST_P(SparseAttentionExamples, E2_WeightsTwoToOne) {
  const Small s{.list = {2, 0}, .scores = {0, 0, 1}, .scale = std::log(2.0)};
  EXPECT_EQ(both(s), (Answer{{3.671875f, 4.65625f}, {float(std::log(2.0))}, {1.5f}}));
  EXPECT_EQ(s(ProbabilityRounding::normalised).out, (Values{3.671875f, 4.6875f}));
}

TEST_P(SparseAttentionExamples, E3_Mask) {
  Small s{.list = {2, 0, -1, 9, 2, 0, -1, 9}, .lq = 2, .mode = 3};
  EXPECT_EQ(both(s), (Answer{{1, 2, 3, 4}, {0, 0}, {1, 2}}));
  s.list = {0, 3, 0, 3};
  Context context;
  EXPECT_THROW(s(context), Error);
  s.index_check = "mask";
  EXPECT_EQ(both(s), (Answer{{1, 2, 1, 2}, {0, 0}, {1, 1}}));
}

TEST_P(SparseAttentionExamples, E4_Blocks) {
  Small s{.latent = {1, 2, 4, 8, 16}, .dv = 1, .list = {2, 0}, .mode = 3, .block = 2};
  EXPECT_EQ(both(s), (Answer{{6.34375f}, {0}, {3}}));  // tokens 4, 0, 1: 19 / 3
  s.lq = 2, s.list = {2, 0, 2, 0};
  EXPECT_EQ(both(s), (Answer{{1.5f, 6.34375f}, {0, 0}, {2, 3}}));
}

TEST_P(SparseAttentionExamples, E5_MoreEntriesThanTheDeviceReads) {
  EXPECT_EQ(both({.latent = {1, 2, 4, 8}, .list = {1, 1, 0}, .mode = 3}), (Answer{{3, 6}, {0}, {3}}));
}

TEST_P(SparseAttentionExamples, E7_DequantisedByTile) {
  // G = 2: codes [10,-3 | 127,0] with scales [0.5, 0.01]; the key is never rounded, the output is.
  std::vector<std::int8_t> row{10, -3, 127, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  const float scales[] = {0.5f, 0.01f};
  std::memcpy(row.data() + 4, scales, sizeof scales);
  std::vector<bf16> query(4), out(4);
  const std::int32_t zero = 0;
  KvQuantSparseFlashAttentionArgs args{.query = tensor(query.data(), {1, 1, 1, 4}),
                                       .key = tensor(row.data(), {1, 1, 1, 12}),
                                       .value = tensor(row.data(), {1, 1, 1, 12}),
                                       .sparse_indices = tensor(&zero, {1, 1, 1, 1}),
                                       .scale_value = 1,
                                       .key_quant_mode = 2,
                                       .value_quant_mode = 2,
                                       .attention_mode = 2,
                                       .tile_size = 2,
                                       .rope_head_dim = 0};
  Context context({.isa = GetParam()->isa});
  attend(args, {.attention_out = tensor(out.data(), {1, 1, 1, 4})}, context);
  EXPECT_EQ((Values{to_float(out[0]), to_float(out[1]), to_float(out[2]), to_float(out[3])}),
            (Values{5, -1.5f, 1.2734375f, 0}));
}

TEST_P(SparseAttentionExamples, E8_Merge) {
  const Small whole{.latent = {1, 2, 5, 6, 9, 0}, .list = {0, 1, 2}, .scores = {0, 0, 1}, .scale = std::log(2.0)};
  const float ln2 = float(std::log(2.0));
  Small part = whole;
  part.list = {0, 1, -1};
  EXPECT_EQ(both(part), (Answer{{3, 4}, {0}, {2}}));
  part.list = {2, -1, -1};
  EXPECT_EQ(both(part), (Answer{{9, 0}, {ln2}, {1}}));
  part.list = {-1, -1, -1};
  EXPECT_EQ(both(part), (Answer{{0, 0}, {0}, {0}}));
  EXPECT_EQ(both(whole), (Answer{{6, 2}, {ln2}, {2}}));
}

TEST_P(SparseAttentionExamples, RowsWithoutAnAttendedToken) {
  // A list that is empty, hidden, or not read because the row sees nothing.
  Small s{.list = {-1, 0}};
  EXPECT_EQ(both(s), (Answer{{0, 0}, {0}, {0}}));
  s = {.list = {2, -1, 2, 0}, .lq = 2, .mode = 3};
  EXPECT_EQ(both(s), (Answer{{0, 0, 3, 4}, {0, 0}, {0, 2}}));
  s = {.latent = {1, 2}, .list = {-9, -9, 0, -1}, .lq = 2, .mode = 3};
  EXPECT_EQ(both(s), (Answer{{0, 0, 1, 2}, {0, 0}, {0, 1}}));
  s.sink = 0.0f;
  EXPECT_EQ(both(s), (Answer{{0, 0, 0.5f, 1}, {0, 0}, {1, 2}}));
  s.sink = -INFINITY;
  EXPECT_EQ(both(s), (Answer{{0, 0, 1, 2}, {0, 0}, {0, 1}}));
}

TEST_P(SparseAttentionExamples, ScoresFarApart) {
  Small s{.list = {0, 1}, .scores = {1e4f, -1e4f}};
  EXPECT_EQ(both(s).out, (Values{1, 2}));
  s.scores = {-1e4f, -1e4f};
  EXPECT_EQ(both(s), (Answer{{2, 3}, {to_float(to_bf16(-1e4f))}, {2}}));
  s.scores = {30, 0};
  EXPECT_EQ(both(s).out, (Values{1, 2}));
  s.scores = {0, 200}, s.sink = 1e30f;  // a sink takes everything
  EXPECT_EQ(both(s), (Answer{{0, 0}, {1e30f}, {1}}));
  s.sink = INFINITY;
  EXPECT_EQ(both(s), (Answer{{0, 0}, {INFINITY}, {1}}));
}

/// One token stands out among 600: in the first, a middle or the last chunk, everything else far below it.
TEST_P(SparseAttentionExamples, ThePeakMayBeInAnyChunk) {
  for (const std::size_t peak : {0u, 255u, 256u, 511u, 512u, 599u}) {
    Small s{.latent = {}, .list = {}, .scores = Values(600, -100)};
    for (int i = 0; i < 600; ++i) s.latent.insert(s.latent.end(), {float(i % 200 + 1), -1}), s.list.push_back(i);
    s.scores[peak] = 100;
    EXPECT_EQ(both(s), (Answer{{float(peak % 200 + 1), -1}, {100}, {1}}));
  }
}

}  // namespace
}  // namespace dsakit
