// SPDX-License-Identifier: Apache-2.0
#include "demo_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

#include "commands.hpp"
#include "core/random.hpp"
#include "dsakit/dsakit.hpp"
#include "layer/layer.hpp"

namespace dsakit::tools {
namespace {

io::ModelConfig deepseek_v32() {
  io::ModelConfig c;
  c.model_type = "deepseek_v32";
  c.vocab_size = 129280, c.hidden_size = 7168, c.intermediate_size = 18432, c.num_hidden_layers = 1;
  c.num_attention_heads = 128, c.q_lora_rank = 1536, c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 128, c.qk_rope_head_dim = 64, c.v_head_dim = 128, c.max_position_embeddings = 163840;
  c.index_n_heads = 64, c.index_head_dim = 128, c.index_topk = 2048;
  c.rms_norm_eps = 1e-6;
  c.rope = {.theta = 10000, .yarn = true, .factor = 40, .mscale_all_dim = 1, .original_max_position_embeddings = 4096};
  c.rope_interleave = true, c.indexer_rope_interleave = false;
  c.full_indexer = {true}, c.dense_mlp = {true};
  return c;
}

/// Uniform weights of variance 1/in, so that every product has the scale of its input; norms do nothing.
class SyntheticWeights : public WeightSource {
 public:
  bool has(const std::string&) const override { return true; }
  io::AlignedArray<bf16> matrix(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    io::AlignedArray<bf16> w(std::size_t(rows * columns));
    Random random(std::hash<std::string>()(name));
    const float scale = std::sqrt(3.f / float(columns)) / 32768;
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < w.size(); ++i, bits >>= 16) {
      if (i % 4 == 0) bits = random.next();
      w[i] = to_bf16(float(std::int16_t(bits)) * scale);
    }
    return w;
  }
  io::AlignedArray<bf16> vector_bf16(const std::string&, std::int64_t size) const override {
    io::AlignedArray<bf16> v{std::size_t(size)};
    std::fill(v.begin(), v.end(), to_bf16(1));
    return v;
  }
  io::AlignedArray<float> vector_f32(const std::string& name, std::int64_t size) const override {
    io::AlignedArray<float> v{std::size_t(size)};
    std::fill(v.begin(), v.end(), name.ends_with("bias") ? 0.f : 1.f);
    return v;
  }
};

template <class T, class F>
void fill(CachePool& pool, F f) {
  T* values = reinterpret_cast<T*>(pool.memory.data());
  for (std::size_t i = 0; i < pool.memory.size() / sizeof(T); ++i) values[i] = f();
}

/// What the prologs make of one token: the int8 index query above all.
struct Prolog {
  std::vector<bf16> query_nope, query_rope;
  std::vector<std::int8_t> q_int8;
  std::vector<f16> q_scale, weights;
};

Prolog prolog(const AttentionLayer::State& layer, const Tensor& hidden, std::int64_t position, bool reference) {
  const io::ModelConfig& c = layer.config;
  const LayerWeights& w = layer.weights;
  const std::int64_t N = c.num_attention_heads, Hckv = c.kv_lora_rank, Dr = c.qk_rope_head_dim, G = Hckv / 128;
  const std::int64_t Ni = c.index_n_heads, Di = c.index_head_dim;
  std::vector<bf16> cos(static_cast<std::size_t>(Dr)), sin(cos), rope_cache(cos);
  layer.rope->copy(position, 1, cos.data(), sin.data());
  std::vector<std::int8_t> kv_cache(static_cast<std::size_t>(Hckv)), k_cache(static_cast<std::size_t>(Di));
  std::vector<float> k_scale(static_cast<std::size_t>(G));
  f16 ip_scale{};
  const std::int64_t slot = 0;
  Prolog p{std::vector<bf16>(std::size_t(N * Hckv)), std::vector<bf16>(std::size_t(N * Dr)),
           std::vector<std::int8_t>(std::size_t(Ni * Di)), std::vector<f16>(std::size_t(Ni)), std::vector<f16>(std::size_t(Ni))};
  const MlaIndexerPrologQuantArgs args{
      .token_x = hidden,
      .w_dq = w.w_dq,
      .w_uq_qr = w.w_uq_qr_i8.codes,
      .dequant_scale = tensor(w.w_uq_qr_i8.scale.data(), {N * (c.qk_nope_head_dim + Dr), 1}),
      .w_uk = w.w_uk,
      .w_dkv_kr = w.w_dkv_kr,
      .gamma_cq = tensor(w.gamma_cq.data(), {c.q_lora_rank}),
      .gamma_ckv = tensor(w.gamma_ckv.data(), {Hckv}),
      .cos = tensor(cos.data(), {1, Dr}),
      .sin = tensor(sin.data(), {1, Dr}),
      .cache_index = tensor(&slot, {1}),
      .w_qb = w.w_qb_i8.codes,
      .w_qb_scale = tensor(w.w_qb_i8.scale.data(), {Ni * Di, 1}),
      .wk = w.wk,
      .w_proj = w.w_proj,
      .ln_gamma_k = tensor(w.ln_gamma_k.data(), {Di}),
      .ln_beta_k = tensor(w.ln_beta_k.data(), {Di}),
      .hadamard_q = tensor(w.hadamard.data(), {Di, Di}),
      .hadamard_k = tensor(w.hadamard.data(), {Di, Di}),
      .epsilon_cq = c.rms_norm_eps,
      .epsilon_ckv = c.rms_norm_eps,
  };
  const MlaIndexerPrologQuantOuts outs{
      .query_nope = tensor(p.query_nope.data(), {1, N, Hckv}),
      .query_rope = tensor(p.query_rope.data(), {1, N, Dr}),
      .kv_cache = tensor(kv_cache.data(), {1, 1, 1, Hckv}),
      .kr_cache = tensor(rope_cache.data(), {1, 1, 1, Dr}),
      .k_scale_cache = tensor(k_scale.data(), {1, 1, 1, G}),
      .q_int8 = tensor(p.q_int8.data(), {1, Ni, Di}),
      .q_scale = tensor(p.q_scale.data(), {1, Ni, 1}),
      .ip_k_cache = tensor(k_cache.data(), {1, 1, 1, Di}),
      .ip_k_scale_cache = tensor(&ip_scale, {1, 1, 1, 1}),
      .weights = tensor(p.weights.data(), {1, Ni}),
  };
  if (reference) reference::mla_indexer_prolog_quant(args, outs);
  else mla_indexer_prolog_quant(args, outs);
  return p;
}

/// Makes these positions what the token looks for: their index key points where the positively weighted heads point.
void plant_needles(const io::ModelConfig& c, const Prolog& p, const std::vector<std::int32_t>& positions, LayerCache::State& cache) {
  std::vector<float> direction(std::size_t(c.index_head_dim));
  for (std::int64_t h = 0; h < c.index_n_heads; ++h)
    for (std::int64_t d = 0; d < c.index_head_dim; ++d)
      direction[std::size_t(d)] += std::max(to_float(p.weights[std::size_t(h)]), 0.f) * to_float(p.q_scale[std::size_t(h)]) *
                                   float(p.q_int8[std::size_t(h * c.index_head_dim + d)]);
  float largest = 0;
  for (float x : direction) largest = std::max(largest, std::fabs(x));
  auto* keys = reinterpret_cast<std::int8_t*>(cache.index_key.memory.data());
  for (std::int32_t position : positions)
    for (std::int64_t d = 0; d < c.index_head_dim; ++d)
      keys[cache.slot(position) * c.index_head_dim + d] = std::int8_t(std::rint(direction[std::size_t(d)] * 127 / largest));
}

double relative_rms(const std::vector<bf16>& got, const std::vector<bf16>& wanted) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = to_float(wanted[i]), e = to_float(got[i]) - w;
    error += e * e, size += w * w;
  }
  return std::sqrt(error / size);
}

