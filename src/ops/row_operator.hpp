// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <string>

#include "core/check.hpp"
#include "ops/door.hpp"

// What the doors of the operators on single rows share.
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

}  // namespace dsakit
