// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>

#include "dsakit/error.hpp"
#include "kernels/kernels.hpp"
#include "ops/sparse_flash_attention_quant/cases.hpp"

namespace dsakit {
namespace {

using namespace sparse_flash_attention_quant_op;
using reference::ProbabilityRounding;

std::string isa_of(const ::testing::TestParamInfo<const Kernels*>& info) { return info.param->isa; }

/// Every test of this suite runs on every instruction set of this machine.
class SparseFlashAttentionQuant : public ::testing::TestWithParam<const Kernels*> {
 protected:
  std::vector<bf16> run(Case& c, int threads = 1, bool same_products = false) {
    Context context({.threads = threads, .isa = GetParam()->isa, .same_products = same_products});
    std::vector<bf16> out(c.out.size(), bf16{0x7fff});
    sparse_flash_attention_quant(c.args(), c.outs(out), context);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Rungs, SparseFlashAttentionQuant,
                         ::testing::ValuesIn(supported_kernels().begin(), supported_kernels().end()), isa_of);

bool same(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)) == 0;
}

/// The formula in double, written once more: nothing shared with the library, not even the rule for how many.
std::vector<double> exact(const Case& c) {
  const Shape& s = c.shape;
  std::vector<double> out;
  for (std::int64_t t = 0; t < c.b * s.s1; ++t) {
    const std::int64_t q = t / s.s1, n = c.attended(q, t % s.s1);
    for (std::int64_t h = 0; h < s.nq; ++h) {
      std::vector<double> score(static_cast<std::size_t>(n)), sum(static_cast<std::size_t>(s.dv), 0.0);
      double most = -INFINITY, total = 0;
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t row = c.row_of(q, c.lists[t * c.width + j]);
        for (int d = 0; d < s.dv; ++d) score[j] += to_float(c.query[(t * s.nq + h) * s.dv + d]) * c.latent_at(row, d);
        for (int d = 0; d < s.dr; ++d)
          score[j] += double(to_float(c.query_rope[(t * s.nq + h) * s.dr + d])) * to_float(c.key_rope[row * s.dr + d]);
        most = std::fmax(most, score[j] *= double(c.softmax_scale));
      }
      for (std::int64_t j = 0; j < n; ++j) {
        const double p = std::exp(score[j] - most);
        total += p;
        const std::int64_t row = c.row_of(q, c.lists[t * c.width + j]);
        for (int d = 0; d < s.dv; ++d) sum[d] += p * c.latent_at(row, d);
      }
      for (int d = 0; d < s.dv; ++d) out.push_back(n ? sum[d] / total : 0.0);
    }
  }
  return out;
}

struct Errors {
  double rms = 0, worst = 0;
};

/// The limits of the accuracy rules: absolute 1e-3 and relative 2^-7 per element, never asking for more than 1.1 x the
/// worst error of the documented roundings; root mean square at most 1.1 x theirs, over at least 4096 elements.
void expect_accurate(const std::vector<bf16>& out, const std::vector<double>& wanted, const std::vector<bf16>& plain) {
  Errors ours, theirs;
  const auto add = [](Errors& e, double error) { e.rms += error * error, e.worst = std::fmax(e.worst, error); };
  for (std::size_t i = 0; i < out.size(); ++i) add(theirs, std::fabs(to_float(plain[i]) - wanted[i]));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double error = std::fabs(to_float(out[i]) - wanted[i]);
    ASSERT_LE(error, std::fmax(1e-3 + std::fabs(wanted[i]) / 128, 1.1 * theirs.worst)) << "element " << i;
    add(ours, error);
  }
  if (out.size() >= 4096) {
    EXPECT_LE(std::sqrt(ours.rms), 1.1 * std::sqrt(theirs.rms));
  }
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  std::uint64_t seed = 1;
  for (const Data data : {Data::uniform, Data::peaked, Data::flat, Data::duplicates, Data::large})
    for (const int tiles : {4, 0}) {
      const int three = tiles ? 3 : 0, one = tiles ? 1 : 0;
      all.push_back({.act = {700, 3, 0, 1}, .s1 = 2, .nq = 8, .dv = 128, .dr = 32, .tiles = tiles, .topk = 600});
      all.push_back(
          {.act = {90, 17}, .s1 = 3, .nq = 3, .dv = 33, .dr = 5, .tiles = three, .topk = 40, .block_size = 7});
      all.push_back({.act = {300}, .nq = 131, .dv = 65, .dr = 1, .tiles = one, .topk = 257, .block_size = 1});
      all.push_back({.act = {20}, .s1 = 4, .nq = 1, .dv = 1, .dr = 0, .tiles = one, .topk = 1});
      for (auto shape = all.end() - 4; shape != all.end(); ++shape) shape->data = data, shape->seed = ++seed;
    }
  all.push_back({.act = {600}, .nq = 64, .dv = 512, .dr = 64, .topk = 520, .block_size = 128, .seed = ++seed});
  all.push_back({.act = {310}, .nq = 128, .dv = 512, .dr = 64, .topk = 300, .block_size = 128, .seed = ++seed});
  all.push_back({.act = {2700}, .nq = 2, .dv = 128, .dr = 64, .topk = 2600, .block_size = 128, .seed = ++seed});
  return all;
}

