// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "core/hash.hpp"
#include "dsakit/error.hpp"
#include "io/json.hpp"

namespace dsakit::io {
namespace {

[[noreturn]] void refuse(Status status, const std::string& what, const std::string& got, const std::string& wanted,
                         const std::string& why = {}) {
  throw Error(status, "load", what, "", got, wanted, why);
}

constexpr std::string_view kLayers = "model.layers.", kEmbedding = "model.embed_tokens.weight";

/// The number that `text` begins with and what follows it; -1 if there is none. Too large for 64 bits counts as the
/// largest.
std::pair<std::int64_t, std::string_view> leading_number(std::string_view text) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument) return {-1, text};
  return {error == std::errc() ? number : INT64_MAX, text.substr(std::size_t(end - text.data()))};
}

/// Layer number and rest of "model.layers.<n>.<rest>", or -1.
std::pair<std::int64_t, std::string_view> layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return {-1, name};
  auto [layer, rest] = leading_number(name.substr(kLayers.size()));
  if (layer >= 0 && rest.starts_with('.')) rest.remove_prefix(1);
  return {layer, rest};
}

/// Expert number of "mlp.experts.<e>.<rest>" and the rest, or -1.
std::pair<std::int64_t, std::string_view> expert_of(std::string_view rest) {
  constexpr std::string_view kExperts = "mlp.experts.";
  if (!rest.starts_with(kExperts)) return {-1, rest};
  auto [expert, of_it] = leading_number(rest.substr(kExperts.size()));
  if (expert >= 0 && of_it.starts_with('.')) of_it.remove_prefix(1);
  return {expert, of_it};
}

template <std::size_t n>
bool is_one_of(std::string_view name, const std::string_view (&names)[n]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

constexpr std::string_view kMlpMatrices[] = {"gate_proj", "up_proj", "down_proj"};
constexpr std::string_view kAttentionMatrices[] = {
    "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "indexer.wq_b", "indexer.wk",
    "indexer.weights_proj"};
constexpr std::string_view kVectors[] = {
    "input_layernorm.weight",      "post_attention_layernorm.weight", "self_attn.q_a_layernorm.weight",
    "self_attn.kv_a_layernorm.weight", "self_attn.indexer.k_norm.weight", "self_attn.indexer.k_norm.bias"};
constexpr std::string_view kFused[] = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.experts.packed"};
constexpr std::string_view kRouter[] = {"mlp.gate.weight", "mlp.gate.e_score_correction_bias"};
/// No mode has them in int8.
constexpr std::string_view kAlwaysWidened[] = {"self_attn.o_proj.weight", "self_attn.kv_b_proj.weight"};
/// What stands beside a matrix, one way or another.
constexpr std::string_view kOfMatrix[] = {".weight",      ".weight_scale_inv", ".weight_scale", ".weight_offset",
                                          ".input_scale", ".input_offset",     ".quant_bias",   ".deq_scale"};

/// Whether `rest` is a part of one of these matrices.
template <std::size_t n>
bool is_part_of(std::string_view rest, const std::string_view (&matrices)[n]) {
  const std::size_t dot = rest.rfind('.');
  return dot != rest.npos && is_one_of(rest.substr(dot), kOfMatrix) && is_one_of(rest.substr(0, dot), matrices);
}

/// Whether a rule uses the tensor of this name within a layer.
bool is_known(std::string_view rest, bool dense) {
  constexpr std::string_view kAttention = "self_attn.", kMlp = "mlp.", kShared = "mlp.shared_experts.";
  if (is_one_of(rest, kVectors)) return true;
  if (rest.starts_with(kAttention)) return is_part_of(rest.substr(kAttention.size()), kAttentionMatrices);
  if (dense) return rest.starts_with(kMlp) && is_part_of(rest.substr(kMlp.size()), kMlpMatrices);
  if (is_one_of(rest, kRouter) || is_one_of(rest, kFused)) return true;
  if (rest.starts_with(kShared)) return is_part_of(rest.substr(kShared.size()), kMlpMatrices);
  const auto [expert, of_it] = expert_of(rest);
  return expert >= 0 && is_part_of(of_it, kMlpMatrices);
}

/// Whether it may be there without being used: the frequencies of a rotary embedding, a bias without effect.
bool has_no_effect(std::string_view rest, const Place& place) {
  if (rest.ends_with("rotary_emb.inv_freq")) return true;
  if (!rest.ends_with(".bias")) return false;
  const AlignedArray<float> bias = load_floats(place);
  return std::all_of(bias.begin(), bias.end(), [](float x) { return x == 0; });
}

/// Keys of quant_model_description.json that are no tensors and change nothing here.
constexpr std::string_view kAboutTheModel[] = {
    "model_quant_type", "version",          "group_size",      "metadata",     "kv_quant_type", "kv_cache_type",
    "fa_quant_type",    "reduce_quant_type", "optional",        "is_rot_model", "quant_method"};

constexpr char kDescription[] = "quant_model_description.json";

}  // namespace

