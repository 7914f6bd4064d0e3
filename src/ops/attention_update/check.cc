// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "ops/attention_update/problem.hpp"
#include "ops/direct.hpp"
#include "ops/row_operator.hpp"

namespace dsakit {
namespace attention_update_op {
namespace {

struct Sizes {
  std::int64_t rows = 1, width = 0;
};

Sizes check_inputs(const Check& check, const AttentionUpdateArgs& a) {
  const Tensors inputs = Tensors::inputs<AttentionUpdateOuts>(a);
  check_given(check, inputs);
  if (a.update_type != 0 && a.update_type != 1)
    check.fail(Status::invalid_argument, "update_type", "", "is " + std::to_string(a.update_type), "0 or 1");
  const std::size_t shards = a.lse.size();
  if (a.local_out.size() != shards)
    check.fail(Status::invalid_argument, "local_out", "", "has " + std::to_string(a.local_out.size()) + " tensors",
               std::to_string(shards), "as many as lse");
  check.chip(shards <= 16, "lse", "has " + std::to_string(shards) + " tensors", "at most 16");
  check_countable(check, inputs);

  const Tensor& first = a.local_out[0];
  Sizes s;
  each(a.local_out, [&](const Tensor& t) {
    if (t.rank < 2) check.fail(Status::invalid_shape, "local_out", "", shape_text(t), "[M, d]");
    if (check.strict()) check.rank(t, "local_out", 2, "M, d");
    if (t.rank != first.rank || !std::equal(t.shape.begin(), t.shape.begin() + t.rank, first.shape.begin()))
      check.fail(Status::invalid_shape, "local_out", "", shape_text(t),
                 brackets({first.shape.data(), std::size_t(first.rank)}), "shape of local_out[0]");
  });
  s.width = first.shape[first.rank - 1];
  for (int axis = 0; axis + 1 < first.rank; ++axis) s.rows *= first.shape[axis];
  if (s.width < 1)
    check.fail(Status::invalid_shape, "local_out", "[0]", shape_text(first), "a last axis of at least 1");
  if (check.strict() && (s.width % 8 != 0 || s.width > 512))
    check.chip(false, "local_out", shape_text(first), "a last axis of a multiple of 8 in 8..512");
  each(a.lse, [&](const Tensor& t) { check.rows(t, "lse", s.rows, {}, "M of local_out"); });
  each(a.lse, [&](const Tensor& t) { check.dtype(t, "lse", {DType::f32}); });
  check.dtype(first, "local_out", {DType::f32, DType::f16, DType::bf16});
  each(a.local_out, [&](const Tensor& t) { check.dtype(t, "local_out", {first.dtype}, "dtype of local_out[0]"); });
  check_memory(check, inputs);
  return s;
}

Tensor wanted_lse(const AttentionUpdateArgs& a) {
  return a.update_type == 1 ? like(a.lse[0], DType::f32) : shaped(DType::f32, {0});
}

}  // namespace

Problem check(const AttentionUpdateArgs& a, const AttentionUpdateOuts& o) {
  const Check check("attention_update", a.level);
  const Sizes s = check_inputs(check, a);
  check_out(check, o.out, "out", like(a.local_out[0], a.local_out[0].dtype), "shape of local_out[0]");
  if (o.lse_out || a.update_type == 1)
    check_out(check, o.lse_out, "lse_out", wanted_lse(a), a.update_type == 1 ? "shape of lse[0]" : "update_type 0");
  check_separate(check, Tensors(a, o));
  return {.lse = a.lse,
          .local_out = a.local_out,
          .out = Rows(o.out, 1),
          .lse_out = a.update_type == 1 ? Rows(o.lse_out, 0) : Rows(Tensor{.rank = 0}, 0),
          .rows = s.rows,
          .width = s.width};
}

/// Value checking: an infinite lse is a shard without a key, and its rows are not looked at.
void check_values(const AttentionUpdateArgs& a) {
  const Check check("attention_update", a.level);
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    const Rows lse(a.lse[i], 0), rows(a.local_out[i], 1);
    for (std::int64_t r = 0; r < lse.count; ++r) {
      const auto refuse = [&](const char* name, const Tensor& t, std::int64_t at, float x) {
        check.fail(Status::invalid_value, name, subscript({std::int64_t(i)}) + subscript(t, at),
                   "is " + std::to_string(x), "a number");
      };
      const float l = *lse.row<const float>(r);
      if (std::isnan(l)) refuse("lse", lse.tensor, r, l);
      const std::int64_t width = rows.tensor.shape[rows.tensor.rank - 1];
      for (std::int64_t c = 0; c < width && std::isfinite(l); ++c)
        if (const float x = float_at(rows.tensor, rows.offset(r) + c); !std::isfinite(x))
          refuse("local_out", rows.tensor, r * width + c, x);
    }
  }
}

}  // namespace attention_update_op

void infer(const AttentionUpdateArgs& a, AttentionUpdateOuts& o) {
  attention_update_op::check_inputs(Check("attention_update", a.level), a);
  if (!o.out) o.out = like(a.local_out[0], a.local_out[0].dtype);
  if (!o.lse_out) o.lse_out = attention_update_op::wanted_lse(a);
}

void direct::attention_update(const AttentionUpdateArgs& a, const AttentionUpdateOuts& o, Context& context) {
  using namespace attention_update_op;
  const Problem problem = check(a, o);
  if (context.check_values()) check_values(a);
  Call call(context, "attention_update", [&](int threads) { return workspace(problem, threads); });
  run(problem, call);
  call.finish();
}

}  // namespace dsakit
