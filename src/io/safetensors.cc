// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include "dsakit/error.hpp"
#include "io/json.hpp"

namespace dsakit::io {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr int kMaxDepth = 3;
constexpr std::size_t kMaxName = 4096;
constexpr std::uint64_t kMaxSize = INT64_MAX;

constexpr FileDType kTypes[] = {
    {"BOOL", 8, DType::boolean},    {"U8", 8, DType::u8},           {"I8", 8, DType::i8},
    {"F8_E5M2", 8, DType::f8_e5m2}, {"F8_E4M3", 8, DType::f8_e4m3}, {"F8_E8M0", 8, DType::other},
    {"I16", 16, DType::i16},        {"U16", 16, DType::u16},        {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},      {"I32", 32, DType::i32},        {"U32", 32, DType::u32},
    {"F32", 32, DType::f32},        {"F64", 64, DType::f64},        {"I64", 64, DType::i64},
    {"U64", 64, DType::u64},        {"C64", 64, DType::other},      {"F4", 4, DType::other},
    {"F6_E2M3", 6, DType::other},   {"F6_E3M2", 6, DType::other},
};

/// A refusal that knows everything but the file's name.
struct Refusal {
  std::string what, got, wanted, why;
  const char* reason;
};

[[noreturn]] void refuse(const File& file, const Refusal& r) {
  throw Error(Status::invalid_file, "load", file.name() + (r.what.empty() ? "" : ": " + r.what), "", r.got, r.wanted,
              r.why, r.reason);
}

const char* header_reason(JsonFault::Kind kind) {
  switch (kind) {
    case JsonFault::encoding:
      return "HEADER_UTF8";
    case JsonFault::depth:
      return "HEADER_DEPTH";
    case JsonFault::duplicate:
      return "DUPLICATE_KEY";
    case JsonFault::syntax:
      break;
  }
  return "HEADER_JSON";
}

/// How many plain integers in 0..2^63-1 a list holds (more than `most` count as most + 1); nothing for anything else.
std::optional<int> sizes_of(const Json& list, int most, std::int64_t* to) {
  if (!list.is_array()) return {};
  int n = 0;
  bool plain = true;
  const auto take = [&](const Json& item) {
    const auto value = item.plain_integer();
    plain &= value.has_value();
    if (plain && n < most) to[n] = *value;
    ++n;
  };
  list.items(take, most + 1);
  return plain ? std::optional(n) : std::nullopt;
}

/// Fills all but the name, or says what is wrong.
std::optional<Refusal> parse_tensor(const Json& text, const std::string& name, FileTensor& tensor) {
  const std::string shown = name.empty() ? "a tensor" : printable(name);
  const auto bad = [&](std::string got, std::string wanted, const char* reason, std::string why = {}) {
    return Refusal{shown, std::move(got), std::move(wanted), std::move(why), reason};
  };
  if (name.empty() || name.size() > kMaxName)
    return bad("has a name of " + std::to_string(name.size()) + " bytes", "1.." + std::to_string(kMaxName), "NAME");
  if (std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }))
    return bad("has a control character in its name", "none", "NAME");

  std::optional<Json> dtype, shape, offsets;
  bool others = !text.is_object();
  if (!others)
    text.members([&](const std::string& key, const Json& value) {
      if (key == "dtype") dtype = value;
      else if (key == "shape") shape = value;
      else if (key == "data_offsets") offsets = value;
      else others = true;
    });
  if (others || !dtype || !shape || !offsets)
    return bad("is " + printable(text.text()), "an object of dtype, shape and data_offsets", "TENSOR_FIELDS");

  const std::string type = dtype->is_string() ? dtype->string() : "";
  const auto* known =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const FileDType& t) { return type == t.name; });
  if (known == std::end(kTypes)) return bad("has dtype " + printable(dtype->text()), "one that is known", "DTYPE");
  tensor.type = known;

  const auto rank = sizes_of(*shape, 8, tensor.shape.data());
  if (!rank || *rank > 8)
    return bad("has shape " + printable(shape->text()), "a list of at most 8 integers in 0..2^63-1", "SHAPE");
  tensor.rank = *rank;
  std::int64_t range[2];
  if (sizes_of(*offsets, 2, range) != 2)
    return bad("has data_offsets " + printable(offsets->text()), "two integers in 0..2^63-1", "OFFSETS");
  tensor.begin = static_cast<std::uint64_t>(range[0]);
  tensor.end = static_cast<std::uint64_t>(range[1]);

  const std::string described = type + " " + shape_text(tensor.shape.data(), tensor.rank);
  std::uint64_t bits = 1;
  bool fits = true;
  const auto times = [&](std::uint64_t n) {
    fits = fits && !__builtin_mul_overflow(bits, n, &bits) && bits <= kMaxSize;
  };
  for (int a = 0; a < tensor.rank; ++a) times(static_cast<std::uint64_t>(tensor.shape[a]));
  times(static_cast<std::uint64_t>(known->bits));
  if (!fits) return bad("has more than 2^63-1 elements or bits", "sizes that can be counted", "OVERFLOW", described);
  if (bits % 8 != 0) return bad("has " + std::to_string(bits) + " bits", "whole bytes", "MISALIGNED", described);
  if (tensor.end < tensor.begin)
    return bad("ends at byte " + std::to_string(tensor.end), "at least " + std::to_string(tensor.begin), "OFFSETS",
               "where it begins");
  if (tensor.bytes() != bits / 8)
    return bad("spans " + std::to_string(tensor.bytes()) + " bytes", std::to_string(bits / 8), "SIZE_MISMATCH",
               described);
  return {};
}

}  // namespace