Checkpoint::Checkpoint(const std::string& folder, const CheckpointOptions& options)
    : folder_(folder), options_(options), config_(read_config(folder + "/config.json")) {
  if (exists(folder_ + "/" + kDescription)) read_description();
  open_files();
  check_layer_numbers();
}

void Checkpoint::read_description() {
  is_described_ = true;
  const std::string text = read_json_object(folder_ + "/" + kDescription, Status::invalid_file);
  Json(text).members([&](const std::string& key, const Json& value) {
    if (is_one_of(key, kAboutTheModel)) return;
    if (!value.is_string() || key.find('.') == key.npos)
      refuse(Status::unsupported, std::string(kDescription) + ": " + printable(key), "is not known",
             "the types of tensors");
    description_[key] = value.string();
  });
}

void Checkpoint::open_files() {
  index_ = read_shard_index(folder_);
  for (const std::string& shard : index_.shards) {
    const std::string path = folder_ + "/" + shard;
    const bool absent = options_.shards_may_be_absent && !file_exists(path);
    shards_.push_back(absent ? nullptr : &files_.emplace_back(path));
  }
  if (!index_.name.empty()) check_index();
}

/// Index and headers say the same.
void Checkpoint::check_index() const {
  for (const auto& [name, number] : index_.shard_of)
    if (shards_[number] && !shards_[number]->find(name))
      refuse(Status::missing_tensor, printable(name), "is missing", "in " + shards_[number]->file().name(),
             index_.name);
  for (std::size_t number = 0; number < shards_.size(); ++number) {
    if (!shards_[number]) continue;
    for (const FileTensor& tensor : shards_[number]->tensors()) {
      const auto at = index_.shard_of.find(tensor.name);
      if (at == index_.shard_of.end() || at->second != number)
        refuse(Status::conflict, printable(tensor.name), "is also in " + shards_[number]->file().name(),
               at == index_.shard_of.end() ? "no tensor that is not listed"
                                           : "only in " + printable(index_.shards[at->second]),
               index_.name);
    }
  }
}

void Checkpoint::check_layer_numbers() const {
  const std::int64_t layers = config_.num_hidden_layers + config_.num_nextn_predict_layers;
  const auto not_there = [](const SafetensorsFile& file, const FileTensor& tensor, const char* what, std::int64_t count,
                            const char* key) {
    refuse(Status::invalid_shape, Place{&file, &tensor}.shown(), std::string("is of ") + what + " that is not there",
           "0.." + std::to_string(count - 1), std::string("config.json: ") + key);
  };
  for (const SafetensorsFile& file : files_)
    for (const FileTensor& tensor : file.tensors()) {
      const auto [layer, rest] = layer_of(tensor.name);
      if (layer >= layers) not_there(file, tensor, "a layer", layers, "num_hidden_layers");
      if (layer < 0 || layer >= config_.num_hidden_layers || config_.dense_mlp[layer]) continue;
      if (expert_of(rest).first >= config_.moe.n_routed_experts)
        not_there(file, tensor, "an expert", config_.moe.n_routed_experts, "n_routed_experts");
    }
}

void Checkpoint::require_known_tensors(std::int64_t first, std::int64_t count, std::string_view part) const {
  for (const SafetensorsFile& file : files_)
    for (const FileTensor& tensor : file.tensors()) {
      const auto [number, rest] = layer_of(tensor.name);
      if (number < first || number >= first + count || !rest.starts_with(part)) continue;
      if (is_known(rest, config_.dense_mlp[number])) continue;
      const Place place{&file, &tensor};
      if (!has_no_effect(rest, place))
        refuse(Status::unsupported, place.shown(), "is not used by any rule", "tensors that are known",
               "it may change the arithmetic");
    }
}

std::uint64_t Checkpoint::bytes_in_use(std::int64_t layers) const {
  std::uint64_t bytes = 0;
  for (const SafetensorsFile& file : files_)
    for (const FileTensor& tensor : file.tensors())
      if (tensor.name != kEmbedding && layer_of(tensor.name).first < layers) bytes += tensor.bytes();
  return bytes;
}

