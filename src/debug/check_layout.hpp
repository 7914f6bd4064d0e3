// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "debug/case.hpp"

namespace dsakit::debug {

/// CASE_LAYOUT for views that lead outside or in a circle, sizes of FRACTAL_NZ and pages that do not fit.
void check_layouts(const Case&);

/// A tensor of a case as the part of a stored one: what `key` means after all views.
struct Origin {
  std::string key;  // of the tensor that is stored
  std::vector<std::int64_t> shape, stride;
  std::int64_t offset = 0;
  bool is_view = false;
};
Origin origin_of(const Case&, const std::string& key);

/// The type that the bytes have after `dtype` of the layout.
DType dtype_of(const Case&, const std::string& stored_key);

}  // namespace dsakit::debug
