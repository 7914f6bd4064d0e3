// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/config.hpp"

namespace dsakit {

/// What a tensor of a checkpoint is a part of. The norms between projections of an attention belong to it.
enum class Part {
  embedding,
  attention,
  indexer,
  dense_mlp,
  shared_experts,
  routed_experts,
  router,
  norms,
  head,
  mtp,  // layers behind the last, which predict further tokens: never loaded
};
inline constexpr std::array<std::string_view, 10> kPartNames = {
    "embedding",      "attention", "indexer", "dense MLP", "shared experts",
    "routed experts", "router",    "norms",   "head",      "MTP"};

/// Layer number and rest of "model.layers.<n>.<rest>"; -1 for a name of another form.
struct LayerName {
  std::int64_t layer;
  std::string_view rest;
};
LayerName layer_name(std::string_view name);

Part part_of(std::string_view name, const io::ModelConfig&);

/// A weight or bias that a model of this config has: a scale beside it is a matter of how it is stored.
struct ModelTensor {
  std::string name;
  Part part;
  std::vector<std::int64_t> shape;
  bool quantised;  // by those who quantise: the projections, not router, embedding, head and the indexer's weights_proj

  std::int64_t parameters() const;
};

/// Layer by layer, the experts of a layer one by one; embedding first; final norm, head and MTP layers behind.
void for_each_tensor(const io::ModelConfig&, const std::function<void(const ModelTensor&)>& visit);

}  // namespace dsakit
