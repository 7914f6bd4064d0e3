// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "ops/quant_matmul/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit {
namespace quant_matmul_op {
namespace {

using Args = QuantMatmulArgs;

DType output_dtype(const Args& a) {
  if (a.output_dtype == "int32") return DType::i32;
  if (a.output_dtype == "float16") return DType::f16;
  return a.output_dtype == "bfloat16" ? DType::bf16 : DType::i8;
}

/// What belongs to which output.
void check_modes(const Check& check, const Args& a) {
  if (!a.output_dtype.empty()) check.one_of(a.output_dtype, "output_dtype", {"int8", "float16", "bfloat16", "int32"});
  const DType out = output_dtype(a);
  if (out == DType::i32) {
    check.absent(a.offset, "offset", "the output is int32, the sums as they are");
    check.absent(a.pertoken_scale, "pertoken_scale", "the output is int32, the sums as they are");
    check.absent(a.bias, "bias", "the output is int32, the sums as they are");
    return;
  }
  check.required(a.scale, "scale");
  if (out != DType::i8) return check.absent(a.offset, "offset", "the output is not int8");
  if (a.pertoken_scale)
    check.fail(Status::invalid_argument, "output_dtype", "", a.output_dtype.empty() ? "is None, int8" : "is int8",
               "bfloat16 or float16", "pertoken_scale is given");
}

/// [n] or [1].
void check_columns(const Check& check, const Tensor& t, const char* name, std::int64_t n) {
  if (t && !(t.rank == 1 && t.shape[0] == 1)) check.shape(t, name, {n}, "n of x2, or 1");
}

/// Leading axes of the product.
Tensor product_shape(const Check& check, const Args& a, DType out) {
  const std::int64_t k = a.x1.shape[a.x1.rank - 1];
  if (a.x1.shape[a.x1.rank - 1] != a.x2.shape[a.x2.rank - 2])
    check.fail(Status::invalid_shape, "x2", "", shape_text(a.x2), "[.., " + std::to_string(k) + ", n]",
               "k of x1, which " + shape_text(a.x1));
  if (k > kMaxInnerI8)
    check.fail(Status::invalid_shape, "x1", "", shape_text(a.x1), "k up to " + std::to_string(kMaxInnerI8),
               "an int32 sum is exact so far");
  Tensor y{.dtype = out, .rank = std::max(a.x1.rank, a.x2.rank)};
  for (int axis = 0; axis < y.rank - 2; ++axis) {
    const int own = axis - (y.rank - a.x1.rank), other = axis - (y.rank - a.x2.rank);
    const std::int64_t left = own < 0 ? 1 : a.x1.shape[own], right = other < 0 ? 1 : a.x2.shape[other];
    if (left != right && left != 1 && right != 1)
      check.fail(Status::invalid_shape, "x2", "", shape_text(a.x2), "leading axes of x1, or 1",
                 "x1 " + shape_text(a.x1));
    y.shape[axis] = left == 1 ? right : left;
  }
  y.shape[y.rank - 2] = a.x1.shape[a.x1.rank - 2], y.shape[y.rank - 1] = a.x2.shape[a.x2.rank - 1];
  make_contiguous(y);
  check.sizes(y, "y");
  return y;
}

void check_codes(const Check& check, const Tensor& t, const char* name) {
  if (t.dtype == DType::i32)
    check.fail(Status::unsupported, name, "", "has dtype int32", "int8", "int4 codes in int32 are reserved");
  check.dtype(t, name, {DType::i8});
}

/// Returns what y has to be.
Tensor check_inputs(const Check& check, const Args& a, Tensors inputs) {
  check_given(check, inputs);
  check_modes(check, a);
  check_countable(check, inputs);
  for (const auto& [t, name] : {std::pair(&a.x1, "x1"), std::pair(&a.x2, "x2")})
    if (t->rank < 2) check.fail(Status::invalid_shape, name, "", shape_text(*t), "rank 2 or more");
  const DType out = output_dtype(a);
  const Tensor y = product_shape(check, a, out);
  const std::int64_t n = y.shape[y.rank - 1];
  check_columns(check, a.scale, "scale", n);
  check_columns(check, a.offset, "offset", n);
  if (a.pertoken_scale) check.vector(a.pertoken_scale, "pertoken_scale", y.shape[y.rank - 2], "m of x1");
  if (a.bias) check.shape(a.bias, "bias", {n}, "n of x2");
  check_codes(check, a.x1, "x1");
  check_codes(check, a.x2, "x2");
  if (a.scale && (a.scale.dtype == DType::i64 || a.scale.dtype == DType::u64))
    check.fail(Status::unsupported, "scale", "", std::string("has dtype ") + name_of(a.scale.dtype),
               "float32 or bfloat16", "packed scales are reserved");
  if (a.scale) check.dtype(a.scale, "scale", {DType::f32, DType::bf16});
  if (a.offset) check.dtype(a.offset, "offset", {DType::f32});
  if (a.pertoken_scale) check.dtype(a.pertoken_scale, "pertoken_scale", {DType::f32});
  if (a.bias)
    check.dtype(a.bias, "bias", {a.pertoken_scale ? DType::f32 : DType::i32},
                a.pertoken_scale ? "beside pertoken_scale" : "without pertoken_scale");
  const Tensor seen = as_it_lies(a.x2);
  inputs.forget("x2");
  check_memory(check, inputs);
  check.readable_weight(seen, "x2");
  return y;
}

}  // namespace

Problem check(const Args& a, const QuantMatmulOuts& o) {
  const Check check("quant_matmul", a.level);
  const Tensor wanted = check_inputs(check, a, Tensors::inputs<QuantMatmulOuts>(a));
  check_out(check, o.y, "y", wanted, "m of x1, n of x2, their leading axes");
  check_separate(check, Tensors(a, o));

  const int rank = wanted.rank;
  std::int64_t shape[8];  // of x1 with the leading axes of y
  std::copy_n(wanted.shape.begin(), rank, shape);
  shape[rank - 1] = a.x1.shape[a.x1.rank - 1];
  Problem p{.x1 = Rows(broadcast_to(a.x1, rank, shape), 1),
            .y = Rows(o.y, 1),
            .x2 = matrices_of(a.x2),
            .total = 1,
            .rows = 1,
            .m = shape[rank - 2],
            .scale = a.scale,
            .offset = a.offset,
            .pertoken_scale = a.pertoken_scale,
            .bias = a.bias,
            .pertoken_step = 0};
  for (int axis = 0; axis < rank - 1; ++axis) p.total *= shape[axis];
  const bool one = p.x2.stack.elements() == 1;
  p.rows = one ? p.total : p.m;
  p.x2.stack = one ? p.x2.stack : broadcast_to(p.x2.stack, rank - 2, shape);
  if (a.pertoken_scale) p.pertoken_step = check.vector(a.pertoken_scale, "pertoken_scale", p.m, "m of x1");
  if (wanted.dtype == DType::i32) p.scale = {};
  return p;
}

}  // namespace quant_matmul_op

void infer(const QuantMatmulArgs& a, QuantMatmulOuts& o) {
  const Tensor y =
      quant_matmul_op::check_inputs(Check("quant_matmul", a.level), a, Tensors::inputs<QuantMatmulOuts>(a));
  if (!o.y) o.y = y;
}

}  // namespace dsakit
