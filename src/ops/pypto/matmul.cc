// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <climits>
#include <string>

#include "core/check.hpp"
#include "ops/convert.hpp"
#include "ops/products.hpp"
#include "ops/pypto/pypto.hpp"
#include "ops/row_operator.hpp"

namespace dsakit::pypto_op {
namespace {

/// [M, K] is a stack of one.
Tensor stack_of(const Check& check, const Tensor& t, const char* name) {
  check.required(t, name);
  check.sizes(t, name);
  if (t.rank == 3) return t;
  if (t.rank != 2) check.fail(Status::invalid_shape, name, "", shape_text(t), "rank 2 or 3");
  Tensor stack = t;
  stack.rank = 3;
  stack.shape = {1, t.shape[0], t.shape[1]};
  stack.stride = {0, t.stride[0], t.stride[1]};
  return stack;
}

struct Problem {
  Tensor a;    // [batch, rows, k]
  Matrices b;  // shared: one matrix that all rows meet
  Tensor c;
  bool shared;
};

void check_dtypes(const Check& check, const Problem& p, const Tensor& b) {
  check.dtype(p.a, "input", {DType::bf16, DType::f16, DType::f32, DType::i8});
  check.dtype(b, "mat2", {p.a.dtype}, "dtype of input");
  if (p.a.dtype == DType::i8) check.dtype(p.c, "out", {DType::i32}, "input is int8");
  else check.dtype(p.c, "out", {p.a.dtype, DType::f32}, "dtype of input, or float32");
}

Problem check(const Tensor& a, const Tensor& b, const Tensor& c) {
  const Check check("pypto.matmul", Level::portable);
  Problem p{.a = stack_of(check, a, "input"), .b = {}, .c = stack_of(check, c, "out"), .shared = false};
  const Tensor w = stack_of(check, b, "mat2");
  const std::int64_t batch = p.a.shape[0], k = p.a.shape[2], n = w.shape[2];
  if (w.shape[1] != k || (w.shape[0] != batch && w.shape[0] != 1))
    check.fail(Status::invalid_shape, "mat2", "", shape_text(b), brackets({{batch, k, n}}), "input " + shape_text(a));
  check_dtypes(check, p, w);
  const std::int64_t most = a.dtype == DType::i8 ? kMaxInnerI8 : INT_MAX;
  if (k > most)
    check.fail(Status::invalid_shape, "input", "", shape_text(a), "k up to " + std::to_string(most),
               "so far sums are exact");
  check.shape(p.c, "out", {batch, p.a.shape[1], n}, "rows of input, columns of mat2");
  check.readable(p.a, "input");
  check.readable_weight(as_it_lies(w), "mat2");
  refuse_scaled(check, w, "mat2");
  check.writable(p.c, "out");
  Tensor plain = p.c;
  make_contiguous(plain);
  if (!same_storage(plain, p.c)) check.fail(Status::invalid_stride, "out", "", "has gaps", "contiguous memory");
  for (const auto& [t, name] : {std::pair(p.a, "input"), std::pair(as_it_lies(w), "mat2")})
    check.no_overlap(p.c, "out", t, name);
  p.b = matrices_of(w);
  p.shared = w.shape[0] == 1 || p.b.stack.stride[0] == 0;
  if (w.shape[0] == 1) p.b.stack.stride[0] = 0;
  p.b.stack.shape[0] = batch;
  return p;
}

/// A stack whose rows lie evenly, as one matrix: then all of them meet a panel that had to be packed.
StackProduct product_of(const Problem& p) {
  StackProduct product{p.a, p.b};
  Tensor& a = product.a;
  if (p.shared && (a.shape[0] == 1 || a.stride[0] == a.shape[1] * a.stride[1]))
    a.shape[1] *= a.shape[0], a.shape[0] = product.w.stack.shape[0] = 1;
  return product;
}

void multiply_floats(const Problem& p, bool fma, Context& context) {
  const StackProduct product = product_of(p);
  Call call(context, "pypto.matmul", [&](int threads) { return product.bytes(threads); });
  if (fma) call.ask_same_products();
  product.run(call, call.memory(),
              [&](std::int64_t b, std::int64_t row, std::int64_t column, std::int64_t n, const float* sums) {
                narrow(call.kernels(), sums, n, p.c, (b * product.rows() + row) * p.b.n + column);
              });
  call.finish();
}

void multiply_codes(const Problem& p, Context& context) {
  const CodeProduct product{Rows(p.a, 1), p.b, p.shared ? p.a.shape[0] * p.a.shape[1] : p.a.shape[1]};
  Call call(context, "pypto.matmul", [&](int threads) { return product.bytes(threads); });
  product.run(call, call.memory(),
              [&](std::int64_t row, std::int64_t column, std::int64_t n, const std::int32_t* sums) {
                std::copy_n(sums, n, static_cast<std::int32_t*>(p.c.data) + row * p.b.n + column);
              });
  call.finish();
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, const Tensor& c, bool fma, Context& context) {
  const Problem p = check(a, b, c);
  if (p.a.dtype == DType::i8) multiply_codes(p, context);
  else multiply_floats(p, fma, context);
}

}  // namespace dsakit::pypto_op