struct Judged {
  Case c;
  std::vector<double> wanted;
  std::vector<bf16> plain;  // with the documented roundings
};

std::vector<Judged>& judged() {
  static std::vector<Judged> all = [] {
    std::vector<Judged> cases;
    for (const Shape& shape : shapes()) {
      Judged j{Case(shape), {}, {}};
      j.wanted = exact(j.c);
      j.plain.resize(j.c.out.size());
      reference::sparse_flash_attention_quant(j.c.args(), j.c.outs(j.plain), ProbabilityRounding::normalised);
      cases.push_back(std::move(j));
    }
    return cases;
  }();
  return all;
}

TEST_P(SparseFlashAttentionQuant, KeepsTheDocumentedAccuracyAndItsBits) {
  for (auto& [c, wanted, plain] : judged()) {
    SCOPED_TRACE("seed " + std::to_string(c.shape.seed));
    const std::vector<bf16> one = run(c);
    expect_accurate(one, wanted, plain);
    expect_accurate(run(c, 2, true), wanted, plain);
    for (const int threads : {2, 3}) EXPECT_TRUE(same(one, run(c, threads))) << threads << " threads";
  }
}

TEST_P(SparseFlashAttentionQuant, BitsDoNotDependOnPagesPoisonOrBatch) {
  for (const int tiles : {4, 0}) {
    const Shape shape{.act = {400, 290}, .s1 = 2, .nq = 8, .dv = 64, .dr = 16, .tiles = tiles, .topk = 300};
    Case c(shape);
    const std::vector<bf16> wanted = run(c, 2);
    for (const std::int64_t block_size : {1, 16, 128})
      for (const std::uint64_t page_seed : {2, 3}) {
        Shape other = shape;
        other.block_size = block_size, other.page_seed = page_seed, other.poison = page_seed == 3;
        Case moved(other);
        EXPECT_TRUE(same(run(moved), wanted)) << block_size << " " << page_seed;
      }
    std::vector<bf16> parts(wanted.size());
    for (std::int64_t q = 0; q < c.b; ++q) {  // one sequence at a time
      const std::int64_t rows = shape.s1 * shape.nq;
      SparseFlashAttentionQuantArgs a = c.args();
      a.b = 1;
      a.query_nope = tensor(c.query.data() + q * rows * shape.dv, {rows, shape.dv});
      a.query_rope = tensor(c.query_rope.data() + q * rows * shape.dr, {rows, shape.dr});
      a.topk_indices = tensor(c.lists.data() + q * shape.s1 * c.width, {shape.s1, c.width});
      a.block_table = tensor(c.table.data() + q * c.columns, {1, c.columns});
      a.kv_act_seqs = tensor(c.shape.act.data() + q, {1});
      Context context({.threads = 3, .isa = GetParam()->isa});
      sparse_flash_attention_quant(
          a, {.attention_out = tensor(parts.data() + q * rows * shape.dv, {1, shape.s1, shape.nq, shape.dv})}, context);
    }
    EXPECT_TRUE(same(parts, wanted));
  }
}

TEST_P(SparseFlashAttentionQuant, OneTokenIsItsLatent) {
  for (const int tiles : {4, 0})
    for (const bool same_products : {false, true}) {
      Case c({.act = {1, 5}, .s1 = 1, .nq = 5, .dv = 96, .tiles = tiles, .topk = 1, .data = Data::large});
      const std::vector<bf16> out = run(c, 1, same_products);
      for (std::int64_t t = 0; t < 2; ++t)
        for (std::int64_t h = 0; h < 5; ++h)
          for (int d = 0; d < 96; ++d) {
            const float latent = float(c.latent_at(c.row_of(t, c.lists[t * c.width]), d));
            ASSERT_EQ(to_float(out[(t * 5 + h) * 96 + d]), to_float(to_bf16(latent))) << t << " " << h << " " << d;
          }
    }
}

