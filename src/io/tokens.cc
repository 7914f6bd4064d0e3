// SPDX-License-Identifier: Apache-2.0
#include "io/tokens.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "dsakit/error.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "io/safetensors.hpp"
#include "io/stored_matrix.hpp"

namespace dsakit::io {
namespace {

constexpr std::string_view kNumpy = "\x93NUMPY";

[[noreturn]] void refuse(const std::string& what, const std::string& got, const std::string& wanted) {
  throw Error(Status::invalid_file, "load", what, "", got, wanted);
}

template <class T>
std::vector<std::int32_t> ids_of(const std::byte* bytes, std::size_t count, const std::string& shown,
                                 std::int64_t vocab_size) {
  std::vector<std::int32_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    T id;
    std::memcpy(&id, bytes + i * sizeof(T), sizeof(T));
    if (id < T{0} || std::uint64_t(id) >= std::uint64_t(vocab_size))
      throw Error(Status::invalid_value, "load", shown, "[" + std::to_string(i) + "]", "is " + std::to_string(id),
                  "0.." + std::to_string(vocab_size - 1), "vocab_size");
    ids[i] = std::int32_t(id);
  }
  return ids;
}

/// visit(T{}) for the integers of a width; false for another width.
template <class Visit>
bool with_integer(bool is_signed, std::size_t width, Visit&& visit) {
  const auto as = [&](auto with_sign) {
    if (is_signed) visit(with_sign);
    else visit(std::make_unsigned_t<decltype(with_sign)>{});
    return true;
  };
  switch (width) {
    case 1: return as(std::int8_t{});
    case 2: return as(std::int16_t{});
    case 4: return as(std::int32_t{});
    case 8: return as(std::int64_t{});
    default: return false;
  }
}

/// The value behind 'key': in the header of an .npy file, up to the end of it.
std::string_view member(std::string_view header, std::string_view key) {
  const std::size_t at = header.find("'" + std::string(key) + "':");
  if (at == header.npos) return {};
  header.remove_prefix(at + key.size() + 3);
  return header.substr(std::min(header.find_first_not_of(' '), header.size()));
}

bool is_npy(const File& file) {
  char start[kNumpy.size()] = {};
  file.read(0, start, std::min<std::uint64_t>(sizeof start, file.size()));
  return std::string_view(start, sizeof start) == kNumpy;
}

/// The text of the header, and where the data begin.
std::pair<std::string, std::uint64_t> npy_header(const File& file) {
  unsigned char start[12] = {};
  file.read(0, start, std::min<std::uint64_t>(sizeof start, file.size()));
  const int width = start[6] == 1 ? 2 : 4;  // of the length, by version
  std::uint64_t length = 0;
  for (int i = width - 1; i >= 0; --i) length = length << 8 | start[8 + i];
  const std::uint64_t data = 8 + std::uint64_t(width) + length;
  if (start[6] < 1 || start[6] > 3 || data > file.size() || length > 10'000)
    refuse(file.name() + ": header", "does not fit", "that of an .npy file");
  std::string header(length, '\0');
  file.read(8 + std::uint64_t(width), header.data(), header.size());
  return {header, data};
}

[[noreturn]] void refuse_header(const File& file, const std::string& header, const std::string& wanted) {
  refuse(file.name() + ": header", "is " + printable(header.substr(0, header.find('\n'))), wanted);
}

std::string_view shape_of(std::string_view header) {
  const std::string_view shape = member(header, "shape");
  return shape.substr(0, shape.find(')') + 1);
}

std::vector<std::int32_t> read_npy(const File& file, std::int64_t vocab_size) {
  const auto [header, data] = npy_header(file);
  const std::string_view type = member(header, "descr"), sizes = shape_of(header);
  const bool known = type.size() > 4 && type[0] == '\'' && (type[1] == '<' || type[1] == '|') &&
                     (type[2] == 'i' || type[2] == 'u') && type[4] == '\'';
  const std::size_t bytes = file.size() - data, item = known ? std::size_t(type[3] - '0') : 0;
  if (!known || std::count(sizes.begin(), sizes.end(), ',') != 1 || !sizes.ends_with(",)"))
    refuse_header(file, header, "one-dimensional little-endian integers");
  if (item == 0 || sizes != "(" + std::to_string(bytes / item) + ",)" || bytes % item != 0)
    refuse(file.name(), "has " + std::to_string(bytes) + " bytes of data", "those of shape " + printable(sizes));
  require_memory(file.name(), bytes + bytes / item * sizeof(std::int32_t), memory_limit());
  AlignedArray<std::byte> values(bytes);
  file.read(data, values.data(), bytes);
  std::vector<std::int32_t> ids;
  if (!with_integer(type[2] == 'i', item, [&](auto t) {
        ids = ids_of<decltype(t)>(values.data(), bytes / item, file.name(), vocab_size);
      }))
    refuse(file.name() + ": header", "has items of " + std::to_string(item) + " bytes", "integers of 1, 2, 4 or 8");
  return ids;
}

std::vector<std::int32_t> read_tensor(const std::string& path, std::int64_t vocab_size) {
  const SafetensorsFile file(path);
  const std::string shown = file.file().name() + ": input_ids";
  const FileTensor* t = file.find("input_ids");
  if (!t) refuse(shown, "is missing", "a tensor of token ids");
  const bool row = t->rank == 1 || (t->rank == 2 && t->shape[0] == 1);
  const std::string_view type = t->type->name;
  if (!row || (type[0] != 'I' && type[0] != 'U'))
    refuse(shown, "is " + std::string(type) + " " + shape_text(t->shape.data(), t->rank), "integers [T] or [1, T]");
  const AlignedArray<std::byte> values = file.read(*t);
  std::vector<std::int32_t> ids;
  const std::size_t item = std::size_t(t->type->bits) / 8;
  with_integer(type[0] == 'I', item, [&](auto integer) {
    ids = ids_of<decltype(integer)>(values.data(), values.size() / item, shown, vocab_size);
  });
  return ids;
}

AlignedArray<float> read_npy_rows(const File& file, std::int64_t width) {
  const auto [header, data] = npy_header(file);
  const std::size_t bytes = file.size() - data, row = std::size_t(width) * sizeof(float);
  const std::string shape = "(" + std::to_string(bytes / row) + ", " + std::to_string(width) + ")";
  if (!member(header, "descr").starts_with("'<f4'") || !member(header, "fortran_order").starts_with("False"))
    refuse_header(file, header, "little-endian float32 in C order");
  if (bytes % row != 0 || shape_of(header) != shape)
    refuse_header(file, header, "shape [T, " + std::to_string(width) + "], and data of as many bytes");
  require_memory(file.name(), bytes, memory_limit());
  AlignedArray<float> values(bytes / sizeof(float));
  file.read(data, values.data(), bytes);
  return values;
}

AlignedArray<float> read_tensor_rows(const std::string& path, std::int64_t width) {
  const SafetensorsFile file(path);
  const std::string shown = file.file().name() + ": hidden";
  const FileTensor* t = file.find("hidden");
  if (!t) refuse(shown, "is missing", "a tensor of hidden states");
  const DType type = t->type->dtype;
  if (t->rank != 2 || t->shape[1] != width || (type != DType::f32 && type != DType::f16 && type != DType::bf16))
    refuse(shown, "is " + std::string(t->type->name) + " " + shape_text(t->shape.data(), t->rank),
           "BF16, F16 or F32 [T, " + std::to_string(width) + "]");
  return load_floats({&file, t});
}

}  // namespace

std::vector<float> read_hidden(const std::string& path, std::int64_t width) {
  const File file(path);
  const AlignedArray<float> values = is_npy(file) ? read_npy_rows(file, width) : read_tensor_rows(path, width);
  if (values.size() == 0) refuse(file.name(), "has no rows", "at least one");
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      throw Error(Status::invalid_value, "load", file.name(),
                  "[" + std::to_string(i / std::size_t(width)) + "][" + std::to_string(i % std::size_t(width)) + "]",
                  "is " + std::to_string(values[i]), "a finite number");
  return {values.begin(), values.end()};
}

std::vector<std::int32_t> read_tokens(const std::string& path, std::int64_t vocab_size) {
  const File file(path);
  return is_npy(file) ? read_npy(file, vocab_size) : read_tensor(path, vocab_size);
}

}  // namespace dsakit::io
