// SPDX-License-Identifier: Apache-2.0
#include "dsakit/model.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "layer/costs.hpp"
#include "layer/layer.hpp"
#include "layer/mlp.hpp"
#include "ops/linear.hpp"
#include "ops/norm.hpp"

namespace dsakit {
struct Model::State {
  struct Layer {
    AttentionLayer attention;
    io::AlignedArray<float> attention_norm, mlp_norm;
    GatedMlp mlp;
  };
  io::ModelConfig config;
  io::AlignedArray<bf16> embedding;  // [vocab_size, hidden_size]
  std::vector<Layer> layers;
  io::AlignedArray<float> norm;
  Matrix head;

  explicit State(std::shared_ptr<const io::Checkpoint> checkpoint);
};

Model::State::State(std::shared_ptr<const io::Checkpoint> checkpoint) : config(checkpoint->config()) {
  const io::ModelConfig& c = config;
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    if (!c.dense_mlp[i])
      throw Error(Status::unsupported, "load", "model.layers." + std::to_string(i) + ".mlp", "",
                  "is a mixture of experts", "a dense MLP", "AttentionLayer loads the attention of such a layer");
  std::uint64_t bytes = 0;
  for (const io::SafetensorsFile& file : checkpoint->files()) bytes += file.data_bytes();
  io::require_memory(checkpoint->folder(), bytes, io::memory_limit());
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) checkpoint->require_known_tensors(i, "");
  embedding = checkpoint->load_matrix_bf16("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
  const auto rope = std::make_shared<const RopeTable>(c.rope, c.qk_rope_head_dim);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    layers.push_back(
        {AttentionLayer(std::make_shared<AttentionLayer::State>(c, i, checkpoint_source(checkpoint, i), rope)),
         checkpoint->load_vector_f32(prefix + "input_layernorm.weight", c.hidden_size),
         checkpoint->load_vector_f32(prefix + "post_attention_layernorm.weight", c.hidden_size),
         GatedMlp(*checkpoint, i)});
  }
  norm = checkpoint->load_vector_f32("model.norm.weight", c.hidden_size);
  if (c.tie_word_embeddings) head = transposed_matrix(embedding.data(), c.vocab_size, c.hidden_size);
  else
    head = transposed_matrix(checkpoint->load_matrix_bf16("lm_head.weight", c.vocab_size, c.hidden_size).data(),
                             c.vocab_size, c.hidden_size);
}

struct Session::State {
  std::shared_ptr<const Model::State> model;
  Mode mode;
  std::vector<LayerCache> caches;
  Costs costs;
  std::function<void(int, std::int64_t, const Tensor&)> observer;
  ScratchMemory scratch, layer_scratch;

  State(std::shared_ptr<const Model::State> model, Mode mode, std::int64_t page_size)
      : model(std::move(model)), mode(mode) {
    for (const Model::State::Layer& layer : this->model->layers) {
      caches.push_back(layer.attention.make_cache(name_of(mode), page_size));
      layer.attention.state().weights.prepare(mode);
    }
  }
  State(const State& from)
      : model(from.model), mode(from.mode), caches(from.caches), costs(from.costs), observer(from.observer) {}

  std::int64_t length() const { return caches[0].length(); }
  void reserve(std::int64_t positions) {
    for (LayerCache& cache : caches) cache.state().reserve(positions);
  }
  void keep(std::int64_t positions) {
    for (LayerCache& cache : caches) cache.state().keep(positions);
  }
};

namespace {

/// One chunk of tokens on its way through a model; its arrays.
struct Tokens {
  const Model::State& model;
  const io::ModelConfig& config;
  Costs& costs;
  Context& context;
  std::int64_t rows;
  float *residual, *normal, *change;  // [rows, hidden_size]
  float* hidden;                      // [rows, intermediate_size]
  bf16* input;                        // [rows, hidden_size]
  std::int32_t* selection;            // [rows, index_topk]

  Tokens(const Model::State& model, Costs& costs, Context& context, std::int64_t rows, Carver& carver)
      : model(model),
        config(model.config),
        costs(costs),
        context(context),
        rows(rows),
        residual(carver.take<float>(rows * config.hidden_size)),
        normal(carver.take<float>(rows * config.hidden_size)),
        change(carver.take<float>(rows * config.hidden_size)),
        hidden(carver.take<float>(rows * config.intermediate_size)),
        input(carver.take<bf16>(rows * config.hidden_size)),
        selection(carver.take<std::int32_t>(rows * config.index_topk)) {}