/// One head, one sequence, pages of 2 in order; scores come through a rope part of width 1.
struct Small {
  std::vector<float> latent = {};  // [n][dv]
  int dv = 2;
  std::int32_t act = 3;
  std::int64_t s1 = 1, topk = 2;
  std::vector<std::int32_t> lists;
  std::vector<float> scores = {};
  double scale = 1;

  template <class Run>
  std::vector<float> operator()(Run run) const {
    const std::int64_t n = std::int64_t(latent.size()) / dv, slots = (n + 1) / 2 * 2,
                       width = std::int64_t(lists.size()) / s1;
    std::vector<bf16> key(std::size_t(slots * dv)), rope(static_cast<std::size_t>(slots)), query(std::size_t(s1 * dv)),
        query_rope(std::size_t(s1), to_bf16(1)), out(std::size_t(s1 * dv));
    for (std::size_t i = 0; i < latent.size(); ++i) key[i] = to_bf16(latent[i]);
    for (std::size_t i = 0; i < scores.size(); ++i) rope[i] = to_bf16(scores[i]);
    std::vector<std::int32_t> table(std::size_t(slots / 2));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = std::int32_t(i);
    run(SparseFlashAttentionQuantArgs{.query_nope = tensor(query.data(), {s1, dv}),
                                      .query_rope = tensor(query_rope.data(), {s1, 1}),
                                      .key_nope_2d = tensor(key.data(), {slots, dv}),
                                      .key_rope_2d = tensor(rope.data(), {slots, 1}),
                                      .topk_indices = tensor(lists.data(), {s1, width}),
                                      .block_table = tensor(table.data(), {1, slots / 2}),
                                      .kv_act_seqs = tensor(&act, {1}),
                                      .b = 1, .s1 = s1, .nq = 1, .softmax_scale = scale, .topk = topk, .block_size = 2},
        SparseFlashAttentionQuantOuts{.attention_out = tensor(out.data(), {1, s1, 1, dv})});
    std::vector<float> values;
    for (bf16 x : out) values.push_back(to_float(x));
    return values;
  }
};

using Values = std::vector<float>;

