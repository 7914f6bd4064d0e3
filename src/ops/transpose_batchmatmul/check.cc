// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>

#include "ops/row_operator.hpp"
#include "ops/transpose_batchmatmul/problem.hpp"

namespace dsakit {
namespace transpose_batchmatmul_op {
namespace {

std::string text(const Axes& axes) {
  return brackets({axes.axis.data(), std::size_t(std::clamp<std::int64_t>(axes.count, 0, 8))});
}

/// One of the orders that are offered; the first is the default.
Axes check_axes(const Check& check, const Axes& axes, const char* name, std::initializer_list<Axes> wanted) {
  if (axes.count == 0) return *wanted.begin();
  if (std::find(wanted.begin(), wanted.end(), axes) != wanted.end()) return axes;
  std::string offered;
  for (const Axes& order : wanted) offered += (offered.empty() ? "" : " or ") + text(order);
  check.fail(Status::invalid_argument, name, "",
             axes.count > 8 ? "has " + std::to_string(axes.count) + " entries" : "is " + text(axes), offered);
}

/// A view with its axes in another order.
Tensor permuted(const Tensor& t, const Axes& axes) {
  Tensor p = t;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    p.shape[axis] = t.shape[std::size_t(axes.axis[axis])];
    p.stride[axis] = t.stride[std::size_t(axes.axis[axis])];
  }
  return p;
}

/// b, m, k and b, k, n of an operator's tensors, what they are called, and where what is asked of w comes from.
struct Operands {
  Tensor x, w;
  const char *x_name, *w_name, *axes, *dtype;
};

/// Shapes: w fits x.
void check_shapes(const Check& check, const Operands& p, const Tensor& weight, bool across) {
  const std::int64_t b = p.x.shape[0], k = p.x.shape[2], n = p.w.shape[2];
  if (across) check.shape(weight, p.w_name, {b, n, k}, p.axes);
  else check.shape(weight, p.w_name, {b, k, n}, p.axes);
  for (std::int64_t size : {k, n})
    if (check.strict() && (size % 16 != 0 || size >= 65536))
      check.chip(false, p.w_name, shape_text(weight), "k and n multiples of 16, below 65536");
  std::int64_t columns = 0;
  if (__builtin_mul_overflow(b, n, &columns) || columns > INT64_MAX / 16)
    check.fail(Status::invalid_shape, p.w_name, "", shape_text(weight), "b*n below 2^59");
}

/// dtypes, and memory of all but the output.
void check_operands(const Check& check, const Operands& p, const Tensor& weight, bool across,
                    std::initializer_list<DType> dtypes, Tensors tensors) {
  check.dtype(p.x, p.x_name, dtypes);
  check.dtype(weight, p.w_name, {p.x.dtype}, p.dtype);
  if (across && weight.format != Format::ND)
    check.fail(Status::invalid_argument, p.w_name, "", "is in a weight's format", "a plain strided tensor",
               "its axes change places");
  tensors.forget(p.w_name);
  check_memory(check, tensors);
  check.readable_weight(as_it_lies(p.w), p.w_name);
  refuse_scaled(check, p.w, p.w_name);
}

Operands check_inputs(const Check& check, const TransposeBatchmatmulArgs& a) {
  const Tensors inputs = Tensors::inputs<TransposeBatchmatmulOuts>(a);
  check_given(check, inputs);
  const Axes x1 = check_axes(check, a.perm_x1, "perm_x1", {{0, 1, 2}, {1, 0, 2}});
  const Axes x2 = check_axes(check, a.perm_x2, "perm_x2", {{0, 1, 2}, {0, 2, 1}});
  check_axes(check, a.perm_y, "perm_y", {{1, 0, 2}});
  const bool across = x2 == Axes{0, 2, 1};
  check.chip(!across, "perm_x2", "is [0, 2, 1]", "[0, 1, 2]");
  check.at_least(a.batch_split_factor, "batch_split_factor", 1);
  check_countable(check, inputs);
  check.rank(a.input, "input", 3, "b, m, k");
  check.rank(a.weight, "weight", 3, "b, k, n");
  const Operands p{permuted(a.input, x1), permuted(a.weight, x2), "input", "weight", "axes of input", "dtype of input"};
  check_shapes(check, p, a.weight, across);
  if (const std::int64_t columns = p.x.shape[0] * p.w.shape[2]; columns % a.batch_split_factor != 0)
    check.fail(Status::invalid_argument, "batch_split_factor", "", "is " + std::to_string(a.batch_split_factor),
               "a divisor of " + std::to_string(columns), "b*n");
  check_operands(check, p, a.weight, across, {DType::bf16, DType::f16, DType::f32}, inputs);
  return p;
}

Tensor product_shape(const Operands& p, std::int64_t slabs) {
  const std::int64_t b = p.x.shape[0], m = p.x.shape[1], n = p.w.shape[2];
  return slabs > 1 ? shaped(p.x.dtype, {slabs, m, b * n / slabs}) : shaped(p.x.dtype, {m, b, n});
}

Operands check_inputs(const Check& check, const BatchMatmulTransposeArgs& a, const Tensors& tensors) {
  check_given(check, tensors);
  check_countable(check, tensors);
  check.rank(a.tensor_a, "tensor_a", 3, "T, h, k");
  check.rank(a.tensor_b, "tensor_b", 3, "h, k, n");
  const Operands p{permuted(a.tensor_a, {1, 0, 2}), a.tensor_b, "tensor_a", "tensor_b", "axes of tensor_a",
                   "dtype of tensor_a"};
  check_shapes(check, p, a.tensor_b, false);
  const std::int64_t tokens = p.x.shape[1], heads = p.x.shape[0], n = p.w.shape[2];
  if (a.tensor_c.rank == 2)
    check.shape(a.tensor_c, "tensor_c", {tokens, heads * n}, "T and h of tensor_a, n of tensor_b");
  else check.shape(a.tensor_c, "tensor_c", {tokens, heads, n}, "T and h of tensor_a, n of tensor_b");
  check.dtype(a.tensor_a, "tensor_a", {DType::bf16, DType::f16});
  check.dtype(a.tensor_c, "tensor_c", {a.tensor_a.dtype}, "dtype of tensor_a");
  check_operands(check, p, a.tensor_b, false, {DType::bf16, DType::f16}, tensors);
  return p;
}

}  // namespace

Problem check(const TransposeBatchmatmulArgs& a, const TransposeBatchmatmulOuts& o) {
  const Check check("transpose_batchmatmul", a.level);
  const Operands p = check_inputs(check, a);
  check_out(check, o.y, "y", product_shape(p, a.batch_split_factor), "m, b of input, n of weight");
  check_separate(check, Tensors(a, o));
  const bool slabs = a.batch_split_factor > 1;
  return {.x = p.x,
          .w = matrices_of(p.w),
          .y = o.y,
          .row_step = o.y.stride[slabs ? 1 : 0],
          .width = std::max<std::int64_t>(o.y.shape[2], 1),
          .slab_step = o.y.stride[slabs ? 0 : 1]};
}

Problem check(const BatchMatmulTransposeArgs& a, const BatchMatmulTransposeOuts& o) {
  const Check check("batch_matmul_transpose", a.level);
  const Tensors tensors(a, o);
  const Operands p = check_inputs(check, a, tensors);
  check_separate(check, tensors);
  const Tensor& c = a.tensor_c;
  return {.x = p.x,
          .w = matrices_of(p.w),
          .y = c,
          .row_step = c.stride[0],
          .width = std::max<std::int64_t>(c.shape[c.rank - 1], 1),
          .slab_step = c.rank == 3 ? c.stride[1] : 0};
}

void check_weight_values(const Check& check, const Problem& p, const char* name) {
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t i = 0; i < p.w.k; ++i)
      for (std::int64_t j = 0; j < p.w.n; ++j)
        if (const float v = p.weight(b, i, j); !std::isfinite(v))
          check.fail(Status::invalid_value, name, subscript({b, i, j}), "is " + std::to_string(v), "a finite number");
}

}  // namespace transpose_batchmatmul_op

void infer(const TransposeBatchmatmulArgs& a, TransposeBatchmatmulOuts& o) {
  using namespace transpose_batchmatmul_op;
  const Operands p = check_inputs(Check("transpose_batchmatmul", a.level), a);
  if (!o.y) o.y = product_shape(p, a.batch_split_factor);
}

void infer(const BatchMatmulTransposeArgs& a, BatchMatmulTransposeOuts&) {
  transpose_batchmatmul_op::check_inputs(Check("batch_matmul_transpose", a.level), a,
                                         Tensors::inputs<BatchMatmulTransposeOuts>(a));
}

}  // namespace dsakit
