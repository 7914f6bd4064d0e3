// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "ops/kv_rows/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit {
namespace kv_rows {
namespace {

/// What a tensor has behind its leading axes; those are the rows, folded or not.
std::int64_t width_of(const Check& check, const Tensor& t, const char* name) {
  if (t.rank < 1) check.fail(Status::invalid_shape, name, "", shape_text(t), "rank 1 or more");
  return t.shape[t.rank - 1];
}

std::int64_t rows_of(const Tensor& t) {
  std::int64_t rows = 1;
  for (int axis = 0; axis + 1 < t.rank; ++axis) rows *= t.shape[axis];
  return rows;
}

/// `rows` rows of `width`, whatever the leading axes, at either level: no chip has this operator.
Rows folded(const Check& check, const Tensor& t, const char* name, std::int64_t rows, std::int64_t width,
            const char* why) {
  return Check(check.op(), Level::portable).rows(t, name, rows, {width}, why);
}

Tensor with_width(const Tensor& t, DType dtype, std::int64_t width) {
  Tensor wanted = like(t, dtype);
  wanted.shape[wanted.rank - 1] = width;
  make_contiguous(wanted);
  return wanted;
}

Rows check_part(const Check& check, const Tensor& t, const char* name, std::int64_t rows, std::int64_t width,
                DType dtype, const char* why) {
  check.required(t, name);
  check.sizes(t, name);
  const Rows r = folded(check, t, name, rows, width, why);
  check.dtype(t, name, {dtype});
  check.writable(t, name);
  return r;
}

Problem check_inputs(const Check& check, const PackKvRowsArgs& a) {
  const Tensors inputs = Tensors::inputs<PackKvRowsOuts>(a);
  check_given(check, inputs);
  check_countable(check, inputs);
  Problem p;
  p.latent = width_of(check, a.codes, "codes"), p.count = rows_of(a.codes);
  p.rope_width = width_of(check, a.rope, "rope");
  p.tiles = width_of(check, a.scales, "scales");
  if (p.latent < 1) check.fail(Status::invalid_shape, "codes", "", shape_text(a.codes), "a last axis of at least 1");
  if (p.tiles < 1 || p.latent % p.tiles != 0)
    check.fail(Status::invalid_shape, "scales", "", shape_text(a.scales),
               "a last axis that divides " + std::to_string(p.latent), "tiles of the last axis of codes");
  p.codes = Rows(a.codes, 1);
  p.rope = folded(check, a.rope, "rope", p.count, p.rope_width, "rows of codes");
  p.scales = folded(check, a.scales, "scales", p.count, p.tiles, "rows of codes");
  check.dtype(a.codes, "codes", {DType::i8});
  check.dtype(a.rope, "rope", {DType::bf16, DType::f16});
  check.dtype(a.scales, "scales", {DType::f32});
  check_memory(check, inputs);
  return p;
}

Problem check_inputs(const Check& check, const UnpackKvRowsArgs& a) {
  const Tensors inputs = Tensors::inputs<UnpackKvRowsOuts>(a);
  check_given(check, inputs);
  check.at_least(a.rope_head_dim, "rope_head_dim", 0);
  check.at_least(a.tile_size, "tile_size", 1);
  check.one_of(a.rope_dtype, "rope_dtype", {"bfloat16", "float16"});
  check_countable(check, inputs);
  const std::int64_t width = width_of(check, a.rows, "rows");
  const std::int64_t body = a.rope_head_dim <= width / 2 ? width - 2 * a.rope_head_dim : 0;
  const std::int64_t tile = a.tile_size <= width ? a.tile_size + 4 : width + 1;  // with its scale
  if (body < 1 || body % tile != 0)
    check.fail(Status::invalid_shape, "rows", "", shape_text(a.rows),
               "a last axis of Hckv + " + std::to_string(a.rope_head_dim) + " * 2 + Hckv / " +
                   std::to_string(a.tile_size) + " * 4",
               "codes, rope and scales: 656 for Hckv 512");
  check.dtype(a.rows, "rows", {DType::i8});
  check_memory(check, inputs);
  Problem p;
  p.count = rows_of(a.rows), p.rope_width = a.rope_head_dim, p.tiles = body / tile, p.latent = p.tiles * a.tile_size;
  p.rows = Rows(a.rows, 1);
  return p;
}

DType rope_dtype(const UnpackKvRowsArgs& a) { return a.rope_dtype == "float16" ? DType::f16 : DType::bf16; }

}  // namespace

Problem check(const PackKvRowsArgs& a, const PackKvRowsOuts& o) {
  const Check check("pack_kv_rows", a.level);
  Problem p = check_inputs(check, a);
  p.rows = check_part(check, o.rows, "rows", p.count, p.width(), DType::i8, "rows of codes; codes, rope, scales");
  check_separate(check, Tensors(a, o));
  return p;
}

Problem check(const UnpackKvRowsArgs& a, const UnpackKvRowsOuts& o) {
  const Check check("unpack_kv_rows", a.level);
  Problem p = check_inputs(check, a);
  p.codes = check_part(check, o.codes, "codes", p.count, p.latent, DType::i8, "rows, Hckv");
  p.rope = check_part(check, o.rope, "rope", p.count, p.rope_width, rope_dtype(a), "rows, rope_head_dim");
  p.scales = check_part(check, o.scales, "scales", p.count, p.tiles, DType::f32, "rows, Hckv / tile_size");
  check_separate(check, Tensors(a, o));
  return p;
}

}  // namespace kv_rows

void infer(const PackKvRowsArgs& a, PackKvRowsOuts& o) {
  const auto p = kv_rows::check_inputs(Check("pack_kv_rows", a.level), a);
  if (!o.rows) o.rows = kv_rows::with_width(a.codes, DType::i8, p.width());
}

void infer(const UnpackKvRowsArgs& a, UnpackKvRowsOuts& o) {
  const auto p = kv_rows::check_inputs(Check("unpack_kv_rows", a.level), a);
  if (!o.codes) o.codes = kv_rows::with_width(a.rows, DType::i8, p.latent);
  if (!o.rope) o.rope = kv_rows::with_width(a.rows, kv_rows::rope_dtype(a), p.rope_width);
  if (!o.scales) o.scales = kv_rows::with_width(a.rows, DType::f32, p.tiles);
}

}  // namespace dsakit