/// The worked examples hold for the fast path and for the reference.
TEST_P(SparseFlashAttentionQuant, WorkedExamples) {
  Context context({.threads = 2, .isa = GetParam()->isa});
  const auto fast = [&](const auto& a, const auto& o) { sparse_flash_attention_quant(a, o, context); };
  const auto slow = [](const auto& a, const auto& o) { reference::sparse_flash_attention_quant(a, o); };
  const auto both = [&](const Small& s) {
    const Values values = s(fast);
    EXPECT_EQ(values, s(slow));
    return values;
  };
  const Values v{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(both({.latent = v, .lists = {2, 0}}), (Values{3, 4}));                                     // flat
  EXPECT_EQ(both({.latent = v, .topk = 3, .lists = {0, 0, 1}}), (Values{1.6640625f, 2.671875f}));       // counted twice
  const Small twice{.latent = v, .lists = {2, 0}, .scores = {0, 0, 1}, .scale = std::log(2.0)};         // weights 2 : 1
  EXPECT_EQ(both(twice), (Values{3.671875f, 4.65625f}));
  // The documented forms round the weights: normalised [0.66796875, 0.33398438]; unnormalised [1, 0.5].
  const auto rounded = [](ProbabilityRounding how) {
    return [how](const auto& a, const auto& o) { reference::sparse_flash_attention_quant(a, o, how); };
  };
  EXPECT_EQ(twice(rounded(ProbabilityRounding::normalised)), (Values{3.671875f, 4.6875f}));
  for (const char* numerics : {"device", "golden"}) {  // the shipped kernel normalises too
    const auto with = [=](auto a) {
      a.numerics = numerics;
      return a;
    };
    EXPECT_EQ(twice([&](const auto& a, const auto& o) { fast(with(a), o); }), (Values{3.671875f, 4.6875f}));
    EXPECT_EQ(twice([&](const auto& a, const auto& o) { slow(with(a), o); }), (Values{3.671875f, 4.6875f}));
  }
  EXPECT_EQ(twice(rounded(ProbabilityRounding::unnormalised_tile2048)), (Values{3.671875f, 4.65625f}));
  EXPECT_EQ(both({.latent = v, .topk = 0, .lists = {}}), (Values{0, 0}));
  // How many entries count, seen through powers of two: act 5, s1 3, topk 4 gives 3, 4, 4; act 1 gives 0, 0, 1.
  const Values powers{1, 2, 4, 8, 16};
  EXPECT_EQ(
      both({.latent = powers, .dv = 1, .act = 5, .s1 = 3, .topk = 4, .lists = {0, 1, 2, -1, 0, 1, 2, 3, 0, 1, 2, 3}}),
      (Values{2.328125f, 3.75f, 3.75f}));
  EXPECT_EQ(
      both({.latent = powers, .dv = 1, .act = 1, .s1 = 3, .topk = 4, .lists = {9, 9, 9, 9, -1, 0, 0, 0, 0, 7, 7, 7}}),
      (Values{0, 0, 1}));
  // Scores far apart, far up, far down.
  EXPECT_EQ(both({.latent = v, .lists = {0, 1}, .scores = {1e4f, -1e4f}}), (Values{1, 2}));
  EXPECT_EQ(both({.latent = v, .lists = {0, 1}, .scores = {-1e4f, -1e4f}}), (Values{2, 3}));
  EXPECT_EQ(both({.latent = v, .lists = {1, 0}, .scores = {1e4f, 1e4f}}), (Values{2, 3}));
  EXPECT_EQ(both({.latent = v, .lists = {0, 1}, .scores = {30, 0}}), (Values{1, 2}));
  EXPECT_EQ(both({.latent = v, .lists = {0, 1}, .scores = {0, 100}}), (Values{3, 4}));
}

/// One token stands out among 600: in the first, a middle or the last chunk, everything else far below it.
TEST_P(SparseFlashAttentionQuant, ThePeakMayBeInAnyChunk) {
  Context context({.threads = 3, .isa = GetParam()->isa});
  for (const std::size_t peak : {0u, 255u, 256u, 511u, 512u, 599u})
    for (const float height : {30.0f, 100.0f, 1e4f}) {
      Small s{.act = 600, .topk = 600, .lists = {}, .scores = Values(600, -height)};
      for (int i = 0; i < 600; ++i) s.latent.insert(s.latent.end(), {float(i % 200 + 1), -1}), s.lists.push_back(i);
      s.scores[peak] = height;
      EXPECT_EQ(s([&](const auto& a, const auto& o) { sparse_flash_attention_quant(a, o, context); }),
                (Values{float(peak % 200 + 1), -1}));
    }
}

TEST_P(SparseFlashAttentionQuant, DequantisesByTile) {
  // G = 2: codes [10,-3 | 127,0] with scales [0.5, 0.01].
  std::vector<std::int8_t> codes{10, -3, 127, 0};
  std::vector<float> scales{0.5f, 0.01f};
  std::vector<bf16> query(4), rope(1), out(4);
  std::int32_t zero = 0, one = 1;
  const SparseFlashAttentionQuantArgs args{.query_nope = tensor(query.data(), {1, 4}),
                                           .query_rope = tensor(query.data(), {1, 0}),
                                           .key_nope_2d = tensor(codes.data(), {1, 4}),
                                           .key_rope_2d = tensor(rope.data(), {1, 0}),
                                           .k_nope_scales = tensor(scales.data(), {1, 2}),
                                           .topk_indices = tensor(&zero, {1, 1}),
                                           .block_table = tensor(&zero, {1, 1}),
                                           .kv_act_seqs = tensor(&one, {1}),
                                           .b = 1, .s1 = 1, .nq = 1, .softmax_scale = 1, .topk = 1, .block_size = 1};
  Context context({.isa = GetParam()->isa});
  sparse_flash_attention_quant(args, {.attention_out = tensor(out.data(), {1, 1, 1, 4})}, context);
  EXPECT_EQ((Values{to_float(out[0]), to_float(out[1]), to_float(out[2]), to_float(out[3])}),
            (Values{5, -1.5f, 1.2734375f, 0}));
}

/// Pages whose offsets exceed 2^31 (latents) elements, in memory that exists only where it is written.
TEST_P(SparseFlashAttentionQuant, CachesBeyondTwoToThe31Elements) {
  for (const int tiles : {4, 0}) {
    Case c({.act = {300}, .nq = 4, .dv = 512, .dr = 64, .tiles = tiles, .topk = 280, .poison = false});
    const std::vector<bf16> wanted = run(c);
    const std::int64_t far = 300000, block = 16, slots = (far + c.pages) * block;
    SparseFlashAttentionQuantArgs a = c.args();
    const auto spread = [&](Tensor& t) {
      const std::size_t row = std::size_t(t.shape[1]) * std::size_t(size_of(t.dtype)), bytes = std::size_t(slots) * row;
      void* big = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      ASSERT_NE(big, MAP_FAILED);
      std::memcpy(static_cast<char*>(big) + std::size_t(far * block) * row, t.data, std::size_t(t.shape[0]) * row);
      t.data = big, t.shape[0] = slots;
    };
    spread(a.key_nope_2d), spread(a.key_rope_2d);
    if (tiles) spread(a.k_nope_scales);
    ASSERT_GT(a.key_nope_2d.elements(), std::int64_t{1} << 31);
    for (auto& entry : c.table)
      if (entry >= 0) entry += std::int32_t(far);
    Context context({.threads = 2, .isa = GetParam()->isa});
    sparse_flash_attention_quant(a, c.outs(), context);
    EXPECT_TRUE(same(c.out, wanted));
    for (Tensor* t : {&a.key_nope_2d, &a.key_rope_2d, tiles ? &a.k_nope_scales : nullptr})
      if (t) munmap(t->data, std::size_t(t->elements()) * std::size_t(size_of(t->dtype)));
  }
}

/// Folded, unfolded and strided shapes of the same numbers.
TEST_P(SparseFlashAttentionQuant, ShapesFitTogether) {
  const std::int64_t dv = 32, dr = 8, nq = 3, tokens = 4, bs = 16;
  Case c({.act = {60, 40}, .s1 = 2, .nq = nq, .dv = int(dv), .dr = int(dr), .tiles = 4, .topk = 20});
  const std::vector<bf16> wanted = run(c);
  SparseFlashAttentionQuantArgs a = c.args();
  a.query_nope = tensor(c.query.data(), {tokens, nq, dv});
  a.query_rope = tensor(c.query_rope.data(), {2, 2, nq, dr});
  a.topk_indices = tensor(c.lists.data(), {tokens, 1, c.width});
  a.key_rope_2d = tensor(c.key_rope.data(), {c.pages, bs, dr});
  a.k_nope_scales = tensor(c.scales.data(), {c.pages, bs, 1, 4});
  // Pages apart from each other, rows apart from each other.
  const std::int64_t row = dv + 3, page = bs * row + 11;
  std::vector<std::int8_t> cache(std::size_t(c.pages * page), 99);
  for (std::int64_t p = 0; p < c.pages; ++p)
    for (std::int64_t s = 0; s < bs; ++s)
      std::copy_n(c.codes.data() + (p * bs + s) * dv, dv, cache.data() + p * page + s * row);
  a.key_nope_2d = tensor(cache.data(), {c.pages, bs, 1, dv});
  a.key_nope_2d.stride = {page, row, row, 1};
  std::vector<std::int32_t> spaced{60, -5, 40, -5};
  a.kv_act_seqs = tensor(spaced.data(), {2, 1});
  a.kv_act_seqs.stride = {2, 1};
  Context context({.isa = GetParam()->isa});
  sparse_flash_attention_quant(a, {.attention_out = tensor(c.out.data(), {tokens * nq, dv})}, context);
  EXPECT_TRUE(same(c.out, wanted));
}

TEST_P(SparseFlashAttentionQuant, WorkspaceIsBounded) {
  Case c({.act = {6000}, .nq = 128, .dv = 512, .dr = 64, .topk = 6000, .block_size = 128, .poison = false});
  for (const int threads : {2, 1000}) {
    Context context({.threads = threads, .isa = GetParam()->isa});
    context.set_interrupt([](void*) { return true; }, nullptr);
    try {
      sparse_flash_attention_quant(c.args(), c.outs(), context);
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::interrupted);
    }
    EXPECT_LE(context.workspace_bytes(), std::size_t{64} << 20);
  }
}

