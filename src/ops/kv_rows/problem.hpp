// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/kv_rows.hpp"
#include "run/call.hpp"

namespace dsakit::kv_rows {

/// Rows and their three parts; one side is read, the other written.
struct Problem {
  std::int64_t count = 0, latent = 0, rope_width = 0, tiles = 0;
  Rows rows{Tensor{}, 0}, codes{Tensor{}, 0}, rope{Tensor{}, 0}, scales{Tensor{}, 0};

  std::int64_t width() const { return kv_row_bytes(latent, rope_width, latent / tiles); }
  std::int8_t* row(std::int64_t r) const { return rows.row<std::int8_t>(r); }
  std::int8_t* row_codes(std::int64_t r) const { return codes.row<std::int8_t>(r); }
  bf16* row_rope(std::int64_t r) const { return rope.row<bf16>(r); }  // or f16: only its bytes count
  float* row_scales(std::int64_t r) const { return scales.row<float>(r); }
};

Problem check(const PackKvRowsArgs&, const PackKvRowsOuts&);
Problem check(const UnpackKvRowsArgs&, const UnpackKvRowsOuts&);

}  // namespace dsakit::kv_rows
