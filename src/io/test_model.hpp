// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>

namespace dsakit::io {

/// Members of a JSON object, values as they are written; an empty value leaves the member out.
using Members = std::map<std::string, std::string>;

/// A small, valid config.json with some members changed.
inline std::string config_text(const Members& changes) {
  Members all{{"model_type", "\"deepseek_v32\""},
              {"vocab_size", "64"},
              {"hidden_size", "96"},
              {"intermediate_size", "48"},
              {"num_hidden_layers", "4"},
              {"num_attention_heads", "2"},
              {"q_lora_rank", "24"},
              {"kv_lora_rank", "32"},
              {"qk_nope_head_dim", "16"},
              {"qk_rope_head_dim", "8"},
              {"v_head_dim", "16"},
              {"max_position_embeddings", "512"},
              {"index_n_heads", "2"},
              {"index_head_dim", "32"},
              {"index_topk", "4"},
              {"rms_norm_eps", "1e-06"},
              {"rope_theta", "10000.0"},
              {"hidden_act", "\"silu\""},
              {"unknown", "{\"deep\":[[1]]}"}};
  for (const auto& [key, value] : changes) all[key] = value;
  std::string text = "{";
  for (const auto& [key, value] : all)
    if (!value.empty()) text += "\"" + key + "\": " + value + ",\n";
  text.resize(text.size() - 2);
  return text + "}\n";
}

}  // namespace dsakit::io