double median_ms(const std::function<void()>& f) {
  std::vector<double> ms;
  f();
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(ms, ms.begin() + 3);
  return ms[3];
}

/// A cache full of numbers of plausible sizes.
void fill_cache(LayerCache::State& pages, Random& random) {
  fill<std::int8_t>(pages.latent, [&] { return std::int8_t(random.below(255) - 127); });
  fill<float>(pages.latent_scale, [&] { return random.uniform(0.01f, 0.03f); });
  fill<bf16>(pages.rope, [&] { return to_bf16(random.uniform(-1.7f, 1.7f)); });
  fill<std::int8_t>(pages.index_key, [&] { return std::int8_t(random.below(255) - 127); });
  fill<f16>(pages.index_scale, [&] { return to_f16(random.uniform(0.01f, 0.02f)); });
}

/// Of the token after `context` cached positions.
std::vector<std::int32_t> reference_selection(const io::ModelConfig& c, const Prolog& p, LayerCache::State& pages,
                                              std::int64_t context) {
  const std::int64_t Ni = c.index_n_heads, Di = c.index_head_dim, K = c.index_topk;
  const std::int32_t length = std::int32_t(context + 1), rows = 1;
  std::vector<std::int32_t> selection(static_cast<std::size_t>(K));
  reference::quant_lightning_indexer({.query = tensor(p.q_int8.data(), {1, Ni, Di}),
                                      .key = pages.pages_of(pages.index_key),
                                      .weights = tensor(p.weights.data(), {1, Ni}),
                                      .query_dequant_scale = tensor(p.q_scale.data(), {1, Ni}),
                                      .key_dequant_scale = pages.pages_of(pages.index_scale),
                                      .actual_seq_lengths_query = tensor(&rows, {1}),
                                      .actual_seq_lengths_key = tensor(&length, {1}),
                                      .block_table = pages.block_table(),
                                      .layout_query = "TND",
                                      .layout_key = "PA_BSND",
                                      .sparse_count = K},
                                     {.sparse_indices = tensor(selection.data(), {1, 1, K})});
  return selection;
}

