// SPDX-License-Identifier: Apache-2.0
#include "core/view.hpp"
#include "ops/kv_rmsnorm_rope_cache/problem.hpp"
#include "ops/moves.hpp"
#include "ops/prolog/formula.hpp"

namespace dsakit::kv_rmsnorm_rope_cache_op {
namespace {

using prolog::formula::Row;

Row row_of(const Tensor& t, std::int64_t offset, std::int64_t n) {
  Row row;
  for (std::int64_t i = 0; i < n; ++i) row.push_back(float_at(t, offset + i));
  return row;
}

/// Column c of the row at a slot, in a block of NZ or not.
std::byte* cell(const Part& part, std::int64_t slot, std::int64_t c) {
  const prolog::CacheRows& cache = part.cache;
  const std::int64_t size = size_of(cache.first.tensor.dtype), at = cache.first.offset(slot) * size;
  const std::int64_t in_row =
      cache.piece == 0 ? c * size : c * size / cache.piece * cache.pitch + c * size % cache.piece;
  return static_cast<std::byte*>(cache.first.tensor.data) + at + in_row;
}

void put(const Part& part, DType dtype, std::int64_t token, std::int64_t slot, const Row& row) {
  for (std::int64_t c = 0; c < part.width; ++c) {
    const float v = row[std::size_t(c)];
    if (part.out.tensor.data) store(part.out.tensor, part.out.offset(token) + c, v);
    if (slot < 0) continue;
    if (part.codes())
      *reinterpret_cast<std::int8_t*>(cell(part, slot, c)) = prolog::formula::i8(v * *part.scale.row<const float>(c));
    else store({.data = cell(part, slot, c), .dtype = dtype}, 0, v);
  }
}

}  // namespace

void reference(const Problem& p) {
  for (int i = 0; i < 2; ++i)
    if (p.from[i]) copy_elements(p.to[i], p.from[i]);
  const DType dtype = p.kv.tensor.dtype;
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const auto columns = [&](const Part& part) {
      return row_of(p.kv.tensor, p.kv.offset(t) + part.column, part.width);
    };
    const Row gamma = row_of(p.gamma, 0, p.latent.width);
    const Row cos = row_of(p.cos.tensor, p.cos.offset(t), p.rope.width);
    const Row sin = row_of(p.sin.tensor, p.sin.offset(t), p.rope.width);
    put(p.latent, dtype, t, p.slots.of(t), prolog::formula::norm(columns(p.latent), gamma, p.epsilon));
    put(p.rope, dtype, t, p.slots.of(t), prolog::formula::rope_to_half(columns(p.rope), cos, sin));
  }
}

}  // namespace dsakit::kv_rmsnorm_rope_cache_op
