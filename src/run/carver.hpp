// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace dsakit {

/// Cuts a block of memory into arrays, each on its own cache line. Two passes with the same code: with a null
/// base it measures, with memory it hands out.
class Carver {
 public:
  explicit Carver(std::byte* base = nullptr) : base_(base) {}
  template <class T>
  T* take(std::int64_t count) {
    T* here = base_ ? reinterpret_cast<T*>(base_ + at_) : nullptr;
    at_ += (std::size_t(count) * sizeof(T) + 63) / 64 * 64;
    return here;
  }
  std::size_t bytes() const { return at_; }

 private:
  std::byte* base_;
  std::size_t at_ = 0;
};

/// What T(arguments..., carver) takes, all for one.
template <class T, class... Arguments>
std::size_t bytes_of(const Arguments&... arguments) {
  Carver measure;
  (void)T(arguments..., measure);
  return measure.bytes();
}

}  // namespace dsakit
