// SPDX-License-Identifier: Apache-2.0
#include "dsakit/model.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "layer/costs.hpp"
#include "layer/layer.hpp"
#include "io/memory.hpp"
#include "layer/mlp.hpp"
#include "layer/moe.hpp"
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
  Matrix head;
  std::shared_ptr<Experts> experts;  // null: none
  std::int64_t experts_there = 0;
  std::int64_t pass = 0;             // tokens that go through a layer at once

  State(std::shared_ptr<const io::Checkpoint> checkpoint, const ModelOptions& options);
  /// The embedding and the first `count` layers.
  State(std::shared_ptr<const io::Checkpoint> checkpoint, const ModelOptions& options, std::int64_t count);
  void load_layers(const MlpOptions&, const ModelOptions&, std::int64_t count);
};

namespace {

[[noreturn]] void refuse_option(const char* name, std::string_view got, const char* wanted) {
  throw Error(Status::invalid_argument, "model", name, "", "is " + std::string(got.substr(0, 120)), wanted);
}

MlpOptions mlp_options(const ModelOptions& options) {
  MlpOptions mlp;
  using enum MlpOptions::Arithmetic;
  if (options.mlp == "bf16") mlp.arithmetic = bf16;
  else if (options.mlp == "int8") mlp.arithmetic = int8;
  else if (options.mlp != "as_stored") refuse_option("mlp", options.mlp, "as_stored, bf16 or int8");
  if (options.weights == "bf16") mlp.widen_fp8 = true;
  else if (options.weights != "as_stored") refuse_option("weights", options.weights, "as_stored or bf16");
  if (options.pass < 1) refuse_option("pass", std::to_string(options.pass), "at least 1 token");
  return mlp;
}

io::CheckpointOptions checkpoint_options(const ModelOptions& options) {
  if (options.static_activations != "refuse" && options.static_activations != "dequantise")
    refuse_option("static_activations", options.static_activations, "refuse or dequantise");
  return {.dequantise_static = options.static_activations == "dequantise"};
}

/// What experts may take, if nobody says: what the other weights leave, of which the caches and whatever else runs keep
/// 6 GB, or three quarters where that is less.
std::uint64_t memory_for_experts(const ModelOptions& options, std::uint64_t resident) {
  constexpr std::uint64_t kKept = 6'000'000'000;
  if (options.expert_memory >= 0) return std::uint64_t(options.expert_memory);
  const auto left_of = [&](std::uint64_t bytes) { return bytes > resident ? bytes - resident : 0; };
  const std::uint64_t free = left_of(io::available_memory());
  return std::min(left_of(io::memory_limit()), free - std::min(kKept, free / 4 * 3));
}

}  // namespace

Model::State::State(std::shared_ptr<const io::Checkpoint> from, const ModelOptions& options, std::int64_t count)
    : checkpoint(std::move(from)), config(checkpoint->config()) {
  const io::ModelConfig& c = config;
  const MlpOptions mlp = mlp_options(options);
  checkpoint->require_known_tensors(0, count, "");
  embedding = checkpoint->matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
  if (embedding.format != io::WeightFormat::floating)
    throw Error(Status::unsupported, "load", embedding.weight.shown(), "",
                std::string("is stored as ") + embedding.weight.tensor->type->name, "BF16, F16 or F32");
  load_layers(mlp, options, count);
}

Model::State::State(std::shared_ptr<const io::Checkpoint> from, const ModelOptions& options)
    : State(from, options, from->config().num_hidden_layers) {
  const io::ModelConfig& c = config;
  norm = checkpoint->load_vector_f32("model.norm.weight", c.hidden_size);
  const auto weight = c.tie_word_embeddings
                          ? io::load_bf16(embedding)
                          : checkpoint->load_matrix_bf16("lm_head.weight", c.vocab_size, c.hidden_size);
  head = transposed_matrix(weight.data(), c.vocab_size, c.hidden_size);
}