TEST(SparseFlashAttentionQuantReference, RoundsTheFormulaOnce) {
  for (auto& [c, wanted, plain] : judged()) {
    if (c.shape.dv > 200) continue;
    reference::sparse_flash_attention_quant(c.args(), c.outs());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double slack = wanted[i] == 0 ? 0 : 1e-12;
      ASSERT_GE(to_float(c.out[i]), to_float(to_bf16_once(wanted[i] - slack))) << i;
      ASSERT_LE(to_float(c.out[i]), to_float(to_bf16_once(wanted[i] + slack))) << i;
    }
  }
}

TEST(SparseFlashAttentionQuantReference, MergesTilesOf2048) {
  Case c({.act = {2600}, .nq = 2, .dv = 64, .dr = 8, .topk = 2500, .data = Data::peaked});
  const std::vector<double> wanted = exact(c);
  std::vector<bf16> plain(c.out.size());
  reference::sparse_flash_attention_quant(c.args(), c.outs(plain), ProbabilityRounding::normalised);
  reference::sparse_flash_attention_quant(c.args(), c.outs(), ProbabilityRounding::unnormalised_tile2048);
  expect_accurate(c.out, wanted, plain);
}

// ---- refusals ---------------------------------------------------------------------------------------------------

using Args = SparseFlashAttentionQuantArgs;
using enum Status;

