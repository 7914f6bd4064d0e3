// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/view.hpp"
#include "ops/fused_infer_attention_score_v2/problem.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

namespace dense = attention::dense;

dense::Grid grid(const Tensor& t, Axes axes, std::int64_t heads) {
  const Heads h(t, axes, heads);
  return {t.data, h.batch_stride, h.row_stride, h.head_stride};
}

/// The grid of one number per row and head: the axes of the layout without the width, or (rows first) those of any
/// tensor with a row of heads for each row of the query.
dense::Grid number_grid(const Tensor& t, const Sizes& s) {
  const auto& st = t.stride;
  if (t.elements() == 0) return {t.data};
  switch (s.layout->in) {
    case Axes::BSH:
    case Axes::BSND:
      return {t.data, offset_of(t, s.s1 * s.heads), offset_of(t, s.heads), offset_of(t, 1)};
    case Axes::TND:
      return {t.data, 0, offset_of(t, s.heads), offset_of(t, 1)};
    case Axes::BNSD:
      return {t.data, st[0], st[2], st[1]};
    default:
      return {t.data, 0, st[1], st[0]};
  }
}

dense::Cache cache(const Tensor& t, const Sizes& s) {
  dense::Cache c{.data = t.data};
  if (!s.paged) {
    const Heads h(t, s.layout->in, s.kv_heads);
    c.sequence = h.batch_stride, c.row = h.row_stride, c.head = h.head_stride;
    return c;
  }
  c.page = t.stride[0];
  if (t.rank == 3) c.row = t.stride[1], c.head = t.shape[2] / s.kv_heads;
  if (t.rank == 4) c.head = t.stride[1], c.row = t.stride[2];
  if (t.rank == 5) c.head = t.stride[1], c.block_stride = t.stride[2], c.row = t.stride[3], c.block = int(t.shape[4]);
  return c;
}

/// Scale or offset of keys or values with heads of `width`, in one of the shapes of the page's table of modes.
dense::Parameter parameter(const Tensor& t, std::int64_t mode, std::int64_t width) {
  dense::Parameter p{.data = t.data, .dtype = t.dtype};
  if (!t) return {};
  const auto &d = t.shape, &st = t.stride;
  const int last = t.rank - 1;
  switch (mode) {
    case 0:
      if (t.elements() == 1) return p;  // of the tensor
      p.column = 1, p.per_column = true;
      if (d[last] == width && t.rank > 1)
        for (int axis = 0; axis < last; ++axis) p.head += d[axis] == 1 ? 0 : st[axis];
      else p.head = width;
      return p;
    case 1:
      p.sequence = st[last - 1], p.position = 1, p.per_key = true;
      return p;
    case 2:
      p.head = st[0];
      return p;
    case 3:
      p.sequence = st[0], p.head = st[1], p.position = 1, p.per_key = true;
      return p;
    case 4:
      p.page = st[0], p.row = 1, p.per_key = true;
      return p;
    default:
      p.page = st[0], p.head = st[1], p.row = 1, p.per_key = true;
      return p;
  }
}

/// Scale or offset of the int8 output.
dense::Parameter out_parameter(const Tensor& t, const Sizes& s) {
  dense::Parameter p{.data = t.data, .dtype = t.dtype};
  if (!t) return {};
  if (t.elements() == 1) return p;
  p.column = 1, p.per_column = true;
  if (s.layout->out == Axes::BSH) p.head = s.out_width;
  else
    for (int axis = 0; axis < t.rank - 1; ++axis) p.head += t.shape[axis] == 1 ? 0 : t.stride[axis];
  return p;
}

}  // namespace

Problem resolve(const FusedInferAttentionScoreV2Args& a, const FusedInferAttentionScoreV2Outs& o, const Sizes& s) {
  Problem p{s, {}};
  dense::Problem& x = p.attention;
  const Axes in = s.layout->in, out = s.layout->out;
  x.sequences = s.sequences;
  x.kv_heads = s.kv_heads, x.group = s.heads / s.kv_heads;
  x.width = int(s.width), x.rope = int(s.rope_width), x.value = int(s.out_width);
  x.scale = float(a.softmax_scale);
  x.query_type = a.query.dtype, x.kv_type = a.key.dtype;
  x.rope_type = s.rope ? a.query_rope.dtype : a.query.dtype;
  x.query = grid(a.query, in, s.heads);
  x.key = cache(a.key, s), x.values = cache(a.value, s);
  if (s.rope) x.query_rope = grid(a.query_rope, in, s.heads), x.key_rope = cache(a.key_rope, s);
  if (s.paged)
    x.pages = {static_cast<const std::int32_t*>(a.block_table.data), a.block_table.stride[0], 1, s.page_rows};
  if (s.full) x.query_scale = number_grid(a.dequant_scale_query, s);
  if (s.full || s.quantised) {
    x.key_scale = parameter(a.dequant_scale_key, a.key_quant_mode, s.width);
    x.key_offset = parameter(a.dequant_offset_key, a.key_quant_mode, s.width);
    x.value_scale = parameter(a.dequant_scale_value, a.value_quant_mode, s.value_width);
    x.value_offset = parameter(a.dequant_offset_value, a.value_quant_mode, s.value_width);
  }
  if (s.full_mask) {
    const Tensor& m = a.atten_mask;
    const bool by_row = m.rank > 2 || s.s1 != 1, by_sequence = m.rank > 2 || s.s1 == 1;
    x.mask = static_cast<const std::uint8_t*>(m.data);
    x.mask_row = by_row ? m.stride[m.rank - 2] : 0;
    x.mask_sequence = by_sequence && m.shape[0] != 1 ? m.stride[0] : 0;
  }
  if (a.pse_shift) {
    const Tensor& t = a.pse_shift;
    x.bias = {t.data, t.shape[0] == 1 ? 0 : t.stride[0], t.stride[2], t.stride[1]};
  }
  if (a.learnable_sink)
    x.sink = {.data = a.learnable_sink.data, .dtype = a.learnable_sink.dtype, .head = a.learnable_sink.stride[0]};
  x.out = grid(o.attention_out, out, s.heads), x.out_type = o.attention_out.dtype;
  x.out_scale = out_parameter(a.quant_scale_out, s), x.out_offset = out_parameter(a.quant_offset_out, s);
  if (a.return_softmax_lse) {
    const Tensor& t = o.softmax_lse;
    x.lse = s.folded ? dense::Grid{t.data, 0, t.stride[0], t.stride[1]}
                     : dense::Grid{t.data, t.stride[0], t.stride[2], t.stride[1]};
  }
  x.lse_of_no_keys = s.decode ? kNoKeysInDecode : INFINITY;
  return p;
}

attention::dense::Sequence Problem::sequence(std::int64_t b) const {
  constexpr std::int64_t kFar = std::int64_t{1} << 61;
  const Sizes& s = sizes;
  const std::int64_t l1 = s.query_rows.count(b), l2 = s.key_rows.count(b), delta = l2 - l1;
  std::int64_t from = -kFar, to = kFar;
  if (!s.decode) {
    if (s.mode == 0 && s.band) from = -s.pre, to = s.next;
    if (s.mode == 2) to = 0;
    if (s.mode == 3) to = delta;
    if (s.mode == 4) from = delta - s.pre, to = delta + s.next;
  }
  return {s.query_rows.first(b),      l1, s.key_rows.first(b), l2, std::clamp(from, -kFar, kFar),
          std::clamp(to, -kFar, kFar)};
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
