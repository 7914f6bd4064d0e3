// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "dsakit/dsakit.h"
#include "dsakit/tensor.hpp"

// Element types as DLPack numbers them.
namespace dsakit {

inline constexpr int kDLPackCpu = 1;

struct DLPackType {
  DType dtype;
  dsakit_dtype_code code;
  std::uint8_t bits;
};

inline constexpr DLPackType kDLPackTypes[] = {
    {DType::boolean, DSAKIT_BOOL, 8},
    {DType::u8, DSAKIT_UINT, 8},
    {DType::i8, DSAKIT_INT, 8},
    {DType::u16, DSAKIT_UINT, 16},
    {DType::i16, DSAKIT_INT, 16},
    {DType::u32, DSAKIT_UINT, 32},
    {DType::i32, DSAKIT_INT, 32},
    {DType::u64, DSAKIT_UINT, 64},
    {DType::i64, DSAKIT_INT, 64},
    {DType::f16, DSAKIT_FLOAT, 16},
    {DType::bf16, DSAKIT_BFLOAT, 16},
    {DType::f32, DSAKIT_FLOAT, 32},
    {DType::f64, DSAKIT_FLOAT, 64},
    {DType::f8_e4m3, DSAKIT_FLOAT8_E4M3, 8},
    {DType::f8_e5m2, DSAKIT_FLOAT8_E5M2, 8},
};

constexpr DType dtype_of_dlpack(int code, int bits) {
  for (const DLPackType& t : kDLPackTypes)
    if (int(t.code) == code && t.bits == bits) return t.dtype;
  return DType::other;
}

/// Not of `other`.
constexpr dsakit_dtype dlpack_of(DType dtype) {
  const DLPackType& t = kDLPackTypes[int(dtype)];
  return {std::uint8_t(t.code), t.bits, 1};
}

}  // namespace dsakit
