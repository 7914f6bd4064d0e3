// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "ops/kv_rows/problem.hpp"

namespace dsakit::reference {

void pack_kv_rows(const PackKvRowsArgs& args, const PackKvRowsOuts& outs) {
  const auto p = kv_rows::check(args, outs);
  for (std::int64_t r = 0; r < p.count; ++r) {
    std::int8_t* row = p.row(r);
    for (std::int64_t i = 0; i < p.latent; ++i) row[i] = p.row_codes(r)[i];
    row += p.latent;
    for (std::int64_t i = 0; i < 2 * p.rope_width; ++i)
      row[i] = std::int8_t(p.row_rope(r)[i / 2].bits >> (8 * (i % 2)));
    row += 2 * p.rope_width;
    for (std::int64_t i = 0; i < 4 * p.tiles; ++i)
      row[i] = std::int8_t(std::bit_cast<std::uint32_t>(p.row_scales(r)[i / 4]) >> (8 * (i % 4)));
  }
}

void unpack_kv_rows(const UnpackKvRowsArgs& args, const UnpackKvRowsOuts& outs) {
  const auto p = kv_rows::check(args, outs);
  auto number = [](const std::int8_t* bytes, int n) {
    std::uint32_t bits = 0;
    for (int i = 0; i < n; ++i) bits |= std::uint32_t(std::uint8_t(bytes[i])) << (8 * i);
    return bits;
  };
  for (std::int64_t r = 0; r < p.count; ++r) {
    const std::int8_t *row = p.row(r), *rope = row + p.latent, *scales = rope + 2 * p.rope_width;
    for (std::int64_t i = 0; i < p.latent; ++i) p.row_codes(r)[i] = row[i];
    for (std::int64_t i = 0; i < p.rope_width; ++i) p.row_rope(r)[i].bits = std::uint16_t(number(rope + 2 * i, 2));
    for (std::int64_t i = 0; i < p.tiles; ++i) p.row_scales(r)[i] = std::bit_cast<float>(number(scales + 4 * i, 4));
  }
}

}  // namespace dsakit::reference
