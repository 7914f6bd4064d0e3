// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/context.hpp"
#include "dsakit/group.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

// How attention is computed, by name:
//   "dense_bf16"          bf16 weights and caches, every visible position attended
//   "sparse_bf16"         the same, attending the index_topk positions that lightning_indexer selects
//   "sparse_w8a8"         int8 q_b_proj and wq_b and what they multiply, int8 latent and index caches: the PyPTO
//                         operators mla_indexer_prolog_quant, sparse_flash_attention_quant
//   "sparse_w8a8_packed"  int8 q_a_proj and kv_a_proj too, one packed row per token in the cache: the torch_npu operators
//                         mla_prolog_v3, kv_quant_sparse_flash_attention
// Both int8 modes select by quant_lightning_indexer.
// In every mode a token has the same bits whichever way it was reached: prefill, chunks, or one by one.

inline constexpr std::string_view kModes[] = {"dense_bf16", "sparse_bf16", "sparse_w8a8",
                                              "sparse_w8a8_packed"};
inline constexpr std::int64_t kDefaultPageSize = 128;

/// What one operator has cost since the counting began. `bytes`: weights and cache rows read, each once per call.
struct OperatorCost {
  std::string_view name;
  std::int64_t calls = 0;
  double seconds = 0, bytes = 0;
};

struct Costs {
  std::vector<OperatorCost> operators;  // in the order of first use
  double selected = 0, visible = 0;     // positions attended and positions visible, over all tokens and layers
  double selected_share() const { return visible > 0 ? selected / visible : 0; }
};

/// Exchanges of one kind since the session began.
struct Traffic {
  std::string name;
  std::int64_t messages = 0;
  std::uint64_t bytes = 0;  // that came from other ranks
};

/// The caches of one attention layer and one sequence, in pages found through a block table; grows by pages.
/// A copy is an independent sequence that shares the pages until one of the two writes to the last of them: it costs a
/// block table. Any thread may use a copy while others use theirs.
class LayerCache {
 public:
  struct State;
  explicit LayerCache(std::unique_ptr<State>);
  LayerCache(const LayerCache&);
  LayerCache(LayerCache&&) noexcept;
  LayerCache& operator=(const LayerCache&);
  LayerCache& operator=(LayerCache&&) noexcept;
  ~LayerCache();

  std::string_view mode() const;
  std::int64_t length() const;  // tokens held
  std::int64_t page_size() const;
  std::size_t bytes() const;  // memory held, together with its copies
  void reset();               // forgets the tokens, keeps the memory
  void crop(std::int64_t count);  // forgets the last `count` tokens
  State& state() { return *state_; }
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// Tokens of one sequence in a batch.
struct NewTokens {
  LayerCache* cache;
  std::int64_t count;
};

/// cos and sin of the angles of every token, bf16 [T, qk_rope_head_dim] without gaps, the halves of a row repeated.
/// Absent: those of the tokens' positions as config.json describes them.
struct Rotation {
  Tensor cos{}, sin{};
};

/// The attention of one layer, from normalised hidden states to what is added to the residual.
class AttentionLayer {
 public:
  /// Layer `layer` of a checkpoint folder in Hugging Face layout. The rest of the model may be one that Model refuses.
  AttentionLayer(const std::string& folder, int layer);
  struct State;
  explicit AttentionLayer(std::shared_ptr<State>);

  std::int64_t hidden_size() const;
  std::int64_t index_topk() const;   // 0: no indexer in this model
  bool has_indexer() const;          // false: it uses the selection of a layer before it
  std::size_t weight_bytes() const;  // prepared so far: a mode's own weights are made when it is first used

  /// An empty cache. `mode` is one of kModes.
  LayerCache make_cache(std::string_view mode, std::int64_t page_size = kDefaultPageSize) const;