std::string shape_text(const std::int64_t* shape, int rank) {
  std::string s = "[";
  for (int a = 0; a < rank; ++a) s += (a ? ", " : "") + std::to_string(shape[a]);
  return s + "]";
}

std::uint64_t safetensors_header_length(const File& file) {
  const std::uint64_t size = file.size();
  if (size < 8) refuse(file, {"", "has " + std::to_string(size) + " bytes", "at least 8", "", "TOO_SHORT"});
  unsigned char word[8];
  file.read(0, word, sizeof word);
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | word[i];
  const std::string got = "is " + std::to_string(length);
  if (length > kMaxHeader)
    refuse(file, {"header length", got, "at most " + std::to_string(kMaxHeader), "", "HEADER_TOO_LARGE"});
  if (length < 2 || (length > size - 8 && !file.is_in_pieces()))
    refuse(file,
           {"header length", got, "at least 2 and inside the file", std::to_string(size) + " bytes", "HEADER_LENGTH"});
  return length;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const std::uint64_t length = safetensors_header_length(file_);
  std::string header(length, '\0');
  file_.read(8, header.data(), header.size());
  data_start_ = 8 + length;
  read_header(header);
  check_tiling();
}

void SafetensorsFile::read_header(std::string_view header) {
  if (header[0] != '{')
    refuse(file_, {"header", "starts with '" + printable(header.substr(0, 1)) + "'", "'{'", "", "HEADER_START"});
  if (const auto fault = find_json_fault(header, kMaxDepth))
    refuse(file_, {"header", fault->got, fault->wanted, "", header_reason(fault->kind)});

  std::optional<Refusal> refusal, metadata_refusal;
  Json(header).members([&](std::string name, const Json& value) {
    if (name == "__metadata__") {
      bool strings = value.is_object();
      if (strings) value.members([&](const std::string&, const Json& text) { strings &= text.is_string(); });
      if (strings) metadata_ = value.text();
      else metadata_refusal = {"__metadata__", "is " + printable(value.text()), "an object of strings", "", "METADATA"};
    } else if (!refusal) {
      FileTensor tensor{};
      refusal = parse_tensor(value, name, tensor);
      tensor.name = std::move(name);
      tensors_.push_back(std::move(tensor));
    }
  });
  if (metadata_refusal) refuse(file_, *metadata_refusal);
  if (refusal) refuse(file_, *refusal);

  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors_[a].name < tensors_[b].name; });
}