/// What the attention over a selection owes to its reference.
double attention_error(const AttentionLayer::State& layer, const Prolog& p, LayerCache::State& pages,
                       const std::vector<std::int32_t>& selection, std::int64_t context) {
  const io::ModelConfig& c = layer.config;
  const std::int64_t N = c.num_attention_heads, K = c.index_topk;
  const std::int32_t length = std::int32_t(context + 1);
  std::vector<bf16> got(std::size_t(N * c.kv_lora_rank)), wanted(got);
  const SparseFlashAttentionQuantArgs args{.query_nope = tensor(p.query_nope.data(), {N, c.kv_lora_rank}),
                                           .query_rope = tensor(p.query_rope.data(), {N, c.qk_rope_head_dim}),
                                           .key_nope_2d = pages.rows_of(pages.latent),
                                           .key_rope_2d = pages.rows_of(pages.rope),
                                           .k_nope_scales = pages.rows_of(pages.latent_scale),
                                           .topk_indices = tensor(selection.data(), {1, K}),
                                           .block_table = pages.block_table(),
                                           .kv_act_seqs = tensor(&length, {1}),
                                           .b = 1,
                                           .s1 = 1,
                                           .nq = N,
                                           .softmax_scale = layer.scale,
                                           .topk = K,
                                           .block_size = pages.page_size};
  sparse_flash_attention_quant(args, {.attention_out = tensor(got.data(), {1, 1, N, c.kv_lora_rank})});
  reference::sparse_flash_attention_quant(args, {.attention_out = tensor(wanted.data(), {1, 1, N, c.kv_lora_rank})});
  return relative_rms(got, wanted);
}

}  // namespace

