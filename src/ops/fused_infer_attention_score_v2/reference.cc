// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "core/float16.hpp"
#include "core/view.hpp"
#include "ops/fused_infer_attention_score_v2/problem.hpp"
#include "run/taps.hpp"

// The page once more, from the arguments as they are given: only the refusals come from check().
namespace dsakit::reference {
namespace {

using Args = FusedInferAttentionScoreV2Args;
using Outs = FusedInferAttentionScoreV2Outs;
using Index = std::initializer_list<std::int64_t>;

std::int64_t offset(const Tensor& t, Index index) {
  std::int64_t sum = 0;
  int axis = 0;
  for (const std::int64_t i : index) sum += i * t.stride[axis++];
  return sum;
}

/// An element as a number. int4 (i32): the last index counts the codes.
float number(const Tensor& t, Index index) {
  const std::int64_t at = offset(t, index);
  switch (t.dtype) {
    case DType::i8:
      return float(static_cast<const std::int8_t*>(t.data)[at]);
    case DType::i32: {
      const std::int64_t last = *(index.end() - 1), words = at - last + last / 8;
      const auto word = static_cast<const std::uint32_t*>(t.data)[words];
      const int code = int(word >> (last % 8 * 4) & 15);
      return float(code < 8 ? code : code - 16);
    }
    default:
      return float_at(t, at);
  }
}

std::int64_t list_at(const Tensor& t, std::int64_t i) {
  return t.dtype == DType::i64 ? static_cast<const std::int64_t*>(t.data)[i]
                               : static_cast<const std::int32_t*>(t.data)[i];
}

struct Sequence {
  std::int64_t first_query, queries, first_key, keys;
};

struct Reference {
  const Args& a;
  const Outs& o;
  std::string_view in, out;
  std::int64_t heads, kv_heads, batch, rows, width, value_width, rope_width;
  bool folded, paged, rope, quantised, full, decode;

  Reference(const Args& args, const Outs& outs) : a(args), o(outs) {
    const auto cut = a.input_layout.find('_');
    in = a.input_layout.substr(0, cut);
    out = cut == std::string_view::npos ? in : a.input_layout.substr(cut + 1);
    heads = a.num_query_heads, kv_heads = a.num_key_value_heads ? a.num_key_value_heads : heads;
    folded = in == "TND" || in == "NTD", paged = bool(a.block_table), rope = bool(a.query_rope);
    full = a.query.dtype == DType::i8, quantised = !full && a.key.dtype != a.query.dtype;
    const auto& q = a.query.shape;
    const bool heads_first = in == "BNSD";
    rows = in == "BSH" || in == "BSND" || in == "NTD" || in == "NSD" ? q[1] : heads_first ? q[2] : q[0];
    batch = folded ? a.actual_seq_qlen.shape[0] : in == "NSD" ? 1 : q[0];
    width = last_axis(a.query, in == "BSH" ? heads : 1);
    rope_width = rope ? last_axis(a.query_rope, in == "BSH" ? heads : 1) : 0;
    value_width = out_columns();
    decode = (in == "BSH" || in == "BSND" || in == "BNSD") && rows == 1 && !rope && width == value_width;
  }

  static std::int64_t last_axis(const Tensor& t, std::int64_t heads) { return t.shape[t.rank - 1] / heads; }
  std::int64_t out_columns() const { return last_axis(o.attention_out, out == "BSH" ? heads : 1); }