void SafetensorsFile::check_tiling() {
  std::vector<std::uint32_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(tensors_[a].begin, tensors_[a].end) < std::pair(tensors_[b].begin, tensors_[b].end);
  });
  std::uint64_t at = 0;
  for (const std::uint32_t i : order) {
    const FileTensor& t = tensors_[i];
    if (t.begin != at)
      refuse(file_, {printable(t.name), "begins at byte " + std::to_string(t.begin), std::to_string(at),
                     "where the tensor before it ends", t.begin < at ? "OVERLAP" : "HOLE"});
    at = t.end;
  }
  data_bytes_ = at;
  if (file_.is_in_pieces() && data_start_ + at > file_.size()) return;
  if (data_start_ + at != file_.size())
    refuse(file_, {"", "has " + std::to_string(file_.size()) + " bytes", std::to_string(data_start_ + at),
                   "header and tensors", data_start_ + at < file_.size() ? "TAIL" : "TRUNCATED"});
}

const FileTensor* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](std::uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

std::map<std::string, std::string> SafetensorsFile::metadata() const {
  std::map<std::string, std::string> all;
  if (!metadata_.empty())
    Json(metadata_).members([&](const std::string& key, const Json& value) { all[key] = value.string(); });
  return all;
}

void SafetensorsFile::read(const FileTensor& tensor, std::uint64_t offset, void* to, std::size_t bytes) const {
  file_.read(data_start_ + tensor.begin + offset, to, bytes);
}

AlignedArray<std::byte> SafetensorsFile::read(const FileTensor& tensor) const {
  require_memory(file_.name() + ": " + printable(tensor.name), tensor.bytes(), memory_limit());
  AlignedArray<std::byte> bytes(tensor.bytes());
  read(tensor, 0, bytes.data(), bytes.size());
  return bytes;
}

const FileDType& file_dtype_of(DType dtype) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes), [=](const FileDType& t) { return dtype == t.dtype; });
}

std::uint64_t TensorToWrite::bytes() const {
  std::uint64_t n = 1;
  for (int a = 0; a < rank; ++a) n *= std::uint64_t(shape[std::size_t(a)]);
  return n * std::uint64_t(type->bits) / 8;
}

std::string safetensors_header(const std::vector<TensorToWrite>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) header += json_quoted(key) + ":" + json_quoted(value) + ",";
    header.back() = '}';
    header += ",";
  }
  std::uint64_t at = 0;
  for (const TensorToWrite& t : tensors) {
    const std::uint64_t end = at + t.bytes();
    header += json_quoted(t.name) + ":{\"dtype\":\"" + t.type->name +
              "\",\"shape\":" + shape_text(t.shape.data(), t.rank) + ",\"data_offsets\":[" + std::to_string(at) +
              "," + std::to_string(end) + "]},";
    at = end;
  }
  if (header.back() == ',') header.pop_back();
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> 8 * i);
  return length + header;
}

void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorToWrite> all;
  for (const auto& [name, tensor] : tensors) {
    Tensor contiguous = tensor;
    make_contiguous(contiguous);
    if (tensor.dtype == DType::other || !tensor || contiguous.stride != tensor.stride)
      throw Error(Status::invalid_argument, "save", printable(name), "", "is not given whole",
                  "a contiguous tensor of a type with a name");
    all.push_back({name, &file_dtype_of(tensor.dtype), tensor.rank, tensor.shape, tensor.data});
  }
  const std::string header = safetensors_header(all, metadata);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wbe"), std::fclose);
  bool written = file != nullptr;
  const auto put = [&](const void* bytes, std::size_t n) {
    written = written && (n == 0 || std::fwrite(bytes, 1, n, file.get()) == n);
  };
  put(header.data(), header.size());
  for (const TensorToWrite& t : all) put(t.data, t.bytes());
  if (!written || std::fflush(file.get()) != 0)
    throw Error(Status::io_error, "save", printable(path), "", "cannot be written", "a file that can",
                std::strerror(errno));
}

}  // namespace dsakit::io