std::string Checkpoint::fingerprint() const {
  std::uint64_t hash = 0;
  const auto add = [&](std::string_view bytes) { hash = hash_of(bytes, hash); };
  add(read_json_object(folder_ + "/config.json", Status::invalid_config));
  for (const SafetensorsFile& file : files_) {
    add(file.file().name());
    for (const FileTensor& t : file.tensors())
      add(t.name + t.type->name + shape_text(t.shape.data(), t.rank) + std::to_string(t.begin));
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::vector<std::string> Checkpoint::notes() const {
  std::uint64_t further = 0, widened = 0;
  for (const SafetensorsFile& file : files_)
    for (const FileTensor& tensor : file.tensors()) {
      const auto [layer, rest] = layer_of(tensor.name);
      if (layer >= config_.num_hidden_layers) further += tensor.bytes();
      else if (tensor.type->dtype == DType::i8) widened += is_one_of(rest, kAlwaysWidened);
    }
  std::vector<std::string> notes;
  if (further > 0)
    notes.push_back("load: " + printable(folder_) + " has " + std::to_string(config_.num_nextn_predict_layers) +
                    " layers that predict further tokens (num_nextn_predict_layers), " + std::to_string(further) +
                    " bytes: they are not loaded");
  if (widened > 0)
    notes.push_back("load: " + printable(folder_) + " has " + std::to_string(widened) +
                    " int8 weights of o_proj and kv_b_proj: they are widened to bf16");
  return notes;
}

Place Checkpoint::find(const std::string& name) const {
  const std::size_t shard = shard_of(name);
  if (shard == shards_.size() || !shards_[shard]) return {};
  return {shards_[shard], shards_[shard]->find(name)};
}

std::size_t Checkpoint::shard_of(const std::string& name) const {
  if (index_.name.empty()) return 0;
  const auto at = index_.shard_of.find(name);
  return at == index_.shard_of.end() ? shards_.size() : at->second;
}

Place Checkpoint::expect(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const Place place = find(name);
  const std::string wanted = shape_text(shape.data(), int(shape.size()));
  if (!place) {
    const std::size_t shard = shard_of(name);
    const bool absent = shard < shards_.size() && !shards_[shard];
    refuse(Status::missing_tensor, printable(name), "is missing", "a tensor of shape " + wanted,
           absent ? "in " + printable(index_.shards[shard]) + ", which is not here" : "");
  }
  const FileTensor& t = *place.tensor;
  if (!std::equal(t.shape.begin(), t.shape.begin() + t.rank, shape.begin(), shape.end()))
    refuse(Status::invalid_shape, place.shown(), "has shape " + shape_text(t.shape.data(), t.rank), wanted,
           "config.json");
  return place;
}

/// One number per row, [rows] or [rows, 1].
Place Checkpoint::expect_column(const std::string& name, std::int64_t rows) const {
  const Place place = find(name);
  return place && place.tensor->rank == 1 ? expect(name, {rows}) : expect(name, {rows, 1});
}

/// The type that quant_model_description.json gives, "" where it gives none.
std::string Checkpoint::described(const std::string& name) const {
  const auto at = description_.find(name);
  return at == description_.end() ? "" : at->second;
}

WeightFormat Checkpoint::int8_format(const std::string& name, const Place& place) const {
  if (!is_described_) {
    if (config_.quantization == Quantization::int8_channels) return WeightFormat::int8;
    refuse(Status::conflict, printable(name), "is stored as I8", "a description of its scales (quantization_config)");
  }
  const std::string type = described(name);
  if (type == "W8A8_DYNAMIC") return WeightFormat::int8;
  if (type == "W8A8") {
    if (options_.dequantise_static) return WeightFormat::int8_static;
    refuse(Status::unsupported, printable(name.substr(0, name.rfind('.'))), "is W8A8 with static activations",
           "W8A8_DYNAMIC or FLOAT", "static=\"dequantise\" reads its weights");
  }
  refuse(Status::conflict, place.shown(), "is stored as I8", type.empty() ? "an entry in " + std::string(kDescription)
                                                                          : "floats (" + std::string(kDescription) + ")");
}

WeightFormat Checkpoint::format_of(const std::string& name, const Place& place) const {
  const std::string type = described(name);
  if (!type.empty() && type != "FLOAT" && type != "W8A8_DYNAMIC" && type != "W8A8")
    refuse(Status::unsupported, printable(name), "is " + printable(type), "FLOAT or W8A8_DYNAMIC");
  const DType stored = place.tensor->type->dtype;
  if (stored == DType::i8) return int8_format(name, place);
  if (stored == DType::f8_e4m3) return WeightFormat::fp8_blocks;
  if (stored != DType::bf16 && stored != DType::f16 && stored != DType::f32)
    refuse(Status::unsupported, place.shown(), std::string("is stored as ") + place.tensor->type->name,
           "BF16, F16, F32, F8_E4M3 or I8");
  if (!type.empty() && type != "FLOAT")
    refuse(Status::conflict, place.shown(), std::string("is stored as ") + place.tensor->type->name, "I8",
           std::string(kDescription) + ": " + type);
  for (const char* scale : {"_scale_inv", "_scale"})
    if (has(name + scale))
      refuse(Status::conflict, printable(name + scale), "scales a weight stored as " + std::string(place.tensor->type->name),
             scale == std::string("_scale") ? "I8" : "F8_E4M3");
  return WeightFormat::floating;
}

StoredMatrix Checkpoint::matrix(const std::string& name, std::int64_t rows, std::int64_t cols) const {
  const Place found = find(name);
  StoredMatrix m{.weight = found, .rows = rows, .cols = cols};
  if (found) m.format = format_of(name, found);  // before the shape: codes of 4 bits have another
  m.weight = expect(name, {rows, cols});
  const std::string module = name.substr(0, name.rfind('.'));
  switch (m.format) {
    case WeightFormat::floating:
      break;
    case WeightFormat::fp8_blocks: {
      const std::string scale = name + "_scale_inv";
      if (!has(scale))
        refuse(Status::missing_tensor, printable(scale), "is missing", "beside the FP8 weight",
               "config.json: quantization_config");
      m.scale = expect_scales(scale, rows, cols);
      break;
    }
    case WeightFormat::int8:
      m.scale = expect_column(name + "_scale", rows);
      if (has(name + "_offset")) m.offsets = expect_column(name + "_offset", rows);
      break;
    case WeightFormat::int8_static:
      m.scale = expect(module + ".deq_scale", {rows});
      m.input_scale = expect(module + ".input_scale", {1});
      if (has(module + ".input_offset")) m.input_offset = expect(module + ".input_offset", {1});
      if (has(module + ".quant_bias")) m.bias = expect(module + ".quant_bias", {rows});
      break;
  }
  return m;
}

Place Checkpoint::expect_scales(const std::string& name, std::int64_t rows, std::int64_t cols) const {
  const Place place = find(name);
  const std::int64_t wanted[] = {scale_blocks(rows), scale_blocks(cols)};
  const FileTensor& t = *place.tensor;
  if (!std::equal(t.shape.begin(), t.shape.begin() + t.rank, wanted, wanted + 2))
    refuse(Status::invalid_shape, place.shown(), "has shape " + shape_text(t.shape.data(), t.rank),
           shape_text(wanted, 2), "blocks of 128 x 128");
  return place;
}

StoredMatrix Checkpoint::matrix_of_stack(const std::string& name, std::int64_t count, std::int64_t depth,
                                         std::int64_t index, std::int64_t first, std::int64_t rows,
                                         std::int64_t cols) const {
  const Place place = expect(name, {count, depth, cols});
  if (format_of(name, place) != WeightFormat::floating)
    refuse(Status::unsupported, place.shown(), std::string("is stored as ") + place.tensor->type->name,
           "BF16, F16 or F32", "experts in one tensor");
  return {.weight = place,
          .offset = std::uint64_t((index * depth + first) * cols * size_of(place.tensor->type->dtype)),
          .rows = rows,
          .cols = cols};
}

template <class T>
AlignedArray<T> Checkpoint::load_vector(const std::string& name, std::int64_t size) const {
  const Place place = expect(name, {size});
  const StoredMatrix vector{.weight = place, .rows = 1, .cols = size, .format = format_of(name, place)};
  if (vector.format != WeightFormat::floating)
    refuse(Status::unsupported, place.shown(), std::string("is stored as ") + place.tensor->type->name,
           "BF16, F16 or F32");
  if constexpr (sizeof(T) == 2) return load_bf16(vector);
  else return load_f32(vector);
}

AlignedArray<bf16> Checkpoint::load_matrix_bf16(const std::string& name, std::int64_t rows, std::int64_t cols) const {
  return load_bf16(matrix(name, rows, cols));
}
AlignedArray<float> Checkpoint::load_matrix_f32(const std::string& name, std::int64_t rows, std::int64_t cols) const {
  return load_f32(matrix(name, rows, cols));
}
AlignedArray<bf16> Checkpoint::load_vector_bf16(const std::string& name, std::int64_t size) const {
  return load_vector<bf16>(name, size);
}
AlignedArray<float> Checkpoint::load_vector_f32(const std::string& name, std::int64_t size) const {
  return load_vector<float>(name, size);
}

}  // namespace dsakit::io
