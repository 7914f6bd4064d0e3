// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsakit/model.hpp"
#include "dsakit/version.hpp"
#include "layer/costs.hpp"
#include "layer/layer.hpp"
#include "layer/mlp.hpp"
#include "layer/moe.hpp"
#include "layer/parallel.hpp"
#include "ops/linear.hpp"
#include "ops/norm.hpp"

namespace dsakit {

struct Model::State {
  struct Layer {
    AttentionLayer attention;
    io::AlignedArray<float> attention_norm, mlp_norm;
    GatedMlp mlp;            // one of the two
    std::optional<Moe> moe;
  };
  std::shared_ptr<const io::Checkpoint> checkpoint;
  io::ModelConfig config;
  io::StoredMatrix embedding;  // [vocab_size, hidden_size]: rows are read when they are wanted
  std::vector<Layer> layers;
  io::AlignedArray<float> norm;
  Matrix head;                 // of this rank's columns
  std::shared_ptr<const RopeTable> rope;
  std::shared_ptr<Experts> experts;  // null: none
  std::int64_t experts_there = 0;
  std::int64_t pass = 0;             // tokens that go through a layer at once
  std::shared_ptr<Peers> peers;      // null: no other ranks

  State(std::shared_ptr<const io::Checkpoint> checkpoint, const ModelOptions& options);
  /// A rank's share. All ranks make theirs at once.
  State(const std::string& folder, const ModelOptions& options, std::shared_ptr<Peers> peers);
  /// The embedding and the first `count` layers.
  State(std::shared_ptr<const io::Checkpoint> checkpoint, const ModelOptions& options, std::int64_t count);
  void find_embedding(std::int64_t count);
  void load_experts(const MlpOptions&, const ModelOptions&, std::int64_t count);
  void load_layer(const MlpOptions&, int number);
  void load_head();
  void agree_on_experts(const ModelOptions&);
  LayerShare share() const { return peers ? peers->share() : LayerShare{}; }
};

/// What a session holds, of all positions, or of those of a rank.
struct Session::State {
  std::shared_ptr<const Model::State> model;
  Mode mode;
  std::vector<LayerCache> caches;
  std::vector<LayerCache> index_caches;  // where ranks share positions; else the keys are in `caches`
  std::int64_t shared_length = 0;        // of all ranks
  Costs costs;
  std::map<std::string, ExchangeCount, std::less<>> traffic;
  std::function<void(int, std::int64_t, const Tensor&)> observer;
  ScratchMemory scratch, layer_scratch;
  struct Room {  // of ranks: for what memory was found
    std::int64_t rows = 0, wanted = 0, end = 0;
    bool operator==(const Room&) const = default;
  } room{};  // not copied

  State(std::shared_ptr<const Model::State> model, Mode mode, std::int64_t page_size);
  State(const State&);

  std::int64_t length() const { return model->peers ? shared_length : caches[0].length(); }
  void reserve(std::int64_t positions);
  void keep(std::int64_t positions);
};

/// Bytes that make(carver) takes.
template <class Make>
std::size_t measured(Make&& make) {
  Carver carver;
  (void)make(carver);
  return carver.bytes();
}

/// Tokens on their way through a model; their arrays. Attention and dense MLPs take a chunk of them at a time, experts
/// all: a pass. Its last rows see `positions`.
struct Tokens {
  const Model::State& model;
  const io::ModelConfig& config;
  Costs& costs;
  Context& context;
  std::int64_t rows;
  float *residual, *normal, *change;  // [rows, hidden_size]
  bf16* input;                        // [rows, hidden_size]
  Lists selection;

  Tokens(const Model::State& model, Costs& costs, Context& context, std::int64_t rows, std::int64_t positions,
         Carver& carver)
      : model(model),
        config(model.config),
        costs(costs),
        context(context),
        rows(rows),
        residual(carver.take<float>(rows * config.hidden_size)),
        normal(carver.take<float>(rows * config.hidden_size)),
        change(carver.take<float>(rows * config.hidden_size)),
        input(carver.take<bf16>(rows * config.hidden_size)),
        selection{nullptr, list_width(config, positions)} {
    selection.data = carver.take<std::int32_t>(rows * selection.width);
  }

