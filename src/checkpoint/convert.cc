// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/convert.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/folder_lock.hpp"
#include "checkpoint/parts.hpp"
#include "checkpoint/selection.hpp"
#include "core/hash.hpp"
#include "core/out_of_memory.hpp"
#include "dsakit/error.hpp"
#include "io/checkpoint.hpp"
#include "io/durable.hpp"
#include "io/json.hpp"
#include "kernels/kernels.hpp"
#include "layer/expert.hpp"
#include "layer/experts.hpp"
#include "layer/weights.hpp"

namespace dsakit {
namespace {

constexpr std::size_t kPiece = std::size_t(8) << 20;  // bytes read at a time
constexpr char kRecord[] = "convert.json", kDescription[] = "quant_model_description.json";
/// Files beside the weights that a user of the folder may want.
constexpr const char* kCompanions[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json"};

[[noreturn]] void refuse(Status status, const std::string& what, const std::string& got, const std::string& wanted,
                         const std::string& why = {}) {
  throw Error(status, "convert", what, "", got, wanted, why);
}

const char* name_of(TargetFormat format) {
  return format == TargetFormat::bf16 ? "bf16" : format == TargetFormat::w8a8 ? "w8a8" : "packed";
}

/// A tensor that will be written.
struct OutTensor {
  std::string name;
  const char* type;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes;
};

/// A tensor of the model, or the experts of a layer; where it comes from and what becomes of it: tensors that follow
/// each other in one file.
struct Item {
  enum How { copied, widened, quantised, as_codes, packed } how;
  io::StoredMatrix source{};              // of what is widened, quantised or as_codes
  std::vector<io::Place> places{};        // all that is read; copied: one for each of `out`
  std::vector<OutTensor> out{};
  std::optional<StoredExperts> experts{};  // packed

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const OutTensor& t : out) sum += t.bytes;
    return sum;
  }
};

struct Shard {
  std::string name;
  std::vector<const Item*> items;
  std::uint64_t bytes = 0;  // of the file
};

std::vector<io::Place> places_of(const io::StoredMatrix& m) {
  std::vector<io::Place> places;
  for (const io::Place& place : {m.weight, m.scale, m.offsets, m.input_scale, m.input_offset, m.bias})
    if (place) places.push_back(place);
  return places;
}

OutTensor as_it_is(const io::Place& place) {
  const io::FileTensor& t = *place.tensor;
  return {t.name, t.type->name, {t.shape.begin(), t.shape.begin() + t.rank}, t.bytes()};
}

bool is_float(const io::Place& place) {
  const DType type = place.tensor->type->dtype;
  return type == DType::bf16 || type == DType::f16 || type == DType::f32;
}

/// The matrix of a model tensor, which may be a part of that of all experts.
io::StoredMatrix source_matrix(const io::Checkpoint& checkpoint, const ModelTensor& t) {
  if (t.part != Part::routed_experts) return checkpoint.matrix(t.name, t.shape[0], t.shape[1]);
  static constexpr std::string_view kExperts = "mlp.experts.";
  const auto [layer, rest] = layer_name(t.name);
  const StoredMlp expert = find_expert(checkpoint, layer, std::stoll(std::string(rest.substr(kExperts.size()))));
  return expert.matrix[rest.ends_with("gate_proj.weight") ? 0 : rest.ends_with("up_proj.weight") ? 1 : 2];
}

/// visit(bytes, first, rows) for some rows of a matrix after the other, which have been found to be numbers.
template <class Visit>
void for_rows(const io::StoredMatrix& m, Visit&& visit) {
  const std::size_t row_bytes = std::size_t(m.bytes()) / std::size_t(m.rows);
  const std::int64_t most = std::max<std::int64_t>(1, std::int64_t(kPiece / row_bytes));
  io::AlignedArray<std::byte> bytes(std::size_t(std::min(most, m.rows)) * row_bytes);
  for (std::int64_t first = 0; first < m.rows; first += most) {
    const std::int64_t rows = std::min(most, m.rows - first);
    m.weight.file->read(*m.weight.tensor, m.offset + std::uint64_t(first) * row_bytes, bytes.data(),
                        std::size_t(rows) * row_bytes);
    if (m.dtype() == DType::f8_e4m3)
      io::refuse_nan(reinterpret_cast<const std::uint8_t*>(bytes.data()), first, rows, m.cols, m.weight);
    if (m.dtype() == DType::i8)
      io::refuse_hidden_terms(m, reinterpret_cast<const std::int8_t*>(bytes.data()), first, rows);
    visit(bytes.data(), first, rows);
  }
}

/// Whether this weight becomes int8.
bool is_int8(const ModelTensor& t, const ConvertOptions& options) {
  if (!t.quantised || options.format != TargetFormat::w8a8) return false;
  if (t.part == Part::dense_mlp || t.part == Part::shared_experts || t.part == Part::routed_experts)
    return options.int8_mlp;
  for (const char* module : {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "wq_b"})
    if (t.name.ends_with(std::string(".") + module + ".weight")) return true;
  return false;
}

Item item_of(const io::Checkpoint& checkpoint, const ModelTensor& t, const ConvertOptions& options) {
  const std::uint64_t count = std::uint64_t(t.parameters());
  if (t.shape.size() == 1 || !(t.quantised || t.part == Part::embedding || t.part == Part::head)) {
    const io::Place place = checkpoint.tensor(t.name, t.shape);  // norms, router and the like keep their digits
    if (!is_float(place))
      throw Error(Status::unsupported, "load", place.shown(), "",
                  std::string("is stored as ") + place.tensor->type->name, "BF16, F16 or F32");
    return {.how = Item::copied, .places = {place}, .out = {as_it_is(place)}};
  }
  Item item{.how = Item::widened, .source = source_matrix(checkpoint, t)};
  item.places = places_of(item.source);
  if (options.format == TargetFormat::packed) {
    item.how = Item::copied;
    for (const io::Place& place : item.places) item.out.push_back(as_it_is(place));
    return item;
  }
  if (is_int8(t, options)) {
    item.how = item.source.format == io::WeightFormat::int8 ? Item::as_codes : Item::quantised;
    const std::vector<std::int64_t> column = {t.shape[0], 1};
    const std::uint64_t column_bytes = std::uint64_t(t.shape[0]) * sizeof(float);
    item.out = {{t.name, "I8", t.shape, count},
                {t.name + "_scale", "F32", column, column_bytes},
                {t.name + "_offset", "F32", column, column_bytes}};
  } else {
    item.out = {{t.name, "BF16", t.shape, 2 * count}};
  }
  return item;
}

/// The experts of a layer in blocks, as they lie in memory.
Item packed_item(const io::Checkpoint& checkpoint, std::int64_t layer) {
  Item item{.how = Item::packed, .experts = find_experts(checkpoint, layer, {})};
  const StoredExperts& experts = *item.experts;
  if (experts.packed) item.places = {experts.packed};
  for (const StoredMlp& expert : experts.expert)
    for (const io::StoredMatrix& m : expert.matrix)
      for (const io::Place& place : places_of(m)) item.places.push_back(place);
  const std::uint64_t block = experts.layout.bytes();
  item.out = {{packed_experts_name(layer), "U8", {experts.count, std::int64_t(block)},
               std::uint64_t(experts.count) * block}};
  return item;
}

/// MISSING_TENSOR if some of it has not been fetched.
void require_here(const Item& item) {
  for (const io::Place& place : item.places)
    if (!place.file->has(*place.tensor)) {
      const std::uint64_t begin = place.file->data_start() + place.tensor->begin;
      refuse(Status::missing_tensor, place.shown(), "is not here",
             "bytes " + std::to_string(begin) + ".." + std::to_string(begin + place.tensor->bytes() - 1));
    }
}

std::string header_of(const std::vector<const Item*>& items) {
  const bool packed = items[0]->how == Item::packed;  // alone in its file
  std::string header = "{";
  if (packed)
    header += std::string("\"__metadata__\":{\"") + kPackedLayoutKey + "\":\"" + kPackedLayout + "\",\"" +
              kPackedFormatKey + "\":\"" + name_of(items[0]->experts->layout.format()) + "\"}";
  std::uint64_t at = 0;
  for (const Item* item : items)
    for (const OutTensor& t : item->out) {
      header += (header.size() > 1 ? "," : "") + io::json_quoted(t.name) + ":{\"dtype\":\"" + t.type +
                "\",\"shape\":" + io::shape_text(t.shape.data(), int(t.shape.size())) + ",\"data_offsets\":[" +
                std::to_string(at) + "," + std::to_string(at + t.bytes) + "]}";
      at += t.bytes;
    }
  header += "}";
  const std::size_t multiple = packed ? 4096 : 8;  // where data begin, behind the length of the header
  header.resize((header.size() + 8 + multiple - 1) / multiple * multiple - 8, ' ');
  return header;
}

/// {"file": .., "bytes": .., "hash": ..} of a source file.
std::string source_text(const std::string& name, std::uint64_t bytes, std::string_view hashed) {
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016" PRIx64, hash_of(hashed));
  return "{\"file\": " + io::json_quoted(name) + ", \"bytes\": " + std::to_string(bytes) + ", \"hash\": \"" + hash +
         "\"}";
}

/// Members of convert.json besides the finished files, as they are written.
using Members = std::vector<std::pair<std::string, std::string>>;

class Conversion {
 public:
  Conversion(const ConvertOptions& options, const ConvertProgress& progress)
      : options_(options),
        progress_(progress),
        checkpoint_(options.checkpoint,
                    {.dequantise_static = options.dequantise_static, .shards_may_be_absent = true}) {
    list_items();
    cut_shards();
    describe_job();
  }

