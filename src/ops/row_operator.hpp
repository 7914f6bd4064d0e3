// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/check.hpp"
#include "kernels/kernels.hpp"
#include "ops/door.hpp"

// What the operators on single rows share: quantisation, rotation, packed cache rows.
namespace dsakit {

inline std::string shape_text(const Tensor& t) {
  return "has shape " + brackets({t.shape.data(), std::size_t(std::clamp(t.rank, 0, 8))});
}

/// Row-major, without memory, of the shape of `t`: what an output like `t` has to be.
inline Tensor like(const Tensor& t, DType dtype) {
  Tensor wanted = t;
  wanted.data = nullptr, wanted.dtype = dtype, wanted.format = Format::ND, wanted.read_only = false;
  make_contiguous(wanted);
  return wanted;
}

/// An output: given, of the shape and dtype of `wanted`, writable.
inline void check_out(const Check& check, const Tensor& t, const char* name, const Tensor& wanted, const char* why) {
  check.required(t, name);
  check.sizes(t, name);
  if (t.rank != wanted.rank || !std::equal(wanted.shape.begin(), wanted.shape.begin() + wanted.rank, t.shape.begin()))
    check.fail(Status::invalid_shape, name, "", shape_text(t),
               brackets({wanted.shape.data(), std::size_t(wanted.rank)}), why);
  check.dtype(t, name, {wanted.dtype});
  check.writable(t, name);
}

/// n floats from element `offset` of a bf16, f16 or f32 tensor.
inline void widen(const Kernels& kernels, const Tensor& t, std::int64_t offset, std::int64_t n, float* y) {
  switch (t.dtype) {
    case DType::bf16:
      return kernels.widen(static_cast<const bf16*>(t.data) + offset, n, y);
    case DType::f16:
      return kernels.widen(static_cast<const f16*>(t.data) + offset, n, y);
    default:
      std::memcpy(y, static_cast<const float*>(t.data) + offset, std::size_t(n) * sizeof(float));
  }
}

/// The way back: one rounding to the dtype of `t`.
inline void narrow(const Kernels& kernels, const float* x, std::int64_t n, const Tensor& t, std::int64_t offset) {
  switch (t.dtype) {
    case DType::bf16:
      return kernels.round(x, n, static_cast<bf16*>(t.data) + offset);
    case DType::f16:
      return kernels.round(x, n, static_cast<f16*>(t.data) + offset);
    default:
      std::memcpy(static_cast<float*>(t.data) + offset, x, std::size_t(n) * sizeof(float));
  }
}

/// One element, without a kernel: for the references.
inline void store(const Tensor& t, std::int64_t offset, float x) {
  switch (t.dtype) {
    case DType::bf16:
      static_cast<bf16*>(t.data)[offset] = to_bf16(x);
      return;
    case DType::f16:
      static_cast<f16*>(t.data)[offset] = to_f16(x);
      return;
    default:
      static_cast<float*>(t.data)[offset] = x;
  }
}

/// Eight codes, cut to -8..7, in an int32, the first in the lowest four bits; n is a multiple of 8.
inline void pack_int4(const std::int8_t* codes, std::int64_t n, std::int32_t* out) {
  for (std::int64_t i = 0; i < n; i += 8) {
    std::uint32_t word = 0;
    for (int j = 0; j < 8; ++j) word |= (std::uint32_t(std::clamp<int>(codes[i + j], -8, 7)) & 15u) << (4 * j);
    out[i / 8] = std::int32_t(word);
  }
}

}  // namespace dsakit