  void embed(std::span<const std::int32_t> tokens) const {
    const std::int64_t width = config.hidden_size;
    Timed timed(&costs, "embedding", double(rows * width) * sizeof(bf16));
    Call call(context, "model", 0);
    for (std::int64_t i = 0; i < rows; ++i)
      call.kernels().widen(model.embedding.data() + tokens[i] * width, width, residual + i * width);
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

  void mlp(const GatedMlp& mlp) const {
    Timed timed(&costs, "mlp", double(mlp.bytes()));
    Call call(context, "model", 0);
    mlp.add_to(call, normal, rows, hidden, residual);
    call.finish();
  }

  /// Logits of the last `wanted` rows.
  void head(std::int64_t wanted, float* logits) const {
    Timed timed(&costs, "head", double(model.head.bytes()));
    Call call(context, "model", 0);
    call.parallel_for(wanted, norms_of(wanted),
                      [&](std::int64_t i, int) { norm_row(call, model.norm, rows - wanted + i, i); });
    for_each_tile(call, model.head.view(), normal, config.hidden_size, 0, wanted,
                  [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                    for (std::int64_t i = 0; i < some; ++i)
                      std::copy_n(tile + i * kPanel, columns, logits + (row + i) * config.vocab_size + column);
                  });
    call.finish();
  }
};

}  // namespace

namespace {

void check_tokens(const io::ModelConfig& c, std::span<const std::int32_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= c.vocab_size)
      throw Error(Status::invalid_argument, "model", "tokens", "[" + std::to_string(i) + "]",
                  "is " + std::to_string(tokens[i]), "0.." + std::to_string(c.vocab_size - 1), "vocab_size");
}

/// At most chunk_tokens() tokens of sessions of one model and mode, as many of each, one session after the other;
/// logits of the last `wanted`. What it costs is counted by the first.
void run_chunk(std::span<Session::State* const> sessions, std::span<const std::int32_t> tokens, std::int64_t wanted,
               float* logits, Context& context) {
  Session::State& one = *sessions[0];
  const Model::State& model = *one.model;
  const std::int64_t rows = std::int64_t(tokens.size()), width = model.config.hidden_size,
                     topk = model.config.index_topk, each = rows / std::int64_t(sessions.size());
  Carver measure;
  Tokens(model, one.costs, context, rows, measure);
  Carver memory(one.scratch.require(measure.bytes()));
  const Tokens t(model, one.costs, context, rows, memory);
  t.embed(tokens);
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const Model::State::Layer& layer = model.layers[l];
    std::vector<Part> parts;
    for (Session::State* session : sessions)
      parts.push_back({&session->caches[l].state(), std::int64_t(parts.size()) * each, each});
    t.norm_before_attention(layer.attention_norm);
    forward_chunk(layer.attention.state(), tensor(t.input, {rows, width}), tensor(t.change, {rows, width}), parts,
                  is_sparse(one.mode) ? t.selection : nullptr, {}, one.layer_scratch, context, &one.costs);
    for (std::size_t i = 0; i < parts.size() && is_sparse(one.mode); ++i)
      if (const auto& observer = sessions[i]->observer)
        observer(int(l), parts[i].first,
                 tensor<const std::int32_t>(t.selection + parts[i].row * topk, {each, topk}));
    t.norm_before_mlp(layer.mlp_norm);
    t.mlp(layer.mlp);
  }
  if (wanted > 0) t.head(wanted, logits);
}

}  // namespace

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(const Session& from) : state_(std::make_unique<State>(*from.state_)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(const Session& from) { return *this = Session(from); }
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

std::string_view Session::mode() const { return name_of(state_->mode); }
std::int64_t Session::length() const { return state_->length(); }
std::int64_t Session::vocab_size() const { return state_->model->config.vocab_size; }
std::size_t Session::cache_bytes() const {
  std::size_t sum = 0;
  for (const LayerCache& cache : state_->caches) sum += cache.bytes();
  return sum;
}
void Session::reset() { state_->keep(0); }
void Session::crop(std::int64_t count) {
  if (count < 0 || count > length())
    throw Error(Status::invalid_argument, "model", "count", "", "is " + std::to_string(count),
                "0.." + std::to_string(length()), "the tokens held");
  state_->keep(length() - count);
}
const Costs& Session::costs() const { return state_->costs; }
void Session::clear_costs() { state_->costs = {}; }
void Session::observe(std::function<void(int, std::int64_t, const Tensor&)> observer) {
  state_->observer = std::move(observer);
}

void Session::append(std::span<const std::int32_t> tokens, std::span<float> logits, Context& context) {
  const io::ModelConfig& c = state_->model->config;
  const std::int64_t rows = std::int64_t(tokens.size()), wanted = std::int64_t(logits.size()) / c.vocab_size;
  check_tokens(c, tokens);
  if (std::int64_t(logits.size()) % c.vocab_size != 0 || wanted > rows)
    throw Error(
        Status::invalid_shape, "model", "logits", "", "has " + std::to_string(logits.size()) + " elements",
        "vocab_size (" + std::to_string(c.vocab_size) + ") for each of at most " + std::to_string(rows) + " tokens");
  const std::int64_t before = length(), step = chunk_tokens(c);
  state_->reserve(before + rows);
  try {
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t count = std::min(step, rows - first);
      const std::int64_t unwanted = std::max<std::int64_t>(rows - wanted - first, 0),
                         mine = std::max<std::int64_t>(count - unwanted, 0);
      float* to = logits.data() + std::max<std::int64_t>(first - (rows - wanted), 0) * c.vocab_size;
      run_chunk(std::array{state_.get()}, tokens.subspan(first, count), mine, to, context);
    }
  } catch (...) {  // interrupted: as if nothing had been appended
    state_->keep(before);
    throw;
  }
}

