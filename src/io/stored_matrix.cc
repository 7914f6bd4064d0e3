// SPDX-License-Identifier: Apache-2.0
#include "io/stored_matrix.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/float16.hpp"
#include "dsakit/error.hpp"
#include "io/json.hpp"

namespace dsakit::io {
namespace {

constexpr std::size_t kPiece = std::size_t(1) << 18;  // elements converted at a time

[[noreturn]] void refuse(Status status, const Place& place, const std::string& got, const std::string& wanted) {
  throw Error(status, "load", place.shown(), "", got, wanted);
}

[[noreturn]] void refuse_type(const Place& place, const char* wanted) {
  refuse(Status::unsupported, place, std::string("is stored as ") + place.tensor->type->name, wanted);
}

/// visit(element, place) for `count` elements of T that begin `offset` bytes into a tensor.
template <class T, class Visit>
void for_each(const Place& place, std::uint64_t offset, std::size_t count, Visit&& visit) {
  AlignedArray<T> piece(std::min(count, kPiece));
  for (std::size_t from = 0; from < count; from += kPiece) {
    const std::size_t n = std::min(kPiece, count - from);
    place.file->read(*place.tensor, offset + from * sizeof(T), piece.data(), n * sizeof(T));
    for (std::size_t i = 0; i < n; ++i) visit(piece[i], from + i);
  }
}

/// visit(float, place) of a tensor of floats.
template <class Visit>
void for_each_float(const Place& place, std::uint64_t offset, std::size_t count, Visit&& visit) {
  const auto widened = [&](auto x, std::size_t i) { visit(to_float(x), i); };
  switch (place.tensor->type->dtype) {
    case DType::bf16:
      return for_each<bf16>(place, offset, count, widened);
    case DType::f16:
      return for_each<f16>(place, offset, count, widened);
    case DType::f32:
      return for_each<float>(place, offset, count, visit);
    default:
      refuse_type(place, "BF16, F16 or F32");
  }
}

/// What a code of row r is multiplied by, for int8 with fixed activation scales: fp32(deq_scale / input_scale).
AlignedArray<float> static_scales(const StoredMatrix& m) {
  AlignedArray<float> scales(m.scale.tensor->bytes() * 8 / std::size_t(m.scale.tensor->type->bits));
  if (m.scale.tensor->type->dtype == DType::i64)  // of a model whose activations are fp16: the bits of a float
    for_each<std::int64_t>(m.scale, 0, scales.size(), [&](std::int64_t bits, std::size_t i) {
      scales[i] = std::bit_cast<float>(std::uint32_t(std::uint64_t(bits)));
    });
  else scales = load_floats(m.scale);
  const float input = load_floats(m.input_scale)[0];
  for (float& s : scales) s /= input;
  return scales;
}

/// The codes of a quantised matrix, which stand for numbers.
AlignedArray<std::byte> read_codes(const StoredMatrix& m) {
  require_memory(m.weight.shown(), m.bytes(), memory_limit());
  AlignedArray<std::byte> codes(m.bytes());
  m.weight.file->read(*m.weight.tensor, m.offset, codes.data(), m.bytes());
  if (m.format == WeightFormat::fp8_blocks)
    refuse_nan(reinterpret_cast<const std::uint8_t*>(codes.data()), m.first, m.rows, m.cols, m.weight);
  else refuse_hidden_terms(m, reinterpret_cast<const std::int8_t*>(codes.data()), 0, m.rows);
  return codes;
}

template <class T>
AlignedArray<T> load(const StoredMatrix& m) {
  const std::size_t count = std::size_t(m.rows * m.cols);
  require_memory(m.weight.shown(), count * sizeof(T), memory_limit());
  AlignedArray<T> out(count);
  if (m.dtype() == dtype_of<T>) {
    m.weight.file->read(*m.weight.tensor, m.offset, out.data(), count * sizeof(T));
    return out;
  }
  if (m.format == WeightFormat::floating) {
    for_each_float(m.weight, m.offset, count, [&](float x, std::size_t i) { out[i] = round_to<T>(x); });
    return out;
  }
  const AlignedArray<std::byte> codes = read_codes(m);
  const AlignedArray<float> scales = scales_of(m);
  std::vector<bf16> row(sizeof(T) == 2 ? 0 : std::size_t(m.cols));
  for (std::int64_t r = 0; r < m.rows; ++r)
    if constexpr (sizeof(T) == 2) {
      read_row(m, scales, codes.data() + r * m.cols, r, out.data() + r * m.cols);
    } else {
      read_row(m, scales, codes.data() + r * m.cols, r, row.data());
      for (std::int64_t c = 0; c < m.cols; ++c) out[r * m.cols + c] = to_float(row[c]);
    }
  return out;
}

}  // namespace

std::string Place::shown() const { return file->file().name() + ": " + printable(tensor->name); }

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> v{};
    for (int c = 0; c < 256; ++c) {
      const int exponent = c >> 3 & 15, mantissa = c & 7;
      const float magnitude =
          exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
      v[c] = (c & 127) == 127 ? NAN : c & 128 ? -magnitude : magnitude;
    }
    return v;
  }();
  return values;
}

bool holds_nan(const std::uint8_t* codes, std::size_t count) {
  std::uint64_t found = 0;
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {  // the sign bit of a byte becomes that of 127 + 1; nothing is carried on
    std::uint64_t x;
    std::memcpy(&x, codes + i, 8);
    found |= (x & 0x7f7f7f7f7f7f7f7fu) + 0x0101010101010101u;
  }
  for (; i < count; ++i) found |= std::uint64_t((codes[i] & 127) + 1);
  return (found & 0x8080808080808080u) != 0;
}

