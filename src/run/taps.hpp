// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "dsakit/tensor.hpp"

namespace dsakit {

/// Who looks at the steps inside of a call. Steps are named as the pages of the operators number them: "3.query_norm"
/// (ops/taps.hpp has the list). Where nobody looks there is none of this but a null pointer.
class Taps {
 public:
  virtual ~Taps() = default;
  /// Numbers column .. column+count-1 of a row of a step, as f32, bf16 or i8; from any thread, each once.
  virtual void row(const char* step, DType, std::int64_t row, std::int64_t column, std::int64_t count,
                   const void* data) noexcept = 0;
  /// Of a reference: x becomes what was recorded there, so that the next step is judged by itself.
  virtual void replace(const char* step, std::int64_t row, std::int64_t column, std::int64_t count,
                       float* x) noexcept = 0;
};

/// Of the calls that this thread makes. Fast ways read it where a call begins, on the thread of the caller.
inline thread_local constinit Taps* taps = nullptr;

/// `them` look, to the end of the scope.
class Tapped {
 public:
  explicit Tapped(Taps* them) : before_(taps) { taps = them; }
  Tapped(const Tapped&) = delete;
  Tapped& operator=(const Tapped&) = delete;
  ~Tapped() { taps = before_; }

 private:
  Taps* before_;
};

/// A row of a step of a reference, or a part of it: shown, and replaced where it was recorded.
inline void show(const char* step, std::int64_t row, std::vector<float>& x, std::int64_t column = 0) {
  if (!taps) return;
  taps->row(step, DType::f32, row, column, std::int64_t(x.size()), x.data());
  taps->replace(step, row, column, std::int64_t(x.size()), x.data());
}
/// Codes, which the reference goes on with as numbers.
inline void show(const char* step, std::int64_t row, const std::int8_t* codes, std::vector<float>& x) {
  if (!taps) return;
  taps->row(step, DType::i8, row, 0, std::int64_t(x.size()), codes);
  taps->replace(step, row, 0, std::int64_t(x.size()), x.data());
}
inline void show(const char* step, std::int64_t row, float& x, std::int64_t column = 0) {
  if (!taps) return;
  taps->row(step, DType::f32, row, column, 1, &x);
  taps->replace(step, row, column, 1, &x);
}
/// A number in double, which stays as it is unless another one was recorded.
inline void show(const char* step, std::int64_t row, double& x, std::int64_t column) {
  float shown = float(x);
  show(step, row, shown, column);
  if (shown != float(x)) x = double(shown);
}

}  // namespace dsakit
