// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/work.hpp"

#include <algorithm>

#include "layer/exchange_sizes.hpp"

namespace dsakit {
namespace {

/// How the weight of a module is shared, by its name.
SharedWeight shared(const io::ModelConfig& c, const ModelTensor& t) {
  auto is = [&](std::string_view module) { return t.name.ends_with(std::string(module) + ".weight"); };
  if (t.shape.size() < 2 || t.part == Part::router) return {.sharing = Sharing::everyone};
  if (is("q_b_proj") || is("kv_b_proj")) return {.sharing = Sharing::heads, .units = c.num_attention_heads};
  if (is("wq_b")) return {.sharing = Sharing::heads, .units = c.index_n_heads, .prolog = true};
  return {.sharing = Sharing::columns, .units = t.shape[0],
          .prolog = is("q_a_proj") || is("kv_a_proj_with_mqa") || is("wk") || is("weights_proj")};
}

/// Hidden columns of the MLPs that a row of a layer goes through.
std::vector<std::int64_t> mlp_widths(const io::ModelConfig& c, std::size_t layer) {
  if (c.dense_mlp[layer]) return {c.intermediate_size};
  std::vector<std::int64_t> widths(std::size_t(c.moe.num_experts_per_tok), c.moe.moe_intermediate_size);
  if (c.moe.shared_size() > 0) widths.push_back(c.moe.shared_size());
  return widths;
}

/// Experts of a layer are alike: the same matrix of all of them is one weight.
void add(std::vector<SharedWeight>& weights, const SharedWeight& weight) {
  for (SharedWeight& w : weights) {
    if (!weight.routed || !w.routed || w.units != weight.units || w.i8 != weight.i8) continue;
    w.bytes += weight.bytes;
    w.products += weight.products;
    return;
  }
  weights.push_back(weight);
}

}  // namespace

ModelWork empty_work(const io::ModelConfig& config, Mode mode) {
  ModelWork work{.mode = name_of(mode), .sizes = exchange_sizes(config, mode), .i8_scores = is_quantised(mode)};
  work.experts = config.moe.n_routed_experts * std::count(config.dense_mlp.begin(), config.dense_mlp.end(), false);
  work.experts_of_row = config.moe.num_experts_per_tok;
  for (std::size_t i = 0; i < config.full_indexer.size(); ++i)
    work.layers.push_back({.indexer = is_sparse(mode) && config.full_indexer[i], .mlp_widths = mlp_widths(config, i)});
  return work;
}

void add_weight(ModelWork& work, const io::ModelConfig& config, const ModelTensor& t, const WeightForm& form) {
  const bool head = t.part == Part::head || (t.part == Part::embedding && config.tie_word_embeddings);
  if (t.part == Part::mtp || (t.part == Part::embedding && !head)) return;
  if (t.part == Part::indexer && work.sizes.topk == 0) return;
  SharedWeight weight = shared(config, t);
  weight.products = double(t.parameters());
  weight.bytes = form.bytes * weight.products;
  weight.i8 = form.i8;
  weight.routed = t.part == Part::routed_experts;
  if (weight.routed) weight.use = double(config.moe.num_experts_per_tok) / double(config.moe.n_routed_experts);
  const std::int64_t layer = layer_name(t.name).layer;
  if (layer < 0) return add(work.head, weight);
  const bool attention = t.part == Part::attention || t.part == Part::indexer;
  add(attention ? work.layers[std::size_t(layer)].attention : work.layers[std::size_t(layer)].mlp, weight);
}

}  // namespace dsakit
