// SPDX-License-Identifier: Apache-2.0
#include "layer/model_state.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/out_of_memory.hpp"
#include "io/memory.hpp"

namespace dsakit {
namespace {

[[noreturn]] void refuse_option(const char* name, std::string_view got, const char* wanted) {
  throw Error(Status::invalid_argument, "model", name, "", "is " + printable(got), wanted);
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
/// 6 GB, or three quarters where that is less. Ranks take it to be one machine's.
std::uint64_t memory_for_experts(const ModelOptions& options, std::uint64_t resident, int ranks) {
  constexpr std::uint64_t kKept = 6'000'000'000;
  if (options.expert_memory >= 0) return std::uint64_t(options.expert_memory);
  const auto left_of = [&](std::uint64_t bytes) { return bytes > resident ? bytes - resident : 0; };
  const std::uint64_t free = left_of(io::available_memory() / std::uint64_t(ranks));
  return std::min(left_of(io::memory_limit()), free - std::min(kKept, free / 4 * 3));
}

}  // namespace

Model::State::State(std::shared_ptr<const io::Checkpoint> from, const ModelOptions& options, std::int64_t count)
    : checkpoint(std::move(from)), config(checkpoint->config()) {
  const MlpOptions mlp = mlp_options(options);
  find_embedding(count);
  load_experts(mlp, options, count);
  for (int i = 0; i < count; ++i) {
    check_interrupt(default_context(), "load");
    load_layer(mlp, i);
    if (options.progress && !experts) options.progress(double(i + 1) / double(count));
  }
}

Model::State::State(std::shared_ptr<const io::Checkpoint> from, const ModelOptions& options)
    : State(from, options, from->config().num_hidden_layers) {
  check_interrupt(default_context(), "load");
  load_head();
}

Model::State::State(const std::string& folder, const ModelOptions& options, std::shared_ptr<Peers> with)
    : peers(std::move(with)) {
  Conversation& talk = peers->talk;
  const std::lock_guard turn(peers->turn);
  MlpOptions mlp;
  talk.begin({{{"operation", "load"},
               {"version", DSAKIT_VERSION},
               {"mlp", std::string(options.mlp)},
               {"weights", std::string(options.weights)},
               {"static_activations", std::string(options.static_activations)},
               {"pass", std::to_string(options.pass)}}},
             [&] {
               mlp = mlp_options(options);
               checkpoint = std::make_shared<const io::Checkpoint>(folder, checkpoint_options(options));
               config = checkpoint->config();
             });
  mlp.share = share();
  talk.begin({{{"checkpoint", checkpoint->fingerprint()}}}, [&] { find_embedding(config.num_hidden_layers); });
  talk.work([&] { load_experts(mlp, options, config.num_hidden_layers); });
  agree_on_experts(options);
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    talk.work([&] {
      check_interrupt(default_context(), "load");
      load_layer(mlp, i);
    });
    peers->wait_for_all("loading");
    if (options.progress && !experts) options.progress(double(i + 1) / double(config.num_hidden_layers));
  }
  talk.work([&] { load_head(); });
  talk.end();
}

/// Windows of experts and passes of tokens are cut alike everywhere: as the rank with the least room has it.
void Model::State::agree_on_experts(const ModelOptions& options) {
  const std::int64_t mine[] = {experts ? experts->slots() : 0, experts_there};
  std::vector<std::int64_t> all(2 * std::size_t(peers->world.size()));
  const std::vector<std::size_t> sizes(std::size_t(peers->world.size()), sizeof mine);
  peers->talk.all_gather(peers->world, "loading", std::as_bytes(std::span(mine)), sizes,
                         reinterpret_cast<std::byte*>(all.data()));
  peers->least_slots = all[0];
  for (std::size_t r = 0; r < all.size(); r += 2) {
    peers->least_slots = std::min(peers->least_slots, all[r]);
    peers->all_experts_held &= all[r] == all[r + 1];
  }
  pass = peers->all_experts_held ? chunk_tokens(config) : options.pass;
}

void Model::State::find_embedding(std::int64_t count) {
  const io::ModelConfig& c = config;
  checkpoint->require_known_tensors(0, count, "");
  embedding = checkpoint->matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
  if (embedding.format != io::WeightFormat::floating)
    throw Error(Status::unsupported, "load", embedding.weight.shown(), "",
                std::string("is stored as ") + embedding.weight.tensor->type->name, "BF16, F16 or F32");
}

void Model::State::load_head() {
  const io::ModelConfig& c = config;
  norm = checkpoint->load_vector_f32("model.norm.weight", c.hidden_size);
  const io::StoredMatrix all =
      c.tie_word_embeddings ? embedding : checkpoint->matrix("lm_head.weight", c.vocab_size, c.hidden_size);
  const Slice rows = share().columns(c.vocab_size);
  if (rows.size() == 0) return;
  const auto weight = io::load_bf16(all.part(rows.begin, rows.size()));
  head = transposed_matrix(weight.data(), rows.size(), c.hidden_size);
}

/// The routed experts of which memory has room; the rest of the first `count` layers will fit, or nothing is loaded.
void Model::State::load_experts(const MlpOptions& mlp, const ModelOptions& options, std::int64_t count) {
  const io::ModelConfig& c = config;
  const int ranks = peers ? peers->world.size() : 1;
  std::vector<StoredExperts> stored;
  std::uint64_t routed = 0, as_stored = 0;
  for (std::int64_t i = 0; i < count; ++i)
    if (!c.dense_mlp[i]) {
      stored.push_back(find_experts(*checkpoint, i, mlp));
      routed += stored.back().bytes();
      as_stored += stored.back().stored_bytes();
      experts_there += c.moe.n_routed_experts;
    }
  const std::uint64_t in_use = checkpoint->bytes_in_use(count) / std::uint64_t(mlp.share.ranks),
                      resident = in_use - std::min(in_use, as_stored);
  pass = chunk_tokens(c);
  if (!stored.empty()) {
    const std::uint64_t memory = memory_for_experts(options, resident, ranks);
    if (routed <= memory) {
      io::require_memory(checkpoint->folder(), resident + routed, io::memory_limit());
      experts = dsakit::load_experts(std::move(stored), [&](std::uint64_t done, std::uint64_t bytes) {
        if (options.progress) options.progress(double(done) / double(bytes));
      });
    } else {
      experts = cache_experts(std::move(stored), memory, c.moe.num_experts_per_tok);
      pass = options.pass;
    }
  }
  io::require_memory(checkpoint->folder(), resident + (experts ? experts->bytes() : 0), io::memory_limit());
  rope = std::make_shared<const RopeTable>(c.rope, c.qk_rope_head_dim);
}

/// Everything of a layer but its routed experts.
void Model::State::load_layer(const MlpOptions& mlp, int i) {
  const io::ModelConfig& c = config;
  const std::string prefix = "model.layers." + std::to_string(i) + ".";
  layers.push_back({AttentionLayer(std::make_shared<AttentionLayer::State>(
                        c, i, checkpoint_source(checkpoint, i, mlp.widen_fp8), rope, mlp.share)),
                    checkpoint->load_vector_f32(prefix + "input_layernorm.weight", c.hidden_size),
                    checkpoint->load_vector_f32(prefix + "post_attention_layernorm.weight", c.hidden_size),
                    {},
                    {}});
  Layer& layer = layers.back();
  const std::int64_t number = std::count(c.dense_mlp.begin(), c.dense_mlp.begin() + i, false);
  if (c.dense_mlp[i]) layer.mlp = GatedMlp(*checkpoint, prefix + "mlp.", c.hidden_size, c.intermediate_size, mlp);
  else layer.moe.emplace(*checkpoint, i, number, experts, mlp);
}

Session::State::State(std::shared_ptr<const Model::State> of, Mode mode, std::int64_t page_size)
    : model(std::move(of)), mode(mode) {
  for (const Model::State::Layer& layer : model->layers) {
    AttentionLayer::State& attention = layer.attention.state();
    const RowKinds kinds(model->config, attention.indexer, mode);
    const auto make = [&](const RowKinds& some) {
      return LayerCache(std::make_unique<LayerCache::State>(some, mode, page_size));
    };
    caches.push_back(make(model->peers ? kinds.latents() : kinds));
    if (model->peers) index_caches.push_back(make(kinds.index_keys()));
    else attention.weights.prepare(mode);
  }
}

Session::State::State(const State& from)
    : model(from.model),
      mode(from.mode),
      caches(from.caches),
      index_caches(from.index_caches),
      shared_length(from.shared_length),
      costs(from.costs),
      traffic(from.traffic),
      observer(from.observer) {}

void Session::State::reserve(std::int64_t positions) {
  const Peers* peers = model->peers.get();
  for (LayerCache& cache : caches) cache.state().reserve(peers ? peers->latent_rows().below(positions) : positions);
  for (LayerCache& cache : index_caches) cache.state().reserve(peers->index_rows().below(positions));
}

void Session::State::keep(std::int64_t positions) {
  const Peers* peers = model->peers.get();
  for (LayerCache& cache : caches) cache.state().keep(peers ? peers->latent_rows().below(positions) : positions);
  for (LayerCache& cache : index_caches) cache.state().keep(peers->index_rows().below(positions));
  shared_length = positions;
}

void check_tokens(const io::ModelConfig& c, std::span<const std::int32_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= c.vocab_size)
      throw Error(Status::invalid_argument, "model", "tokens", "[" + std::to_string(i) + "]",
                  "is " + std::to_string(tokens[i]), "0.." + std::to_string(c.vocab_size - 1), "vocab_size");
}

