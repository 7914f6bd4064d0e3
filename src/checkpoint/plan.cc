// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/plan.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "checkpoint/work.hpp"
#include "dsakit/model.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "io/safetensors.hpp"
#include "io/shard_index.hpp"
#include "io/stored_matrix.hpp"
#include "layer/cache.hpp"
#include "layer/experts.hpp"

namespace dsakit {
namespace {

constexpr char kDescription[] = "quant_model_description.json";

/// "<module>.weight" of any tensor of a module.
std::string weight_beside(std::string_view name) {
  return std::string(name.substr(0, std::min(name.rfind('.'), name.size()))) + ".weight";
}

/// Whether it is a scale, an offset or a correction of a quantised weight.
bool is_beside_a_weight(std::string_view name) {
  const std::string_view last = name.substr(std::min(name.rfind('.') + 1, name.size()));
  return last.ends_with("_scale") || last.ends_with("_scale_inv") || last.ends_with("_offset") || last == "quant_bias";
}

/// The tensor that holds an expert's matrix together with those of all others.
std::string fused_name(std::string_view name) {
  const std::size_t at = name.find(".experts.");
  if (at == name.npos) return {};
  const bool down = name.ends_with("down_proj.weight");
  return std::string(name.substr(0, at)) + (down ? ".experts.down_proj" : ".experts.gate_up_proj");
}

/// A checkpoint folder as far as it is here.
class Folder {
 public:
  explicit Folder(const std::string& path) : path_(path), index_(io::read_shard_index(path)) {
    if (index_.name.empty() && !io::file_exists(path_ + "/" + index_.shards[0])) index_.shards.clear();
    for (const std::string& shard : index_.shards) open(shard);
    if (io::exists(path_ + "/" + kDescription)) read_description();
  }
  Folder() = default;

  const io::ShardIndex& index() const { return index_; }
  /// Of shard `number`; nothing where it is not known yet.
  const std::optional<io::SafetensorsFile>& file(std::size_t number) const { return files_[number]; }
  ShardPlan::State state(std::size_t number) const { return states_[number].first; }
  /// Length of a header that is not here, state length_known.
  std::uint64_t header_length(std::size_t number) const { return states_[number].second; }

  const io::FileTensor* find(const std::string& name) const {
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? nullptr : at->second;
  }
  const std::map<std::string, const io::FileTensor*>& tensors() const { return tensors_; }
  /// Whether msModelSlim's description has this weight in int8; nothing without a description.
  std::optional<bool> is_described_int8(const std::string& name) const {
    if (!described_) return {};
    return int8_.contains(name);
  }

 private:
  void open(const std::string& shard) {
    using enum ShardPlan::State;
    const std::string path = path_ + "/" + shard;
    auto& file = files_.emplace_back();
    auto& [state, length] = states_.emplace_back(header_unknown, 0);
    if (!io::file_exists(path)) return;
    const io::File bytes(path);
    if (bytes.is_in_pieces()) {
      if (!bytes.has(0, 8)) return;
      length = io::safetensors_header_length(bytes);
      state = length_known;
      if (!bytes.has(8, length)) return;
    }
    file.emplace(path);
    state = bytes.is_in_pieces() ? header_known : whole;
    for (const io::FileTensor& tensor : file->tensors()) tensors_[tensor.name] = &tensor;
  }

  void read_description() {
    described_ = true;
    const std::string text = io::read_json_object(path_ + "/" + kDescription, Status::invalid_file);
    io::Json(text).members([&](const std::string& name, const io::Json& type) {
      if (type.is_string() && type.string().starts_with("W8A8")) int8_[name] = true;
    });
  }

  std::string path_;
  io::ShardIndex index_;
  std::deque<std::optional<io::SafetensorsFile>> files_;
  std::vector<std::pair<ShardPlan::State, std::uint64_t>> states_;
  std::map<std::string, const io::FileTensor*> tensors_;
  std::map<std::string, bool> int8_;
  bool described_ = false;
};

struct Storage {
  std::string format;
  std::uint64_t bytes;  // scales included where they are not known by themselves