int full_size_step(std::int64_t context) {
  Progress progress("full-size layer");
  const io::ModelConfig c = deepseek_v32();
  const std::int64_t He = c.hidden_size, N = c.num_attention_heads, Ni = c.index_n_heads, K = c.index_topk;
  const AttentionLayer layer = make_layer(c, 0, std::make_unique<SyntheticWeights>());
  AttentionLayer::State& state = layer.state();
  state.weights.prepare(Mode::sparse_w8a8);
  progress.at(0.4);

  LayerCache cache = layer.make_cache("sparse_w8a8");
  LayerCache::State& pages = cache.state();
  pages.reserve(context + 1);
  Random random(2048);
  fill_cache(pages, random);
  std::vector<bf16> hidden = random_bf16(random, He, -1.7f, 1.7f);
  const Tensor x = tensor(hidden.data(), {1, He});
  progress.at(0.5);

  // Prologs, and what they owe to the reference.
  const Prolog fast = prolog(state, x, context, false), slow = prolog(state, x, context, true);
  std::int64_t equal_codes = 0;
  for (std::size_t i = 0; i < fast.q_int8.size(); ++i) equal_codes += fast.q_int8[i] == slow.q_int8[i];
  const double query_error = relative_rms(fast.query_nope, slow.query_nope);
  progress.at(0.7);

  std::vector<std::int32_t> needles;
  for (int i = 0; i < 8; ++i) needles.push_back(std::int32_t(context * (2 * i + 1) / 16 + random.below(context / 16)));
  plant_needles(c, fast, needles, pages);

  std::vector<std::int32_t> selection(static_cast<std::size_t>(K)), everything(std::size_t(context + 1));
  std::vector<float> out(static_cast<std::size_t>(He)), out_one(out);
  auto step = [&](Context& with, std::vector<float>& to, std::vector<std::int32_t>& list) {
    pages.length = context;
    layer.forward(x, tensor(to.data(), {1, He}), cache, tensor(list.data(), {1, std::int64_t(list.size())}), with);
  };
  Context& all = default_context();
  Context one({.threads = 1});
  const double sparse = median_ms([&] { step(all, out, selection); });
  const double sparse_one = median_ms([&] { step(one, out_one, selection); });
  const bool same_bits = std::memcmp(out.data(), out_one.data(), out.size() * sizeof(float)) == 0;
  progress.at(0.8);
  int found = 0;
  for (std::int32_t n : needles) found += std::find(selection.begin(), selection.begin() + 8, n) != selection.begin() + 8;

  // The selection and the attention over it, against the references, on the cache as the step left it.
  const bool same_selection = reference_selection(c, fast, pages, context) == selection;
  const double error = attention_error(state, fast, pages, selection, context);
  progress.at(0.9);

  // The same layer asked to attend to everything.
  state.config.index_topk = context + 1;
  const double dense = median_ms([&] { step(all, out_one, everything); });

  const bool good = found == int(needles.size()) && same_selection && same_bits && error < 4e-3 && query_error < 1e-2;
  progress.at(1);
  fmt::print("\nOne decode step of the attention of one layer at DeepSeek-V3.2's sizes ({} heads, {} index heads, synthetic weights) over\n"
             "{} cached positions, filled directly, with {} planted needles:\n\n", N, Ni, context, needles.size());
  fmt::print("  needles found         {} of {}, at the head of the {} selected\n", found, needles.size(), K);
  fmt::print("  against the reference selection {}; {:.2f} % of the index query's int8 codes equal; relative error of the\n"
             "                        absorbed query {:.1e}, of the attention {:.1e} (rms; bf16 rounds by 1.7e-3)\n",
             same_selection ? "equal, in order" : "DIFFERENT", 100.0 * double(equal_codes) / double(fast.q_int8.size()), query_error, error);
  fmt::print("  time                  sparse {:.2f} ms (one thread {:.2f} ms), dense {:.1f} ms: {:.1f} x\n", sparse, sparse_one, dense, dense / sparse);
  fmt::print("  threads               {} bits with 1 and {}\n", same_bits ? "same" : "DIFFERENT", all.threads());
  fmt::print("  memory                {:.2f} GB of weights, {:.1f} MB of cache\n", double(layer.weight_bytes()) / 1e9, double(cache.bytes()) / 1e6);
  return good ? 0 : 1;
}

}  // namespace dsakit::tools