void check_append(const io::ModelConfig& c, std::span<const std::int32_t> tokens, std::span<const float> logits) {
  check_tokens(c, tokens);
  const std::int64_t rows = std::int64_t(tokens.size()), wanted = std::int64_t(logits.size()) / c.vocab_size;
  if (std::int64_t(logits.size()) % c.vocab_size != 0 || wanted > rows)
    throw Error(
        Status::invalid_shape, "model", "logits", "", "has " + std::to_string(logits.size()) + " elements",
        "vocab_size (" + std::to_string(c.vocab_size) + ") for each of at most " + std::to_string(rows) + " tokens");
}

namespace {

/// Attention of rows first .. first + rows - 1, which belong to `sessions`, as many of each.
void attend(const Tokens& t, const Model::State::Layer& layer, int number, std::span<Session::State* const> sessions,
            std::int64_t first, std::int64_t rows) {
  Session::State& one = *sessions[0];
  const std::int64_t width = t.config.hidden_size, each = rows / std::int64_t(sessions.size());
  std::vector<ChunkPart> parts;
  for (Session::State* session : sessions)
    parts.push_back({&session->caches[number].state(), std::int64_t(parts.size()) * each, each});
  const Lists selection = is_sparse(one.mode) ? t.selection.from(first) : Lists{};
  forward_chunk(layer.attention.state(), tensor(t.input + first * width, {rows, width}),
                tensor(t.change + first * width, {rows, width}), parts, selection, {}, one.layer_scratch, t.context,
                &one.costs);
  for (std::size_t i = 0; i < parts.size() && selection; ++i)
    if (const auto& observer = sessions[i]->observer)
      observer(number, parts[i].first, tensor<const std::int32_t>(selection.row(parts[i].row), {each, selection.width}));
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
  std::int64_t positions = 0;
  for (const Session::State* session : sessions)
    if (!session->caches.empty())  // as a model has that ends before its first layer
      positions = std::max(positions, session->length() + rows / std::int64_t(sessions.size()));
  const auto arrays = [&](Carver& carver) { return Tokens(model, one.costs, context, rows, positions, carver); };
  Carver memory(one.scratch.require(measured(arrays)));
  const Tokens t = arrays(memory);
  t.read_embedding(tokens, {0, rows});
  t.embed();
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
Session::Session(const Session& from) try : state_(std::make_unique<State>(*from.state_)) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(const Session& from) { return *this = Session(from); }
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

std::string_view Session::mode() const { return name_of(state_->mode); }
std::int64_t Session::length() const { return state_->length(); }
std::int64_t Session::vocab_size() const { return state_->model->config.vocab_size; }
std::size_t Session::cache_bytes() const {
  std::size_t sum = 0;
  for (const auto* caches : {&state_->caches, &state_->index_caches})
    for (const LayerCache& cache : *caches) sum += cache.bytes();
  return sum;
}
void Session::reset() { state_->keep(0); }
void Session::crop(std::int64_t count) try {
  if (count < 0 || count > length())
    throw Error(Status::invalid_argument, "model", "count", "", "is " + std::to_string(count),
                "0.." + std::to_string(length()), "the tokens held");
  state_->keep(length() - count);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
const Costs& Session::costs() const { return state_->costs; }
void Session::clear_costs() { state_->costs = {}, state_->traffic.clear(); }
std::vector<Traffic> Session::traffic() const try {
  std::vector<Traffic> all;
  for (const auto& [name, count] : state_->traffic) all.push_back({name, count.messages, count.bytes});
  return all;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
void Session::observe(std::function<void(int, std::int64_t, const Tensor&)> observer) {
  state_->observer = std::move(observer);
}

void Session::append(std::span<const std::int32_t> tokens, std::span<float> logits, Context& context) try {
  if (state_->model->peers) return append_parallel(*state_, tokens, logits, context);
  const io::ModelConfig& c = state_->model->config;
  check_append(c, tokens, logits);
  const std::int64_t rows = std::int64_t(tokens.size()), wanted = std::int64_t(logits.size()) / c.vocab_size;
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
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void step(std::span<Session* const> sessions, std::span<const std::int32_t> tokens, std::span<float> logits,
          Context& context) try {
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
  for (Session::State* state : states) before.push_back(state->length());
  for (std::size_t i = 0; i < states.size() && !states[0]->model->peers; ++i) states[i]->reserve(before[i] + 1);
  try {
    if (states[0]->model->peers) {  // one after the other: the bits are the same
      for (std::size_t i = 0; i < states.size(); ++i)
        append_parallel(*states[i], tokens.subspan(i, 1), logits.subspan(i * std::size_t(c.vocab_size), std::size_t(c.vocab_size)), context);
      return;
    }
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
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Entering entering_layer(std::shared_ptr<const io::Checkpoint> checkpoint, int layer,
                        std::span<const std::int32_t> tokens, const ModelOptions& options, Context& context) {
  const io::ModelConfig& c = checkpoint->config();
  check_tokens(c, tokens);
  const auto model = std::make_shared<const Model::State>(checkpoint, options, layer);
  const Mode mode = c.index_topk > 0 ? Mode::sparse_bf16 : Mode::dense_bf16;
  const std::int64_t rows = std::int64_t(tokens.size()), topk = std::min(c.index_topk, rows);
  Session::State session(model, mode, kDefaultPageSize);
  Entering all{std::vector<float>(std::size_t(rows * c.hidden_size)), {}};
  if (layer > 0) all.selection.resize(std::size_t(rows * topk));
  session.observer = [&](int number, std::int64_t first, const Tensor& t) {
    for (std::int64_t i = 0; i < t.shape[0] && number == layer - 1; ++i)
      std::copy_n(static_cast<const std::int32_t*>(t.data) + i * t.stride[0], std::min(t.shape[1], topk),
                  all.selection.data() + (first + i) * topk);
  };
  session.reserve(rows);
  for (std::int64_t first = 0; first < rows; first += model->pass)
    run_pass(std::array{&session}, tokens.subspan(first, std::min(model->pass, rows - first)), 0, nullptr, context,
             all.residual.data() + first * c.hidden_size);
  return all;
}

Model::Model(const std::string& folder, const ModelOptions& options)
    try : state_(std::make_shared<State>(
              std::make_shared<const io::Checkpoint>(folder, checkpoint_options(options)), options)) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Model::Model(const std::string& folder, Group& group, const Parallel& parallel, const ModelOptions& options)
    try : Model(folder, borrowed(group), parallel, options) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
Model::Model(const std::string& folder, std::shared_ptr<Group> group, const Parallel& parallel,
             const ModelOptions& options) try {
  const ParallelWords words{.parallel = std::string(parallel.parallel),
                            .exchange = std::string(parallel.exchange),
                            .index = std::string(parallel.index),
                            .merge = std::string(parallel.merge),
                            .prolog = std::string(parallel.prolog),
                            .interleave = parallel.interleave};
  const std::shared_ptr<Peers> peers = make_peers(std::move(group), words);
  peers->talk.begin({{{"operation", "trace"}}}, [&] {
    if (!parallel.trace.empty()) peers->talk.trace(std::string(parallel.trace));
  });
  state_ = std::make_shared<State>(folder, options, peers);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

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
std::vector<std::string> Model::notes() const try {
  return state_->checkpoint->notes();
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::int64_t Model::vocab_size() const { return state_->config.vocab_size; }
std::int64_t Model::hidden_size() const { return state_->config.hidden_size; }
std::int64_t Model::index_topk() const { return state_->config.index_topk; }
int Model::layers() const { return int(state_->layers.size()); }
AttentionLayer Model::attention(int layer) const try {
  if (state_->peers)
    throw Error(Status::unsupported, "model", "attention", "", "is of a model that ranks share", "a model of one process",
                "a rank has its share of a layer's weights");
  if (layer < 0 || layer >= layers())
    throw Error(Status::invalid_argument, "model", "layer", "", "is " + std::to_string(layer),
                "0.." + std::to_string(layers() - 1), "num_hidden_layers");
  return state_->layers[layer].attention;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
std::size_t Model::weight_bytes() const {
  std::size_t sum = state_->head.bytes() + state_->norm.size() * sizeof(float);
  for (const State::Layer& l : state_->layers)
    sum += l.attention.weight_bytes() + l.mlp.bytes() + (l.moe ? l.moe->bytes() : 0) +
           (l.attention_norm.size() + l.mlp_norm.size()) * sizeof(float);
  return sum + (state_->experts ? state_->experts->bytes() : 0);
}
std::vector<std::string_view> Model::modes() const try {
  std::vector<std::string_view> all;
  for (const std::string_view name : kModes) {
    try {
      all.push_back(name_of(mode_of(name, state_->config)));
    } catch (const Error&) {  // cannot run in this one
    }
  }
  return all;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Session Model::start(std::string_view mode, std::int64_t page_size) const try {
  if (state_->peers) return Session(start_parallel(state_, mode, page_size));
  return Session(std::make_unique<Session::State>(state_, mode_of(mode, state_->config), page_size));
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::vector<float> Model::logits(std::span<const std::int32_t> tokens, std::string_view mode,
                                 Context& context) const try {
  std::vector<float> all(tokens.size() * std::size_t(vocab_size()));
  start(mode).append(tokens, all, context);
  return all;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
