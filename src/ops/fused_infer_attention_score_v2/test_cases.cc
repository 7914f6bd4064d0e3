// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "ops/fused_infer_attention_score_v2/cases.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

/// The generator of one row of one tensor.
Random numbers_of(std::uint64_t seed, std::uint64_t which, std::int64_t b, std::int64_t row) {
  return Random(seed * 1000003 + which * 7919 + std::uint64_t(b * 1000033 + row) * 101);
}

Shape all(std::int64_t rows, const Shape& given) { return given.empty() ? Shape{rows} : given; }

}  // namespace

Case::Case(const Spec& spec) : s(spec) {
  const auto cut = s.layout.find('_');
  in = s.layout.substr(0, cut), out = cut == std::string::npos ? in : s.layout.substr(cut + 1);
  folded = in == "TND" || in == "NTD", rope = s.dr >= 0;
  if (s.nk == 0) s.nk = s.nq;
  if (s.dv < 0) s.dv = s.d;
  if (s.kv == DType::other) s.kv = s.type;
  if (s.value_scale_type == DType::other) s.value_scale_type = s.scale_type;
  full = s.type == DType::i8, quantised = !full && s.kv != s.type;
  lay_out_lists();
  decode = (in == "BSH" || in == "BSND" || in == "BNSD") && s.s1 == 1 && !rope && s.d == s.dv;
  if (s.rank) lay_out_pages();
  queries(query, s.type, s.d, 1);
  keys(key, s.kv, s.d, 2);
  keys(value, s.kv, s.dv, 3);
  const DType rope_type = full ? DType::bf16 : s.type;
  if (rope) queries(query_rope, rope_type, s.dr, 4), keys(key_rope, rope_type, s.dr, 5);
  if (quantised) {
    parameters(ks, ko, s.ks, s.scale_type, s.km, s.d, 6);
    parameters(vs, vo, s.vs.empty() ? s.ks : s.vs, s.value_scale_type, s.vm, s.dv, 8);
  }
  if (full) query_scales();
  masks();
  results();
}

void Case::lay_out_lists() {
  if (folded) s.b = std::int64_t(s.ql.size()), s.s1 = std::accumulate(s.ql.begin(), s.ql.end(), s.pad);
  if (folded && s.rank == 0) s.s2 = std::accumulate(s.kl.begin(), s.kl.end(), s.pad);
  const auto fill = [&](Buffer& to, const Shape& list, bool totals) {
    to.make(s.narrow ? DType::i32 : DType::i64, {std::int64_t(list.size())});
    for (std::int64_t i = 0, sum = 0; i < std::int64_t(list.size()); ++i) {
      sum = totals ? sum + list[i] : list[i];
      if (s.narrow) static_cast<std::int32_t*>(to.t.data)[i] = std::int32_t(sum);
      else static_cast<std::int64_t*>(to.t.data)[i] = sum;
    }
  };
  if (!s.ql.empty()) fill(qlen, s.ql, folded);
  if (!s.kl.empty()) fill(kvlen, s.kl, folded && s.rank == 0);
  const bool single = s.s1 == 1 && !folded && in != "NSD" && !rope && s.d == s.dv;  // lengths of queries are not read
  const Shape q = all(s.s1, single ? Shape{} : s.ql), k = all(s.s2, s.kl);
  for (std::int64_t b = 0; b < s.b; ++b) {
    base1.push_back(folded && b > 0 ? base1.back() + l1.back() : 0);
    base2.push_back(folded && s.rank == 0 && b > 0 ? base2.back() + l2.back() : 0);
    l1.push_back(q.size() == 1 ? q[0] : q[b]);
    l2.push_back(k.size() == 1 ? k[0] : k[b]);
  }
}

void Case::lay_out_pages() {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < s.b; ++b) {
    longest = std::max(longest, l2[b]);
    pages += (l2[b] + s.bs - 1) / s.bs - (s.shared_page && b > 0);
  }
  pages += !s.shared_page;  // one that nobody owns
  columns = (longest + s.bs - 1) / s.bs + s.more_columns;
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  Random shuffle(s.page_seed + 1000);
  for (std::int64_t i = pages - 1; i > 0; --i) std::swap(order[i], order[shuffle.below(i + 1)]);
  table.make(DType::i32, {s.b, columns}, 0xff);
  std::int64_t next = 0;
  for (std::int64_t b = 0; b < s.b; ++b)
    for (std::int64_t i = 0; i * s.bs < l2[b]; ++i)
      static_cast<std::int32_t*>(table.t.data)[b * columns + i] =
          s.shared_page && b > 0 && i == 0 ? static_cast<std::int32_t*>(table.t.data)[0] : order[next++];
}