  ConvertReport run() {
    namespace fs = std::filesystem;
    std::error_code error;
    fs::create_directories(options_.out, error);
    if (error) refuse(Status::io_error, io::printable(options_.out), "cannot be made", "a folder", error.message());
    const FolderLock lock(options_.out);
    read_record();
    remove_partial_files();
    require_room();
    if (done_ < all_) std::filesystem::remove(options_.out + "/config.json");  // no checkpoint until it is whole
    write_record();
    for (const Shard& shard : shards_)
      if (!finished_.contains(shard.name)) write_shard(shard);
    write_rest();
    return {std::int64_t(shards_.size()), all_, checkpoint_.notes()};
  }

 private:
  void list_items() {
    const io::ModelConfig& c = checkpoint_.config();
    const Selection selection{layers_of(options_.layers, c.num_hidden_layers, "convert"), options_.attention_only};
    const char* part = options_.attention_only ? "self_attn." : "";
    if (selection.layers.empty()) checkpoint_.require_known_tensors(0, c.num_hidden_layers, part);
    for (std::size_t i = 0; i < selection.layers.size(); ++i)
      if (selection.layers[i]) checkpoint_.require_known_tensors(std::int64_t(i), 1, part);
    for_each_tensor(c, [&](const ModelTensor& t) {
      if (t.part == Part::mtp || !selection.holds(t.name, c)) return;
      if (options_.format != TargetFormat::packed || t.part != Part::routed_experts)
        items_.push_back(item_of(checkpoint_, t, options_));
      else if (t.name.ends_with(".experts.0.gate_proj.weight"))
        items_.push_back(packed_item(checkpoint_, layer_name(t.name).layer));
    });
    for (const Item& item : items_) require_here(item);
  }