void refuse_nan(const std::uint8_t* codes, std::int64_t first, std::int64_t rows, std::int64_t cols,
                const Place& place) {
  if (!holds_nan(codes, std::size_t(rows * cols))) return;
  const std::int64_t i =
      std::find_if(codes, codes + rows * cols, [](std::uint8_t c) { return (c & 127) == 127; }) - codes;
  throw Error(Status::invalid_file, "load", place.shown(),
              "[" + std::to_string(first + i / cols) + "][" + std::to_string(i % cols) + "]", "is NaN", "a number", "",
              "NAN");
}

void refuse_hidden_terms(const StoredMatrix& m, const std::int8_t* codes, std::int64_t from, std::int64_t rows) {
  const std::int64_t first = m.first + from;
  if (m.offsets) {
    const AlignedArray<float> offsets = load_floats(m.offsets);
    for (std::int64_t r = first; r < first + rows; ++r)
      if (offsets[r] != 0)
        throw Error(Status::unsupported, "load", m.offsets.shown(), "[" + std::to_string(r) + "]",
                    "is " + std::to_string(offsets[r]), "0", "codes without an offset");
  }
  if (!m.bias) return;
  const double offset = m.input_offset ? double(load_floats(m.input_offset)[0]) : 0;
  for_each<std::int32_t>(m.bias, std::uint64_t(first) * 4, std::size_t(rows), [&](std::int32_t bias, std::size_t r) {
    const std::int8_t* row = codes + std::int64_t(r) * m.cols;
    const std::int64_t sum = std::accumulate(row, row + m.cols, std::int64_t{0});
    if (std::abs(double(bias) + offset * double(sum)) > 1)
      throw Error(Status::unsupported, "load", m.bias.shown(), "[" + std::to_string(first + std::int64_t(r)) + "]",
                  "hides a bias", "round(-input_offset * the sum of the row's codes)");
  });
}

AlignedArray<float> scales_of(const StoredMatrix& m) {
  if (m.format == WeightFormat::floating) return {};
  AlignedArray<float> all = m.format == WeightFormat::int8_static ? static_scales(m) : load_floats(m.scale);
  const bool blocks = m.format == WeightFormat::fp8_blocks;
  const std::int64_t width = blocks ? scale_blocks(m.cols) : 1, from = blocks ? m.first / kScaleBlock : m.first,
                     rows = m.rows == 0 ? 0 : blocks ? scale_row(m, m.rows - 1) + 1 : m.rows;
  if (std::int64_t(all.size()) == rows * width) return all;
  AlignedArray<float> some(std::size_t(rows * width));
  std::copy_n(all.data() + from * width, rows * width, some.data());
  return some;
}

void read_row(const StoredMatrix& m, const AlignedArray<float>& scales, const std::byte* bytes, std::int64_t row,
              bf16* out) {
  const auto rounded = [&](const auto* x) {
    for (std::int64_t c = 0; c < m.cols; ++c) out[c] = to_bf16(to_float(x[c]));
  };
  switch (m.dtype()) {
    case DType::bf16:
      std::memcpy(out, bytes, std::size_t(m.cols) * sizeof(bf16));
      return;
    case DType::f16:
      return rounded(reinterpret_cast<const f16*>(bytes));
    case DType::f32:
      return rounded(reinterpret_cast<const float*>(bytes));
    case DType::i8:
      for (std::int64_t c = 0; c < m.cols; ++c)
        out[c] = to_bf16(float(reinterpret_cast<const std::int8_t*>(bytes)[c]) * scales[row]);
      return;
    default: {
      const std::array<float, 256>& values = e4m3_values();
      const float* scale = scales.data() + scale_row(m, row) * scale_blocks(m.cols);
      for (std::int64_t c = 0; c < m.cols; ++c)
        out[c] = to_bf16(values[std::to_integer<int>(bytes[c])] * scale[c / kScaleBlock]);
    }
  }
}

AlignedArray<float> load_floats(const Place& place) {
  AlignedArray<float> out(place.tensor->bytes() * 8 / std::size_t(place.tensor->type->bits));
  if (std::strcmp(place.tensor->type->name, "F8_E8M0") == 0) {
    for_each<std::uint8_t>(place, 0, out.size(), [&](std::uint8_t exponent, std::size_t i) {
      if (exponent == 255)
        throw Error(Status::invalid_file, "load", place.shown(), "[" + std::to_string(i) + "]", "is NaN", "a number",
                    "", "NAN");
      out[i] = std::ldexp(1.0f, int(exponent) - 127);
    });
    return out;
  }
  for_each_float(place, 0, out.size(), [&](float x, std::size_t i) { out[i] = x; });
  return out;
}

void load_row(const StoredMatrix& m, std::int64_t row, bf16* out) {
  const std::uint64_t offset = m.offset + std::uint64_t(row * m.cols * size_of(m.dtype()));
  if (m.dtype() == DType::bf16)
    return m.weight.file->read(*m.weight.tensor, offset, out, std::size_t(m.cols) * sizeof(bf16));
  for_each_float(m.weight, offset, std::size_t(m.cols), [&](float x, std::size_t i) { out[i] = to_bf16(x); });
}
QuantisedWeight load_codes(const StoredMatrix& m) { return {read_codes(m), scales_of(m)}; }

AlignedArray<bf16> load_bf16(const StoredMatrix& m) { return load<bf16>(m); }
AlignedArray<float> load_f32(const StoredMatrix& m) { return load<float>(m); }

}  // namespace dsakit::io
