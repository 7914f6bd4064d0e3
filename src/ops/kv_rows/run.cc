// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>

#include "ops/direct.hpp"

#include "ops/kv_rows/problem.hpp"

namespace dsakit {
namespace {

using kv_rows::Problem;

static_assert(std::endian::native == std::endian::little, "a row is little endian");

constexpr std::int64_t kRows = 256;  // per task

/// copy(row, from or to, bytes) for the three parts of every row.
template <class Copy>
void each_part(const Problem& p, Call& call, Copy copy) {
  const auto latent = std::size_t(p.latent), rope = std::size_t(p.rope_width) * 2, scales = std::size_t(p.tiles) * 4;
  call.parallel_for((p.count + kRows - 1) / kRows, {.bytes = 2.0 * double(p.count * p.width())}, [&](std::int64_t task, int) {
    for (std::int64_t r = task * kRows, end = std::min(r + kRows, p.count); r < end; ++r) {
      std::int8_t* row = p.row(r);
      copy(row, p.row_codes(r), latent);
      copy(row + latent, p.row_rope(r), rope);
      copy(row + latent + rope, p.row_scales(r), scales);
    }
  });
}

void copy_bytes(void* to, const void* from, std::size_t n) {
  if (n > 0) std::memcpy(to, from, n);
}

}  // namespace

void direct::pack_kv_rows(const PackKvRowsArgs& a, const PackKvRowsOuts& o, Context& context) {
  const Problem problem = kv_rows::check(a, o);
  Call call(context, "pack_kv_rows", std::size_t(0));
  each_part(problem, call, [](void* row, const void* part, std::size_t n) { copy_bytes(row, part, n); });
  call.finish();
}

void direct::unpack_kv_rows(const UnpackKvRowsArgs& a, const UnpackKvRowsOuts& o, Context& context) {
  const Problem problem = kv_rows::check(a, o);
  Call call(context, "unpack_kv_rows", std::size_t(0));
  each_part(problem, call, [](const void* row, void* part, std::size_t n) { copy_bytes(part, row, n); });
  call.finish();
}

}  // namespace dsakit