void step(std::span<Session* const> sessions, std::span<const std::int32_t> tokens, std::span<float> logits,
          Context& context) {
  const auto refuse = [](Status status, const char* parameter, std::size_t at, std::string got, std::string wanted) {
    throw Error(status, "step", parameter, "[" + std::to_string(at) + "]", std::move(got), std::move(wanted));
  };
  if (sessions.size() != tokens.size())
    throw Error(Status::invalid_shape, "step", "tokens", "", "are " + std::to_string(tokens.size()),
                std::to_string(sessions.size()), "one for each session");
  if (sessions.empty()) return;
  std::vector<Session::State*> states;
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    Session::State* state = &sessions[i]->state();
    const Session::State& first = sessions[0]->state();
    if (state->model != first.model)
      refuse(Status::invalid_argument, "sessions", i, "is of another model", "that of the first");
    if (state->mode != first.mode)
      refuse(Status::invalid_argument, "sessions", i, "is of mode " + std::string(name_of(state->mode)),
             std::string(name_of(first.mode)));
    if (const auto same = std::find(states.begin(), states.end(), state); same != states.end())
      refuse(Status::aliased, "sessions", i, "is session " + std::to_string(same - states.begin()) + " again",
             "another session");
    states.push_back(state);
  }
  const io::ModelConfig& c = states[0]->model->config;
  check_tokens(c, tokens);
  if (logits.size() != tokens.size() * std::size_t(c.vocab_size))
    throw Error(Status::invalid_shape, "step", "logits", "", "has " + std::to_string(logits.size()) + " elements",
                std::to_string(tokens.size() * std::size_t(c.vocab_size)), "vocab_size for each session");
  std::vector<std::int64_t> before;
  for (Session::State* state : states) {
    before.push_back(state->length());
    state->reserve(before.back() + 1);
  }
  try {
    const std::size_t most = std::size_t(chunk_tokens(c));
    for (std::size_t first = 0; first < states.size(); first += most) {
      const std::size_t count = std::min(most, states.size() - first);
      run_chunk(std::span(states).subspan(first, count), tokens.subspan(first, count), std::int64_t(count),
                logits.data() + first * std::size_t(c.vocab_size), context);
    }
  } catch (...) {
    for (std::size_t i = 0; i < states.size(); ++i) states[i]->keep(before[i]);
    throw;
  }
}

Model::Model(const std::string& folder)
    : state_(std::make_shared<State>(std::make_shared<const io::Checkpoint>(folder))) {}

std::int64_t Model::vocab_size() const { return state_->config.vocab_size; }
std::int64_t Model::hidden_size() const { return state_->config.hidden_size; }
std::int64_t Model::index_topk() const { return state_->config.index_topk; }
int Model::layers() const { return int(state_->layers.size()); }
AttentionLayer Model::attention(int layer) const {
  if (layer < 0 || layer >= layers())
    throw Error(Status::invalid_argument, "model", "layer", "", "is " + std::to_string(layer),
                "0.." + std::to_string(layers() - 1), "num_hidden_layers");
  return state_->layers[layer].attention;
}
std::size_t Model::weight_bytes() const {
  std::size_t sum =
      state_->embedding.size() * sizeof(bf16) + state_->head.bytes() + state_->norm.size() * sizeof(float);
  for (const State::Layer& l : state_->layers)
    sum += l.attention.weight_bytes() + l.mlp.bytes() + (l.attention_norm.size() + l.mlp_norm.size()) * sizeof(float);
  return sum;
}
std::vector<std::string_view> Model::modes() const {
  std::vector<std::string_view> all;
  for (const std::string_view name : kModes) {
    try {
      all.push_back(name_of(mode_of(name, state_->config)));
    } catch (const Error&) {  // cannot run in this one
    }
  }
  return all;
}

Session Model::start(std::string_view mode, std::int64_t page_size) const {
  return Session(std::make_unique<Session::State>(state_, mode_of(mode, state_->config), page_size));
}

std::vector<float> Model::logits(std::span<const std::int32_t> tokens, std::string_view mode, Context& context) const {
  std::vector<float> all(tokens.size() * std::size_t(vocab_size()));
  start(mode).append(tokens, all, context);
  return all;
}

}  // namespace dsakit