struct Refusal {
  const char* what;
  std::function<void(Case&, Args&)> change;
  Status status;
  const char *parameter, *position;
};

Tensor with_dtype(Tensor t, DType d) { return t.dtype = d, t; }
Tensor with_shape(const Tensor& t, std::initializer_list<std::int64_t> shape) {
  Tensor x = shaped(t.dtype, shape);
  return x.data = t.data, x;
}

const Refusal kRefusals[] = {
    {"query missing", [](Case&, Args& a) { a.query_nope = {}; }, invalid_argument, "query_nope", ""},
    {"table missing", [](Case&, Args& a) { a.block_table = {}; }, invalid_argument, "block_table", ""},
    {"query rows", [](Case&, Args& a) { a.query_nope.shape[0]--; }, invalid_shape, "query_nope", ""},
    {"query_rope rows", [](Case&, Args& a) { a.query_rope.shape[0]--; }, invalid_shape, "query_rope", ""},
    {"rank 1", [](Case&, Args& a) { a.query_nope = with_shape(a.query_nope, {12 * 16}); }, invalid_shape, "query_nope",
     ""},
    {"negative dimension", [](Case&, Args& a) { a.key_nope_2d.shape[0] = -1; }, invalid_shape, "key_nope_2d", ""},
    {"overflow", [](Case&, Args& a) { a.key_nope_2d.shape[0] = INT64_MAX / 2; }, invalid_shape, "key_nope_2d", ""},
    {"latent width", [](Case&, Args& a) { a.key_nope_2d.shape[1] = 8; }, invalid_shape, "key_nope_2d", ""},
    {"rope width", [](Case&, Args& a) { a.key_rope_2d.shape[1] = 3; }, invalid_shape, "key_rope_2d", ""},
    {"cache rows", [](Case&, Args& a) { a.key_rope_2d.shape[0]--; }, invalid_shape, "key_rope_2d", ""},
    {"page axis",
     [](Case&, Args& a) {
       a.key_nope_2d = with_shape(a.key_nope_2d, {5, 8, 1, 16});
     },
     invalid_shape, "key_nope_2d", ""},
    {"block_size", [](Case&, Args& a) { a.block_size = 5; }, invalid_shape, "key_nope_2d", ""},
    {"block_size 0", [](Case&, Args& a) { a.block_size = 0; }, invalid_shape, "block_size", ""},
    {"n_kv", [](Case&, Args& a) { a.n_kv = 2; }, invalid_argument, "n_kv", ""},
    {"nq 0", [](Case&, Args& a) { a.nq = 0; }, invalid_argument, "nq", ""},
    {"b huge", [](Case&, Args& a) { a.b = INT64_MAX; }, invalid_argument, "b", ""},
    {"topk 0", [](Case&, Args& a) { a.topk = 0; }, invalid_argument, "topk", ""},
    {"topk above the list", [](Case&, Args& a) { a.topk = 6; }, invalid_argument, "topk", ""},
    {"table rows", [](Case&, Args& a) { a.block_table.shape[0] = 1; }, invalid_shape, "block_table", ""},
    {"lengths", [](Case&, Args& a) { a.kv_act_seqs.shape[0] = 1; }, invalid_shape, "kv_act_seqs", ""},
    {"scale NaN", [](Case&, Args& a) { a.softmax_scale = NAN; }, invalid_argument, "softmax_scale", ""},
    {"scale beyond fp32", [](Case&, Args& a) { a.softmax_scale = 1e300; }, invalid_argument, "softmax_scale", ""},
    {"length negative", [](Case& c, Args&) { c.shape.act[1] = -1; }, invalid_seqlen, "kv_act_seqs", "[1]"},
    {"length above the table", [](Case& c, Args&) { c.shape.act[0] = 17; }, invalid_seqlen, "kv_act_seqs", "[0]"},
    {"-1 in use", [](Case& c, Args&) { c.lists[1 * 5 + 1] = -1; }, invalid_index, "topk_indices", "[1][1]"},
    {"the length itself", [](Case& c, Args&) { c.lists[3 * 5] = 9; }, invalid_index, "topk_indices", "[3][0]"},
    {"far away", [](Case& c, Args&) { c.lists[2] = INT32_MAX; }, invalid_index, "topk_indices", "[0][2]"},
    {"the lowest position", [](Case& c, Args&) { c.lists[2] = -2, c.lists[16] = -2; }, invalid_index, "topk_indices",
     "[0][2]"},
    {"page -1", [](Case& c, Args&) { c.table[4 + 2] = -1; }, invalid_block, "block_table", "[1][2]"},
    {"page past the end", [](Case& c, Args&) { c.table[0] = 6; }, invalid_block, "block_table", "[0][0]"},
    {"query dtype", [](Case&, Args& a) { a.query_nope.dtype = DType::f16; }, invalid_dtype, "query_nope", ""},
    {"latent dtype", [](Case&, Args& a) { a.key_nope_2d.dtype = DType::u8; }, invalid_dtype, "key_nope_2d", ""},
    {"list dtype", [](Case&, Args& a) { a.topk_indices.dtype = DType::f32; }, invalid_dtype, "topk_indices", ""},
    {"table dtype", [](Case&, Args& a) { a.block_table = with_dtype(a.block_table, DType::u32); }, invalid_dtype,
     "block_table", ""},
    {"scales missing", [](Case&, Args& a) { a.k_nope_scales = {}; }, invalid_argument, "k_nope_scales", ""},
    {"scale columns", [](Case&, Args& a) { a.k_nope_scales.shape[1] = 3; }, invalid_shape, "k_nope_scales", ""},
    {"scales dtype", [](Case&, Args& a) { a.k_nope_scales.dtype = DType::i32; }, invalid_dtype, "k_nope_scales", ""},
    {"scales beside bf16",
     [](Case& c, Args& a) {
       c.latent.resize(24 * 16), a.key_nope_2d = tensor(c.latent.data(), {24, 16});
     },
     invalid_argument, "k_nope_scales", ""},
    {"null", [](Case&, Args& a) { a.query_nope.data = nullptr; }, invalid_argument, "query_nope", ""},
    {"innermost stride", [](Case&, Args& a) { a.topk_indices.stride[1] = 2; }, invalid_stride, "topk_indices", ""},
    {"negative stride", [](Case&, Args& a) { a.key_rope_2d.stride[0] = -4; }, invalid_stride, "key_rope_2d", ""},
    {"misaligned", [](Case&, Args& a) { a.query_rope.data = static_cast<char*>(a.query_rope.data) + 1; }, misaligned,
     "query_rope", ""},
    {"weight format", [](Case&, Args& a) { a.query_nope.format = Format::NZ; }, invalid_argument, "query_nope", ""},
    {"strict", [](Case&, Args& a) { a.level = Level::strict; }, unsupported, "query_nope", ""},
};