  /// Rows of the embedding, to `input`.
  void read_embedding(std::span<const std::int32_t> tokens, Slice some) const {
    const std::int64_t width = config.hidden_size;
    Timed timed(&costs, "embedding", double(some.size() * width) * sizeof(bf16));
    for (std::int64_t i = some.begin; i < some.end; ++i) io::load_row(model.embedding, tokens[i], input + i * width);
  }
  void embed() const {
    const std::int64_t width = config.hidden_size;
    Call call(context, "model", 0);
    for (std::int64_t i = 0; i < rows; ++i) call.kernels().widen(input + i * width, width, residual + i * width);
  }

  /// RMSNorm of row i of the residual to row `to` of `normal`.
  void norm_row(const Call& call, const io::AlignedArray<float>& gamma, std::int64_t i, std::int64_t to) const {
    const std::int64_t width = config.hidden_size;
    rms_norm(call.kernels(), NormOrder::pypto, residual + i * width, width, gamma.data(), float(config.rms_norm_eps),
             normal + to * width);
  }
  Work norms_of(std::int64_t count) const { return {.elements = 2 * double(count * config.hidden_size)}; }

  void norm_before_attention(const io::AlignedArray<float>& gamma) const {
    const std::int64_t width = config.hidden_size;
    Timed timed(&costs, "norms", 0);
    Call call(context, "model", 0);
    call.parallel_for(rows, norms_of(rows), [&](std::int64_t i, int) {
      norm_row(call, gamma, i, i);
      call.kernels().round(normal + i * width, width, input + i * width);
    });
    call.finish();
  }

  /// After attention, whose result is in `change`.
  void norm_before_mlp(const io::AlignedArray<float>& gamma) const {
    const std::int64_t width = config.hidden_size;
    Timed timed(&costs, "norms", 0);
    Call call(context, "model", 0);
    call.parallel_for(rows, norms_of(rows), [&](std::int64_t i, int) {
      for (std::int64_t j = i * width; j < (i + 1) * width; ++j) residual[j] += change[j];
      norm_row(call, gamma, i, i);
    });
    call.finish();
  }

  void mlp(const Model::State::Layer& layer, ScratchMemory& scratch) const {
    if (layer.moe) {
      const auto arrays = [&](Carver& carver) { return MoeArrays(*layer.moe, rows, context.threads(), carver); };
      Carver memory(scratch.require(measured(arrays)));
      return layer.moe->add_to(context, &costs, normal, rows, arrays(memory), residual);
    }
    Timed timed(&costs, "mlp", double(layer.mlp.bytes()));
    Call call(context, "model", 0);
    const std::int64_t step = chunk_tokens(config), width = config.hidden_size;
    const auto arrays = [&](Carver& carver) {
      return MlpArrays(layer.mlp.activations(), std::min(rows, step), width, config.intermediate_size, call.threads(),
                       carver);
    };
    Carver memory(scratch.require(measured(arrays)));
    const MlpArrays a = arrays(memory);
    for (std::int64_t first = 0; first < rows; first += step)
      layer.mlp.add_to(call, normal + first * width, std::min(step, rows - first), a, residual + first * width);
    call.finish();
  }

  /// Logits [wanted, columns of head] of the last `wanted` rows.
  void head(std::int64_t wanted, float* logits) const {
    if (!model.head) return;
    Timed timed(&costs, "head", double(model.head.bytes()));
    Call call(context, "model", 0);
    call.parallel_for(wanted, norms_of(wanted),
                      [&](std::int64_t i, int) { norm_row(call, model.norm, rows - wanted + i, i); });
    for_each_tile(call, model.head.view(), normal, config.hidden_size, 0, wanted,
                  [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                    for (std::int64_t i = 0; i < some; ++i)
                      std::copy_n(tile + i * kPanel, columns, logits + (row + i) * model.head.view().n + column);
                  });
    call.finish();
  }
};

/// INVALID_ARGUMENT for what is no token.
void check_tokens(const io::ModelConfig&, std::span<const std::int32_t> tokens);

/// And rows of logits for as many tokens at most.
void check_append(const io::ModelConfig&, std::span<const std::int32_t> tokens, std::span<const float> logits);

// ---- where ranks share a model (parallel_model.cc)

/// Session::append, by all ranks.
void append_parallel(Session::State&, std::span<const std::int32_t> tokens, std::span<float> logits, Context&);
/// The weights of a mode and an empty session, by all ranks.
std::unique_ptr<Session::State> start_parallel(std::shared_ptr<const Model::State>, std::string_view mode,
                                               std::int64_t page_size);

}  // namespace dsakit
