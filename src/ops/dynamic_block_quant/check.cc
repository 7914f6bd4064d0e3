// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "ops/direct.hpp"
#include "ops/dynamic_block_quant/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit {
namespace dynamic_block_quant_op {
namespace {

void check_modes(const Check& check, const DynamicBlockQuantArgs& a) {
  if (!std::isfinite(float(a.min_scale)) || a.min_scale < 0)
    check.fail(Status::invalid_argument, "min_scale", "", "is " + std::to_string(a.min_scale),
               "a finite number of at least 0");
  check.one_of(a.round_mode, "round_mode", {"rint"});
  if (a.dst_type != 1)
    check.fail(Status::unsupported, "dst_type", "", "is " + std::to_string(a.dst_type), "1 (int8)",
               "other types are reserved");
  check.at_least(a.row_block_size, "row_block_size", 1);
  if (a.row_block_size != 1)
    check.fail(Status::unsupported, "row_block_size", "", "is " + std::to_string(a.row_block_size), "1",
               "blocks of several rows are reserved");
  check.at_least(a.col_block_size, "col_block_size", 1);
  if (a.col_block_size != 128) check.chip(false, "col_block_size", "is " + std::to_string(a.col_block_size), "128");
  if (a.dst_type_max != 0)
    check.fail(Status::unsupported, "dst_type_max", "", "is " + std::to_string(a.dst_type_max), "0", "reserved");
}

void check_inputs(const Check& check, const DynamicBlockQuantArgs& a) {
  const Tensors inputs = Tensors::inputs<DynamicBlockQuantOuts>(a);
  check_given(check, inputs);
  check_modes(check, a);
  check_countable(check, inputs);
  if (a.x.rank != 2 && a.x.rank != 3) check.fail(Status::invalid_shape, "x", "", shape_text(a.x), "rank 2 or 3");
  check.dtype(a.x, "x", {DType::bf16, DType::f16});
  check_memory(check, inputs);
}

DynamicBlockQuantOuts wanted(const DynamicBlockQuantArgs& a) {
  DynamicBlockQuantOuts o{like(a.x, DType::i8), like(a.x, DType::f32)};
  std::int64_t& blocks = o.scale.shape[o.scale.rank - 1];
  blocks = blocks / a.col_block_size + (blocks % a.col_block_size != 0);
  make_contiguous(o.scale);
  return o;
}

}  // namespace

Problem check(const DynamicBlockQuantArgs& a, const DynamicBlockQuantOuts& o) {
  const Check check("dynamic_block_quant", a.level);
  check_inputs(check, a);
  const DynamicBlockQuantOuts expected = wanted(a);
  check_out(check, o.y, "y", expected.y, "shape of x");
  check_out(check, o.scale, "scale", expected.scale, "one for each block of x");
  check_separate(check, Tensors(a, o));
  Problem p{.x = Rows(a.x, 1),
            .y = Rows(o.y, 1),
            .scale = Rows(o.scale, 1),
            .rows = 1,
            .width = a.x.shape[a.x.rank - 1],
            .block = a.col_block_size,
            .min_scale = float(a.min_scale)};
  for (int axis = 0; axis + 1 < a.x.rank; ++axis) p.rows *= a.x.shape[axis];
  if (p.width == 0) p.rows = 0;  // as many as may be
  return p;
}

}  // namespace dynamic_block_quant_op

void infer(const DynamicBlockQuantArgs& a, DynamicBlockQuantOuts& o) {
  dynamic_block_quant_op::check_inputs(Check("dynamic_block_quant", a.level), a);
  const DynamicBlockQuantOuts wanted = dynamic_block_quant_op::wanted(a);
  if (!o.y) o.y = wanted.y;
  if (!o.scale) o.scale = wanted.scale;
}

void direct::dynamic_block_quant(const DynamicBlockQuantArgs& a, const DynamicBlockQuantOuts& o, Context& context) {
  using namespace dynamic_block_quant_op;
  const Problem problem = check(a, o);
  if (context.check_values())
    check_finite(Check("dynamic_block_quant", a.level), Tensors::inputs<DynamicBlockQuantOuts>(a));
  Call call(context, "dynamic_block_quant", std::size_t(0));
  run(problem, call);
  call.finish();
}

}  // namespace dsakit
