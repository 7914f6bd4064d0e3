// SPDX-License-Identifier: Apache-2.0
#include "io/config.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "dsakit/error.hpp"
#include "io/file.hpp"
#include "io/json.hpp"

namespace dsakit::io {
namespace {

constexpr std::int64_t kMaxInt = 2147483647;
constexpr std::int64_t kMaxLayers = 65536;   // two bits each are kept
constexpr std::size_t kMaxMembers = 10'000;  // real ones have about 60

/// The members of one object of config.json, and the refusals that name them.
class Fields {
 public:
  Fields(std::string file, std::string prefix, const Json& object)
      : file_(std::move(file)), prefix_(std::move(prefix)) {
    if (!object.is_object()) invalid("", "is " + printable(object.text()), "an object");
    std::size_t members = 0;
    object.members([&](const std::string& key, const Json& value) {
      if (++members > kMaxMembers) invalid("", "has too many members", "at most " + std::to_string(kMaxMembers));
      if (value.is_null()) nulls_.insert(key);
      else members_.emplace(key, value);
    });
  }

  [[noreturn]] void invalid(const std::string& key, const std::string& got, const std::string& wanted,
                            Status status = Status::invalid_config) const {
    const std::string path = prefix_.empty() || key.empty() ? prefix_ + key : prefix_ + "." + key;
    throw Error(status, "load", file_ + (path.empty() ? "" : ": " + path), "", got, wanted);
  }
  [[noreturn]] void is_not(const std::string& key, const std::string& wanted,
                           Status status = Status::invalid_config) const {
    const auto value = find(key);
    invalid(key, value ? "is " + printable(value->text()) : "is missing", wanted, status);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& member : members_) all.push_back(member.first);
    return all;
  }
  std::optional<Json> find(const std::string& key) const {
    const auto at = members_.find(key);
    return at == members_.end() ? std::nullopt : std::optional(at->second);
  }

  bool has_null(const std::string& key) const { return nulls_.contains(key); }

  std::int64_t integer(const std::string& key, std::int64_t least = 1, std::int64_t most = kMaxInt) const {
    const auto value = find(key) ? find(key)->plain_integer() : std::nullopt;
    if (!value || *value < least || *value > most)
      is_not(key, "an integer in " + std::to_string(least) + ".." + std::to_string(most));
    return *value;
  }
  std::int64_t integer_or(std::int64_t absent, const std::string& key, std::int64_t least = 1) const {
    return find(key) ? integer(key, least) : absent;
  }
  template <class Test>
  double number(const std::string& key, const std::string& wanted, Test&& fits) const {
    const auto value = find(key) ? find(key)->number() : std::nullopt;
    if (!value || !fits(*value)) is_not(key, wanted);
    return *value;
  }
  double positive_or(double absent, const std::string& key) const {
    return find(key) ? number(key, "a number above 0", [](double x) { return x > 0; }) : absent;
  }
  bool flag(const std::string& key) const {
    const auto value = find(key) ? find(key)->boolean() : std::nullopt;
    if (!value) is_not(key, "true or false");
    return *value;
  }
  bool flag_or(bool absent, const std::string& key) const { return find(key) ? flag(key) : absent; }
  std::string string_or(const std::string& absent, const std::string& key) const {
    if (!find(key)) return absent;
    if (!find(key)->is_string()) is_not(key, "a string");
    return find(key)->string();
  }
  /// One bit per layer from a list of words (a list may go on for the layers that predict further tokens).
  std::vector<bool> per_layer(const std::string& key, std::int64_t layers, const std::string& yes,
                              const std::string& no) const {
    if (!find(key)->is_array()) is_not(key, "a list of " + yes + " and " + no);
    std::vector<bool> bits;
    find(key)->items([&](const Json& item) {
      const std::string word = item.is_string() ? item.string() : "";
      if (word != yes && word != no)
        invalid(key + "[" + std::to_string(bits.size()) + "]", "is " + printable(item.text()), yes + " or " + no);
      bits.push_back(word == yes);
    });
    if (std::int64_t(bits.size()) < layers)
      invalid(key, "has " + std::to_string(bits.size()) + " entries", std::to_string(layers) + " (num_hidden_layers)");
    bits.resize(layers);
    return bits;
  }
  Fields object(const std::string& key) const {
    return Fields(file_, prefix_.empty() ? key : prefix_ + "." + key, *find(key));
  }

