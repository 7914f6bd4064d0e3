// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/dlpack.hpp"

// The structures of DLPack 1.x, as its specification lays them out in memory.
namespace dsakit::python {

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

}  // namespace dsakit::python