  void cut_shards() {
    std::vector<std::vector<const Item*>> cut(1);
    std::uint64_t size = 0;
    for (const Item& item : items_) {
      const bool alone = item.how == Item::packed || (!cut.back().empty() && cut.back()[0]->how == Item::packed);
      if (!cut.back().empty() && (alone || size + item.bytes() > options_.shard_bytes)) cut.emplace_back(), size = 0;
      cut.back().push_back(&item);
      size += item.bytes();
    }
    for (std::size_t i = 0; i < cut.size(); ++i) {
      char name[64];
      std::snprintf(name, sizeof name, "-%05zu-of-%05zu.safetensors", i + 1, cut.size());
      Shard shard{stem() + name, std::move(cut[i]), 8};
      shard.bytes += header_of(shard.items).size();
      for (const Item* item : shard.items) shard.bytes += item->bytes();
      all_ += shard.bytes;
      shards_.push_back(std::move(shard));
    }
  }

  std::string stem() const { return options_.format == TargetFormat::w8a8 ? "quant_model_weights" : "model"; }

  /// Source files by name, size and hash: of config.json, and of a shard's header with the first bytes that are used,
  /// since other models of the same sizes have the same headers.
  void describe_job() {
    std::map<const io::SafetensorsFile*, const io::FileTensor*> used;
    for (const Item& item : items_)
      for (const io::Place& place : item.places) used.emplace(place.file, place.tensor);
    const std::string config = io::text_of(options_.checkpoint + "/config.json");
    std::string source = "[\n  " + source_text("config.json", config.size(), config);
    for (const io::SafetensorsFile& file : checkpoint_.files()) {
      const auto at = used.find(&file);
      if (at == used.end()) continue;
      std::string hashed(file.data_start(), '\0');
      file.file().read(0, hashed.data(), hashed.size());
      const std::size_t some = std::min<std::uint64_t>(4096, at->second->bytes());
      hashed.resize(hashed.size() + some);
      file.read(*at->second, 0, hashed.data() + hashed.size() - some, some);
      source += ",\n  " + source_text(file.file().name(), file.data_start() + file.data_bytes(), hashed);
    }
    job_ = {{"format", io::json_quoted(name_of(options_.format))},
            {"layers", options_.layers.empty() ? "\"all\"" : io::json_quoted(options_.layers)},
            {"attention_only", options_.attention_only ? "true" : "false"},
            {"int8_mlp", options_.format == TargetFormat::w8a8 && options_.int8_mlp ? "true" : "false"},
            {"static", options_.dequantise_static ? "\"dequantise\"" : "\"refuse\""},
            {"shard_bytes", std::to_string(options_.shard_bytes)},
            {"source", source + "\n ]"}};
  }