/// Everything but the routed experts is loaded; of those what fits.
void Model::State::load_layers(const MlpOptions& mlp, const ModelOptions& options, std::int64_t count) {
  const io::ModelConfig& c = config;
  std::vector<StoredExperts> stored;
  std::uint64_t routed = 0, as_stored = 0;
  for (std::int64_t i = 0; i < count; ++i)
    if (!c.dense_mlp[i]) {
      stored.push_back(find_experts(*checkpoint, i, mlp));
      routed += stored.back().bytes();
      as_stored += stored.back().stored_bytes();
      experts_there += c.moe.n_routed_experts;
    }
  const std::uint64_t resident = checkpoint->bytes_in_use(count) - as_stored;
  pass = chunk_tokens(c);
  if (!stored.empty()) {
    const std::uint64_t memory = memory_for_experts(options, resident);
    if (routed <= memory) {
      io::require_memory(checkpoint->folder(), resident + routed, io::memory_limit());
      experts = load_experts(std::move(stored), [&](std::uint64_t done, std::uint64_t bytes) {
        if (options.progress) options.progress(double(done) / double(bytes));
      });
    } else {
      experts = cache_experts(std::move(stored), memory, c.moe.num_experts_per_tok);
      pass = options.pass;
    }
  }
  io::require_memory(checkpoint->folder(), resident + (experts ? experts->bytes() : 0), io::memory_limit());
  const auto rope = std::make_shared<const RopeTable>(c.rope, c.qk_rope_head_dim);
  std::int64_t number = 0;
  for (int i = 0; i < count; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    layers.push_back({AttentionLayer(std::make_shared<AttentionLayer::State>(
                          c, i, checkpoint_source(checkpoint, i, mlp.widen_fp8), rope)),
                      checkpoint->load_vector_f32(prefix + "input_layernorm.weight", c.hidden_size),
                      checkpoint->load_vector_f32(prefix + "post_attention_layernorm.weight", c.hidden_size),
                      {},
                      {}});
    Layer& layer = layers.back();
    if (c.dense_mlp[i]) layer.mlp = GatedMlp(*checkpoint, prefix + "mlp.", c.hidden_size, c.intermediate_size, mlp);
    else layer.moe.emplace(*checkpoint, i, number++, experts, mlp);
    if (options.progress && !experts) options.progress(double(i + 1) / double(count));
  }
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

/// Bytes that make(carver) takes.
template <class Make>
std::size_t measured(Make&& make) {
  Carver carver;
  (void)make(carver);
  return carver.bytes();
}

/// Tokens on their way through a model; their arrays. Attention and dense MLPs take a chunk of them at a time, experts
/// all: a pass.
struct Tokens {
  const Model::State& model;
  const io::ModelConfig& config;
  Costs& costs;
  Context& context;
  std::int64_t rows;
  float *residual, *normal, *change;  // [rows, hidden_size]
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
        input(carver.take<bf16>(rows * config.hidden_size)),
        selection(carver.take<std::int32_t>(rows * config.index_topk)) {}

  void embed(std::span<const std::int32_t> tokens) const {
    const std::int64_t width = config.hidden_size;
    Timed timed(&costs, "embedding", double(rows * width) * sizeof(bf16));
    Call call(context, "model", 0);
    for (std::int64_t i = 0; i < rows; ++i) {
      io::load_row(model.embedding, tokens[i], input + i * width);
      call.kernels().widen(input + i * width, width, residual + i * width);
    }
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

/// Attention of rows first .. first + rows - 1, which belong to `sessions`, as many of each.
void attend(const Tokens& t, const Model::State::Layer& layer, int number, std::span<Session::State* const> sessions,
            std::int64_t first, std::int64_t rows) {
  Session::State& one = *sessions[0];
  const std::int64_t width = t.config.hidden_size, topk = t.config.index_topk,
                     each = rows / std::int64_t(sessions.size());
  std::vector<Part> parts;
  for (Session::State* session : sessions)
    parts.push_back({&session->caches[number].state(), std::int64_t(parts.size()) * each, each});
  std::int32_t* selection = is_sparse(one.mode) ? t.selection + first * topk : nullptr;
  forward_chunk(layer.attention.state(), tensor(t.input + first * width, {rows, width}),
                tensor(t.change + first * width, {rows, width}), parts, selection, {}, one.layer_scratch, t.context,
                &one.costs);
  for (std::size_t i = 0; i < parts.size() && selection; ++i)
    if (const auto& observer = sessions[i]->observer)
      observer(number, parts[i].first, tensor<const std::int32_t>(selection + parts[i].row * topk, {each, topk}));
}

/// Tokens of sessions of one model and mode, as many of each, one session after the other; logits of the last `wanted`.
/// At most chunk_tokens() of several sessions, or a pass of one. What it costs is counted by the first. `residual`, if
/// it is there, receives what the last layer hands on, [tokens, hidden_size].
void run_pass(std::span<Session::State* const> sessions, std::span<const std::int32_t> tokens, std::int64_t wanted,
              float* logits, Context& context, float* residual = nullptr) {
  Session::State& one = *sessions[0];
  const Model::State& model = *one.model;
  const std::int64_t rows = std::int64_t(tokens.size()),
                     step = sessions.size() > 1 ? rows : chunk_tokens(model.config);
  const auto arrays = [&](Carver& carver) { return Tokens(model, one.costs, context, rows, carver); };
  Carver memory(one.scratch.require(measured(arrays)));
  const Tokens t = arrays(memory);
  t.embed(tokens);
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const Model::State::Layer& layer = model.layers[l];
    t.norm_before_attention(layer.attention_norm);
    for (std::int64_t first = 0; first < rows; first += step)
      attend(t, layer, int(l), sessions, first, std::min(step, rows - first));
    t.norm_before_mlp(layer.mlp_norm);
    t.mlp(layer, one.layer_scratch);
  }
  if (wanted > 0) t.head(wanted, logits);
  if (residual) std::copy_n(t.residual, rows * model.config.hidden_size, residual);
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
  const std::int64_t before = length(), step = state_->model->pass;
  state_->reserve(before + rows);
  try {
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t count = std::min(step, rows - first);
      const std::int64_t unwanted = std::max<std::int64_t>(rows - wanted - first, 0),
                         mine = std::max<std::int64_t>(count - unwanted, 0);
      float* to = logits.data() + std::max<std::int64_t>(first - (rows - wanted), 0) * c.vocab_size;
      run_pass(std::array{state_.get()}, tokens.subspan(first, count), mine, to, context);
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
      run_pass(std::span(states).subspan(first, count), tokens.subspan(first, count), std::int64_t(count),
                logits.data() + first * std::size_t(c.vocab_size), context);
    }
  } catch (...) {
    for (std::size_t i = 0; i < states.size(); ++i) states[i]->keep(before[i]);
    throw;
  }
}

Entering entering_layer(std::shared_ptr<const io::Checkpoint> checkpoint, int layer,
                        std::span<const std::int32_t> tokens, const ModelOptions& options, Context& context) {
  const io::ModelConfig& c = checkpoint->config();
  check_tokens(c, tokens);
  const auto model = std::make_shared<const Model::State>(checkpoint, options, layer);
  const Mode mode = c.index_topk > 0 ? Mode::sparse_bf16 : Mode::dense_bf16;
  const std::int64_t rows = std::int64_t(tokens.size()), topk = c.index_topk;
  Session::State session(model, mode, kDefaultPageSize);
  Entering all{std::vector<float>(std::size_t(rows * c.hidden_size)), {}};
  if (layer > 0) all.selection.resize(std::size_t(rows * topk));
  session.observer = [&](int number, std::int64_t first, const Tensor& t) {
    if (number == layer - 1)
      std::copy_n(static_cast<const std::int32_t*>(t.data), t.shape[0] * topk, all.selection.data() + first * topk);
  };
  session.reserve(rows);
  for (std::int64_t first = 0; first < rows; first += model->pass)
    run_pass(std::array{&session}, tokens.subspan(first, std::min(model->pass, rows - first)), 0, nullptr, context,
             all.residual.data() + first * c.hidden_size);
  return all;
}

Model::Model(const std::string& folder, const ModelOptions& options)
    : state_(std::make_shared<State>(std::make_shared<const io::Checkpoint>(folder, checkpoint_options(options)),
                                     options)) {}

ExpertCosts Model::expert_costs() const {
  if (!state_->experts) return {};
  const ExpertCounts counts = state_->experts->counts();
  const std::int64_t slots = state_->experts->slots();
  return {counts.asked,
          counts.read,
          double(counts.bytes),
          counts.waited,
          slots,
          state_->experts_there,
          slots > 0 ? state_->experts->bytes() / std::size_t(slots) : 0};
}
std::vector<std::string> Model::notes() const { return state_->checkpoint->notes(); }

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
  std::size_t sum = state_->head.bytes() + state_->norm.size() * sizeof(float);
  for (const State::Layer& l : state_->layers)
    sum += l.attention.weight_bytes() + l.mlp.bytes() + (l.moe ? l.moe->bytes() : 0) +
           (l.attention_norm.size() + l.mlp_norm.size()) * sizeof(float);
  return sum + (state_->experts ? state_->experts->bytes() : 0);
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
