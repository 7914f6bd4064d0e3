// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>

#include <span>
#include <vector>

#include "dsakit/model.hpp"
#include "layer/cache.hpp"
#include "layer/mode.hpp"
#include "layer/rope.hpp"
#include "layer/weights.hpp"

namespace dsakit {

struct AttentionLayer::State {
  io::ModelConfig config;
  std::int64_t all_heads = config.num_attention_heads;  // of all ranks
  bool indexer;  // scores for itself
  double scale;
  double epsilon_cq = config.rms_norm_eps, epsilon_ckv = config.rms_norm_eps, epsilon_k = 1e-6;
  std::shared_ptr<const RopeTable> rope;
  LayerWeights weights;

  /// `share`: what a rank has; then it has no more heads than those.
  State(const io::ModelConfig& config, int layer, std::unique_ptr<WeightSource> source,
        std::shared_ptr<const RopeTable> rope, const LayerShare& share = {});
};

/// A layer of any source: what the demonstration at full size and the tests are made from.
AttentionLayer make_layer(const io::ModelConfig& config, int layer, std::unique_ptr<WeightSource> source);

/// Tokens that are taken through a layer at once, so that the memory between operators stays bounded whatever the
/// length of a prompt. Results do not depend on it.
std::int64_t chunk_tokens(const io::ModelConfig& config);

/// Rows of a chunk that are the next tokens of one sequence.
struct ChunkPart {
  LayerCache::State* cache;
  std::int64_t row, rows;

  std::int64_t first = cache->length;  // position of its first row
  std::int64_t total = first + rows;   // positions that its last row sees
};

/// The selections of rows beside each other: [rows, width]; nothing in dense mode.
struct Lists {
  std::int32_t* data = nullptr;
  std::int64_t width = 0;

  std::int32_t* row(std::int64_t i) const { return data + i * width; }
  Lists from(std::int64_t i) const { return {row(i), width}; }
  explicit operator bool() const { return data != nullptr; }
};

/// How long lists of a call have to be where rows see at most `positions`: not index_topk, which may be beyond any text.
/// Doubled as a session grows, so that its scratch is not made anew with every token.
std::int64_t list_width(const io::ModelConfig&, std::int64_t positions);

/// One chunk: hidden bf16 [rows, He] of any row stride, out bf16 or f32 alike; parts one after the other, each of
/// another cache of one mode; rotation as in forward. Everything was checked and the mode's weights were prepared; lengths
/// move on at the very end.
void forward_chunk(const AttentionLayer::State& layer, const Tensor& hidden, const Tensor& out,
                   std::span<const ChunkPart> parts, Lists selection, const Rotation& rotation,
                   ScratchMemory& scratch, Context& context, Costs* costs);

/// What layer `layer` is given: the residual [tokens, hidden_size] and, in models with an indexer, the selection
/// [tokens, least of index_topk and tokens] of the layer before (none before the first).
struct Entering {
  std::vector<float> residual;
  std::vector<std::int32_t> selection;
};

/// Tokens through the layers below, which are loaded for it, in sparse_bf16 or, without an indexer, dense_bf16.
Entering entering_layer(std::shared_ptr<const io::Checkpoint> checkpoint, int layer,
                        std::span<const std::int32_t> tokens, const ModelOptions& options = {},
                        Context& context = default_context());

}  // namespace dsakit
