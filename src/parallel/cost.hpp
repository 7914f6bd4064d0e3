// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "parallel/exchanges.hpp"

// What a step of a model takes on a grid, foretold. The terms are added: nothing is hidden behind anything else.
namespace dsakit {

/// What the machine of one rank does in a second.
struct MachineSpeed {
  double bytes = 200e9;  // read from memory
  double i8_ops = 4e12, bf16_flops = 2e12;
};

/// How a weight is shared by the ranks of a replica.
enum class Sharing {
  heads,     // whole heads
  columns,   // whole panels of columns
  everyone,  // copied
};

/// A weight of a layer, or several that are shared alike.
struct SharedWeight {
  Sharing sharing;
  std::int64_t units = 1;     // heads or columns
  double bytes = 0;           // in memory, all ranks of a replica together
  double products = 0;        // multiplications with their additions, for a row that it is used for
  bool i8 = false;            // of which type they are
  bool prolog = false;        // copied if the prolog is
  bool routed = false;        // experts, which may be left in files
  double use = 1;             // share of it that a row uses
};

struct LayerWork {
  bool indexer = false;
  std::vector<SharedWeight> attention{}, mlp{};
  std::vector<std::int64_t> mlp_widths{};  // hidden columns of each MLP that a row goes through
};

struct ModelWork {
  std::string_view mode{};
  ExchangeSizes sizes{};
  std::int64_t experts = 0, experts_of_row = 0;  // of all layers together; of one layer
  bool i8_scores = false;  // of the indexer
  std::vector<LayerWork> layers{};
  std::vector<SharedWeight> head{};  // empty: attention layers alone, nothing around them
};

/// Without MLPs, embedding and head.
ModelWork attention_of(ModelWork);

/// Seconds of a step.
enum class Term { weights, index, attention, merge, rest, latency, transfer };
inline constexpr std::array<std::string_view, 7> kTermNames = {"weights", "index",   "attention", "merge",
                                                               "rest",    "latency", "transfer"};

/// Of the slowest rank, and of the one that holds most.
struct StepCost {
  std::array<double, kTermNames.size()> seconds{};
  std::array<std::int64_t, kExchangeNames.size()> messages{};  // exchanges that a rank joins
  std::array<double, kExchangeNames.size()> received{};        // bytes by a rank
  double weight_bytes = 0;   // in memory: all but routed experts
  double routed_bytes = 0;   // of all routed experts
  double routed_read = 0;    // of those that the step uses
  double cache_bytes = 0;

  double all_seconds() const;
  std::int64_t all_messages() const;
  double all_received() const;
};

StepCost cost_of(const ModelWork&, const ParallelOptions&, const Step&, const MachineSpeed& = {}, const Network& = {});

}  // namespace dsakit