  /// What an earlier call has finished, if it was about the same.
  void read_record() {
    const std::string path = options_.out + "/" + kRecord, shown = io::printable(path);
    if (!io::exists(path)) {
      for (const auto& entry : std::filesystem::directory_iterator(options_.out))
        if (const std::string name = entry.path().filename(); !name.starts_with('.'))
          refuse(Status::conflict, io::printable(options_.out), "holds " + io::printable(name) + " and no " + kRecord,
                 "an empty folder, or one of this command");
      return;
    }
    const std::string text = io::read_json_object(path, Status::invalid_file);
    std::set<std::string> finished;
    std::map<std::string, std::string> theirs;
    io::Json(text).members([&](const std::string& key, const io::Json& value) {
      if (key != "finished") theirs[key] = value.text();
      else if (value.is_array())
        value.items([&](const io::Json& name) { finished.insert(name.is_string() ? name.string() : ""); });
    });
    for (const auto& [key, value] : job_) {
      const auto at = theirs.find(key);
      if (at == theirs.end() || at->second != value)
        refuse(Status::conflict, shown + ": " + key,
               at == theirs.end() ? "is missing"
               : key == "source"  ? "is another one"
                                  : "is " + io::printable(at->second),
               key == "source" ? "that of " + io::printable(options_.checkpoint) : value,
               "the folder of another conversion");
    }
    for (const Shard& shard : shards_) {
      std::error_code none;
      const bool whole = finished.contains(shard.name) &&
                         std::filesystem::file_size(options_.out + "/" + shard.name, none) == shard.bytes && !none;
      if (!whole) continue;
      finished_.insert(shard.name);
      done_ += shard.bytes;
    }
  }

