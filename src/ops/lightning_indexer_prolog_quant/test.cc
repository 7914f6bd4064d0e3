// SPDX-License-Identifier: Apache-2.0
#include "dsakit/lightning_indexer_prolog_quant.hpp"

#include <algorithm>
#include <bit>

#include "ops/prolog/formula.hpp"
#include "ops/prolog/runs.hpp"

namespace dsakit {
namespace {

using namespace prolog;
using Args = LightningIndexerPrologQuantArgs;
using Outs = LightningIndexerPrologQuantOuts;

/// The operator with changed arguments, as the fast path and as the reference.
struct Changed {
  std::function<void(Args&, Outs&, Data&, Written&)> change = [](Args&, Outs&, Data&, Written&) {};

  void operator()(Data& d, Written& w, Context& c) const {
    Args a = d.indexer_args();
    Outs o = d.indexer_outs(w);
    change(a, o, d, w);
    lightning_indexer_prolog_quant(a, o, c);
  }
  Written reference(Data& d) const {
    Written w = d.initial;
    Args a = d.indexer_args();
    Outs o = d.indexer_outs(w);
    change(a, o, d, w);
    reference::lightning_indexer_prolog_quant(a, o);
    return w;
  }
};

TEST(LightningIndexerPrologQuant, EqualsTheReferenceWhereSumsAreExact) {
  const Case cases[] = {
      {},
      {.t = 0},
      {.t = 1},
      {.t = 9, .hidden = 37, .rank = 50, .rope = 6, .index_heads = 5, .index_dim = 30},
      {.t = 5, .hidden = 70, .rank = 7, .rope = 2, .index_heads = 1, .index_dim = 2, .block_size = 1},
      {.t = 6, .hidden = 1200, .rank = 33, .rope = 64, .index_heads = 17, .index_dim = 130},
      {.t = 270, .hidden = 16, .rank = 24, .rope = 4, .index_heads = 2, .index_dim = 16, .blocks = 20},
      {.t = 4, .blocks = 0},
  };
  for (Case c : cases)
    for (const char* layout : {"half", "interleaved", "interleaved_to_half"}) {
      SCOPED_TRACE(std::string(layout) + ", t " + std::to_string(c.t) + ", dim " + std::to_string(c.index_dim));
      c.exact = true, c.seed = 8;
      Data data(c);
      const Changed op{[=](Args& a, Outs&, Data&, Written&) { a.rope_layout = layout; }};
      expect_everywhere(op, data, op.reference(data));
    }
}

TEST(LightningIndexerPrologQuant, WithoutHadamardAndWithFp32Scales) {
  Data data({.t = 9, .exact = true, .seed = 3});
  const std::vector<float> gamma = {0.3f, 1.7f, -2.2f, 1e-3f};
  std::vector<float> wide;
  for (std::int64_t i = 0; i < data.c.index_dim; ++i) wide.push_back(gamma[std::size_t(i % 4)]);
  const Changed op{[&](Args& a, Outs& o, Data& d, Written& w) {
    a.hadamard_q = a.hadamard_k = {};
    a.ln_gamma_k = tensor(wide.data(), {d.c.index_dim});
    o.k_scale_cache = d.cache(w.ip_k_scale_f32, 1);
  }};
  expect_everywhere(op, data, op.reference(data));
}

TEST(LightningIndexerPrologQuant, RoundsAsTheReferenceButForTheOrderOfSums) {
  Data data(
      {.t = 40, .hidden = 520, .rank = 96, .rope = 32, .index_heads = 8, .index_dim = 128, .blocks = 9, .seed = 3});
  const Changed op;
  const Written wanted = op.reference(data);
  for (const Kernels* k : supported_kernels()) {
    SCOPED_TRACE(k->isa);
    expect_close(run(op, data, {.isa = k->isa}), wanted, 0.02);
  }
}

/// The matrix s * (-1)^popcount(i & j), which is not multiplied with; one where a single element is another, which is.
TEST(LightningIndexerPrologQuant, TakesSylvestersMatrixAndNoOther) {
  for (const std::int64_t n : {128, 256}) {
    const auto sylvester = [&](float scale) {
      std::vector<bf16> m;
      for (std::int64_t i = 0; i < n * n; ++i)
        m.push_back(to_bf16(std::popcount(std::uint64_t(i / n & i % n)) % 2 ? -scale : scale));
      return m;
    };
    Data data({.t = 20, .hidden = 50, .rank = 96, .rope = 32, .index_heads = 4, .index_dim = n, .blocks = 9, .seed = 5});
    const Changed op;
    for (const float scale : {0.08838835f, -1.0f}) {
      SCOPED_TRACE(std::to_string(n) + " times " + std::to_string(scale));
      data.hadamard_q = sylvester(scale), data.hadamard_k = sylvester(-scale);
      const Written wanted = op.reference(data), anywhere = run(op, data, {.isa = "generic"});
      for (const Kernels* k : supported_kernels()) {
        SCOPED_TRACE(k->isa);
        const Written got = run(op, data, {.isa = k->isa});
        expect_close(got, wanted, 0.02);
        EXPECT_EQ(got.q_int8, anywhere.q_int8);  // no step of the query's depends on the rung then
      }
    }
    for (const std::int64_t at : {std::int64_t{0}, n - 1, n * n - n, n * n - 1, 5 * n + 70}) {
      SCOPED_TRACE("another at " + std::to_string(at));
      data.hadamard_q = sylvester(0.08838835f);
      data.hadamard_q[std::size_t(at)] = to_bf16(0.5f);
      data.hadamard_k = data.hadamard_q;
      const Written wanted = op.reference(data);
      for (const Kernels* k : supported_kernels()) {
        SCOPED_TRACE(k->isa);
        expect_close(run(op, data, {.isa = k->isa}), wanted, 0.02);
      }
    }
    data.hadamard_q = sylvester(INFINITY), data.hadamard_k = sylvester(1);  // Sylvester's times no number
    const Written wanted = op.reference(data);
    for (const Kernels* k : supported_kernels()) expect_close(run(op, data, {.isa = k->isa}), wanted, 0.02);
  }
}

TEST(LightningIndexerPrologQuant, SameBitsForThreadsFormatsAndShapes) {
  const Case c{
      .t = 140, .hidden = 70, .rank = 52, .rope = 6, .index_heads = 5, .index_dim = 66, .blocks = 40, .seed = 11};
  Data d(c);
  const std::int64_t n = c.index_heads * c.index_dim;
  const auto qb = fractal_nz(d.w_qb, c.rank, n);
  const auto wk = fractal_nz(d.wk, c.hidden, c.index_dim), proj = fractal_nz(d.w_proj, c.hidden, c.index_heads);
  const Changed nz{[&](Args& a, Outs&, Data&, Written&) {
    a.w_qb = tensor(qb.data(), {(n + 31) / 32, (c.rank + 15) / 16, 16, 32});
    a.wk = as_nz(tensor(wk.data(), {c.hidden, c.index_dim}));
    a.w_proj = as_nz(tensor(proj.data(), {c.hidden, c.index_heads}));
  }};
  std::vector<PackedWeight> packs;
  const Changed packed{[&](Args& a, Outs&, Data&, Written&) {
    packs = {PackedWeight(a.w_qb), PackedWeight(a.wk), PackedWeight(a.w_proj)};
    a.w_qb = packs[0], a.wk = packs[1], a.w_proj = packs[2];
  }};
  const Changed folded{[&](Args& a, Outs& o, Data& data, Written& w) {
    a.x = tensor(data.x.data(), {2, c.t / 2, c.hidden}), a.q_norm_scale = tensor(data.q_norm_scale.data(), {c.t});
    a.w_qb_scale = tensor(data.w_qb_scale.data(), {1, n}), a.cos = tensor(data.cos.data(), {c.t, 1, c.rope});
    o.q_int8 = tensor(w.q_int8.data(), {2, c.t / 2, c.index_heads, c.index_dim});
    o.q_scale = tensor(w.q_scale.data(), {c.t, c.index_heads});
    o.k_scale_cache = tensor(w.ip_k_scale.data(), {c.blocks, c.block_size});
  }};
  for (const Kernels* k : supported_kernels()) {
    SCOPED_TRACE(k->isa);
    const Written wanted = run(Changed{}, d, {.threads = 1, .isa = k->isa});
    EXPECT_EQ(run(Changed{}, d, {.threads = 3, .isa = k->isa}).first_difference(wanted), "");
    EXPECT_EQ(run(nz, d, {.isa = k->isa}).first_difference(wanted), "");
    EXPECT_EQ(run(packed, d, {.isa = k->isa}).first_difference(wanted), "");
    EXPECT_EQ(run(folded, d, {.isa = k->isa}).first_difference(wanted), "");
  }
}

TEST(LightningIndexerPrologQuant, LayoutsOfRopeDiffer) {
  Data d({.t = 3, .seed = 5});
  const Changed other{[](Args& a, Outs&, Data&, Written&) { a.rope_layout = "interleaved"; }};
  EXPECT_EQ(run(Changed{}, d).first_difference(run(other, d)), "q_int8");
}

/// Block size 16, slots -1, 17, 17: block 1, slot 1 holds the last token; nothing else has changed.
TEST(LightningIndexerPrologQuant, CacheSlots) {
  Data d({.t = 3, .blocks = 2, .block_size = 16, .exact = true, .seed = 4});
  d.index = {-1, 17, 17};
  const Written got = run(Changed{}, d, {.threads = 3});
  d.index = {-1, -1, 17};
  EXPECT_EQ(got.first_difference(run(Changed{}, d)), "");
  for (std::int64_t slot = 0; slot < 32; ++slot)
    EXPECT_EQ(std::memcmp(&got.ip_k[std::size_t(slot * 32)], &d.initial.ip_k[std::size_t(slot * 32)], 32) == 0,
              slot != 17);
}

/// fp32(1 / (sqrt(Ni) sqrt(Di))), evaluated in double.
TEST(LightningIndexerPrologQuant, HeadScale) {
  for (const auto& [heads, wanted] : {std::pair<std::int64_t, float>(64, 0.011048543f), {32, 0.015625f}}) {
    Data d({.t = 1, .hidden = 1, .rank = 4, .rope = 2, .index_heads = heads, .index_dim = 128, .exact = true});
    d.x = {to_bf16(1)};
    std::fill(d.w_proj.begin(), d.w_proj.end(), to_bf16(3));
    EXPECT_EQ(run(Changed{}, d).weights[0].bits, to_f16(3 * wanted).bits);
  }
}

TEST(LightningIndexerPrologQuant, ZeroKeyRow) {
  Data d({.t = 1, .seed = 5});
  std::fill(d.x.begin(), d.x.end(), bf16{0}), std::fill(d.ln_beta.begin(), d.ln_beta.end(), bf16{0});
  const Written got = run(Changed{}, d);
  EXPECT_EQ(got.ip_k_scale[std::size_t(d.index[0])].bits, 0);
  for (std::int64_t i = 0; i < d.c.index_dim; ++i) EXPECT_EQ(got.ip_k[std::size_t(d.index[0] * d.c.index_dim + i)], 0);
}

TEST(LightningIndexerPrologQuant, ValueCheckingRefusesScalesOutOfHalfRange) {
  Context checking({.check_values = true});
  auto answer = [&](auto change) -> std::string {
    Data d({.t = 3, .blocks = 2, .block_size = 16, .seed = 4});
    d.index = {-1, 17, 30};
    for (float& scale : d.q_norm_scale) scale = 0.01f;
    change(d);
    Written w = d.initial;
    try {
      lightning_indexer_prolog_quant(d.indexer_args(), d.indexer_outs(w), checking);
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_value);
      EXPECT_EQ(w.first_difference(d.initial), "");
      return std::string(e.parameter) + e.position;
    }
    EXPECT_EQ(run(Changed{}, d).first_difference(w), "");
    return "";
  };
  EXPECT_EQ(answer([](Data&) {}), "");
  EXPECT_EQ(answer([](Data& d) { d.q_norm_scale[1] = 1e9f; }), "q_scale[1][0][0]");
  EXPECT_EQ(answer([](Data& d) { d.q_norm_scale[1] = 0; }), "");
  EXPECT_EQ(answer([](Data& d) { d.q_norm_scale[1] = 1e-9f; }), "q_scale[1][0][0]");
  auto key_scale = [](float beta) {
    return [=](Data& d) {
      std::fill(d.ln_gamma.begin(), d.ln_gamma.end(), bf16{0});
      std::fill(d.ln_beta.begin(), d.ln_beta.end(), to_bf16(beta));
    };
  };
  EXPECT_EQ(answer(key_scale(1)), "");
  EXPECT_EQ(answer(key_scale(1e20f)), "k_scale_cache[1][1][0][0]");
  EXPECT_EQ(answer(key_scale(1e-12f)), "k_scale_cache[1][1][0][0]");
}

TEST(LightningIndexerPrologQuant, Refusals) {
  Data d({.t = 6});
  auto refused = [&](auto change, Status status, const char* parameter, const char* position = "") {
    SCOPED_TRACE(parameter);
    expect_refused(Changed{[&](Args& a, Outs& o, Data&, Written&) { change(a, o); }}, d, status,
                   "lightning_indexer_prolog_quant", parameter, position);
  };
  refused([](Args& a, Outs&) { a.wk = {}; }, Status::invalid_argument, "wk");
  refused([](Args& a, Outs&) { a.hadamard_k = {}; }, Status::invalid_argument, "hadamard_k");
  refused([](Args& a, Outs&) { a.hadamard_q = {}; }, Status::invalid_argument, "hadamard_q");
  refused([](Args&, Outs& o) { o.weights = {}; }, Status::invalid_argument, "weights");
  refused([](Args& a, Outs&) { a.layout_query = "BSND"; }, Status::invalid_argument, "layout_query");
  refused([](Args& a, Outs&) { a.layout_key = "TND"; }, Status::invalid_argument, "layout_key");
  refused([](Args& a, Outs&) { a.rope_layout = "neox"; }, Status::invalid_argument, "rope_layout");
  refused([](Args& a, Outs&) { a.w_qb.shape[1]--; }, Status::invalid_shape, "w_qb");
  refused([](Args& a, Outs&) { a.w_proj.shape[1]--; }, Status::invalid_shape, "w_proj");
  refused([](Args& a, Outs&) { a.q_norm.shape[0]--; }, Status::invalid_shape, "q_norm");
  refused([](Args& a, Outs&) { a.hadamard_q.shape[0]--; }, Status::invalid_shape, "hadamard_q");
  refused([](Args&, Outs& o) { o.k_scale_cache.shape[1]--; }, Status::invalid_shape, "k_scale_cache");
  refused([](Args&, Outs& o) { o.q_scale.shape[1]--; }, Status::invalid_shape, "q_scale");
  refused([](Args& a, Outs&) { a.x.dtype = DType::f16; }, Status::invalid_dtype, "x");
  refused([](Args& a, Outs&) { a.k_cache_index.dtype = DType::i32; }, Status::invalid_dtype, "k_cache_index");
  refused([](Args&, Outs& o) { o.k_scale_cache.dtype = DType::bf16; }, Status::invalid_dtype, "k_scale_cache");
  refused([](Args& a, Outs&) { a.layernorm_epsilon_k = -1; }, Status::invalid_argument, "layernorm_epsilon_k");
  refused([](Args& a, Outs&) { a.layernorm_epsilon_k = 1e-60; }, Status::invalid_argument, "layernorm_epsilon_k");
  refused([](Args& a, Outs& o) { a.q_norm.data = o.k_cache.data; }, Status::aliased, "k_cache");
  refused([](Args&, Outs& o) { o.weights.data = o.q_scale.data; }, Status::aliased, "weights");
  refused([](Args& a, Outs&) { a.level = Level::strict; }, Status::unsupported, "ln_gamma_k");
  d.index[5] = d.c.blocks * d.c.block_size, d.index[2] = INT64_MAX;
  refused([](Args&, Outs&) {}, Status::invalid_slot, "k_cache_index", "[2]");
}

}  // namespace
}  // namespace dsakit