/// Sequences of 5 and 9 in pages of 4, all used.
Case small_case() {
  Case c({.act = {5, 9}, .s1 = 2, .nq = 3, .dv = 16, .dr = 4, .topk = 3, .block_size = 4, .poison = false});
  c.lists = {0, 1, 4, 7, -9, 4, 3, 0, 7, -9, 7, 0, 8, 7, -9, 8, 2, 5, 7, -9};
  for (bf16& x : c.key_rope) x = to_bf16(0.5f);
  for (float& x : c.scales) x = 0.01f;
  c.table.clear();
  for (const std::int32_t page : {0, 1, -1, -1, 4, 3, 2, -1}) c.table.push_back(page);
  return c;
}

TEST(SparseFlashAttentionQuantErrors, AreNamedAndWriteNothing) {
  for (const Refusal& r : kRefusals) {
    SCOPED_TRACE(r.what);
    Case c = small_case();
    Args a = c.args();
    r.change(c, a);
    a.block_table.data = a.block_table ? c.table.data() : nullptr;
    for (const bool fast : {true, false}) {
      try {
        if (fast) sparse_flash_attention_quant(a, c.outs());
        else reference::sparse_flash_attention_quant(a, c.outs());
        ADD_FAILURE() << "accepted";
      } catch (const Error& e) {
        EXPECT_EQ(e.status, r.status) << e.what();
        EXPECT_EQ(e.parameter, r.parameter) << e.what();
        EXPECT_EQ(e.position, r.position) << e.what();
        EXPECT_EQ(e.op, "sparse_flash_attention_quant");
      }
    }
    for (const bf16 x : c.out) ASSERT_EQ(x.bits, 0x1234);
  }
}

