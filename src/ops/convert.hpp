// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/view.hpp"
#include "kernels/kernels.hpp"

// How the fast ways of the operators on rows read and write bf16, f16 and f32.
namespace dsakit {

/// f.operator()<T>() for the T of such a tensor.
template <class F>
void with_float(DType dtype, F f) {
  switch (dtype) {
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    default:
      return f.template operator()<float>();
  }
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

/// Eight codes, cut to -8..7, in an int32, the first in the lowest four bits; n is a multiple of 8.
inline void pack_int4(const std::int8_t* codes, std::int64_t n, std::int32_t* out) {
  for (std::int64_t i = 0; i < n; i += 8) {
    std::uint32_t word = 0;
    for (int j = 0; j < 8; ++j) word |= (std::uint32_t(std::clamp<int>(codes[i + j], -8, 7)) & 15u) << (4 * j);
    out[i / 8] = std::int32_t(word);
  }
}

}  // namespace dsakit