 private:
  std::string file_, prefix_;
  std::map<std::string, Json> members_;
  std::set<std::string> nulls_;
};

/// rope_parameters (theta inside) or, older, rope_scaling beside rope_theta.
RopeConfig read_rope(const Fields& config, std::int64_t max_positions) {
  RopeConfig rope;
  const char* key = config.find("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const std::optional<Fields> nested = config.find(key) ? std::optional(config.object(key)) : std::nullopt;
  const Fields& theta = nested && nested->find("rope_theta") ? *nested : config;
  rope.theta = theta.number("rope_theta", "a number above 1", [](double x) { return x > 1; });
  if (!nested) return rope;

  const std::string type_key = nested->find("rope_type") ? "rope_type" : "type";
  const std::string type = nested->string_or("default", type_key);
  if (type != "default" && type != "yarn") nested->is_not(type_key, "default or yarn");
  if (nested->find("partial_rotary_factor") && nested->find("partial_rotary_factor")->number() != 1.0)
    nested->is_not("partial_rotary_factor", "1 (qk_rope_head_dim is rotated whole)");
  if (type == "default") return rope;

  rope.yarn = true;
  rope.factor = nested->number("factor", "a number of at least 1", [](double x) { return x >= 1; });
  rope.beta_fast = nested->positive_or(rope.beta_fast, "beta_fast");
  rope.beta_slow = nested->positive_or(rope.beta_slow, "beta_slow");
  const auto not_negative = [](double x) { return x >= 0; };
  if (nested->find("mscale")) rope.mscale = nested->number("mscale", "a number from 0", not_negative);
  if (nested->find("mscale_all_dim"))
    rope.mscale_all_dim = nested->number("mscale_all_dim", "a number from 0", not_negative);
  rope.original_max_position_embeddings = nested->integer_or(max_positions, "original_max_position_embeddings");
  rope.attention_factor = nested->positive_or(rope.attention_factor, "attention_factor");
  rope.truncate = nested->flag_or(rope.truncate, "truncate");
  return rope;
}

/// Which layers score for themselves: indexer_types, else index_topk_pattern, else every index_topk_freq-th.
std::vector<bool> read_full_indexer(const Fields& config, std::int64_t layers) {
  std::vector<bool> full(layers);
  const auto pattern = config.find("index_topk_pattern");
  std::string decided = "index_topk_freq";
  if (config.find("indexer_types")) {
    decided = "indexer_types";
    full = config.per_layer(decided, layers, "full", "shared");
  } else if (pattern && pattern->is_string()) {
    decided = "index_topk_pattern";
    const std::string letters = pattern->string();
    if (std::int64_t(letters.size()) < layers || letters.find_first_not_of("FS") != std::string::npos)
      config.is_not(decided, std::to_string(layers) + " letters F or S (num_hidden_layers)");
    for (std::int64_t i = 0; i < layers; ++i) full[i] = letters[i] == 'F';
  } else if (pattern) {
    decided = "index_topk_pattern";
    full = config.per_layer(decided, layers, "full", "shared");
  } else {
    const std::int64_t freq = config.integer_or(1, "index_topk_freq");
    const std::int64_t offset = config.integer_or(2, "index_skip_topk_offset", 0);
    for (std::int64_t i = 0; i < layers; ++i) full[i] = std::max<std::int64_t>(i - offset + 1, 0) % freq == 0;
  }
  if (!full[0]) config.invalid(decided, "gives layer 0 no indexer", "one (there is no selection before it to share)");
  return full;
}

/// Which layers have an ordinary MLP: mlp_layer_types, else the first few, else all of them when there are no experts.
std::vector<bool> read_dense_mlp(const Fields& config, std::int64_t layers) {
  if (config.find("mlp_layer_types")) return config.per_layer("mlp_layer_types", layers, "dense", "sparse");
  std::vector<bool> dense(layers, true);
  if (config.integer_or(0, "n_routed_experts", 0) == 0) return dense;
  const std::int64_t first = config.integer("first_k_dense_replace", 0), every = config.integer_or(1, "moe_layer_freq");
  for (std::int64_t i = first; i < layers; ++i) dense[i] = i % every != 0;
  return dense;
}

/// What decides which experts a token meets has no default: a guess would be another model.
MoeConfig read_moe(const Fields& config) {
  MoeConfig m;
  const std::int64_t experts = m.n_routed_experts = config.integer("n_routed_experts");
  const std::string of_experts = " of " + std::to_string(experts) + " (n_routed_experts)";
  m.moe_intermediate_size = config.integer("moe_intermediate_size");
  m.n_shared_experts = config.integer_or(0, "n_shared_experts", 0);
  m.n_group = config.integer("n_group");
  if (experts % m.n_group != 0) config.is_not("n_group", "a divisor" + of_experts);
  const std::int64_t size = experts / m.n_group;
  if (m.n_group > 1 && size < 2) config.is_not("n_group", "groups of at least 2" + of_experts);
  m.topk_group = config.integer("topk_group", 1, m.n_group);
  m.num_experts_per_tok = config.integer("num_experts_per_tok", 1, m.topk_group * size);
  m.routed_scaling_factor = config.number("routed_scaling_factor", "a number above 0", [](double x) { return x > 0; });
  m.norm_topk_prob = config.flag("norm_topk_prob");
  if (config.string_or("sigmoid", "scoring_func") != "sigmoid")
    config.is_not("scoring_func", "sigmoid", Status::unsupported);
  if (config.string_or("noaux_tc", "topk_method") != "noaux_tc")
    config.is_not("topk_method", "noaux_tc", Status::unsupported);
  if (m.n_shared_experts > kMaxInt / m.moe_intermediate_size)
    config.is_not("n_shared_experts", "a width of at most " + std::to_string(kMaxInt) + " together");
  return m;
}

void read_fp8(const Fields& fp8) {
  if (fp8.string_or("e4m3", "fmt") != "e4m3") fp8.is_not("fmt", "e4m3");
  if (fp8.string_or("dynamic", "activation_scheme") != "dynamic") fp8.is_not("activation_scheme", "dynamic");
  std::vector<std::int64_t> block;
  if (const auto size = fp8.find("weight_block_size"); size && size->is_array())
    size->items([&](const Json& n) { block.push_back(n.plain_integer().value_or(0)); });
  if (block != std::vector<std::int64_t>{128, 128}) fp8.is_not("weight_block_size", "[128, 128]");
}

/// One of the two halves of a scheme of compressed-tensors.
void read_scheme(const Fields& group, const std::string& key, const std::string& strategy, bool dynamic) {
  if (!group.find(key)) group.is_not(key, "8-bit integers by " + strategy, Status::unsupported);
  const Fields half = group.object(key);
  if (half.integer("num_bits") != 8) half.is_not("num_bits", "8", Status::unsupported);
  if (half.string_or("int", "type") != "int") half.is_not("type", "int", Status::unsupported);
  if (half.string_or("", "strategy") != strategy) half.is_not("strategy", strategy, Status::unsupported);
  if (!half.flag_or(true, "symmetric")) half.is_not("symmetric", "true", Status::unsupported);
  if (half.flag_or(false, "dynamic") != dynamic)
    half.is_not("dynamic", dynamic ? "true" : "false", Status::unsupported);
}

void read_compressed_tensors(const Fields& quantization) {
  if (quantization.string_or("", "format") != "int-quantized")
    quantization.is_not("format", "\"int-quantized\"", Status::unsupported);
  if (!quantization.find("config_groups")) quantization.is_not("config_groups", "the schemes of the weights");
  const Fields groups = quantization.object("config_groups");
  for (const std::string& name : groups.names()) {
    const Fields group = groups.object(name);
    read_scheme(group, "weights", "channel", false);
    read_scheme(group, "input_activations", "token", true);
  }
}

Quantization read_quantization(const Fields& config) {
  if (!config.find("quantization_config")) return Quantization::none;
  const Fields quantization = config.object("quantization_config");
  const std::string method = quantization.string_or("", "quant_method");
  if (method == "fp8") {
    read_fp8(quantization);
    return Quantization::fp8_blocks;
  }
  if (method != "compressed-tensors") quantization.is_not("quant_method", "fp8 or compressed-tensors");
  read_compressed_tensors(quantization);
  return Quantization::int8_channels;
}

}  // namespace

ModelConfig read_config(const std::string& path) {
  const std::string text = read_json_object(path, Status::invalid_config);
  const Fields config(printable(path.substr(path.find_last_of('/') + 1)), "", Json(text));
  ModelConfig c{};

  c.model_type = config.string_or("", "model_type");
  const bool glm = c.model_type == "glm_moe_dsa", may_score = glm || c.model_type == "deepseek_v32";
  if (!may_score && c.model_type != "deepseek_v3" && c.model_type != "kimi_k2")
    config.is_not("model_type", "deepseek_v32, glm_moe_dsa, deepseek_v3 or kimi_k2");
  c.vocab_size = config.integer("vocab_size");
  c.hidden_size = config.integer("hidden_size");
  c.intermediate_size = config.integer("intermediate_size");
  c.num_hidden_layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  c.num_nextn_predict_layers = config.integer_or(0, "num_nextn_predict_layers", 0);
  c.num_attention_heads = config.integer("num_attention_heads");
  if (config.has_null("q_lora_rank"))
    config.invalid("q_lora_rank", "is null", "a rank (queries without one are not computed)", Status::unsupported);
  c.q_lora_rank = config.integer("q_lora_rank");
  c.kv_lora_rank = config.integer("kv_lora_rank");
  c.qk_nope_head_dim = config.integer("qk_nope_head_dim");
  c.qk_rope_head_dim = config.integer("qk_rope_head_dim");
  c.v_head_dim = config.integer("v_head_dim");
  c.max_position_embeddings = config.integer("max_position_embeddings");
  c.rms_norm_eps = config.number("rms_norm_eps", "a number between 0 and 1", [](double x) { return x > 0 && x < 1; });
  if (c.qk_rope_head_dim % 2 != 0) config.is_not("qk_rope_head_dim", "an even number");
  const auto fits = [&](const char* key, std::int64_t heads, std::int64_t width) {
    if (width > kMaxInt / heads)
      config.is_not(key, "heads with a width of at most " + std::to_string(kMaxInt) + " together");
  };
  fits("num_attention_heads", c.num_attention_heads, c.qk_nope_head_dim + std::max(c.qk_rope_head_dim, c.v_head_dim));
  fits("kv_lora_rank", 1, c.kv_lora_rank + c.qk_rope_head_dim);

  c.full_indexer.resize(c.num_hidden_layers);
  if (config.find("index_topk") || config.find("index_n_heads") || config.find("index_head_dim")) {
    if (!may_score) config.is_not("model_type", "deepseek_v32 or glm_moe_dsa (there is an indexer)");
    c.index_n_heads = config.integer("index_n_heads");
    c.index_head_dim = config.integer("index_head_dim");
    c.index_topk = config.integer("index_topk");
    if (c.index_head_dim < c.qk_rope_head_dim)
      config.is_not("index_head_dim", "at least " + std::to_string(c.qk_rope_head_dim) + " (qk_rope_head_dim)");
    fits("index_n_heads", c.index_n_heads, c.index_head_dim);
    c.full_indexer = read_full_indexer(config, c.num_hidden_layers);
  }
  c.dense_mlp = read_dense_mlp(config, c.num_hidden_layers);
  if (std::find(c.dense_mlp.begin(), c.dense_mlp.end(), false) != c.dense_mlp.end()) c.moe = read_moe(config);

  c.rope = read_rope(config, c.max_position_embeddings);
  c.rope_interleave = config.flag_or(true, "rope_interleave");
  c.indexer_rope_interleave = config.flag_or(glm, "indexer_rope_interleave");
  c.tie_word_embeddings = config.flag_or(false, "tie_word_embeddings");
  if (config.string_or("silu", "hidden_act") != "silu") config.is_not("hidden_act", "silu");
  for (const char* bias : {"attention_bias", "mlp_bias"})
    if (config.flag_or(false, bias)) config.is_not(bias, "false (bias tensors are not computed)");
  c.quantization = read_quantization(config);
  return c;
}

}  // namespace dsakit::io
