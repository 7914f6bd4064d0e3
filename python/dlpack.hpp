// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/tensor.hpp"

// The structures of DLPack 1.x, as its specification lays them out in memory.
namespace dsakit::python {

inline constexpr int kDLPackCpu = 1;

struct DLTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t ndim;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // elements; null: row-major
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

struct DLManagedTensorVersioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;  // bit 0: read-only
  DLTensor dl_tensor;
};

/// What a type offers as `__dlpack_c_exchange_api__` (DLPack 1.3), as far as it is used here.
struct DLPackExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  DLPackExchangeApi* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  int (*dltensor_from_py_object)(void* object, DLTensor* borrowed);  // -1: a Python error is set; may be null
};

constexpr DType dlpack_dtype(int code, int bits) {
  switch (code * 256 + bits) {
    case 0 * 256 + 8:
      return DType::i8;
    case 0 * 256 + 16:
      return DType::i16;
    case 0 * 256 + 32:
      return DType::i32;
    case 0 * 256 + 64:
      return DType::i64;
    case 1 * 256 + 8:
      return DType::u8;
    case 1 * 256 + 16:
      return DType::u16;
    case 1 * 256 + 32:
      return DType::u32;
    case 1 * 256 + 64:
      return DType::u64;
    case 2 * 256 + 16:
      return DType::f16;
    case 2 * 256 + 32:
      return DType::f32;
    case 2 * 256 + 64:
      return DType::f64;
    case 4 * 256 + 16:
      return DType::bf16;
    case 6 * 256 + 8:
      return DType::boolean;
    case 10 * 256 + 8:
      return DType::f8_e4m3;
    case 12 * 256 + 8:
      return DType::f8_e5m2;
  }
  return DType::other;
}

}  // namespace dsakit::python
