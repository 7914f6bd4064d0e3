// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.hpp"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>

#include "core/float16.hpp"
#include "dsakit/error.hpp"
#include "io/json.hpp"

namespace dsakit::io {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr std::int64_t kBlock = 128;  // rows and columns that share one fp8 scale

[[noreturn]] void refuse(Status status, const std::string& what, const std::string& got, const std::string& wanted,
                         const std::string& why = {}) {
  throw Error(status, "load", what, "", got, wanted, why);
}

/// The path with links followed, empty if there is nothing.
std::string resolved(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
  return real ? real.get() : "";
}

/// The shard's path, once its name is known to stay inside the folder.
std::string shard_path(const std::string& folder, const std::string& name) {
  const auto bad = [&](const std::string& got) {
    refuse(Status::invalid_path, std::string(kIndexName) + ": " + printable(name), got,
           "the name of a file in the folder");
  };
  if (name.empty() || name == "." || name == "..") bad("is no file name");
  if (name.find('\0') != std::string::npos) bad("holds a NUL");
  if (name.find_first_of("/\\") != std::string::npos) bad("holds a separator");
  const std::string path = folder + "/" + name, real = resolved(path);
  const std::string inside = resolved(folder) + "/";
  if (!real.empty() && real.compare(0, inside.size(), inside) != 0) bad("is a link out of the folder");
  return path;
}

/// float of every e4m3 code: sign, 4 exponent bits with bias 7, 3 mantissa bits; 0x7f and 0xff are NaN, nothing is
/// infinite.
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> v{};
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      const float magnitude =
          exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
      v[code] = (code & 127) == 127 ? NAN : code & 128 ? -magnitude : magnitude;
    }
    return v;
  }();
  return values;
}

/// Layer number of "model.layers.<n>.<rest>", or -1. A number too large for 64 bits counts as the largest.
std::int64_t layer_of(const std::string& name) {
  static constexpr std::string_view kPrefix = "model.layers.";
  if (name.compare(0, kPrefix.size(), kPrefix) != 0) return -1;
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  if (error == std::errc::result_out_of_range) return INT64_MAX;
  return error == std::errc() ? layer : -1;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder), config_(read_config(folder + "/config.json")) {
  if (exists(folder_ + "/quant_model_description.json"))
    refuse(Status::unsupported, "quant_model_description.json", "describes weights quantised by msModelSlim",
           "weights in bf16, f16, f32 or fp8 blocks");
  const std::string single = folder_ + "/model.safetensors", index = folder_ + "/" + kIndexName;
  if (!exists(single) && exists(index)) open_shards(index);
  else files_.emplace_back(single);
  check_layer_numbers();
}

void Checkpoint::open_shards(const std::string& index) {
  const std::string text = read_json_object(index, Status::invalid_file);
  std::map<std::string, std::size_t> shards;
  bool mapped = false;
  Json(text).members([&](const std::string& key, const Json& value) {
    if (key != "weight_map") return;
    mapped = value.is_object();
    if (mapped)
      value.members([&](const std::string& name, const Json& shard) {
        if (!shard.is_string())
          refuse(Status::invalid_file, std::string(kIndexName) + ": " + printable(name),
                 "is " + printable(shard.text()), "the name of a file");
        shard_of_[name] = shards.emplace(shard.string(), shards.size()).first->second;
      });
  });
  if (!mapped) refuse(Status::invalid_file, kIndexName, "has no weight_map", "an object of tensor and file names");

  std::vector<std::string> paths(shards.size());
  for (const auto& [name, number] : shards) paths[number] = shard_path(folder_, name);
  for (const std::string& path : paths) files_.emplace_back(path);

  for (const auto& [name, number] : shard_of_)
    if (!files_[number].find(name))
      refuse(Status::missing_tensor, printable(name), "is missing", "in " + files_[number].file().name(), kIndexName);
  for (std::size_t number = 0; number < files_.size(); ++number)
    for (const FileTensor& tensor : files_[number].tensors()) {
      const auto at = shard_of_.find(tensor.name);
      if (at == shard_of_.end() || at->second != number)
        refuse(Status::conflict, printable(tensor.name), "is also in " + files_[number].file().name(),
               at == shard_of_.end() ? "no tensor that is not listed" : "only in " + files_[at->second].file().name(),
               kIndexName);
    }
}

void Checkpoint::check_layer_numbers() const {
  const std::int64_t layers = config_.num_hidden_layers + config_.num_nextn_predict_layers;
  for (const SafetensorsFile& file : files_)
    for (const FileTensor& tensor : file.tensors())
      if (layer_of(tensor.name) >= layers)
        refuse(Status::invalid_shape, file.file().name() + ": " + printable(tensor.name),
               "is of a layer that is not there", "0.." + std::to_string(layers - 1), "config.json: num_hidden_layers");
}

Checkpoint::Place Checkpoint::find(const std::string& name) const {
  if (shard_of_.empty()) {
    for (const SafetensorsFile& file : files_)
      if (const FileTensor* tensor = file.find(name)) return {&file, tensor};
    return {};
  }
  const auto at = shard_of_.find(name);
  if (at == shard_of_.end()) return {};
  return {&files_[at->second], files_[at->second].find(name)};
}

