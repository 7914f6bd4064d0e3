// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace dsakit {

/// Element types. The operators compute with i8, i32, i64, f16, bf16 and f32; the others exist so that a
/// caller's tensor can be named in a refusal and a file's tensor can be carried.
enum class DType : std::uint8_t {
  boolean, u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64, f8_e4m3, f8_e5m2, other
};

/// bfloat16 and float16 as storage: sixteen bits. Arithmetic is float (float16.hpp).
struct bf16 { std::uint16_t bits; };
struct f16 { std::uint16_t bits; };

/// How the elements of a matrix lie in memory. `ND` is strided; the others belong to weights.
enum class Format : std::uint8_t {
  ND,      // pointer, shape, strides
  NZ,      // FRACTAL_NZ: shape is the logical [K, N]; storage [ceil(N/c0), ceil(K/16), 16, c0], c0 = 32 bytes
  packed,  // made by pack_weight: the panels that every kernel reads; shape is the logical one
  scaled,  // made by pack_weight from 8-bit floats and scales: of bf16 numbers, one byte each; shape is the logical one
};

/// Somebody else's memory: pointer, type, shape, strides (in elements).
/// Copy it freely; it owns nothing. `Tensor{}` means "not given"; a tensor without elements is given
/// and may have no memory.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Format format = Format::ND;
  bool read_only = false;
  int rank = -1;
  std::array<std::int64_t, 8> shape{};
  std::array<std::int64_t, 8> stride{};

  explicit operator bool() const { return rank >= 0; }

  /// Product of the shape; 1 for a scalar, 0 when not given. Meaningful once the shape has been checked.
  std::int64_t elements() const {
    std::int64_t n = rank >= 0;
    for (int a = 0; a < rank; ++a) n *= shape[a];
    return n;
  }
};

template <class T> inline constexpr DType dtype_of = DType::other;
template <> inline constexpr DType dtype_of<bool> = DType::boolean;
template <> inline constexpr DType dtype_of<std::uint8_t> = DType::u8;
template <> inline constexpr DType dtype_of<std::int8_t> = DType::i8;
template <> inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <> inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <> inline constexpr DType dtype_of<f16> = DType::f16;
template <> inline constexpr DType dtype_of<bf16> = DType::bf16;
template <> inline constexpr DType dtype_of<float> = DType::f32;
template <> inline constexpr DType dtype_of<double> = DType::f64;

/// Bytes of one element; 0 for `other`.
constexpr int size_of(DType t) {
  switch (t) {
    case DType::boolean: case DType::u8: case DType::i8: case DType::f8_e4m3: case DType::f8_e5m2: return 1;
    case DType::u16: case DType::i16: case DType::f16: case DType::bf16: return 2;
    case DType::u32: case DType::i32: case DType::f32: return 4;
    case DType::u64: case DType::i64: case DType::f64: return 8;
    case DType::other: break;
  }
  return 0;
}

/// The name users know: "bfloat16", "int8", ...
const char* name_of(DType);

/// Row-major strides for the tensor's shape. Without elements a product of axes may be no number: the largest one stands
/// for it.
inline void make_contiguous(Tensor& t) {
  std::int64_t step = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.stride[i] = step;
    if (__builtin_mul_overflow(step, t.shape[i], &step)) step = INT64_MAX;
  }
}

/// A shape and dtype without memory: what `infer` answers for an output.
inline Tensor shaped(DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor t{.dtype = dtype, .rank = 0};
  for (std::int64_t n : shape) t.shape[t.rank++] = n;
  make_contiguous(t);
  return t;
}

/// Row-major tensor over `data`: tensor(q, {tokens, 64, 128}).
template <class T>
Tensor tensor(T* data, std::initializer_list<std::int64_t> shape) {
  using Element = std::remove_const_t<T>;
  static_assert(dtype_of<Element> != DType::other, "no DType for this element type");
  Tensor t = shaped(dtype_of<Element>, shape);
  t.data = const_cast<Element*>(data);
  t.read_only = std::is_const_v<T>;
  return t;
}

}  // namespace dsakit
