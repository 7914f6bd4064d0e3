// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "dsakit/axes.hpp"
#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

// One product per head, with heads and tokens changing places: sums in fp32, rounded once.
// docs/operators/transpose_batchmatmul.md
namespace dsakit {

/// An order of axes without entries: the default.
struct TransposeBatchmatmulArgs {
  Tensor input;
  Tensor weight;
  Axes perm_x1 = {0, 1, 2};
  Axes perm_x2 = {0, 1, 2};
  Axes perm_y = {1, 0, 2};
  std::int64_t batch_split_factor = 1;
  Level level = Level::portable;
};

struct TransposeBatchmatmulOuts {
  Tensor y;
};

void transpose_batchmatmul(const TransposeBatchmatmulArgs&, const TransposeBatchmatmulOuts&,
                           Context& = default_context());
void infer(const TransposeBatchmatmulArgs&, TransposeBatchmatmulOuts&);

/// The same for tokens first, into memory of the caller.
struct BatchMatmulTransposeArgs {
  Tensor tensor_a;
  Tensor tensor_b;
  Tensor tensor_c;
  Level level = Level::portable;
};

struct BatchMatmulTransposeOuts {};

void batch_matmul_transpose(const BatchMatmulTransposeArgs&, const BatchMatmulTransposeOuts&,
                            Context& = default_context());
void infer(const BatchMatmulTransposeArgs&, BatchMatmulTransposeOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, TransposeBatchmatmulArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"input", Role::in, Kind::data, "bfloat16, float16, float32", "[b, m, k] after perm_x1", "rows"}, a.input);
  v({"weight", Role::in, Kind::weight, "dtype of input",
     "[b, k, n] after perm_x2; strict: k and n multiples of 16, below 65536", "a matrix per b"},
    a.weight);
  v({"bias", Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v({"scale", Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v({"perm_x1", Role::attribute, Kind::axes, "list of int", "(0, 1, 2), (1, 0, 2), None",
     "axes of input that are b, m, k"},
    a.perm_x1);
  v({"perm_x2", Role::attribute, Kind::axes, "list of int", "(0, 1, 2), None; portable: (0, 2, 1)",
     "axes of weight that are b, k, n"},
    a.perm_x2);
  v({"perm_y", Role::attribute, Kind::axes, "list of int", "(1, 0, 2), None",
     "axes of the product that are those of y"},
    a.perm_y);
  v({"batch_split_factor", Role::attribute, Kind::number, "int", ">= 1, divides b*n", "slabs of columns of y"},
    a.batch_split_factor);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "dtype of input", "[m, b, n]; batch_split_factor f > 1: [f, m, b*n/f]", "products"},
    o.y);
}
constexpr Description describe(const TransposeBatchmatmulArgs&) {
  return {
      .summary = "One product per batch entry, whose rows come out with the batch behind them",
      .formula =
          "y[i, h] = input[h, i] weight[h], sums in float32, one rounding\n"
          "f = batch_split_factor > 1: column c of row i of the [m, b*n] is y[c / w, i, c % w], w = b*n / f",
      .errors =
          "INVALID_ARGUMENT: a tensor is missing, an order of axes is not offered, batch_split_factor does not divide\n"
          "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
          "UNSUPPORTED: bias, scale; strict: sizes and orders of axes beyond the chip",
      .source = "torch_npu.npu_transpose_batchmatmul",
      .page = "transpose_batchmatmul.md",
      .family = Family::torch_npu,
      .positional = 2};
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, BatchMatmulTransposeArgs>
constexpr void for_each_field(A& a, O&, V&& v) {
  v({"tensor_a", Role::in, Kind::data, "bfloat16, float16", "[T, h, k]", "rows"}, a.tensor_a);
  v({"tensor_b", Role::in, Kind::weight, "dtype of tensor_a", "[h, k, n]", "a matrix per h"}, a.tensor_b);
  v({"tensor_c", Role::inout, Kind::data, "dtype of tensor_a", "[T, h, n] or [T, h*n]", "products, all written"},
    a.tensor_c);
  v({"format_mode", Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v({"quant_mode", Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v(kLevelField, a.level);
}
constexpr Description describe(const BatchMatmulTransposeArgs&) {
  return {.summary = "One product per head of rows [T, h, k], into tensor_c",
          .formula = "tensor_c[t, h] = tensor_a[t, h] tensor_b[h], sums in float32, one rounding",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: format_mode, quant_mode",
          .source = "torch.ops._C_ascend.batch_matmul_transpose",
          .page = "transpose_batchmatmul.md",
          .family = Family::vllm_ascend,
          .positional = 5};
}

namespace reference {
void transpose_batchmatmul(const TransposeBatchmatmulArgs&, const TransposeBatchmatmulOuts&);
void batch_matmul_transpose(const BatchMatmulTransposeArgs&, const BatchMatmulTransposeOuts&);
}  // namespace reference

}  // namespace dsakit
