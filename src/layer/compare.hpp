// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsakit/context.hpp"
#include "io/config.hpp"
#include "layer/mode.hpp"
#include "layer/weights.hpp"

namespace dsakit {

/// Differences, as shares of the rms of what is compared with.
struct Distance {
  double rms = 0, largest = 0;
};

/// The share of a float64 selection that a mode found, over the rows that had to choose. A position whose float64 score
/// is that of the last one in is as good as that one.
struct Recall {
  double mean = 0, worst = 0;
  std::int64_t worst_row = 0;
};

struct ModeFigures {
  Mode mode;
  Distance exact{};                                   // from float64: over its own selection, or over everything
  std::optional<Distance> sparse_bf16{};              // absent: this is it, or the model has none
  std::optional<double> equal_latent{}, equal_key{};  // share of int8 codes equal to the other int8 mode's, if both ran
  std::optional<Recall> recall{};                     // absent: dense, no row had to choose, or selected before
  double seconds = 0, bytes = 0;                      // of all rows; weights and cache rows read, once per operator
  std::size_t weight_bytes = 0, cache_bytes = 0;
};

struct ComparedLayer {
  io::ModelConfig config;
  int layer;
  std::function<std::unique_ptr<WeightSource>()> source;
  std::span<const bf16> hidden;             // [rows, hidden_size], normalised: positions 0.. of a sequence
  std::span<const std::int32_t> selection;  // [rows, index_topk] of a layer before, where this one has no indexer
};

/// One attention layer in each of these modes, beside its float64 evaluation; weights are held for one mode at a time.
std::vector<ModeFigures> compare_modes(const ComparedLayer&, std::span<const Mode> modes,
                                       Context& context = default_context());

}  // namespace dsakit