  bool one_byte() const { return format == "F8_E4M3" || format == "I8"; }
};

/// As config.json, or the description, lets expect.
Storage expected_storage(const ModelTensor& t, const io::ModelConfig& config, const Folder& folder) {
  const std::uint64_t count = std::uint64_t(t.parameters());
  const auto described = folder.is_described_int8(t.name);
  const bool int8 = described.value_or(config.quantization == io::Quantization::int8_channels && t.quantised);
  if (int8) return {"I8", count + 4 * std::uint64_t(t.shape[0])};
  if (config.quantization != io::Quantization::fp8_blocks || !t.quantised) return {"BF16", 2 * count};
  return {"F8_E4M3", count + 4 * std::uint64_t(io::scale_blocks(t.shape[0]) * io::scale_blocks(t.shape[1]))};
}

Storage storage_of(const ModelTensor& t, const io::ModelConfig& config, const Folder& folder) {
  if (const io::FileTensor* stored = folder.find(t.name)) return {stored->type->name, stored->bytes()};
  if (const io::FileTensor* fused = folder.find(fused_name(t.name)))
    return {fused->type->name, std::uint64_t(t.parameters() * fused->type->bits / 8)};
  const std::int64_t layer = layer_name(t.name).layer;
  if (const io::FileTensor* blocks = t.part == Part::routed_experts ? folder.find(packed_experts_name(layer)) : nullptr)
    return {"packed", blocks->bytes() / std::uint64_t(3 * config.moe.n_routed_experts)};
  return expected_storage(t, config, folder);
}

bool is_widened(const ModelTensor& t, const Storage& storage) {
  return t.name.ends_with("kv_b_proj.weight") || (t.name.ends_with("o_proj.weight") && storage.format == "I8");
}

/// Bytes of a tensor in memory: one for a weight stored in one, but those that are absorbed or multiply in bf16.
double bytes_in_memory(const ModelTensor& t, const Storage& storage) {
  if (storage.format == "packed") return double(storage.bytes);
  if (t.part == Part::router) return 4.0 * double(t.parameters());
  return (storage.one_byte() && !is_widened(t, storage) ? 1.0 : 2.0) * double(t.parameters());
}

/// How a weight lies in memory once a session of the mode is there: layer/weights.cc, layer/expert.cc.
WeightForm form_in(Mode mode, const ModelTensor& t, const Storage& storage, const io::ModelConfig& config) {
  if (storage.format == "packed" || t.part == Part::router)
    return {.bytes = bytes_in_memory(t, storage) / double(t.parameters())};
  auto is = [&](std::string_view module) { return t.name.ends_with(std::string(module) + ".weight"); };
  const bool to_latents = is("q_a_proj") || is("kv_a_proj_with_mqa"), to_heads = is("q_b_proj") || is("wq_b");
  const bool i8 = (is_quantised(mode) && to_heads) || (is_packed(mode) && to_latents);
  const bool attention = t.part == Part::attention || t.part == Part::indexer;
  if (i8 || (storage.format == "I8" && !attention)) return {.bytes = 1, .i8 = true};
  const bool rearranged = is("kv_b_proj") || (!config.rope_interleave && (is("q_b_proj") || is("kv_a_proj_with_mqa")));
  if (storage.format == "F8_E4M3" && !rearranged) return {.bytes = 1};
  const bool in_two = mode == Mode::sparse_bf16 && is("weights_proj") && storage.format == "F32";
  return {.bytes = in_two ? 4.0 : 2.0};
}

using PartKey = std::pair<Part, std::string>;

/// Parts and sizes; what is selected is counted on the way.
void count_tensors(Plan& plan, const Folder& folder, const Selection& selection) {
  const io::ModelConfig& c = plan.config;
  std::map<PartKey, StoredPart> parts;
  double routed = 0;
  std::int64_t routed_parameters = 0;
  ModelSizes& sizes = plan.sizes;
  for_each_tensor(c, [&](const ModelTensor& t) {
    const Storage storage = storage_of(t, c, folder);
    StoredPart& part = parts.try_emplace({t.part, storage.format}, StoredPart{t.part, storage.format}).first->second;
    const std::int64_t count = t.parameters();
    part.tensors += 1;
    part.parameters += count;
    part.bytes += storage.bytes;
    if (selection.holds(t.name, c)) plan.selected_bytes += storage.bytes;
    (t.part == Part::mtp ? sizes.mtp_parameters : sizes.parameters) += count;
    if (t.part == Part::attention || t.part == Part::indexer) sizes.attention_parameters += count;
    if (t.part == Part::routed_experts) {
      routed += bytes_in_memory(t, storage);
      routed_parameters += count;
    } else if (t.part != Part::mtp && (t.part != Part::embedding || c.tie_word_embeddings)) {
      sizes.active_parameters += count;
      sizes.resident_bytes += bytes_in_memory(t, storage);
    }
  });
  for (const auto& [name, stored] : folder.tensors()) {  // scales
    const io::FileTensor* weight = folder.find(weight_beside(name));
    if (!weight || !is_beside_a_weight(name)) continue;
    const auto at = parts.find({part_of(name, c), weight->type->name});
    if (at != parts.end()) at->second.bytes += stored->bytes();
    if (selection.holds(name, c)) plan.selected_bytes += stored->bytes();
  }
  for (auto& [key, part] : parts) plan.parts.push_back(part);
  if (routed == 0) return;
  sizes.experts = c.moe.n_routed_experts * std::count(c.dense_mlp.begin(), c.dense_mlp.end(), false);
  sizes.expert_bytes = routed / double(sizes.experts);
  const double share = double(c.moe.num_experts_per_tok) / double(c.moe.n_routed_experts);
  sizes.routed_bytes_per_token = share * routed;
  sizes.active_parameters += std::int64_t(share * double(routed_parameters));
}

double cache_row_bytes(const io::ModelConfig& config, Mode mode) {
  double bytes = 0;
  for (const bool full : config.full_indexer) {
    const RowKinds kinds(config, full, mode);
    for (const RowKind& kind : {kinds.latent, kinds.rope, kinds.latent_scale, kinds.index_key, kinds.index_scale})
      bytes += double(kind.row_bytes());
  }
  return bytes;
}

ModeFit fit(const Plan& plan, Mode mode, double memory) {
  const ModelSizes& s = plan.sizes;
  ModeFit f;
  f.mode = name_of(mode);
  f.cache_bytes = double(plan.context) * cache_row_bytes(plan.config, mode);
  f.expert_memory = memory - s.resident_bytes - f.cache_bytes - kKeptFree;
  const double least = s.experts > 0 ? double(plan.config.moe.num_experts_per_tok + 1) * s.expert_bytes : 0;
  f.fits = f.expert_memory >= least;
  if (!f.fits) return f;
  f.held = s.experts > 0 ? std::min(1.0, f.expert_memory / s.routed_bytes()) : 1;
  for (std::size_t i = 0; i < kDiskSpeeds.size(); ++i) {
    f.tokens_per_second[i] = ceiling_tokens_per_second(s, f.held, kDiskSpeeds[i], kMemorySpeed);
    f.pass_seconds[i] = (1 - f.held) * s.routed_bytes() / kDiskSpeeds[i];
  }
  return f;
}

void add_range(std::vector<ByteRange>& ranges, std::uint64_t begin, std::uint64_t end) {
  if (begin == end) return;
  if (!ranges.empty() && ranges.back().end == begin) ranges.back().end = end;
  else ranges.push_back({begin, end});
}

/// The ranges of the wanted tensors of a file, its header first; of a file in pieces only what is not here yet.
void add_tensors(ShardPlan& shard, const io::SafetensorsFile& file, const Selection& selection,
                 const io::ModelConfig& config) {
  std::vector<const io::FileTensor*> wanted;
  for (const io::FileTensor& tensor : file.tensors())
    if (selection.holds(tensor.name, config)) wanted.push_back(&tensor);
  shard.tensors = std::int64_t(wanted.size());
  std::sort(wanted.begin(), wanted.end(), [](auto* a, auto* b) { return a->begin < b->begin; });
  const bool whole = shard.state == ShardPlan::State::whole;
  if (whole) add_range(shard.ranges, 0, file.data_start());
  for (const io::FileTensor* t : wanted)
    if (whole || !file.has(*t)) add_range(shard.ranges, file.data_start() + t->begin, file.data_start() + t->end);
}

std::vector<ShardPlan> select(const Plan& plan, const Folder& folder, const Selection& selection) {
  using enum ShardPlan::State;
  const io::ShardIndex& index = folder.index();
  std::vector<std::int64_t> wanted(index.shards.size(), 0);
  for (const auto& [name, number] : index.shard_of) wanted[number] += selection.holds(name, plan.config);
  std::vector<ShardPlan> shards;
  for (std::size_t i = 0; i < index.shards.size(); ++i) {
    if (!index.name.empty() && wanted[i] == 0) continue;
    ShardPlan shard{index.shards[i], folder.state(i), wanted[i], {}, 0};
    if (shard.state == header_unknown) shard.ranges = {{0, 8}};
    else if (shard.state == length_known) shard.ranges = {{8, 8 + folder.header_length(i)}};
    else add_tensors(shard, *folder.file(i), selection, plan.config);
    for (const ByteRange& range : shard.ranges) shard.bytes += range.end - range.begin;
    shards.push_back(std::move(shard));
  }
  return shards;
}

bool is_folder(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

double ceiling_tokens_per_second(const ModelSizes& s, double held, double disk, double memory) {
  const double routed = s.routed_bytes_per_token;
  return 1 / ((1 - held) * routed / disk + (s.resident_bytes + held * routed) / memory);
}

Plan make_plan(const std::string& path, const std::string& layers, bool attention_only, double memory) {
  const bool is_checkpoint = is_folder(path);
  Plan plan(io::read_config(is_checkpoint ? path + "/config.json" : path));
  const Selection selection{layers_of(layers, plan.config.num_hidden_layers, "plan"), attention_only};
  const Folder folder = is_checkpoint ? Folder(path) : Folder();
  plan.shards = std::int64_t(folder.index().shards.size());
  for (std::size_t i = 0; i < folder.index().shards.size(); ++i) plan.known_shards += folder.file(i).has_value();
  count_tensors(plan, folder, selection);
  plan.context = std::min(kPlannedContext, plan.config.max_position_embeddings);
  for (const Mode mode : {Mode::dense_bf16, Mode::sparse_bf16, Mode::sparse_w8a8, Mode::sparse_w8a8_packed})
    if (!is_sparse(mode) || plan.config.index_topk > 0) plan.fits.push_back(fit(plan, mode, memory));
  if (!selection.everything()) plan.selected = select(plan, folder, selection);
  return plan;
}

ModelWork work_of(const std::string& path, std::string_view mode) {
  const bool is_checkpoint = is_folder(path);
  const io::ModelConfig config = io::read_config(is_checkpoint ? path + "/config.json" : path);
  const Folder folder = is_checkpoint ? Folder(path) : Folder();
  if (mode.empty()) mode = name_of(config.index_topk > 0 ? Mode::sparse_w8a8 : Mode::dense_bf16);
  ModelWork work = empty_work(config, mode_of(mode, config));
  for_each_tensor(config, [&](const ModelTensor& t) {
    const Storage storage = storage_of(t, config, folder);
    add_weight(work, config, t, form_in(mode_of(mode, config), t, storage, config));
  });
  return work;
}

}  // namespace dsakit
