// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/parts.hpp"
#include "checkpoint/selection.hpp"
#include "io/config.hpp"
#include "parallel/cost.hpp"

namespace dsakit {

/// Tensors of one part that are stored alike.
struct StoredPart {
  Part part;
  std::string format;  // of the weights, as safetensors spells it; scales beside them count as theirs
  std::int64_t tensors = 0, parameters = 0;
  std::uint64_t bytes = 0;  // scales included
};

/// Bytes [begin, end) of a file.
struct ByteRange {
  std::uint64_t begin, end;
};

/// What is wanted of one shard, and how it can be had.
struct ShardPlan {
  enum class State {
    whole,           // the file is here
    header_known,    // fetch `ranges`, which include the header
    length_known,    // the header is unknown; `ranges` is it
    header_unknown,  // `ranges` is bytes 0..7, its length
  };
  std::string name;
  State state = State::header_unknown;
  std::int64_t tensors = 0;       // that are wanted, scales included; of the index where the header is unknown
  std::vector<ByteRange> ranges;  // neighbours joined
  std::uint64_t bytes = 0;        // of the ranges
};

/// Bytes that a model takes, and that a token moves.
struct ModelSizes {
  std::int64_t parameters = 0, mtp_parameters = 0;  // without and of MTP layers
  std::int64_t active_parameters = 0;               // that a token is multiplied with
  std::int64_t attention_parameters = 0;            // indexer included
  std::int64_t experts = 0;                         // of all layers together
  double expert_bytes = 0;                          // in memory, each
  double resident_bytes = 0;                        // in memory: all but routed experts and the embedding
  double routed_bytes_per_token = 0;

  double routed_bytes() const { return double(experts) * expert_bytes; }
};

/// What a mode leaves for experts in a given memory, and what that allows.
struct ModeFit {
  std::string_view mode;
  double cache_bytes = 0;
  double expert_memory = 0;  // below 0: not even the rest fits
  double held = 0;           // share of the experts
  bool fits = false;         // k + 1 experts do
  std::array<double, 3> tokens_per_second{}, pass_seconds{};  // by kDiskSpeeds; a pass reads what is not held
};

inline constexpr std::array<double, 3> kDiskSpeeds = {3e9, 7e9, 14e9};  // NVMe, bytes per second
inline constexpr double kMemorySpeed = 60e9;
inline constexpr double kKeptFree = 6e9;  // for the system, workspace and reads under way
inline constexpr std::int64_t kPlannedContext = 32768;

/// No decode step is faster: what is not held comes from disk, everything else through memory.
double ceiling_tokens_per_second(const ModelSizes&, double held, double disk, double memory);

struct Plan {
  explicit Plan(io::ModelConfig config) : config(std::move(config)) {}

  io::ModelConfig config;
  std::vector<StoredPart> parts;
  std::int64_t shards = 0, known_shards = 0;  // the headers of these were read; the rest is as config.json has it
  ModelSizes sizes;
  std::int64_t context = 0;
  std::vector<ModeFit> fits;
  std::vector<ShardPlan> selected;  // of a selection; empty for everything
  std::uint64_t selected_bytes = 0;
};

/// From a checkpoint folder or a config.json alone: config, index and the headers that are here; the weights need not
/// be. `memory` in bytes.
Plan make_plan(const std::string& path, const std::string& layers, bool attention_only, double memory);

/// What a step of the same model in a mode has to do. "": sparse_w8a8, without an indexer dense_bf16.
ModelWork work_of(const std::string& path, std::string_view mode = {});

}  // namespace dsakit
