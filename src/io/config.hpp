// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace dsakit::io {

/// Rotary embedding; the frequencies that follow from it are the layer's business.
struct RopeConfig {
  double theta = 0;
  bool yarn = false;  // the rest counts only then
  double factor = 1, beta_fast = 32, beta_slow = 1;
  double mscale = 0, mscale_all_dim = 0, attention_factor = 0;  // 0: not given
  bool truncate = true;                                         // YaRN's range ends at whole indices
  std::int64_t original_max_position_embeddings = 0;
};

/// The mixture of experts that the layers which are not dense have.
struct MoeConfig {
  std::int64_t n_routed_experts = 0;  // 0: no layer has one, and nothing else counts
  std::int64_t num_experts_per_tok = 0, moe_intermediate_size = 0;
  std::int64_t n_shared_experts = 0;  // one MLP of that many times moe_intermediate_size; 0: none
  std::int64_t n_group = 1, topk_group = 1;
  double routed_scaling_factor = 1;
  bool norm_topk_prob = true;

  std::int64_t shared_size() const { return n_shared_experts * moe_intermediate_size; }
};

/// What config.json says of how weights are stored; which ones are, the files say.
enum class Quantization {
  none,
  fp8_blocks,     // "fp8": e4m3 with one scale per 128 x 128
  int8_channels,  // "compressed-tensors": int8 with one scale per row
};

/// config.json of a checkpoint with multi-head latent attention (DeepSeek-V3, -V3.2, GLM-5, Kimi-K2), under its own
/// names. Sizes are 1..2^31-1, and so are the widths of all heads together.
struct ModelConfig {
  std::string model_type;  // deepseek_v32, glm_moe_dsa; without an indexer: deepseek_v3, kimi_k2
  std::int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, q_lora_rank,
      kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, max_position_embeddings;
  std::int64_t index_n_heads = 0, index_head_dim = 0, index_topk = 0;  // all 0: dense MLA, no indexer anywhere
  std::int64_t num_nextn_predict_layers = 0;  // their tensors follow those of the last layer, under higher numbers
  double rms_norm_eps;
  RopeConfig rope;
  bool rope_interleave, indexer_rope_interleave;  // pairs (0, 1), (2, 3) .. rather than halves
  bool tie_word_embeddings = false;               // the head is the embedding
  Quantization quantization = Quantization::none;
  MoeConfig moe;

  std::vector<bool> full_indexer;  // per layer; false: it uses the selection of the layer before
  std::vector<bool> dense_mlp;     // per layer; false: a mixture of experts

  bool has_experts() const { return moe.n_routed_experts > 0; }
};

/// Reads and checks a config.json. Keys that are not asked for are ignored, and null is the same as absent. What is
/// missing, out of range or unknown is INVALID_CONFIG naming the key; what is documented but not computed, UNSUPPORTED.
ModelConfig read_config(const std::string& path);

}  // namespace dsakit::io
