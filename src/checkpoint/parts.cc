// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/parts.hpp"

#include <charconv>

namespace dsakit {
namespace {

/// The tensors of one layer after another.
class Lister {
 public:
  Lister(const io::ModelConfig& config, const std::function<void(const ModelTensor&)>& visit)
      : c_(config), visit_(visit) {}

  void all() {
    matrix("model.embed_tokens", c_.vocab_size, c_.hidden_size, false);
    for (std::int64_t i = 0; i < c_.num_hidden_layers; ++i) layer(i);
    vector("model.norm.weight", c_.hidden_size);
    if (!c_.tie_word_embeddings) matrix("lm_head", c_.vocab_size, c_.hidden_size, false);
    for (std::int64_t i = 0; i < c_.num_nextn_predict_layers; ++i) mtp(c_.num_hidden_layers + i);
  }

 private:
  void matrix(const std::string& module, std::int64_t rows, std::int64_t cols, bool quantised = true) {
    const std::string name = module + ".weight";
    visit_({name, part_of(name, c_), {rows, cols}, quantised});
  }
  void vector(const std::string& name, std::int64_t size) { visit_({name, part_of(name, c_), {size}, false}); }

  void layer(std::int64_t i) {
    const std::string p = prefix(i);
    const bool mtp = i >= c_.num_hidden_layers;
    vector(p + "input_layernorm.weight", c_.hidden_size);
    attention(p + "self_attn.");
    if (c_.index_topk > 0 && (mtp || c_.full_indexer[i])) indexer(p + "self_attn.indexer.");
    vector(p + "post_attention_layernorm.weight", c_.hidden_size);
    if (mtp ? c_.has_experts() : !c_.dense_mlp[i]) experts(p + "mlp.");
    else mlp(p + "mlp.", c_.intermediate_size);
  }

  void attention(const std::string& p) {
    const std::int64_t n = c_.num_attention_heads;
    matrix(p + "q_a_proj", c_.q_lora_rank, c_.hidden_size);
    vector(p + "q_a_layernorm.weight", c_.q_lora_rank);
    matrix(p + "q_b_proj", n * (c_.qk_nope_head_dim + c_.qk_rope_head_dim), c_.q_lora_rank);
    matrix(p + "kv_a_proj_with_mqa", c_.kv_lora_rank + c_.qk_rope_head_dim, c_.hidden_size);
    vector(p + "kv_a_layernorm.weight", c_.kv_lora_rank);
    matrix(p + "kv_b_proj", n * (c_.qk_nope_head_dim + c_.v_head_dim), c_.kv_lora_rank);
    matrix(p + "o_proj", c_.hidden_size, n * c_.v_head_dim);
  }

  void indexer(const std::string& p) {
    matrix(p + "wq_b", c_.index_n_heads * c_.index_head_dim, c_.q_lora_rank);
    matrix(p + "wk", c_.index_head_dim, c_.hidden_size);
    vector(p + "k_norm.weight", c_.index_head_dim);
    vector(p + "k_norm.bias", c_.index_head_dim);
    matrix(p + "weights_proj", c_.index_n_heads, c_.hidden_size, false);
  }

  void mlp(const std::string& p, std::int64_t width) {
    matrix(p + "gate_proj", width, c_.hidden_size);
    matrix(p + "up_proj", width, c_.hidden_size);
    matrix(p + "down_proj", c_.hidden_size, width);
  }

  void experts(const std::string& p) {
    matrix(p + "gate", c_.moe.n_routed_experts, c_.hidden_size, false);
    vector(p + "gate.e_score_correction_bias", c_.moe.n_routed_experts);
    for (std::int64_t e = 0; e < c_.moe.n_routed_experts; ++e)
      mlp(p + "experts." + std::to_string(e) + ".", c_.moe.moe_intermediate_size);
    if (c_.moe.shared_size() > 0) mlp(p + "shared_experts.", c_.moe.shared_size());
  }

  void mtp(std::int64_t i) {
    const std::string p = prefix(i);
    layer(i);
    matrix(p + "embed_tokens", c_.vocab_size, c_.hidden_size, false);
    vector(p + "enorm.weight", c_.hidden_size);
    vector(p + "hnorm.weight", c_.hidden_size);
    matrix(p + "eh_proj", c_.hidden_size, 2 * c_.hidden_size, false);
    vector(p + "shared_head.norm.weight", c_.hidden_size);
    matrix(p + "shared_head.head", c_.vocab_size, c_.hidden_size, false);
  }

  static std::string prefix(std::int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

  const io::ModelConfig& c_;
  const std::function<void(const ModelTensor&)>& visit_;
};

}  // namespace

LayerName layer_name(std::string_view name) {
  static constexpr std::string_view kPrefix = "model.layers.";
  LayerName out{-1, name};
  if (!name.starts_with(kPrefix)) return out;
  std::int64_t layer = 0;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), last, layer);
  if (error == std::errc() && end < last && *end == '.') out = {layer, name.substr(std::size_t(end + 1 - name.data()))};
  return out;
}

Part part_of(std::string_view name, const io::ModelConfig& config) {
  const auto [layer, rest] = layer_name(name);
  if (layer < 0) return name.starts_with("lm_head.") ? Part::head
                        : name.starts_with("model.embed_tokens.") ? Part::embedding
                                                                  : Part::norms;
  if (layer >= config.num_hidden_layers) return Part::mtp;
  if (rest.starts_with("self_attn.indexer.")) return Part::indexer;
  if (rest.starts_with("self_attn.")) return Part::attention;
  if (rest.starts_with("mlp.shared_experts.")) return Part::shared_experts;
  if (rest.starts_with("mlp.experts.")) return Part::routed_experts;
  if (rest.starts_with("mlp.gate.")) return Part::router;
  return rest.starts_with("mlp.") ? Part::dense_mlp : Part::norms;
}

std::int64_t ModelTensor::parameters() const {
  std::int64_t product = 1;
  for (const std::int64_t n : shape) product *= n;
  return product;
}

void for_each_tensor(const io::ModelConfig& config, const std::function<void(const ModelTensor&)>& visit) {
  Lister(config, visit).all();
}

}  // namespace dsakit