Checkpoint::Place Checkpoint::expect(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const Place place = find(name);
  const std::string wanted = shape_text(shape.data(), int(shape.size()));
  if (!place.tensor) refuse(Status::missing_tensor, printable(name), "is missing", "a tensor of shape " + wanted);
  const FileTensor& t = *place.tensor;
  if (!std::equal(t.shape.begin(), t.shape.begin() + t.rank, shape.begin(), shape.end()))
    refuse(Status::invalid_shape, place.file->file().name() + ": " + printable(name),
           "has shape " + shape_text(t.shape.data(), t.rank), wanted, "config.json");
  return place;
}

/// The fp8 scales of a weight [rows, cols]: [ceil(rows / 128), ceil(cols / 128)] in f32, whatever values they have.
AlignedArray<float> Checkpoint::load_scales(const std::string& name, const Place& weight) const {
  const std::int64_t rows = weight.tensor->shape[0], cols = weight.tensor->shape[1];
  if (!has(name))
    refuse(Status::missing_tensor, printable(name), "is missing", "beside the FP8 weight",
           "config.json: quantization_config");
  const Place place = expect(name, {(rows + kBlock - 1) / kBlock, (cols + kBlock - 1) / kBlock});
  if (place.tensor->type->dtype != DType::f32)
    refuse(Status::unsupported, place.file->file().name() + ": " + printable(name),
           std::string("is stored as ") + place.tensor->type->name, "F32");
  AlignedArray<float> scales(place.tensor->bytes() / sizeof(float));
  place.file->read(*place.tensor, 0, scales.data(), place.tensor->bytes());
  return scales;
}

template <class T>
AlignedArray<T> Checkpoint::load(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const Place place = expect(name, shape);
  const FileTensor& tensor = *place.tensor;
  const DType stored = tensor.type->dtype;
  const std::string shown = place.file->file().name() + ": " + printable(name);
  const bool fp8 = stored == DType::f8_e4m3 && tensor.rank == 2;
  if (!fp8 && stored != DType::bf16 && stored != DType::f16 && stored != DType::f32)
    refuse(Status::unsupported, shown, std::string("is stored as ") + tensor.type->name,
           "BF16, F16, F32 or, for a matrix, F8_E4M3");
  const std::string scale_name = name + "_scale_inv";
  if (!fp8 && has(scale_name))
    refuse(Status::conflict, printable(scale_name), "scales a weight stored as " + std::string(tensor.type->name),
           "F8_E4M3");
  const std::size_t width = std::size_t(size_of(stored)), count = tensor.bytes() / width;
  require_memory(shown, count * sizeof(T), memory_limit());
  const AlignedArray<float> scales = fp8 ? load_scales(scale_name, place) : AlignedArray<float>();

  AlignedArray<T> out(count);
  if (stored == dtype_of<T>) {
    place.file->read(tensor, 0, out.data(), tensor.bytes());
    return out;
  }
  constexpr std::size_t kPiece = 1 << 18;  // elements converted at a time
  AlignedArray<std::byte> piece(std::min(count, kPiece) * width);
  const std::size_t cols = std::size_t(shape.back()), scale_cols = (cols + kBlock - 1) / kBlock;
  std::size_t row = 0, col = 0;
  for (std::size_t from = 0; from < count; from += kPiece) {
    const std::size_t n = std::min(kPiece, count - from);
    place.file->read(tensor, from * width, piece.data(), n * width);
    const auto convert = [&](const auto* in) {
      for (std::size_t i = 0; i < n; ++i) out[from + i] = round_to<T>(to_float(in[i]));
    };
    switch (stored) {
      case DType::bf16:
        convert(reinterpret_cast<const bf16*>(piece.data()));
        break;
      case DType::f16:
        convert(reinterpret_cast<const f16*>(piece.data()));
        break;
      case DType::f32:
        convert(reinterpret_cast<const float*>(piece.data()));
        break;
      default:
        for (std::size_t i = 0; i < n; ++i) {
          const float code = e4m3_values()[std::to_integer<int>(piece[i])];
          if (code != code)
            throw Error(Status::invalid_file, "load", shown,
                        "[" + std::to_string(row) + "][" + std::to_string(col) + "]", "is NaN", "a number", "", "NAN");
          out[from + i] = round_to<T>(code * scales[row / kBlock * scale_cols + col / kBlock]);
          if (++col == cols) col = 0, ++row;
        }
    }
  }
  return out;
}

AlignedArray<bf16> Checkpoint::load_matrix_bf16(const std::string& name, std::int64_t rows, std::int64_t cols) const {
  return load<bf16>(name, {rows, cols});
}
AlignedArray<float> Checkpoint::load_matrix_f32(const std::string& name, std::int64_t rows, std::int64_t cols) const {
  return load<float>(name, {rows, cols});
}
AlignedArray<bf16> Checkpoint::load_vector_bf16(const std::string& name, std::int64_t size) const {
  return load<bf16>(name, {size});
}
AlignedArray<float> Checkpoint::load_vector_f32(const std::string& name, std::int64_t size) const {
  return load<float>(name, {size});
}

void Checkpoint::require_memory_for_all() const {
  std::uint64_t sum = 0;
  for (const SafetensorsFile& file : files_) sum += file.data_bytes();
  require_memory(printable(folder_), sum, memory_limit());
}

}  // namespace dsakit::io
