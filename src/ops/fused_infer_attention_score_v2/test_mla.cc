// SPDX-License-Identifier: Apache-2.0
#include "ops/fused_infer_attention_score_v2/judge.hpp"

// Rows D and E of the acceptance table: pages and multi-head latent attention.
namespace dsakit {
namespace {

using namespace fused_infer_attention_score_v2_op;

constexpr DType kBf16 = DType::bf16;

template <class Change>
Spec changed(Spec s, Change change) {
  change(s);
  return s;
}
/// The device takes the same call, without softmax_lse, and the result is the same.
void expect_strict_too(Spec s) {
  s.lse = false;
  const Spec strict = changed(s, [](Spec& x) { x.level = Level::strict; });
  for (const Kernels* kernels : supported_kernels()) EXPECT_EQ(bits(strict, *kernels), bits(s, *kernels));
}
void expect_refused(const Spec& s, Status status, const char* parameter, const char* position = "") {
  Case c(s);
  const Results before = results(c);
  try {
    fused_infer_attention_score_v2(c.args(), c.outs());
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.parameter, parameter) << e.what();
    EXPECT_EQ(e.position, position) << e.what();
  }
  EXPECT_EQ(results(c), before);
}

TEST(FusedInfer, D1ShuffledPages) {
  const Spec s{.layout = "BNSD", .b = 3, .nk = 2, .s1 = 1, .kl = {1, 129, 300}, .rank = 4, .more_columns = 2};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, D2PagesOfRows) {
  const Spec s{.layout = "BSH", .b = 3, .nk = 2, .s1 = 1, .kl = {1, 129, 300}, .rank = 3};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, D3SmallPagesCausal) {
  expect_all_right(
      {.layout = "BSND", .b = 2, .nk = 2, .s1 = 7, .kl = {65, 30}, .rank = 3, .bs = 16, .mode = 3, .stencil = true});
}
TEST(FusedInfer, D4PrefillAndDecodeMixed) {
  expect_all_right(
      {.layout = "TND", .nk = 2, .ql = {1, 1, 5}, .kl = {50, 257, 9}, .rank = 3, .bs = 16, .mode = 3, .stencil = true});
}
TEST(FusedInfer, D5FoldedPages) {
  const Spec s{.layout = "TND", .nk = 2, .type = kBf16, .ql = {4, 3}, .kl = {140, 20}, .rank = 4};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, D6PagesInColumnBlocks) {
  for (const DType type : {DType::f16, DType::bf16, DType::f32})
    expect_all_right({.layout = "BNSD", .b = 2, .nk = 2, .s1 = 3, .type = type, .kl = {77, 16}, .rank = 5, .bs = 16});
}
TEST(FusedInfer, D7PagesOfHeadsBesideBSND) {
  const Spec s{.layout = "BSND", .b = 2, .s1 = 1, .kl = {77, 16}, .rank = 4, .bs = 32};
  expect_all_right(s);
  expect_refused(changed(s, [](Spec& x) { x.level = Level::strict; }), Status::unsupported, "key");
}
TEST(FusedInfer, D8WildNumbersInUnusedPages) {  // where every case has them; here against a case without
  const Spec s{.layout = "TND", .ql = {2, 3}, .kl = {70, 9}, .rank = 3, .bs = 16, .mode = 3};
  expect_all_right(s);
  for (const Kernels* kernels : supported_kernels()) {
    Case c(s);
    const Results wild = run(c, *kernels, 1);
    for (Buffer* x : {&c.key, &c.value})
      for (std::int64_t i = 0; i < x->t.elements(); ++i)
        if (!std::isfinite(x->get(i))) x->put(i, 1);
    EXPECT_EQ(run(c, *kernels, 1), wild);
  }
}
TEST(FusedInfer, D9SharedPrefixPage) {
  const Spec s{.layout = "BNSD", .b = 2, .s1 = 2, .kl = {40, 55}, .rank = 4, .bs = 32, .shared_page = true};
  ASSERT_EQ(Case(s).pages, 3);  // fewer than the sequences use together
  expect_all_right(s);
}
TEST(FusedInfer, D10PagedSequenceWithoutKeys) {
  Spec s{.layout = "BNSD", .b = 2, .s1 = 1, .kl = {0, 30}, .rank = 4, .bs = 16};
  expect_all_right(s);  // the sentinel -3.4e38
  s.s1 = 2;
  expect_all_right(s);  // +inf
}
TEST(FusedInfer, D11PageSizesAndContiguousGiveTheSameBits) {
  for (const std::int64_t s1 : {1, 5}) {
    const Spec s{.layout = "BNSD", .b = 2, .nk = 2, .s1 = s1, .s2 = 300, .kl = {300, 131}, .mode = 3};
    expect_all_right(changed(s, [](Spec& x) { x.rank = 4; }));
    for (const Kernels* kernels : supported_kernels()) {
      const Results wanted = bits(s, *kernels);
      for (const std::int64_t bs : {1, 100, 128, 1024})
        for (const int rank : {3, 4, 5})
          for (const std::uint64_t page_seed : {1, 2})
            EXPECT_EQ(bits(changed(s, [&](Spec& x) { x.rank = rank, x.bs = bs, x.page_seed = page_seed; }), *kernels),
                      wanted)
                << kernels->isa << " " << bs << " " << rank;
    }
  }
}
TEST(FusedInfer, D12PageOutsideTheCache) {
  for (const std::int32_t page : {-1, 8}) {
    Case c({.layout = "BNSD", .b = 2, .s1 = 1, .kl = {60, 30}, .rank = 4, .bs = 16});
    ASSERT_EQ(c.pages, 7);
    static_cast<std::int32_t*>(c.table.t.data)[c.columns + 1] = page;
    const Results before = results(c);
    try {
      fused_infer_attention_score_v2(c.args(), c.outs());
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_block);
      EXPECT_EQ(e.parameter, "block_table");
      EXPECT_EQ(e.position, "[1][1]");
    }
    EXPECT_EQ(results(c), before);
  }
}
TEST(FusedInfer, D13FoldedPagesHeadsFirst) {
  expect_all_right({.layout = "NTD_TND", .nk = 2, .ql = {4, 3}, .kl = {140, 20}, .rank = 4});
}

