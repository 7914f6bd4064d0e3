// SPDX-License-Identifier: Apache-2.0
#include "dsakit/mla_indexer_prolog_quant.hpp"

#include "ops/mla_indexer_prolog_quant/parts.hpp"
#include "ops/prolog/runs.hpp"

namespace dsakit {
namespace {

using namespace prolog;
using Args = MlaIndexerPrologQuantArgs;
using Outs = MlaIndexerPrologQuantOuts;

Args args_of(Data& d, Written& w) {
  return mla_indexer_prolog_quant_op::joined(d.mla_args(w), d.indexer_args());
}
Outs outs_of(Data& d, Written& w) {
  return mla_indexer_prolog_quant_op::joined(d.mla_args(w), d.mla_outs(w), d.indexer_outs(w));
}

const Operator kFused = [](Data& d, Written& w, Context& c) {
  mla_indexer_prolog_quant(args_of(d, w), outs_of(d, w), c);
};
const Operator kTwoCalls = [](Data& d, Written& w, Context& c) {
  const MlaPrologQuantOuts o = d.mla_outs(w);
  mla_prolog_quant(d.mla_args(w), o, c);
  LightningIndexerPrologQuantArgs a = d.indexer_args();
  a.q_norm = o.q_norm_out, a.q_norm_scale = o.q_norm_scale_out;
  lightning_indexer_prolog_quant(a, d.indexer_outs(w), c);
};

/// The fused call has no q_norm among its results.
Written without_q_norm(Written w, const Data& d) {
  w.q_norm_i8 = d.initial.q_norm_i8, w.q_norm_scale = d.initial.q_norm_scale;
  return w;
}

/// Small and odd shapes, and acceptance case A10 with the pages of a model.
TEST(MlaIndexerPrologQuant, A10_EqualsTheTwoCalls) {
  std::vector<Case> cases = {
      {},
      {.t = 0},
      {.t = 1, .hidden = 520},
      {.t = 9,
       .hidden = 37,
       .rank = 50,
       .heads = 3,
       .nope = 7,
       .rope = 6,
       .latent = 30,
       .groups = 3,
       .index_heads = 5,
       .index_dim = 30},
      {.t = 270,
       .hidden = 70,
       .rank = 24,
       .heads = 2,
       .nope = 8,
       .rope = 4,
       .latent = 16,
       .index_heads = 2,
       .index_dim = 16,
       .blocks = 20},
  };
  for (const std::int64_t t : {8, 32, 512})
    cases.push_back({.t = t,
                     .hidden = 256,
                     .rank = 128,
                     .heads = 4,
                     .nope = 32,
                     .rope = 64,
                     .latent = 128,
                     .index_heads = 8,
                     .index_dim = 128,
                     .blocks = 6,
                     .block_size = 128});
  for (Case& c : cases) {
    c.seed = 21;
    Data d(c);
    for (const Kernels* k : supported_kernels())
      for (bool same : {false, true})
        for (int threads : {1, 2, 3}) {
          const ContextOptions options{.threads = threads, .isa = k->isa, .same_products = same};
          EXPECT_EQ(run(kFused, d, options).first_difference(without_q_norm(run(kTwoCalls, d, options), d)), "")
              << k->isa << ", t " << c.t;
        }
  }
}

TEST(MlaIndexerPrologQuant, EqualsTheReferenceWhereSumsAreExact) {
  Data d({.t = 9, .exact = true, .seed = 2});
  Written wanted = d.initial;
  reference::mla_indexer_prolog_quant(args_of(d, wanted), outs_of(d, wanted));
  expect_everywhere(kFused, d, wanted);
}

TEST(MlaIndexerPrologQuant, CachesOfDifferentLength) {
  Data d({.t = 5, .blocks = 4, .seed = 3});
  Data more({.t = 5, .blocks = 6, .seed = 3});
  Written w = d.initial, w_more = more.initial;
  Outs o = outs_of(d, w);
  o.ip_k_cache = more.indexer_outs(w_more).k_cache, o.ip_k_scale_cache = more.indexer_outs(w_more).k_scale_cache;
  mla_indexer_prolog_quant(args_of(d, w), o);
  const Written same = run(kFused, d);
  for (std::int64_t slot : {d.index[3], d.index[4]})
    EXPECT_EQ(std::memcmp(&w_more.ip_k[std::size_t(slot * d.c.index_dim)],
                          &same.ip_k[std::size_t(slot * d.c.index_dim)], std::size_t(d.c.index_dim)),
              0);
  EXPECT_EQ(w.q_int8, same.q_int8);
}

TEST(MlaIndexerPrologQuant, ValueCheckingRefusesAKeyScaleOutOfHalfRange) {
  Data d({.t = 3, .blocks = 2, .block_size = 16, .seed = 4});
  d.index = {-1, 17, 30};
  Context checking({.check_values = true});
  Written w = d.initial, wanted = d.initial;
  kFused(d, w, checking);
  kTwoCalls(d, wanted, checking);
  EXPECT_EQ(std::memcmp(w.ip_k.data(), wanted.ip_k.data(), w.ip_k.size()), 0);
  std::fill(d.ln_beta.begin(), d.ln_beta.end(), to_bf16(1e20f));
  w = d.initial;
  try {
    kFused(d, w, checking);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Status::invalid_value);
    EXPECT_EQ(std::string(e.parameter) + e.position, "ip_k_scale_cache[1][1][0][0]");
  }
  EXPECT_EQ(w.first_difference(d.initial), "");
}

TEST(MlaIndexerPrologQuant, Refusals) {
  Data d({.t = 6});
  auto refused = [&](auto change, Status status, const char* parameter, const char* position = "") {
    SCOPED_TRACE(parameter);
    expect_refused(
        [&](Data& data, Written& w, Context& context) {
          Args a = args_of(data, w);
          Outs o = outs_of(data, w);
          change(a, o);
          mla_indexer_prolog_quant(a, o, context);
        },
        d, status, "mla_indexer_prolog_quant", parameter, position);
  };
  refused([](Args& a, Outs&) { a.dequant_scale = {}; }, Status::invalid_argument, "dequant_scale");
  refused([](Args& a, Outs&) { a.dequant_scale.shape[0] = 0; }, Status::invalid_argument, "dequant_scale");
  refused([](Args& a, Outs&) { a.hadamard_q = {}; }, Status::invalid_argument, "hadamard_q");
  refused([](Args&, Outs& o) { o.query_nope = {}; }, Status::invalid_argument, "query_nope");
  refused([](Args&, Outs& o) { o.ip_k_cache = {}; }, Status::invalid_argument, "ip_k_cache");
  refused([](Args& a, Outs&) { a.cache_mode = "PA_NZ"; }, Status::unsupported, "cache_mode");
  refused([](Args& a, Outs&) { a.rope_layout_indexer = "other"; }, Status::invalid_argument, "rope_layout_indexer");
  refused([](Args&, Outs& o) { o.ip_k_cache.shape[1]--, o.ip_k_scale_cache.shape[1]--; }, Status::invalid_shape,
          "ip_k_cache");  // N15
  refused([](Args&, Outs& o) { o.ip_k_scale_cache.shape[3] = 2; }, Status::invalid_shape, "ip_k_scale_cache");
  refused([](Args& a, Outs&) { a.w_qb.shape[0]--; }, Status::invalid_shape, "w_qb");
  refused([](Args&, Outs& o) { o.kv_cache.dtype = DType::bf16; }, Status::invalid_dtype, "kv_cache");
  refused([](Args&, Outs& o) { o.ip_k_cache.data = o.kv_cache.data; }, Status::aliased, "ip_k_cache");
  d.index[3] = d.c.block_size * 3;  // past the end of the index caches only
  refused([](Args&, Outs& o) { o.ip_k_cache.shape[0] = o.ip_k_scale_cache.shape[0] = 3; }, Status::invalid_slot,
          "cache_index", "[3]");
}

}  // namespace
}  // namespace dsakit