Shape Case::shape_of(const std::string& axes, std::int64_t n, std::int64_t rows, std::int64_t x) const {
  if (axes == "BSH") return {s.b, rows, n * x};
  if (axes == "BSND") return {s.b, rows, n, x};
  if (axes == "BNSD") return {s.b, n, rows, x};
  if (axes == "NBSD") return {n, s.b, rows, x};
  if (axes == "TND") return {rows, n, x};
  return {n, rows, x};  // NTD, NSD
}

void Case::queries(Buffer& to, DType type, std::int64_t x, std::uint64_t which) {
  to.make(type, shape_of(in, s.nq, s.s1, x));
  to.poison();
  for (std::int64_t b = 0; b < s.b; ++b)
    for (std::int64_t q = 0; q < l1[b]; ++q) {
      Random r = numbers_of(s.seed, which, b + s.first_b, q);
      for (std::int64_t h = 0; h < s.nq; ++h)
        for (std::int64_t d = 0; d < x; ++d)
          to.put(query_at(x, b, h, q, d), type == DType::i8 ? float(r.below(255) - 127) : r.normal() * s.spread);
    }
}

void Case::keys(Buffer& to, DType type, std::int64_t x, std::uint64_t which) {
  const std::int64_t words = type == DType::i32 ? 8 : 1, c = 32 / size_of(type);
  Shape shape;
  if (s.rank == 3) shape = {pages, s.bs, s.nk * x / words};
  if (s.rank == 4) shape = {pages, s.nk, s.bs, x / words};
  if (s.rank == 5) shape = {pages, s.nk, x / c, s.bs, c};
  if (s.rank == 0) {
    shape = shape_of(in, s.nk, s.s2, x);
    shape.back() /= words;
  }
  to.make(type, shape);
  to.poison();
  for (std::int64_t b = 0; b < s.b; ++b)
    for (std::int64_t k = 0; k < l2[b]; ++k) {
      // A shared page holds what its positions are called in sequence 0.
      const std::int64_t name = s.shared_page && k < s.bs ? 0 : b + s.first_b;
      if (s.poison && !s.shared_page && !seen(b, k)) continue;
      Random r = numbers_of(s.seed, which, name, k + s.first_k);
      for (std::int64_t g = 0; g < s.nk; ++g)
        for (std::int64_t d = 0; d < x; ++d) {
          const float v = type == DType::i8    ? float(r.below(255) - 127)
                          : type == DType::i32 ? float(r.below(16) - 8)
                                               : r.normal();
          to.put(key_at(to, x, b, g, k, d), v);
        }
    }
}

void Case::parameters(Buffer& scale, Buffer& shift, const Shape& shape, DType type, std::int64_t mode, std::int64_t x,
                      std::uint64_t which) {
  const bool by_token = mode == 1 || mode >= 3;
  const float step = s.kv == DType::i32 ? 0.25f : 0.02f;  // codes times it are of order 1
  const auto fill = [&](Buffer& to, std::uint64_t of, float low, float high) {
    const auto next = [=](Random& r) {  // now and then negative, now and then 0
      const float x = r.uniform(low, high);
      const std::int64_t kind = r.below(16);
      return kind < 3 ? -x : kind == 3 ? 0 : x;
    };
    to.make(type, shape);
    if (!by_token) {
      Random r = numbers_of(s.seed, of, 0, 0);
      for (std::int64_t i = 0; i < to.t.elements(); ++i) to.put(i, next(r));
      return;
    }
    to.poison();
    for (std::int64_t b = 0; b < s.b; ++b)
      for (std::int64_t k = 0; k < l2[b]; ++k) {
        if (s.poison && !seen(b, k)) continue;
        Random r = numbers_of(s.seed, of, b + s.first_b, k + s.first_k);
        for (std::int64_t g = 0; g < s.nk; ++g) {
          const float v = next(r);
          if (g == 0 || mode == 3 || mode == 5) to.put(scale_at(mode, to, x, b, g, k, 0), v);
        }
      }
  };
  fill(scale, which, step / 2, step);
  if (s.offsets) fill(shift, which + 1, -3, 3);
}

void Case::query_scales() {
  Shape shape = shape_of(in, s.nq, s.s1, 1);
  if (in == "BSH") shape = {s.b, s.s1, s.nq};
  else shape.pop_back();
  sq.make(DType::f32, shape);
  sq.poison();
  for (std::int64_t b = 0; b < s.b; ++b)
    for (std::int64_t q = 0; q < l1[b]; ++q) {
      Random r = numbers_of(s.seed, 10, b + s.first_b, q);
      for (std::int64_t h = 0; h < s.nq; ++h) sq.put(query_at(1, b, h, q, 0), r.uniform(0.005f, 0.02f));
    }
  ks.make(DType::f32, {1}), vs.make(DType::f32, {1});
  ks.put(0, 0.013f), vs.put(0, 0.017f);
}

