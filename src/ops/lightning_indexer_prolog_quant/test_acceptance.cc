// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "dsakit/lightning_indexer_prolog_quant.hpp"
#include "dsakit/quant_lightning_indexer.hpp"
#include "ops/prolog/runs.hpp"

// The acceptance cases of the operator; their letters are those of its specification.
namespace dsakit {
namespace {

using namespace prolog;
using Args = LightningIndexerPrologQuantArgs;
using Outs = LightningIndexerPrologQuantOuts;

struct Model {
  const char* name;
  std::int64_t hidden, rank, heads;
  const char* layout;
};
constexpr Model kModels[] = {{"V3.2", 7168, 1536, 64, "half"}, {"GLM", 6144, 2048, 32, "interleaved"}};

Case sizes_of(const Model& m, std::int64_t t, bool exact) {
  return {.t = t,
          .hidden = m.hidden,
          .rank = m.rank,
          .heads = 1,
          .rope = 64,
          .latent = 16,
          .groups = 1,
          .index_heads = m.heads,
          .index_dim = 128,
          .blocks = 8,
          .block_size = 128,
          .exact = exact,
          .seed = 9};
}

Operator with_layout(const char* layout) {
  return [=](Data& d, Written& w, Context& c) {
    Args a = d.indexer_args();
    a.rope_layout = layout;
    lightning_indexer_prolog_quant(a, d.indexer_outs(w), c);
  };
}
Written reference_of(Data& d, const char* layout) {
  Written w = d.initial;
  Args a = d.indexer_args();
  a.rope_layout = layout;
  reference::lightning_indexer_prolog_quant(a, d.indexer_outs(w));
  return w;
}

/// Row t turns pair i by t * 10000^(-i / (Dr / 2)).
void true_rotations(Data& d) {
  const std::int64_t m = d.c.rope / 2;
  for (std::int64_t t = 0; t < d.c.t; ++t)
    for (std::int64_t i = 0; i < m; ++i) {
      const double angle = double(t) * std::pow(10000.0, -double(i) / double(m));
      for (std::int64_t at : {t * d.c.rope + i, t * d.c.rope + m + i})
        d.cos[std::size_t(at)] = to_bf16(float(std::cos(angle))),
        d.sin[std::size_t(at)] = to_bf16(float(std::sin(angle)));
    }
}

/// The Sylvester matrix over sqrt(Di).
void scaled_hadamard(Data& d) {
  const std::int64_t n = d.c.index_dim;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      d.hadamard_q[std::size_t(i * n + j)] =
          to_bf16(float((__builtin_popcountll(std::uint64_t(i & j)) % 2 ? -1 : 1) / std::sqrt(double(n))));
  d.hadamard_k = d.hadamard_q;
}

/// All sums exact: every bit is the reference's, on every rung.
TEST(LightningIndexerPrologAcceptance, A9_ModelSizesWithExactSums) {
  for (const Model& m : kModels)
    for (std::int64_t t : {8, 16}) {
      SCOPED_TRACE(m.name);
      Data d(sizes_of(m, t, true));
      const Written wanted = reference_of(d, m.layout);
      for (const Kernels* k : supported_kernels())
        EXPECT_EQ(run(with_layout(m.layout), d, {.threads = 2, .isa = k->isa}).first_difference(wanted), "") << k->isa;
    }
}

/// Uniform numbers, scales of either sign and a random "Hadamard" matrix; then true rotations and H/sqrt(128).
TEST(LightningIndexerPrologAcceptance, A9_ModelSizes) {
  for (const Model& m : kModels)
    for (bool as_in_models : {false, true}) {
      SCOPED_TRACE(std::string(m.name) + (as_in_models ? ", true rotations" : ", random"));
      Data d(sizes_of(m, 8, false));
      EXPECT_TRUE(as_in_models || std::ranges::any_of(d.q_norm_scale, [](float s) { return s < 0; }));
      if (as_in_models) true_rotations(d), scaled_hadamard(d);
      const Written wanted = reference_of(d, m.layout);
      for (const Kernels* k : supported_kernels())
        expect_close(run(with_layout(m.layout), d, {.threads = 2, .isa = k->isa}), wanted, 0.02);
    }
}

/// Many tokens, into caches of 64K rows.
TEST(LightningIndexerPrologAcceptance, A9_ManyTokens) {
  for (std::int64_t t : {512, 4096}) {
    Data d({.t = t,
            .hidden = 64,
            .rank = 48,
            .heads = 1,
            .latent = 16,
            .groups = 1,
            .index_heads = 4,
            .index_dim = 32,
            .blocks = 512,
            .block_size = 128,
            .exact = true,
            .seed = 9});
    const Written wanted = reference_of(d, "half");
    for (const Kernels* k : supported_kernels())
      for (int threads : {1, 2, 3, 8})
        EXPECT_EQ(run(with_layout("half"), d, {.threads = threads, .isa = k->isa}).first_difference(wanted), "")
            << k->isa << ", threads " << threads;
  }
}

/// The wrong rope layout leaves every norm plausible, and selects other keys.
TEST(LightningIndexerPrologAcceptance, A11_SwappedRopeLayoutSelectsOtherKeys) {
  const std::int64_t t = 512, count = 64;
  Data d({.t = t,
          .hidden = 96,
          .rank = 64,
          .heads = 1,
          .rope = 64,
          .latent = 16,
          .groups = 1,
          .index_heads = 4,
          .index_dim = 128,
          .blocks = 4,
          .block_size = 128,
          .seed = 11});
  true_rotations(d), scaled_hadamard(d);
  for (std::int64_t i = 0; i < t; ++i) d.index[std::size_t(i)] = i;
  for (float& scale : d.q_norm_scale) scale = 0.01f;
  auto selection = [&](const char* layout) {
    const Written w = run(with_layout(layout), d);
    std::vector<std::int32_t> length{std::int32_t(t)}, table{0, 1, 2, 3}, out(static_cast<std::size_t>(t * count));
    quant_lightning_indexer({.query = tensor(w.q_int8.data(), {t, 4, 128}),
                             .key = tensor(w.ip_k.data(), {4, 128, 1, 128}),
                             .weights = tensor(w.weights.data(), {t, 4}),
                             .query_dequant_scale = tensor(w.q_scale.data(), {t, 4, 1}),
                             .key_dequant_scale = tensor(w.ip_k_scale.data(), {4, 128, 1, 1}),
                             .actual_seq_lengths_query = tensor(length.data(), {1}),
                             .actual_seq_lengths_key = tensor(length.data(), {1}),
                             .block_table = tensor(table.data(), {1, 4}),
                             .layout_query = "TND",
                             .layout_key = "PA_BSND",
                             .sparse_count = count,
                             .sparse_mode = 0},
                            {.sparse_indices = tensor(out.data(), {t, 1, count})});
    return out;
  };
  const auto half = selection("half"), interleaved = selection("interleaved");
  EXPECT_EQ(half, selection("half"));
  std::int64_t common = 0;
  for (std::int64_t row = 0; row < t; ++row) {
    const std::set<std::int32_t> mine(&half[std::size_t(row * count)], &half[std::size_t(row * count)] + count);
    for (std::int64_t i = 0; i < count; ++i)
      common += std::int64_t(mine.count(interleaved[std::size_t(row * count + i)]));
  }
  EXPECT_LT(double(common), 2.0 / 3 * double(t * count));  // a third or more has changed
}

/// The refusals of the specification, on sizes that strict accepts too, in both levels.
TEST(LightningIndexerPrologAcceptance, NegativeCasesInBothLevels) {
  Data d(sizes_of(kModels[0], 4, true));
  const auto good = [&](Args& a, Outs&) {
    for (Tensor* weight : {&a.w_qb, &a.wk, &a.w_proj}) *weight = as_nz(*weight);
  };
  auto refused = [&](const char* name, Status status, const char* parameter, const char* position, auto change) {
    for (Level level : {Level::portable, Level::strict}) {
      SCOPED_TRACE(std::string(name) + (level == Level::strict ? ", strict" : ""));
      expect_refused(
          [&](Data& data, Written& w, Context& context) {
            Args a = data.indexer_args();
            Outs o = data.indexer_outs(w);
            good(a, o), change(a, o);
            a.level = level;
            lightning_indexer_prolog_quant(a, o, context);
          },
          d, status, "lightning_indexer_prolog_quant", parameter, position);
    }
  };
  Written w = d.initial;
  Args a = d.indexer_args();
  Outs o = d.indexer_outs(w);
  good(a, o);
  a.level = Level::strict;
  EXPECT_NO_THROW(infer(a, o));

  const std::vector<std::int64_t> past{0, 3, d.c.blocks * d.c.block_size, 5};
  refused("N13", Status::invalid_slot, "k_cache_index", "[2]",
          [&](Args& args, Outs&) { args.k_cache_index = tensor(past.data(), {4}); });
  refused("N14 q", Status::invalid_argument, "hadamard_q", "", [](Args& args, Outs&) { args.hadamard_q = {}; });
  refused("N14 k", Status::invalid_argument, "hadamard_k", "", [](Args& args, Outs&) { args.hadamard_k = {}; });
  for (double eps : {0.0, -1e-6, std::nan(""), HUGE_VAL})
    refused("N14 eps", Status::invalid_argument, "layernorm_epsilon_k", "",
            [=](Args& args, Outs&) { args.layernorm_epsilon_k = eps; });
  refused("1", Status::invalid_argument, "w_proj", "", [](Args& args, Outs&) { args.w_proj = {}; });
  refused("1 out", Status::invalid_argument, "q_scale", "", [](Args&, Outs& outs) { outs.q_scale = {}; });
  refused("2 query", Status::invalid_argument, "layout_query", "",
          [](Args& args, Outs&) { args.layout_query = "BSND"; });
  refused("2 key", Status::invalid_argument, "layout_key", "", [](Args& args, Outs&) { args.layout_key = "BSND"; });
  refused("3", Status::invalid_shape, "q_norm_scale", "", [](Args& args, Outs&) { --args.q_norm_scale.shape[0]; });
  refused("3 cache", Status::invalid_shape, "k_cache", "", [](Args&, Outs& outs) { --outs.k_cache.shape[3]; });
  refused("3 N2", Status::invalid_shape, "k_cache", "", [](Args&, Outs& outs) { outs.k_cache.shape[2] = 2; });
  refused("4", Status::invalid_dtype, "x", "", [](Args& args, Outs&) { args.x.dtype = DType::f16; });
  refused("4 index", Status::invalid_dtype, "k_cache_index", "",
          [](Args& args, Outs&) { args.k_cache_index.dtype = DType::i32; });
  refused("4 scale", Status::invalid_dtype, "k_scale_cache", "",
          [](Args&, Outs& outs) { outs.k_scale_cache.dtype = DType::bf16; });
  refused("16 stride", Status::invalid_stride, "x", "", [](Args& args, Outs&) { args.x.stride[1] = 2; });
  refused("16 overlap", Status::aliased, "k_cache", "",
          [](Args& args, Outs& outs) { args.q_norm.data = outs.k_cache.data; });
  refused("16 read-only", Status::invalid_device, "k_cache", "",
          [](Args&, Outs& outs) { outs.k_cache.read_only = true; });
  refused("18", Status::invalid_argument, "rope_layout", "", [](Args& args, Outs&) { args.rope_layout = "neox"; });
}

}  // namespace
}  // namespace dsakit
