// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/check.hpp"
#include "run/call.hpp"

// What element-wise operations ask of their two tensors, and the loop over blocks of them.
namespace dsakit::pypto_op {

/// Given, of one of those dtypes, and contiguous; y can be written.
inline void check_elements(const Check& check, const Tensor& x, std::initializer_list<DType> x_types, const Tensor& y,
                           std::initializer_list<DType> y_types) {
  const auto look = [&](const Tensor& t, const char* name, std::initializer_list<DType> types, bool written) {
    check.required(t, name);
    check.dtype(t, name, types);
    written ? check.writable(t, name) : check.readable(t, name);
    Tensor plain = t;
    make_contiguous(plain);
    if (t.elements() != 0 && !same_storage(plain, t))
      check.fail(Status::invalid_stride, name, "", "has gaps", "contiguous memory");
  };
  look(x, "input", x_types, false);
  look(y, "out", y_types, true);
}

inline void check_count(const Check& check, const Tensor& x, const Tensor& y) {
  if (x.elements() != y.elements())
    check.fail(Status::invalid_shape, "out", "", "has " + std::to_string(y.elements()) + " elements",
               std::to_string(x.elements()), "those of input");
}

/// y is x, or shares nothing with it.
inline void check_same_or_apart(const Check& check, const Tensor& x, const Tensor& y) {
  if (x.data != y.data || size_of(x.dtype) != size_of(y.dtype)) check.no_overlap(y, "out", x, "input");
}

/// f(first, n) for blocks of elements, each of which takes so many times those of a cost (run/cost.hpp).
template <class F>
void each_block(Call& call, std::int64_t count, double times, F f) {
  constexpr std::int64_t kBlock = 8192;
  call.parallel_for((count + kBlock - 1) / kBlock, {.elements = times * double(count)},
                    [&](std::int64_t block, int) { f(block * kBlock, std::min(kBlock, count - block * kBlock)); });
}

}  // namespace dsakit::pypto_op