TEST(FusedInfer, E1AbsorbedDecode) {
  const Spec s{.layout = "BSND_NBSD",
               .b = 2,
               .nq = 32,
               .nk = 1,
               .s1 = 1,
               .d = 512,
               .dr = 64,
               .type = kBf16,
               .kl = {300, 77},
               .rank = 3};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, E2AbsorbedDecodeOf128Heads) {
  const Spec s{.layout = "BNSD_NBSD",
               .b = 2,
               .nq = 128,
               .nk = 1,
               .s1 = 1,
               .d = 512,
               .dr = 64,
               .type = kBf16,
               .kl = {300, 17},
               .rank = 4};
  expect_all_right(s);
  expect_strict_too(s);
}
const Spec kSpeculative{.layout = "TND_NTD",
                        .nq = 32,
                        .nk = 1,
                        .d = 512,
                        .dr = 64,
                        .type = kBf16,
                        .ql = {2, 1, 4},
                        .kl = {300, 7, 129},
                        .rank = 5,
                        .mode = 3,
                        .stencil = true};
TEST(FusedInfer, E3SpeculativeTokens) {
  expect_all_right(kSpeculative);
  expect_strict_too(kSpeculative);
}
TEST(FusedInfer, E4SixteenTokens) {
  const Spec s{.layout = "BSH",
               .nq = 32,
               .nk = 1,
               .s1 = 16,
               .d = 512,
               .dr = 64,
               .type = kBf16,
               .kl = {140},
               .rank = 3,
               .mode = 3,
               .stencil = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, E5ValueThatIsNotTheKey) {
  expect_all_right(
      {.layout = "BNSD", .b = 2, .nq = 32, .nk = 1, .s1 = 1, .s2 = 270, .d = 512, .dr = 64, .type = kBf16});
}
TEST(FusedInfer, E6SplitPrefill) {
  const Spec s{.layout = "TND",
               .nq = 16,
               .nk = 8,
               .d = 128,
               .dr = 64,
               .type = kBf16,
               .ql = {9, 20},
               .kl = {30, 20},
               .mode = 3,
               .stencil = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, E7SplitPrefillHeadsFirst) {
  expect_all_right({.layout = "NTD_TND", .nq = 4, .d = 128, .dr = 64, .ql = {9, 20}, .kl = {30, 11}});
}
TEST(FusedInfer, E8ChunkedPrefillMerged) {
  Spec s{.layout = "TND",
         .nq = 4,
         .d = 192,
         .dv = 128,
         .type = kBf16,
         .ql = {40},
         .kl = {340},
         .mode = 3,
         .stencil = true};
  expect_all_right(s);
  // The keys before the chunk in one call, its own keys in another.
  for (const Kernels* kernels : supported_kernels()) {
    Case before(changed(s, [](Spec& x) { x.kl = {300}, x.mode = 0, x.stencil = false; }));
    Case own(changed(s, [](Spec& x) { x.kl = {40}, x.first_k = 300; }));
    run(before, *kernels, 1), run(own, *kernels, 1);
    Case whole(s);
    const Judged judged(whole, false);
    for (std::int64_t row = 0; row < 160; ++row) {
      const double a = before.lse.get(row), b = own.lse.get(row), most = std::fmax(a, b), wa = std::exp(a - most),
                   wb = std::exp(b - most);
      EXPECT_NEAR(most + std::log(wa + wb), judged.lse[row], 2e-4);
      for (std::int64_t d = 0; d < 128; ++d) {
        const double merged =
            (wa * before.attention.get(row * 128 + d) + wb * own.attention.get(row * 128 + d)) / (wa + wb);
        ASSERT_NEAR(merged, judged.out[row * 128 + d], 8e-3 + 1e-2 * std::fabs(judged.out[row * 128 + d]));
      }
    }
  }
}
TEST(FusedInfer, E9WideValues) {
  const Spec s{.layout = "TND", .nq = 4, .d = 192, .type = kBf16, .ql = {9, 20}, .kl = {30, 11}};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, E10WindowOfSpeculativeTokens) {
  expect_all_right(changed(kSpeculative, [](Spec& s) { s.mode = 4, s.pre = 3, s.next = 0; }));
}
TEST(FusedInfer, E11RopeIsConcatenation) {
  for (const char* layout : {"BSND", "BSH", "BNSD", "TND", "NTD"}) {
    const bool folded = layout[0] == 'T' || layout[0] == 'N';
    Spec s{.layout = layout, .nk = 2, .s1 = 3, .s2 = 33, .d = 32, .dr = 16, .type = kBf16, .scale = 0.2};
    if (folded) s.ql = {3}, s.kl = {33};
    Case apart(s);
    Spec wide = s;
    wide.d = 48, wide.dv = 32, wide.dr = -1;
    Case together(wide);
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t q = 0; q < 3; ++q)
        for (std::int64_t d = 0; d < 48; ++d)
          together.query.put(together.query_at(48, 0, h, q, d),
                             d < 32 ? apart.query.get(apart.query_at(32, 0, h, q, d))
                                    : apart.query_rope.get(apart.query_at(16, 0, h, q, d - 32)));
    for (std::int64_t g = 0; g < 2; ++g)
      for (std::int64_t k = 0; k < 33; ++k)
        for (std::int64_t d = 0; d < 48; ++d)
          together.key.put(together.key_at(together.key, 48, 0, g, k, d),
                           d < 32 ? apart.key.get(apart.key_at(apart.key, 32, 0, g, k, d))
                                  : apart.key_rope.get(apart.key_at(apart.key_rope, 16, 0, g, k, d - 32)));
    const Judged judged(apart);
    for (const Kernels* kernels : supported_kernels()) {
      run(together, *kernels, 1);
      run(apart, *kernels, 1);
      expect_right(apart, judged, false);
      for (std::int64_t i = 0; i < apart.attention.t.elements(); ++i)
        EXPECT_NEAR(together.attention.get(i), apart.attention.get(i), 4e-3 + 1e-2 * std::fabs(apart.attention.get(i)));
    }
  }
}

}  // namespace
}  // namespace dsakit