TEST(SparseFlashAttentionQuantErrors, Sentences) {
  const auto sentence = [](auto change) -> std::string {
    Case c = small_case();
    Args a = c.args();
    change(c, a);
    try {
      sparse_flash_attention_quant(a, c.outs());
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(sentence([](Case& c, Args&) { c.lists[16] = -1; }),
            "sparse_flash_attention_quant: topk_indices[3][1] is -1, wanted 0..8 (visible positions of sequence 1; the "
            "row uses its first 3 entries)");
  EXPECT_EQ(sentence([](Case& c, Args&) { c.table[6] = 6; }),
            "sparse_flash_attention_quant: block_table[1][2] is 6, wanted 0..5 (pages of key_nope_2d; sequence 1, "
            "positions 8..11)");
  EXPECT_EQ(sentence([](Case& c, Args&) { c.shape.act[0] = 17; }),
            "sparse_flash_attention_quant: kv_act_seqs[0] is 17, wanted at most 16 (block_table has 4 columns of 4)");
}

TEST(SparseFlashAttentionQuantErrors, TheOutput) {
  Case c = small_case();
  const auto status = [&](const Tensor& out) {
    try {
      sparse_flash_attention_quant(c.args(), {.attention_out = out});
    } catch (const Error& e) {
      EXPECT_EQ(e.parameter, "attention_out");
      return e.status;
    }
    return Status::ok;
  };
  const Tensor good = c.outs().attention_out;
  EXPECT_EQ(status(good), Status::ok);
  EXPECT_EQ(status({}), Status::invalid_argument);
  EXPECT_EQ(status(with_dtype(good, DType::f16)), Status::invalid_dtype);
  EXPECT_EQ(status(with_shape(good, {2, 2, 3, 15})), Status::invalid_shape);
  EXPECT_EQ(status(tensor(c.query.data(), {2, 2, 3, 16})), Status::aliased);
  Tensor shared = good;
  shared.stride[0] = 0;
  EXPECT_EQ(status(shared), Status::invalid_stride);
  shared = good;
  shared.read_only = true;
  EXPECT_EQ(status(shared), Status::invalid_device);
}

TEST(SparseFlashAttentionQuantErrors, InferAnswersWithoutData) {
  Case c = small_case();
  Args a = c.args();
  c.lists[0] = -5;  // not looked at
  SparseFlashAttentionQuantOuts o;
  infer(a, o);
  EXPECT_EQ(o.attention_out.dtype, DType::bf16);
  EXPECT_EQ(o.attention_out.rank, 4);
  EXPECT_EQ(std::vector<std::int64_t>(o.attention_out.shape.begin(), o.attention_out.shape.begin() + 4),
            (std::vector<std::int64_t>{2, 2, 3, 16}));
  a.topk = 9;
  EXPECT_THROW(infer(a, o), Error);
}

TEST(SparseFlashAttentionQuantErrors, ValuesWhenAsked) {
  Context strict({.check_values = true}), lax;
  const auto check = [&](auto change, const char* parameter) {
    Case c = small_case();
    change(c);
    sparse_flash_attention_quant(c.args(), c.outs(), lax);
    try {
      sparse_flash_attention_quant(c.args(), c.outs(), strict);
      EXPECT_STREQ(parameter, "");
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_value);
      EXPECT_EQ(e.parameter, parameter);
    }
  };
  const bf16 inf{0x7f80}, nan{0x7fc0};
  // Position 8 of sequence 1 is row 8 of page 2: attended. Position 5 of sequence 1 is row 13. Row 7 is nobody's.
  check([](Case&) {}, "");
  check([&](Case& c) { c.query[17] = nan; }, "query_nope");
  check([&](Case& c) { c.query_rope[3] = inf; }, "query_rope");
  check([&](Case& c) { c.key_rope[8 * 4 + 1] = nan; }, "key_rope_2d");
  check([&](Case& c) { c.key_rope[7 * 4 + 1] = nan; }, "");
  check([&](Case& c) { c.scales[13 * 4 + 3] = -1; }, "k_nope_scales");
  check([&](Case& c) { c.scales[13 * 4] = INFINITY; }, "k_nope_scales");
}

TEST(SparseFlashAttentionQuantErrors, NothingToDo) {
  Case c = small_case();
  Args a = c.args();
  a.b = 0;
  a.query_nope.shape[0] = a.query_rope.shape[0] = a.topk_indices.shape[0] = a.block_table.shape[0] =
      a.kv_act_seqs.shape[0] = 0;
  EXPECT_NO_THROW(sparse_flash_attention_quant(a, {.attention_out = tensor(c.out.data(), {0, 2, 3, 16})}));
  c.shape.act = {0, 0};
  sparse_flash_attention_quant(c.args(), c.outs());
  for (const bf16 x : c.out) ASSERT_EQ(x.bits, 0);
}

}  // namespace
}  // namespace dsakit