  /// Appends tokens: hidden bf16 [T, hidden_size] -> out bf16 or f32, same shape. T = 1 is a decode step.
  /// `selection` i32 [T, index_topk]: in sparse modes, a layer with an indexer writes it (absent: kept inside), a layer
  /// without reads it. A row's list holds min(n, index_topk) of its n visible positions: 0..n-1 while n <= index_topk,
  /// else the best, best first. Entries behind that are undefined. Costs are added to *costs.
  void forward(const Tensor& hidden, const Tensor& out, LayerCache& cache, const Tensor& selection = {},
               Context& = default_context(), Costs* costs = nullptr) const;
  /// The same for several sequences of one mode at once: rows of `hidden`, `out` and `selection` one sequence after the
  /// other. Weights are read once for all; each sequence has the bits it has alone. After an error none has grown.
  void forward(const Tensor& hidden, const Tensor& out, std::span<const NewTokens> sequences,
               const Tensor& selection = {}, const Rotation& rotation = {}, Context& = default_context(),
               Costs* costs = nullptr) const;
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

/// One sequence running through a model in one mode: a cache per layer. A copy is an independent sequence that shares
/// the weights, and the caches of what both have said so far (LayerCache).
class Session {
 public:
  struct State;
  explicit Session(std::unique_ptr<State>);
  Session(const Session&);
  Session(Session&&) noexcept;
  Session& operator=(const Session&);
  Session& operator=(Session&&) noexcept;
  ~Session();

  std::string_view mode() const;
  std::int64_t length() const;
  std::int64_t vocab_size() const;
  std::size_t cache_bytes() const;
  void reset();
  void crop(std::int64_t count);  // forgets the last `count` tokens

  /// Appends tokens. `logits` receives those of the last logits.size() / vocab_size tokens, row by row: none, the
  /// last or all of them.
  void append(std::span<const std::int32_t> tokens, std::span<float> logits = {}, Context& = default_context());
  const Costs& costs() const;  // since the session began
  std::vector<Traffic> traffic() const;  // of a model that ranks share
  void clear_costs();
  /// Everything that it holds, to a folder: one file a rank, and cache.json, which takes the place of the one before once all of
  /// them are there. A process that ends meanwhile leaves the session before or this one, whole.
  void save(const std::string& folder);
  /// Sees what every layer attends to in the sparse modes: i32 [rows, K], row i that of position first + i; K is index_topk,
  /// or less where rows see fewer positions.
  void observe(std::function<void(int layer, std::int64_t first, const Tensor& selection)>);
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// Appends a token to each of several sessions of one model and mode; logits [sessions, vocab_size]. Weights are read
/// once for all, each session has the bits it has alone. After an error no session has grown.
void step(std::span<Session* const> sessions, std::span<const std::int32_t> tokens, std::span<float> logits,
          Context& = default_context());

struct Score {
  double bits_per_token = 0;
  double bits_per_byte = 0;  // the same where tokens are bytes; 0: not known
  std::int64_t predictions = 0;
  double seconds = 0, tokens_per_second = 0;
  std::size_t cache_bytes = 0;  // at the end of the longest window
  Costs costs;
};

/// What a model is loaded for.
struct ModelOptions {
  // Arithmetic of the MLPs, experts included: "as_stored" (int8 weights meet activations quantised per token),
  // "bf16" (int8 weights are widened), "int8" (all weights are quantised so)
  std::string_view mlp = "as_stored";
  // "as_stored": one byte for a weight of 8-bit floats, or "bf16": two, with the same bits in every result
  std::string_view weights = "as_stored";
  // int8 weights with static activations: "refuse", or "dequantise" (read as bf16 numbers)
  std::string_view static_activations = "refuse";
  // Bytes for routed experts; those that do not fit are read from the files when they are wanted. Negative: what the
  // machine has left, less the other weights and 6 GB. Bits do not depend on it.
  std::int64_t expert_memory = -1;
  // Tokens of a prompt that go through a layer before the next one, where experts are read from files: each is read
  // once per layer and pass. Bits do not depend on it.
  std::int64_t pass = 4096;
  std::function<void(double share)> progress{};  // of loading, now and then
};

/// How several ranks share a model: as `dsakit run` takes it, in the words of docs/distributed.md.
struct Parallel {
  std::string_view parallel = {};   // "kv=2,heads=2,query=1": their product is the number of ranks; absent: 1
  std::string_view exchange = "rows";  // or "partials": what of attention travels where kv is above 1
  std::string_view index = "all";      // "kv", "copy": which ranks have the index keys of a position
  std::string_view merge = "auto";     // "one", "two": in how many exchanges selections are merged
  std::string_view prolog = "split";   // "copy": every rank computes the first products and the index heads
  std::int64_t interleave = 1;         // positions in a row that one rank has
  std::string_view trace = {};         // a file for a JSON line of each exchange of this rank; absent: none
};

/// What the routed experts of a model have cost since it was loaded.
struct ExpertCosts {
  std::int64_t asked = 0, read = 0;  // wanted by a layer for a step or a pass; of which were not in memory
  double bytes = 0, waited = 0;      // read from files; seconds with nothing to compute
  std::int64_t held = 0, all = 0;    // how many memory has room for, and there are
  std::size_t expert_bytes = 0;      // of memory for one
};

/// A language model in Hugging Face layout (names of DeepSeek-V3, DeepSeek-V3.2, GLM-5, Kimi-K2), with dense MLPs or a
/// mixture of experts; fp32 arithmetic and residual around the attention layers.
class Model {
 public:
  explicit Model(const std::string& folder, const ModelOptions& = {});
  /// A rank's share of a model that all ranks of `group` load and run together, by the same calls in the same order: each
  /// holds its heads and columns of the weights and its positions of the caches, and every rank gets all results. Selections
  /// are those of one process for any number of ranks, and all bits but with exchange="partials". What fails on one rank is
  /// thrown on all, and the model stays usable; after PEER_FAILED it is not. `group` outlives it.
  Model(const std::string& folder, Group& group, const Parallel&, const ModelOptions& = {});
  /// The same; what is made of it keeps the group.
  Model(const std::string& folder, std::shared_ptr<Group> group, const Parallel&, const ModelOptions& = {});

