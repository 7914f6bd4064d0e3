// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <utility>

#include "ops/fused_infer_attention_score_v2/door.hpp"
#include "ops/fused_infer_attention_score_v2/problem.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using std::to_string;
using Args = FusedInferAttentionScoreV2Args;
using Outs = FusedInferAttentionScoreV2Outs;

Tensor shape_of_out(const Door& d) {
  const Sizes& s = d.s;
  const std::int64_t n = s.heads, width = s.out_width;
  const DType type = d.a.quant_scale_out ? DType::i8 : s.full ? d.a.query_rope.dtype : d.a.query.dtype;
  switch (s.layout->out) {
    case Axes::BSH:
      return shaped(type, {s.batch, s.s1, n * width});
    case Axes::BSND:
      return shaped(type, {s.batch, s.s1, n, width});
    case Axes::BNSD:
      return shaped(type, {s.batch, n, s.s1, width});
    case Axes::NBSD:
      return shaped(type, {n, s.batch, s.s1, width});
    case Axes::TND:
      return shaped(type, {s.s1, n, width});
    case Axes::NTD:
    case Axes::NSD:
      break;
  }
  return shaped(type, {n, s.s1, width});
}

Tensor shape_of_lse(const Door& d) {
  const Sizes& s = d.s;
  if (!d.a.return_softmax_lse) return shaped(DType::f32, {1});
  if (s.folded) return shaped(DType::f32, {s.s1, s.heads, 1});
  return shaped(DType::f32, {s.batch, s.heads, s.s1, 1});
}

void same_shape(const Door& d, const Tensor& t, const char* name, const Tensor& wanted) {
  if (t.rank != wanted.rank || !std::equal(t.shape.begin(), t.shape.begin() + t.rank, wanted.shape.begin()))
    d.wrong_shape(t, name, brackets({wanted.shape.data(), std::size_t(wanted.rank)}),
                  "input_layout '" + std::string(d.s.layout->name) + "'");
  d.c.dtype(t, name, {wanted.dtype});
}

}  // namespace

void Door::rest() const {
  // S-63, S-64
  if (a.inner_precise < 0 || a.inner_precise > 3)
    c.fail(Status::invalid_argument, "inner_precise", "", "is " + to_string(a.inner_precise), "0..3");
  limit(a.inner_precise < 2 || s.folded || s.s1 != 1, Status::invalid_argument, "inner_precise", is(a.inner_precise),
        "0 or 1 with one row of queries");
  const Tensors inputs = Tensors::inputs<Outs>(a);
  check_reserved(c, inputs);
  if (a.learnable_sink) sink();
  check_memory(c, inputs);  // S-65
  // S-67, S-69
  if (s.width == 0 && s.out_width != 0)
    wrong_shape(a.query, "query", "heads with columns", "attention_out has width " + to_string(s.out_width));
  if (!std::isfinite(a.softmax_scale) || !std::isfinite(float(a.softmax_scale)))
    c.fail(Status::invalid_argument, "softmax_scale", "", "is " + to_string(a.softmax_scale), "a finite number");
  for (std::int64_t h = 0; a.learnable_sink && h < s.heads; ++h)
    if (std::isnan(float_at(a.learnable_sink, h * a.learnable_sink.stride[0])))
      c.fail(Status::invalid_argument, "learnable_sink", subscript({h}), "is nan", "a number");
}

void Door::sink() const {
  const char* name = "learnable_sink";
  c.chip(false, name, "is given", "absent");
  c.shape(a.learnable_sink, name, {s.heads}, "num_query_heads");
  c.dtype(a.learnable_sink, name, {DType::f32, s.full ? a.query_rope.dtype : a.query.dtype});
}

void Door::results(const Outs& o) const {
  const Tensor &out = o.attention_out, &lse = o.softmax_lse;
  c.required(out, "attention_out");
  if (a.return_softmax_lse) c.required(lse, "softmax_lse");
  c.sizes(out, "attention_out");
  same_shape(*this, out, "attention_out", shape_of_out(*this));
  c.writable(out, "attention_out");
  if (lse) {
    c.sizes(lse, "softmax_lse");
    same_shape(*this, lse, "softmax_lse", shape_of_lse(*this));
    c.writable(lse, "softmax_lse");
  }
  Tensors all(a, o);
  if (!a.return_softmax_lse) all.forget("softmax_lse");
  check_separate(c, all, Named::later);
}

Problem check(const Args& a, const Outs& o) {
  Door door(a);
  door.shapes();
  door.chip_sizes();
  door.lengths();
  door.chip_lengths();
  door.masks();
  door.pages();
  door.scales();
  door.rest();
  door.results(o);
  return resolve(a, o, door.s);
}

}  // namespace dsakit::fused_infer_attention_score_v2_op

namespace dsakit {

void infer(const FusedInferAttentionScoreV2Args& a, FusedInferAttentionScoreV2Outs& o) {
  using namespace fused_infer_attention_score_v2_op;
  Door door(a);
  door.shapes();
  if (!o.attention_out) o.attention_out = shape_of_out(door);
  if (!o.softmax_lse) o.softmax_lse = shape_of_lse(door);
}

}  // namespace dsakit
