// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "io/config.hpp"

namespace dsakit {

/// Which tensors of a checkpoint are meant: those of some layers, of which the embedding belongs to the first and final
/// norm and head to the last; or of these only what attention takes, its own weights and input_layernorm.
struct Selection {
  std::vector<bool> layers;  // empty: all
  bool attention_only = false;

  bool everything() const { return layers.empty() && !attention_only; }
  bool holds(std::string_view name, const io::ModelConfig&) const;
};

/// "0-3,7" of a model of `count` layers; "" is all of them. Anything else is INVALID_ARGUMENT of `op`.
std::vector<bool> layers_of(const std::string& text, std::int64_t count, const std::string& op);

}  // namespace dsakit