  // ---- where things are
  float per_head(const Tensor& t, std::int64_t n, std::int64_t base, std::int64_t b, std::int64_t row,
                 std::int64_t head, std::int64_t d) const {
    if (in == "BSH") return number(t, {b, row, head * (t.shape[2] * (t.dtype == DType::i32 ? 8 : 1) / n) + d});
    if (in == "BSND") return number(t, {b, row, head, d});
    if (in == "BNSD") return number(t, {b, head, row, d});
    if (in == "TND") return number(t, {base + row, head, d});
    return number(t, {head, base + row, d});  // NTD; NSD, where base is 0
  }
  float query(const Tensor& t, const Sequence& s, std::int64_t b, std::int64_t row, std::int64_t h,
              std::int64_t d) const {
    return per_head(t, heads, s.first_query, b, row, h, d);
  }
  std::int64_t page(std::int64_t b, std::int64_t k) const {
    return static_cast<const std::int32_t*>(a.block_table.data)[offset(a.block_table, {b, k / a.block_size})];
  }
  float key(const Tensor& t, const Sequence& s, std::int64_t b, std::int64_t k, std::int64_t g, std::int64_t d) const {
    if (!paged) return per_head(t, kv_heads, s.first_key, b, k, g, d);
    const std::int64_t p = page(b, k), r = k % a.block_size;
    if (t.rank == 3) return number(t, {p, r, g * (t.shape[2] * (t.dtype == DType::i32 ? 8 : 1) / kv_heads) + d});
    if (t.rank == 4) return number(t, {p, g, r, d});
    const std::int64_t c = t.shape[4];
    return number(t, {p, g, d / c, r, d % c});
  }

  /// Scale or offset of element (b, k, g, d) of keys or values.
  float parameter(const Tensor& t, std::int64_t mode, std::int64_t columns, std::int64_t b, std::int64_t k,
                  std::int64_t g, std::int64_t d) const {
    switch (mode) {
      case 0:
        return float_at(t, t.elements() == 1 ? 0 : offset_of(t, g * columns + d));  // all shapes: one vector
      case 1:
        return t.rank == 3 ? number(t, {0, b, k}) : number(t, {b, k});
      case 2:
        return number(t, {g});
      case 3:
        return number(t, {b, g, k});
      case 4:
        return number(t, {page(b, k), k % a.block_size});
      default:
        return number(t, {page(b, k), g, k % a.block_size});
    }
  }
  /// Two fp32 operations.
  float dequantised(float code, const Tensor& scale, const Tensor& shift, std::int64_t mode, std::int64_t columns,
                    std::int64_t b, std::int64_t k, std::int64_t g, std::int64_t d) const {
    const float moved = shift ? code + parameter(shift, mode, columns, b, k, g, d) : code;
    return moved * parameter(scale, mode, columns, b, k, g, d);
  }

  Sequence sequence(std::int64_t b) const {
    Sequence s{0, rows, 0, 0};
    const Tensor &q = a.actual_seq_qlen, &k = a.actual_seq_kvlen;
    if (folded) {
      s.first_query = b > 0 ? list_at(q, b - 1) : 0;
      s.queries = list_at(q, b) - s.first_query;
      if (!paged) s.first_key = b > 0 ? list_at(k, b - 1) : 0;
      s.keys = list_at(k, b) - s.first_key;
      return s;
    }
    if (q && !decode) s.queries = list_at(q, q.shape[0] == 1 ? 0 : b);
    if (k) s.keys = list_at(k, k.shape[0] == 1 ? 0 : b);
    else s.keys = a.key.shape[in == "BNSD" ? 2 : 1];
    return s;
  }

  bool stencil() const {
    const Tensor& m = a.atten_mask;
    return a.sparse_mode >= 2 && m.elements() == 2048 * 2048 && m.shape[m.rank - 1] == 2048 &&
           m.shape[m.rank - 2] == 2048;
  }
  bool visible(const Sequence& s, std::int64_t b, std::int64_t q, std::int64_t k) const {
    const std::int64_t end = 2147483647, pre = std::clamp(a.pre_tokens, -end, end),
                       next = std::clamp(a.next_tokens, -end, end), delta = s.keys - s.queries;
    const Tensor& m = a.atten_mask;
    if (!decode) {
      if (a.sparse_mode == 0 && m && (k < q - pre || k > q + next)) return false;
      if (a.sparse_mode == 2 && k > q) return false;
      if (a.sparse_mode == 3 && k > q + delta) return false;
      if (a.sparse_mode == 4 && (k - delta < q - pre || k - delta > q + next)) return false;
    }
    if (!m || stencil()) return true;
    const std::int64_t mb = m.shape[0] == 1 ? 0 : b;
    std::int64_t at = 0;
    if (m.rank == 2) at = rows == 1 ? offset(m, {mb, k}) : offset(m, {q, k});
    if (m.rank == 3) at = offset(m, {mb, q, k});
    if (m.rank == 4) at = offset(m, {mb, 0, q, k});
    return static_cast<const std::uint8_t*>(m.data)[at] == 0;
  }

