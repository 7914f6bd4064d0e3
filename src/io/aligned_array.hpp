// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>

#include "dsakit/error.hpp"

namespace dsakit::io {

/// `size` elements on a 64-byte boundary, contents undefined; refusing memory is OUT_OF_MEMORY.
template <class T>
class AlignedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedArray() = default;
  explicit AlignedArray(std::size_t size) : size_(size) {
    constexpr std::size_t kLargest = std::size_t(PTRDIFF_MAX) / sizeof(T) - 64;
    const std::size_t bytes = size > kLargest ? 0 : (size * sizeof(T) + 63) / 64 * 64;
    if (size > 0 && bytes > 0) memory_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (size > 0 && !memory_)
      throw Error(Status::out_of_memory, "load", "memory", "",
                  "is " + std::to_string(size) + " elements of " + std::to_string(sizeof(T)) + " bytes",
                  "memory the system can give");
  }

  T* data() { return memory_.get(); }
  const T* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return memory_.get()[i]; }
  const T& operator[](std::size_t i) const { return memory_.get()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace dsakit::io
