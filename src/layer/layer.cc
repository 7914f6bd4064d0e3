// SPDX-License-Identifier: Apache-2.0
#include "layer/layer.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "layer/chunk.hpp"

namespace dsakit {

AttentionLayer::State::State(const io::ModelConfig& config, int layer, std::unique_ptr<WeightSource> source,
                             std::shared_ptr<const RopeTable> rope)
    : config(config),
      indexer(config.index_topk > 0 && config.full_indexer[layer]),
      scale(softmax_scale(config)),
      rope(std::move(rope)),
      weights(config, indexer, std::move(source)) {}

AttentionLayer make_layer(const io::ModelConfig& config, int layer, std::unique_ptr<WeightSource> source) {
  if (layer < 0 || layer >= config.num_hidden_layers)
    throw Error(Status::invalid_argument, "model", "layer", "", "is " + std::to_string(layer),
                "0.." + std::to_string(config.num_hidden_layers - 1), "num_hidden_layers");
  return AttentionLayer(std::make_shared<AttentionLayer::State>(
      config, layer, std::move(source), std::make_shared<RopeTable>(config.rope, config.qk_rope_head_dim)));
}

AttentionLayer::AttentionLayer(const std::string& folder, int layer) {
  const auto checkpoint = std::make_shared<const io::Checkpoint>(folder);
  if (layer >= 0 && layer < checkpoint->config().num_hidden_layers)
    checkpoint->require_known_tensors(layer, "self_attn.");
  *this = make_layer(checkpoint->config(), layer, checkpoint_source(checkpoint, layer));
}
AttentionLayer::AttentionLayer(std::shared_ptr<State> state) : state_(std::move(state)) {}

std::int64_t AttentionLayer::hidden_size() const { return state_->config.hidden_size; }
std::int64_t AttentionLayer::index_topk() const { return state_->config.index_topk; }
bool AttentionLayer::has_indexer() const { return state_->indexer; }
std::size_t AttentionLayer::weight_bytes() const { return state_->weights.bytes(); }

LayerCache AttentionLayer::make_cache(std::string_view name, std::int64_t page_size) const {
  const Mode mode = mode_of(name, state_->config);
  return LayerCache(
      std::make_unique<LayerCache::State>(RowKinds(state_->config, state_->indexer, mode), mode, page_size));
}

namespace {

void check_forward(const AttentionLayer::State& layer, const Tensor& hidden, const Tensor& out,
                   const LayerCache::State& cache, const Tensor& selection) {
  const io::ModelConfig& c = layer.config;
  const Check check("attention_layer", Level::portable);
  check.required(hidden, "hidden");
  check.required(out, "out");
  check.dtype(hidden, "hidden", {DType::bf16});
  check.rank(hidden, "hidden", 2, "tokens and hidden_size");
  check.readable(hidden, "hidden");
  check.shape(hidden, "hidden", {hidden.shape[0], c.hidden_size}, "T and hidden_size");
  check.dtype(out, "out", {DType::bf16, DType::f32});
  check.writable(out, "out");
  check.shape(out, "out", {hidden.shape[0], c.hidden_size}, "as hidden");
  check.no_overlap(out, "out", hidden, "hidden");
  const bool sparse = is_sparse(cache.mode);
  if (!sparse && selection) check.absent(selection, "selection", "dense_bf16 attends to everything");
  if (sparse && !layer.indexer) check.required(selection, "selection");
  if (selection) {
    check.dtype(selection, "selection", {DType::i32});
    if (layer.indexer) check.writable(selection, "selection");
    else check.readable(selection, "selection");
    check.shape(selection, "selection", {hidden.shape[0], c.index_topk}, "T and index_topk");
  }
  if (!cache.holds(RowKinds(c, layer.indexer, cache.mode)))
    check.fail(Status::invalid_argument, "cache", "", "was made for another layer",
               "one from make_cache of this layer");
}

}  // namespace

void AttentionLayer::forward(const Tensor& hidden, const Tensor& out, LayerCache& cache_, const Tensor& selection,
                             Context& context, Costs* costs) const {
  LayerCache::State& cache = cache_.state();
  check_forward(*state_, hidden, out, cache, selection);
  state_->weights.prepare(cache.mode);
  const std::int64_t rows = hidden.shape[0], step = chunk_tokens(state_->config), topk = state_->config.index_topk;
  cache.reserve(cache.length + rows);
  std::vector<std::int32_t> own(is_sparse(cache.mode) ? std::min(rows, step) * topk : 0);
  const auto given = [&](std::int64_t i) { return data_of<std::int32_t>(selection) + i * selection.stride[0]; };
  const std::int64_t before = cache.length;
  try {
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t count = std::min(step, rows - first);
      for (std::int64_t i = 0; i < count && selection && !state_->indexer; ++i)
        std::copy_n(given(first + i), topk, own.data() + i * topk);
      forward_chunk(*state_, slice(hidden, first, count), slice(out, first, count), cache, own.data(), cache.scratch,
                    context, costs);
      for (std::int64_t i = 0; i < count && selection && state_->indexer; ++i)
        std::copy_n(own.data() + i * topk, std::min(topk, before + first + i + 1), given(first + i));
    }
  } catch (...) {  // interrupted, or a selection that cannot be: as if nothing had been appended
    cache.length = before;
    throw;
  }
}

}  // namespace dsakit