  // ---- results
  std::int64_t out_offset(const Sequence& s, std::int64_t b, std::int64_t q, std::int64_t h) const {
    const Tensor& t = o.attention_out;
    if (out == "BSH") return offset(t, {b, q, h * value_width});
    if (out == "BSND") return offset(t, {b, q, h, 0});
    if (out == "BNSD") return offset(t, {b, h, q, 0});
    if (out == "NBSD") return offset(t, {h, b, q, 0});
    if (out == "TND") return offset(t, {s.first_query + q, h, 0});
    return offset(t, {h, s.first_query + q, 0});
  }
  void store_lse(const Sequence& s, std::int64_t b, std::int64_t q, std::int64_t h, double value) const {
    if (!a.return_softmax_lse) return;
    const Tensor& t = o.softmax_lse;
    float* lse = static_cast<float*>(t.data);
    lse[folded ? offset(t, {s.first_query + q, h, 0}) : offset(t, {b, h, q, 0})] = float(value);
  }
  float out_parameter(const Tensor& t, std::int64_t h, std::int64_t d) const {
    return float_at(t, t.elements() == 1 ? 0 : offset_of(t, h * value_width + d));
  }
  void store(std::int64_t at, std::int64_t h, std::int64_t d, double x) const {
    const Tensor& t = o.attention_out;
    switch (t.dtype) {
      case DType::f16:
        static_cast<f16*>(t.data)[at + d] = to_f16_once(x);
        return;
      case DType::bf16:
        static_cast<bf16*>(t.data)[at + d] = to_bf16_once(x);
        return;
      case DType::f32:
        static_cast<float*>(t.data)[at + d] = float(x);
        return;
      default:
        break;
    }
    float y = float(x) * out_parameter(a.quant_scale_out, h, d);
    if (a.quant_offset_out) y = y + out_parameter(a.quant_offset_out, h, d);
    static_cast<std::int8_t*>(t.data)[at + d] = std::int8_t(std::fmin(std::fmax(std::nearbyintf(y), -128), 127));
  }
  void pad(const Sequence& s, std::int64_t b, std::int64_t q) const {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::byte* bytes = static_cast<std::byte*>(o.attention_out.data);
      const std::int64_t size = size_of(o.attention_out.dtype), at = out_offset(s, b, q, h) * size;
      for (std::int64_t i = 0; i < value_width * size; ++i) bytes[at + i] = std::byte{0};
      store_lse(s, b, q, h, INFINITY);
    }
  }

  /// Keys and values of one head of one sequence, dequantised, in double.
  struct Rows {
    std::vector<double> key, rope, value;
  };
  Rows rows_of(const Sequence& s, std::int64_t b, std::int64_t g) const {
    Rows r;
    for (std::int64_t k = 0; k < s.keys; ++k) {
      for (std::int64_t d = 0; d < width; ++d) {
        const float x = key(a.key, s, b, k, g, d);
        r.key.push_back(
            quantised ? dequantised(x, a.dequant_scale_key, a.dequant_offset_key, a.key_quant_mode, width, b, k, g, d)
                      : x);
      }
      for (std::int64_t d = 0; d < rope_width; ++d) r.rope.push_back(key(a.key_rope, s, b, k, g, d));
      for (std::int64_t d = 0; d < value_width; ++d) {
        const float x = key(a.value, s, b, k, g, d);
        r.value.push_back(quantised ? dequantised(x, a.dequant_scale_value, a.dequant_offset_value, a.value_quant_mode,
                                                  value_width, b, k, g, d)
                                    : x);
      }
    }
    return r;
  }

  /// Rows of all sequences one after the other.
  std::int64_t tap_row(std::int64_t b, std::int64_t q, std::int64_t h) const {
    for (std::int64_t i = 0; taps && i < b; ++i) q += sequence(i).queries;
    return q * heads + h;
  }