  /// Of a process that ended in the middle.
  void remove_partial_files() const {
    std::vector<std::filesystem::path> partial;
    for (const auto& entry : std::filesystem::directory_iterator(options_.out))
      if (const std::string name = entry.path().filename(); name.starts_with('.') && name.ends_with(".partial"))
        partial.push_back(entry.path());
    for (const auto& path : partial) std::filesystem::remove(path);
  }

  void require_room() const {
    struct statvfs status {};
    if (::statvfs(options_.out.c_str(), &status) != 0) return;  // the disk will tell
    const std::uint64_t room = std::uint64_t(status.f_bavail) * status.f_frsize, wanted = all_ - done_;
    if (room < wanted)
      refuse(Status::io_error, io::printable(options_.out), "has room for " + std::to_string(room) + " bytes",
             std::to_string(wanted) + " for what is to be written");
  }

  void write_record() {
    std::string text = "{\n";
    for (const auto& [key, value] : job_) text += " \"" + key + "\": " + value + ",\n";
    text += " \"finished\": [";
    bool first = true;
    for (const Shard& shard : shards_)
      if (finished_.contains(shard.name))
        text += (std::exchange(first, false) ? "\n  " : ",\n  ") + io::json_quoted(shard.name);
    io::write_durably(options_.out, kRecord, text + "\n ]\n}\n", "convert");
    step(0);
  }

  void step(std::uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_, all_);
  }

  void write_shard(const Shard& shard) {
    io::DurableFile file(options_.out, shard.name, "convert");
    const std::string header = header_of(shard.items);
    const auto put = [&](const void* bytes, std::size_t count) {
      file.write(bytes, count);
      step(count);
    };
    unsigned char length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(header.size() >> 8 * i);
    put(length, sizeof length);
    put(header.data(), header.size());
    for (const Item* item : shard.items) write_item(*item, put);
    file.commit();
    step(0);
    finished_.insert(shard.name);
    write_record();
  }

  template <class Put>
  static void copy(const io::Place& place, Put&& put) {
    io::AlignedArray<std::byte> piece(std::size_t(std::min<std::uint64_t>(kPiece, place.tensor->bytes())));
    for (std::uint64_t at = 0, all = place.tensor->bytes(); at < all; at += kPiece) {
      const std::size_t some = std::size_t(std::min<std::uint64_t>(kPiece, all - at));
      place.file->read(*place.tensor, at, piece.data(), some);
      put(piece.data(), some);
    }
  }

  template <class Put>
  void write_item(const Item& item, Put&& put) const {
    const io::StoredMatrix& m = item.source;
    if (item.how == Item::copied) {
      for (const io::Place& place : item.places) copy(place, put);
      return;
    }
    if (item.how == Item::packed) {
      const std::vector<std::byte> zeros(item.experts->layout.bytes());  // padding is never left to chance
      io::AlignedArray<std::byte> block(zeros.size());
      for (std::int64_t e = 0; e < item.experts->count; ++e) {
        std::copy(zeros.begin(), zeros.end(), block.begin());
        load_expert(*item.experts, e, block.data(), *supported_kernels().back());
        put(block.data(), block.size());
      }
      return;
    }
    const io::AlignedArray<float> scales = io::scales_of(m);
    io::AlignedArray<float> row_scales{std::size_t(item.how == Item::quantised ? m.rows : 0)};
    for_rows(m, [&](const std::byte* bytes, std::int64_t first, std::int64_t rows) {
      if (item.how == Item::as_codes) return put(bytes, std::size_t(rows * m.cols));
      io::AlignedArray<bf16> numbers{std::size_t(rows * m.cols)};
      for (std::int64_t r = 0; r < rows; ++r)
        io::read_row(m, scales, bytes + std::uint64_t(r) * (m.bytes() / std::uint64_t(m.rows)), first + r,
                     numbers.data() + r * m.cols);
      if (item.how == Item::widened) return put(numbers.data(), numbers.size() * sizeof(bf16));
      io::AlignedArray<std::int8_t> codes(numbers.size());
      quantise_rows(numbers.data(), rows, m.cols, codes.data(), row_scales.data() + first);
      put(codes.data(), codes.size());
    });
    if (item.how == Item::as_codes) write_scales(scales, put);
    if (item.how == Item::quantised) write_scales(row_scales, put);
  }