  std::int64_t vocab_size() const;
  std::int64_t hidden_size() const;
  std::int64_t index_topk() const;
  int layers() const;
  AttentionLayer attention(int layer) const;    // shares the weights
  std::size_t weight_bytes() const;             // prepared so far
  std::vector<std::string_view> modes() const;  // those it can run: dense_bf16 alone without an indexer

  ExpertCosts expert_costs() const;
  /// What was noticed while it was loaded: weights that are not used, or not as they are stored.
  std::vector<std::string> notes() const;

  Session start(std::string_view mode, std::int64_t page_size = kDefaultPageSize) const;
  /// A session that Session::save has written, by as many ranks as there were: it goes on with the same bits.
  Session load_session(const std::string& folder, std::int64_t page_size = kDefaultPageSize) const;

  /// fp32 [tokens, vocab_size] from an empty context.
  std::vector<float> logits(std::span<const std::int32_t> tokens, std::string_view mode,
                            Context& = default_context()) const;

  /// `count` tokens that continue `prompt` (at least one token). temperature 0: the most likely one, ties to the
  /// lowest id; else drawn from softmax(logits / temperature), the same for the same seed. `each` sees every token as
  /// it comes.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt, std::int64_t count, std::string_view mode,
                                     double temperature = 0, std::uint64_t seed = 0, Context& = default_context(),
                                     const std::function<void(std::int32_t)>& each = {}) const;

  /// Bits per byte of a text, for models whose tokens are bytes. The text is cut in windows of `context` tokens: window
  /// w predicts bytes w*context+1 .. w*context+context from an empty context, so each byte but the first is predicted
  /// once; the last window is shorter. `progress(done, all)` is called now and then.
  Score score(std::span<const std::uint8_t> text, std::int64_t context, std::string_view mode,
              Context& = default_context(), const std::function<void(std::int64_t, std::int64_t)>& progress = {}) const;
  /// Bits per token, in the same windows.
  Score score(std::span<const std::int32_t> tokens, std::int64_t context, std::string_view mode,
              Context& = default_context(), const std::function<void(std::int64_t, std::int64_t)>& progress = {}) const;

  struct State;
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace dsakit