void Case::masks() {
  if (s.stencil) {
    Shape shape(std::size_t(s.stencil_rank - 2), 1);
    shape.insert(shape.end(), {2048, 2048});
    mask.make(s.mask_type, shape);
    for (std::int64_t q = 0; q < 2048; ++q)
      for (std::int64_t k = q + 1; k < 2048; ++k) mask.bytes[q * 2048 + k] = std::byte{1};
  } else if (!s.mask.empty()) {
    // Outside of rows and keys the mask holds anything.
    mask.make(s.mask_type, s.mask, 1);
    const std::int64_t rank = mask.t.rank, width = s.mask.back(), rows = rank == 2 && s.s1 == 1 ? 1 : s.mask[rank - 2];
    const std::int64_t sequences = rank == 2 && s.s1 > 1 ? 1 : s.mask[0];
    for (std::int64_t i = 0; i < sequences; ++i)
      for (std::int64_t q = 0; q < std::min(rows, s.s1); ++q)
        for (std::int64_t k = 0; k < std::min(width, *std::max_element(l2.begin(), l2.end())); ++k)
          mask.bytes[(i * rows + q) * width + k] = std::byte(hidden_by_mask(i, q, k) ? 1 + (q + k) % 2 : 0);
    if (s.mask_type == DType::boolean)
      for (std::byte& x : mask.bytes) x = x == std::byte{0} ? x : std::byte{1};
  }
  if (!s.pse.empty()) {
    pse.make(s.type, s.pse);
    pse.poison();
    for (std::int64_t b = 0; b < s.pse[0]; ++b)
      for (std::int64_t h = 0; h < s.nq; ++h)
        for (std::int64_t q = 0; q < s.s1; ++q) {
          Random r = numbers_of(s.seed, 11, (s.pse[0] == 1 ? 0 : b + s.first_b) * 64 + h, q);
          for (std::int64_t k = 0; k < *std::max_element(l2.begin(), l2.end()); ++k)
            pse.put(((b * s.nq + h) * s.pse[2] + q) * s.pse[3] + k, r.uniform(s.pse_low, s.pse_high));
        }
  }
}

void Case::results() {
  DType type = full ? DType::bf16 : s.type;
  if (!s.os.empty()) {
    type = DType::i8;
    os.make(s.os_type, s.os);
    if (s.out_offset) oo.make(s.os_type, s.os);
    Random r(s.seed + 77);
    for (std::int64_t i = 0; i < os.t.elements(); ++i) {
      os.put(i, s.os_scale * r.uniform(0.5f, 1));
      if (s.out_offset) oo.put(i, s.os_offset * (i % 2 ? 1.0f : -1.0f));
    }
    if (s.out_offset && oo.t.elements() == 1) oo.put(0, s.os_offset);
  }
  if (s.sinks != DType::other) {
    sink.make(s.sinks, {s.nq});
    Random r(s.seed + 78);
    for (std::int64_t h = 0; h < s.nq; ++h) sink.put(h, h % 3 == 1 ? -INFINITY : r.uniform(s.sink_low, s.sink_high));
  }
  attention.make(type, shape_of(out, s.nq, s.s1, s.dv), 0x5a);
  if (s.lse) lse.make(DType::f32, folded ? Shape{s.s1, s.nq, 1} : Shape{s.b, s.nq, s.s1, 1}, 0x5a);
}

FusedInferAttentionScoreV2Args Case::args() const {
  return {.query = query.t,
          .key = key.t,
          .value = value.t,
          .query_rope = query_rope.t,
          .key_rope = key_rope.t,
          .pse_shift = pse.t,
          .atten_mask = mask.t,
          .actual_seq_qlen = qlen.t,
          .actual_seq_kvlen = kvlen.t,
          .block_table = table.t,
          .dequant_scale_query = sq.t,
          .dequant_scale_key = ks.t,
          .dequant_offset_key = ko.t,
          .dequant_scale_value = vs.t,
          .dequant_offset_value = vo.t,
          .quant_scale_out = os.t,
          .quant_offset_out = oo.t,
          .num_query_heads = s.nq,
          .num_key_value_heads = s.nk == s.nq ? 0 : s.nk,
          .softmax_scale = double(scale()),
          .pre_tokens = s.pre,
          .next_tokens = s.next,
          .input_layout = s.layout,
          .sparse_mode = s.mode,
          .block_size = s.rank ? s.bs : 0,
          .query_quant_mode = full ? 3 : 0,
          .key_quant_mode = s.km,
          .value_quant_mode = s.vm,
          .inner_precise = s.inner_precise,
          .return_softmax_lse = s.lse,
          .learnable_sink = sink.t,
          .level = s.level};
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