  /// Scales, and the offsets of msModelSlim: zeros.
  template <class Put>
  static void write_scales(const io::AlignedArray<float>& scales, Put&& put) {
    const std::vector<float> zeros(scales.size(), 0.0f);
    put(scales.data(), scales.size() * sizeof(float));
    put(zeros.data(), zeros.size() * sizeof(float));
  }

  void write_rest() {
    const auto write = [&](const std::string& name, const std::string& text) {
      io::write_durably(options_.out, name, text, "convert");
      step(0);
    };
    for (const char* name : kCompanions)
      if (const std::string path = options_.checkpoint + "/" + name; io::exists(path)) write(name, io::text_of(path));
    if (options_.format == TargetFormat::w8a8) write(kDescription, description());
    if (const std::string path = options_.checkpoint + "/" + kDescription;
        options_.format == TargetFormat::packed && io::exists(path))
      write(kDescription, io::text_of(path));
    write(stem() + ".safetensors.index.json", index());
    write("config.json", config());
  }

  std::string description() const {
    std::string text = "{\n \"model_quant_type\": \"W8A8_DYNAMIC\",\n \"version\": \"1.0.0\",\n \"group_size\": 0";
    for (const Item& item : items_)
      for (const OutTensor& t : item.out)
        text += ",\n " + io::json_quoted(t.name) + (item.out.size() > 1 ? ": \"W8A8_DYNAMIC\"" : ": \"FLOAT\"");
    return text + "\n}\n";
  }

  std::string index() const {
    std::string map;
    std::uint64_t bytes = 0;
    for (const Shard& shard : shards_)
      for (const Item* item : shard.items)
        for (const OutTensor& t : item->out) {
          map += (map.empty() ? "\n  " : ",\n  ") + io::json_quoted(t.name) + ": " + io::json_quoted(shard.name);
          bytes += t.bytes;
        }
    return "{\n \"metadata\": {\"total_size\": " + std::to_string(bytes) + "},\n \"weight_map\": {" + map + "\n }\n}\n";
  }

  /// That of the source, but for how weights are stored and the layers that are left out.
  std::string config() const {
    const std::string text = io::read_json_object(options_.checkpoint + "/config.json", Status::invalid_config);
    std::string out;
    io::Json(text).members([&](const std::string& key, const io::Json& value) {
      const bool as_stored = options_.format == TargetFormat::packed;
      if (key == "quantization_config" && !as_stored) return;
      const bool type = (key == "torch_dtype" || key == "dtype") && !as_stored;
      out += (out.empty() ? "\n " : ",\n ") + io::json_quoted(key) + ": " +
             (key == "num_nextn_predict_layers" ? "0" : type ? "\"bfloat16\"" : std::string(value.text()));
    });
    return "{" + out + "\n}\n";
  }

  const ConvertOptions& options_;
  const ConvertProgress& progress_;
  const io::Checkpoint checkpoint_;
  std::vector<Item> items_;
  std::vector<Shard> shards_;  // of places in items_
  Members job_;
  std::set<std::string> finished_;
  std::uint64_t done_ = 0, all_ = 0;
};

}  // namespace

ConvertReport convert(const ConvertOptions& options, const ConvertProgress& progress) try {
  return Conversion(options, progress).run();
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
