// SPDX-License-Identifier: Apache-2.0
#include "layer/layer.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/out_of_memory.hpp"
#include "layer/chunk.hpp"

namespace dsakit {

AttentionLayer::State::State(const io::ModelConfig& config, int layer, std::unique_ptr<WeightSource> source,
                             std::shared_ptr<const RopeTable> rope, const LayerShare& share)
    : config(config),
      indexer(config.index_topk > 0 && config.full_indexer[layer]),
      scale(softmax_scale(config)),
      rope(std::move(rope)),
      weights(config, indexer, std::move(source), share) {
  this->config.num_attention_heads = share.heads(config).size();
}

AttentionLayer make_layer(const io::ModelConfig& config, int layer, std::unique_ptr<WeightSource> source) {
  if (layer < 0 || layer >= config.num_hidden_layers)
    throw Error(Status::invalid_argument, "model", "layer", "", "is " + std::to_string(layer),
                "0.." + std::to_string(config.num_hidden_layers - 1), "num_hidden_layers");
  return AttentionLayer(std::make_shared<AttentionLayer::State>(
      config, layer, std::move(source), std::make_shared<RopeTable>(config.rope, config.qk_rope_head_dim)));
}

AttentionLayer::AttentionLayer(const std::string& folder, int layer) try {
  const auto checkpoint = std::make_shared<const io::Checkpoint>(folder);
  if (layer >= 0 && layer < checkpoint->config().num_hidden_layers)
    checkpoint->require_known_tensors(layer, 1, "self_attn.");
  *this = make_layer(checkpoint->config(), layer, checkpoint_source(checkpoint, layer));
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
AttentionLayer::AttentionLayer(std::shared_ptr<State> state) : state_(std::move(state)) {}

std::int64_t AttentionLayer::hidden_size() const { return state_->config.hidden_size; }
std::int64_t AttentionLayer::index_topk() const { return state_->config.index_topk; }
bool AttentionLayer::has_indexer() const { return state_->indexer; }
std::size_t AttentionLayer::weight_bytes() const { return state_->weights.bytes(); }

LayerCache AttentionLayer::make_cache(std::string_view name, std::int64_t page_size) const try {
  const Mode mode = mode_of(name, state_->config);
  return LayerCache(
      std::make_unique<LayerCache::State>(RowKinds(state_->config, state_->indexer, mode), mode, page_size));
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

namespace {

void check_caches(const Check& check, const AttentionLayer::State& layer, std::span<const NewTokens> sequences,
                  std::int64_t rows) {
  const Mode mode = sequences[0].cache->state().mode;
  std::set<const LayerCache*> seen;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const NewTokens& s = sequences[i];
    const std::string at = sequences.size() > 1 ? subscript({std::int64_t(i)}) : "";
    const LayerCache::State& cache = s.cache->state();
    if (!cache.holds(RowKinds(layer.config, layer.indexer, cache.mode)))
      check.fail(Status::invalid_argument, "cache", at, "was made for another layer",
                 "one from make_cache of this layer");
    if (cache.mode != mode)
      check.fail(Status::invalid_argument, "cache", at, "is of mode " + std::string(name_of(cache.mode)),
                 std::string(name_of(mode)), "that of the first");
    if (!seen.insert(s.cache).second)
      check.fail(Status::aliased, "cache", at, "is in the batch twice", "another sequence");
    if (s.count < 0 || s.count > rows - sum)
      check.fail(Status::invalid_argument, "count", at, "is " + std::to_string(s.count),
                 "0.." + std::to_string(rows - sum), "the rows of hidden that are left");
    sum += s.count;
  }
  if (sum != rows)
    check.fail(Status::invalid_argument, "count", "", "are " + std::to_string(sum) + " together",
               std::to_string(rows), "the rows of hidden");
}

void check_forward(const AttentionLayer::State& layer, const Tensor& hidden, const Tensor& out,
                   std::span<const NewTokens> sequences, const Tensor& selection, const Rotation& rotation) {
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
  if (sequences.empty()) check.fail(Status::invalid_argument, "sequences", "", "are none", "at least one");
  const bool sparse = is_sparse(sequences[0].cache->state().mode);
  if (!sparse && selection) check.absent(selection, "selection", "dense_bf16 attends to everything");
  if (sparse && !layer.indexer) check.required(selection, "selection");
  if (selection) {
    check.dtype(selection, "selection", {DType::i32});
    if (layer.indexer) check.writable(selection, "selection");
    else check.readable(selection, "selection");
    check.shape(selection, "selection", {hidden.shape[0], c.index_topk}, "T and index_topk");
  }
  if (rotation.cos || rotation.sin)
    for (const auto& [t, name] : {std::pair(&rotation.cos, "cos"), {&rotation.sin, "sin"}}) {
      check.required(*t, name);
      check.dtype(*t, name, {DType::bf16});
      check.shape(*t, name, {hidden.shape[0], c.qk_rope_head_dim}, "T and qk_rope_head_dim");
      check.readable(*t, name);
      if (t->stride[0] != c.qk_rope_head_dim && t->shape[0] > 1)
        check.fail(Status::invalid_shape, name, "", "has rows " + std::to_string(t->stride[0]) + " elements apart",
                   std::to_string(c.qk_rope_head_dim), "without gaps");
    }
  check_caches(check, layer, sequences, hidden.shape[0]);
}

/// The sequences of rows first .. first+count-1.
std::vector<ChunkPart> parts_of(std::span<const NewTokens> sequences, std::int64_t first, std::int64_t count) {
  std::vector<ChunkPart> parts;
  std::int64_t begin = -first;  // of a sequence, from the chunk's first row
  for (const NewTokens& s : sequences) {
    const std::int64_t from = std::max<std::int64_t>(begin, 0), to = std::min(begin + s.count, count);
    if (from < to) parts.push_back({.cache = &s.cache->state(), .row = from, .rows = to - from});
    begin += s.count;
  }
  return parts;
}

}  // namespace

void AttentionLayer::forward(const Tensor& hidden, const Tensor& out, LayerCache& cache, const Tensor& selection,
                             Context& context, Costs* costs) const try {
  const NewTokens all{&cache, hidden.rank > 0 ? hidden.shape[0] : 0};
  forward(hidden, out, std::span(&all, 1), selection, {}, context, costs);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void AttentionLayer::forward(const Tensor& hidden, const Tensor& out, std::span<const NewTokens> sequences,
                             const Tensor& selection, const Rotation& rotation, Context& context,
                             Costs* costs) const try {
  check_forward(*state_, hidden, out, sequences, selection, rotation);
  LayerCache::State& cache = sequences[0].cache->state();
  state_->weights.prepare(cache.mode);
  const std::int64_t rows = hidden.shape[0], step = chunk_tokens(state_->config);
  std::vector<std::int64_t> before;
  std::int64_t positions = 1;
  for (const NewTokens& s : sequences) {
    before.push_back(s.cache->length());
    s.cache->state().reserve(before.back() + s.count);
    positions = std::max(positions, before.back() + s.count);
  }
  const std::int64_t topk = list_width(state_->config, positions);
  std::vector<std::int32_t> own(is_sparse(cache.mode) ? std::min(rows, step) * topk : 0);
  const auto given = [&](std::int64_t i) { return data_of<std::int32_t>(selection) + i * selection.stride[0]; };
  try {
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t count = std::min(step, rows - first);
      const std::vector<ChunkPart> parts = parts_of(sequences, first, count);
      for (std::int64_t i = 0; i < count && selection && !state_->indexer; ++i)
        std::copy_n(given(first + i), topk, own.data() + i * topk);
      const Rotation turned = rotation.cos ? Rotation{slice(rotation.cos, first, count),
                                                      slice(rotation.sin, first, count)}
                                           : Rotation{};
      forward_chunk(*state_, slice(hidden, first, count), slice(out, first, count), parts, {own.data(), topk}, turned,
                    cache.scratch, context, costs);
      for (const ChunkPart& part : parts)
        for (std::int64_t i = 0; i < part.rows && selection && state_->indexer; ++i)
          std::copy_n(own.data() + (part.row + i) * topk, std::min(topk, part.first + i + 1),
                      given(first + part.row + i));
    }
  } catch (...) {  // interrupted, or a selection that cannot be: as if nothing had been appended
    for (std::size_t i = 0; i < sequences.size(); ++i) sequences[i].cache->state().length = before[i];
    throw;
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
