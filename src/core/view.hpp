// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/float16.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// A Tensor whose element type and rank are known: v(i, j, k) is an element, v[i] drops an axis.
template <class T, int Rank>
struct View {
  T* data;
  std::array<std::int64_t, Rank> shape, stride;

  template <class... I>
    requires(sizeof...(I) == Rank)
  T& operator()(I... i) const {
    std::size_t axis = 0;
    std::int64_t offset = 0;
    ((offset += std::int64_t(i) * stride[axis++]), ...);
    return data[offset];
  }

  auto operator[](std::int64_t i) const {
    View<T, Rank - 1> v{data + i * stride[0], {}, {}};
    for (int a = 1; a < Rank; ++a) v.shape[a - 1] = shape[a], v.stride[a - 1] = stride[a];
    return v;
  }
};

template <class T, int Rank>
View<T, Rank> view(const Tensor& t) {  // dtype and rank were checked at the door
  View<T, Rank> v{static_cast<T*>(t.data), {}, {}};
  for (int a = 0; a < Rank; ++a) v.shape[a] = t.shape[a], v.stride[a] = t.stride[a];
  return v;
}

/// Element at a linear (row-major) index of a tensor of any shape and strides.
inline std::int64_t offset_of(const Tensor& t, std::int64_t linear) {
  std::int64_t offset = 0;
  for (int a = t.rank - 1; a >= 0; --a) offset += linear % t.shape[a] * t.stride[a], linear /= t.shape[a];
  return offset;
}

/// offset_of(t, linear), of the next element, .. without a division for each.
class OffsetsFrom {
 public:
  OffsetsFrom(const Tensor& t, std::int64_t linear)
      : tensor_(t),
        linear_(linear),
        width_(t.rank == 0 ? 1 : t.shape[t.rank - 1]),
        step_(t.rank == 0 ? 0 : t.stride[t.rank - 1]),
        left_(width_ - linear % width_),
        offset_(offset_of(t, linear)) {}
  std::int64_t operator*() const { return offset_; }
  void operator++() {
    ++linear_;
    if (--left_ > 0) offset_ += step_;
    else left_ = width_, offset_ = offset_of(tensor_, linear_);  // behind the last element: any
  }

 private:
  const Tensor& tensor_;
  std::int64_t linear_, width_, step_, left_, offset_;
};

/// One row per token, whatever axes the caller used for them: row r of a tensor whose last `row_axes` axes are the
/// row. The rows must be reachable with one stride for `stride` to be of use; `row(r)` always works.
struct Rows {
  Tensor tensor;
  int row_axes;
  std::int64_t count, uniform_stride;  // elements between rows; -1 when they are not evenly spaced

  Rows(const Tensor& t, int row_axes);
  std::int64_t offset(std::int64_t r) const {
    if (uniform_stride >= 0) return r * uniform_stride;
    std::int64_t offset = 0;
    for (int a = tensor.rank - row_axes - 1; a >= 0; --a)
      offset += r % tensor.shape[a] * tensor.stride[a], r /= tensor.shape[a];
    return offset;
  }
  template <class T>
  T* row(std::int64_t r) const { return static_cast<T*>(tensor.data) + offset(r); }
};

/// A float whatever its storage: element `offset` of a f16, bf16 or f32 tensor.
inline float float_at(const Tensor& t, std::int64_t offset) {
  switch (t.dtype) {
    case DType::f16: return to_float(static_cast<const f16*>(t.data)[offset]);
    case DType::bf16: return to_float(static_cast<const bf16*>(t.data)[offset]);
    default: return static_cast<const float*>(t.data)[offset];
  }
}

/// The other way: x rounded once.
inline void store(const Tensor& t, std::int64_t offset, float x) {
  switch (t.dtype) {
    case DType::f16: static_cast<f16*>(t.data)[offset] = to_f16(x); return;
    case DType::bf16: static_cast<bf16*>(t.data)[offset] = to_bf16(x); return;
    default: static_cast<float*>(t.data)[offset] = x;
  }
}

}  // namespace dsakit