  void row(const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t q, const Rows& keys) const {
    double factor = double(float(a.softmax_scale)), value_factor = 1;
    if (full) {
      const Tensor& t = a.dequant_scale_query;
      // rows first: any shape with a row of heads for each row of the query
      const std::int64_t at = folded ? s.first_query + q : b * rows + q;
      factor *= in == "BNSD"                 ? number(t, {b, h, q})
                : in == "NTD" || in == "NSD" ? number(t, {h, at})
                                             : float_at(t, offset_of(t, at * heads + h));
      factor *= number(a.dequant_scale_key, {0}), value_factor = number(a.dequant_scale_value, {0});
    }
    std::vector<double> query_row, rope_row, score;
    std::vector<std::int64_t> seen;
    for (std::int64_t d = 0; d < width; ++d) query_row.push_back(query(a.query, s, b, q, h, d));
    for (std::int64_t d = 0; d < rope_width; ++d) rope_row.push_back(query(a.query_rope, s, b, q, h, d));
    double most = -INFINITY;
    for (std::int64_t k = 0; k < s.keys; ++k) {
      if (!visible(s, b, q, k)) continue;
      double dot = 0;
      for (std::int64_t d = 0; d < width; ++d) dot += query_row[d] * keys.key[k * width + d];
      for (std::int64_t d = 0; d < rope_width; ++d) dot += rope_row[d] * keys.rope[k * rope_width + d];
      dot *= factor;
      if (a.pse_shift) dot += number(a.pse_shift, {a.pse_shift.shape[0] == 1 ? 0 : b, h, q, k});
      show("1.scores", tap_row(b, q, h), dot, k);
      score.push_back(dot), seen.push_back(k);
      most = std::fmax(most, dot);
    }
    std::vector<double> sum(std::size_t(value_width), 0.0);
    double total = 0;
    if (a.learnable_sink && !seen.empty()) {
      const double sink = number(a.learnable_sink, {h});
      most = std::fmax(most, sink);
      if (sink > -INFINITY) total = sink == most ? 1 : std::exp(sink - most);
    }
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const double e = std::exp(score[i] - most);
      total += e;
      for (std::int64_t d = 0; d < value_width; ++d) sum[d] += e * keys.value[seen[i] * value_width + d];
    }
    if (float max = float(most), all = float(total); !seen.empty())
      show("2.max", tap_row(b, q, h), max), show("3.sum", tap_row(b, q, h), all);
    const std::int64_t at = out_offset(s, b, q, h);
    for (std::int64_t d = 0; d < value_width; ++d) store(at, h, d, seen.empty() ? 0 : value_factor * sum[d] / total);
    const double none = s.keys == 0 && decode ? double(fused_infer_attention_score_v2_op::kNoKeysInDecode) : INFINITY;
    store_lse(s, b, q, h, seen.empty() ? none : most + std::log(total));
  }

  void operator()() const {
    if (o.attention_out.elements() == 0 && !(a.return_softmax_lse && o.softmax_lse.elements() > 0)) return;
    std::int64_t end = 0;  // of the rows that belong to a sequence, when folded
    for (std::int64_t b = 0; b < batch; ++b) {
      Sequence s = sequence(b);
      if (width == 0) s.queries = 0;  // a query without elements: nothing but padding
      for (std::int64_t g = 0; g < kv_heads; ++g) {
        const Rows keys = s.queries > 0 ? rows_of(s, b, g) : Rows{};
        for (std::int64_t h = g * heads / kv_heads; h < (g + 1) * heads / kv_heads; ++h)
          for (std::int64_t q = 0; q < s.queries; ++q) row(s, b, h, q, keys);
      }
      for (std::int64_t q = s.queries; !folded && q < rows; ++q) pad(s, b, q);
      end = s.first_query + s.queries;
    }
    for (std::int64_t q = end; folded && q < rows; ++q) pad({0, 0, 0, 0}, 0, q);
  }
};

}  // namespace

void fused_infer_attention_score_v2(const Args& args, const Outs& outs) {
  fused_infer_attention_score_v2_op::check(args, outs);
  Reference(args, outs)();
}

}  // namespace dsakit::reference
