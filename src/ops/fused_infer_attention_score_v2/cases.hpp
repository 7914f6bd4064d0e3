// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "dsakit/fused_infer_attention_score_v2.hpp"

// Calls made from numbers per logical position: the same seed gives the same numbers whatever the layout, the pages and
// the storage, and what no query sees is NaN, Inf or a wild code.
namespace dsakit::fused_infer_attention_score_v2_op {

using Shape = std::vector<std::int64_t>;

enum class MaskFill { random, zero, row_two, columns };  // all of row 2; positions 2, 7, 12, .. of all rows

struct Spec {
  std::string layout = "BSH";
  std::int64_t b = 1, nq = 4, nk = 0, s1 = 1, s2 = 1;  // folded: sums of the lists plus pad, set by the case
  std::int64_t d = 128, dv = -1, dr = -1;              // -1: as d; no rope
  DType type = DType::f16, kv = DType::other;          // other: as type
  Shape ql{}, kl{};                                    // lists as passed; folded: rows of each sequence
  bool narrow = false;                                 // i32 lists
  std::int64_t pad = 0;                                // folded: rows past the last total, on both sides
  int rank = 0;                                        // of the pages; 0: contiguous
  std::int64_t bs = 128, more_columns = 1;
  std::uint64_t page_seed = 1;
  bool shared_page = false;  // all sequences begin with the same page
  std::int64_t mode = 0, pre = 2147483647, next = 2147483647;
  bool stencil = false;
  int stencil_rank = 2;
  Shape mask{};
  MaskFill fill = MaskFill::random;
  DType mask_type = DType::boolean;
  Shape pse{};
  float pse_low = -1, pse_high = 1;
  double scale = NAN;  // NAN: d^-0.5
  std::int64_t km = 0, vm = 0;
  Shape ks{}, vs{};  // shapes of the scales
  DType scale_type = DType::f32, value_scale_type = DType::other;
  bool offsets = false;
  std::int64_t inner_precise = 0;
  Shape os{};  // of quant_scale_out
  DType os_type = DType::f32;
  bool out_offset = false;
  float os_scale = 40, os_offset = 5;
  bool lse = true;
  DType sinks = DType::other;  // of learnable_sink; other: none
  float sink_low = -2, sink_high = 2;
  bool poison = true;
  float spread = 1;                       // of the queries
  std::int64_t first_b = 0, first_k = 0;  // logical names of sequence 0 and position 0
  std::uint64_t seed = 1;
  Level level = Level::portable;
};

/// A tensor and its memory.
struct Buffer {
  std::vector<std::byte> bytes;
  Tensor t;

  void make(DType type, const Shape& shape, int fill = 0) {
    t = Tensor{.dtype = type, .rank = int(shape.size())};
    for (std::size_t i = 0; i < shape.size(); ++i) t.shape[i] = shape[i];
    make_contiguous(t);
    bytes.assign(std::size_t(t.elements()) * std::size_t(size_of(type)) + 64, std::byte(fill));
    t.data = bytes.data();
  }
  /// NaN and Inf in turns; codes: 127 or 7.
  void poison() {
    for (std::int64_t i = 0; i < t.elements(); ++i) {
      if (t.dtype == DType::i32) static_cast<std::uint32_t*>(t.data)[i] = 0x77777777u;
      else if (t.dtype == DType::i8) static_cast<std::int8_t*>(t.data)[i] = 127;
      else put(i, i % 3 ? NAN : INFINITY);
    }
  }
  void put(std::int64_t i, float x) {
    switch (t.dtype) {
      case DType::f16:
        static_cast<f16*>(t.data)[i] = to_f16(x);
        break;
      case DType::bf16:
        static_cast<bf16*>(t.data)[i] = to_bf16(x);
        break;
      case DType::f32:
        static_cast<float*>(t.data)[i] = x;
        break;
      case DType::i32: {  // int4
        auto& word = static_cast<std::uint32_t*>(t.data)[i / 8];
        word = (word & ~(15u << i % 8 * 4)) | (unsigned(int(x)) & 15u) << i % 8 * 4;
        break;
      }
      default:
        static_cast<std::int8_t*>(t.data)[i] = std::int8_t(x);
    }
  }
  float get(std::int64_t i) const {
    switch (t.dtype) {
      case DType::f16:
        return to_float(static_cast<const f16*>(t.data)[i]);
      case DType::bf16:
        return to_float(static_cast<const bf16*>(t.data)[i]);
      case DType::f32:
        return static_cast<const float*>(t.data)[i];
      default:
        return float(static_cast<const std::int8_t*>(t.data)[i]);
    }
  }
};

inline float rounded(DType type, float x) {
  if (type == DType::f16) return to_float(to_f16(x));
  if (type == DType::bf16) return to_float(to_bf16(x));
  return x;
}

struct Case {
  Spec s;
  std::string in, out;
  bool folded, rope, full, quantised, decode;
  std::vector<std::int64_t> l1, l2, base1, base2;  // rows of each sequence, and those before it
  std::int64_t columns = 0, pages = 0;
  Buffer query, key, value, query_rope, key_rope, pse, mask, qlen, kvlen, table, sq, ks, ko, vs, vo, os, oo, sink, attention,
      lse;

  explicit Case(const Spec& spec);

  float scale() const { return std::isnan(s.scale) ? float(std::pow(double(s.d), -0.5)) : float(s.scale); }

  // ---- where element (b, head, row, d) is: the formulas of the page, section 2
  std::int64_t at(const std::string& axes, std::int64_t n, std::int64_t rows, std::int64_t x, std::int64_t base,
                  std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t d) const {
    if (axes == "BSH" || axes == "BSND") return ((b * rows + row) * n + h) * x + d;
    if (axes == "BNSD") return ((b * n + h) * rows + row) * x + d;
    if (axes == "NBSD") return ((h * s.b + b) * rows + row) * x + d;
    if (axes == "NSD") return (h * rows + row) * x + d;
    if (axes == "TND") return ((base + row) * n + h) * x + d;
    return (h * rows + base + row) * x + d;  // NTD
  }
  std::int64_t query_at(std::int64_t x, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t d) const {
    return at(in, s.nq, s.s1, x, base1[b], b, h, row, d);
  }
  std::int64_t out_at(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t d) const {
    return at(out, s.nq, s.s1, s.dv, base1[b], b, h, row, d);
  }
  std::int64_t lse_at(std::int64_t b, std::int64_t h, std::int64_t row) const {
    return folded ? (base1[b] + row) * s.nq + h : (b * s.nq + h) * s.s1 + row;
  }
  std::int64_t page(std::int64_t b, std::int64_t k) const {
    return reinterpret_cast<const std::int32_t*>(table.bytes.data())[b * columns + k / s.bs];
  }
  std::int64_t key_at(const Buffer& to, std::int64_t x, std::int64_t b, std::int64_t g, std::int64_t k,
                      std::int64_t d) const {
    if (s.rank == 0) return at(in, s.nk, s.s2, x, base2[b], b, g, k, d);
    const std::int64_t p = page(b, k), r = k % s.bs;
    if (s.rank == 3) return (p * s.bs + r) * s.nk * x + g * x + d;
    if (s.rank == 4) return ((p * s.nk + g) * s.bs + r) * x + d;
    const std::int64_t c = to.t.shape[4];
    return (((p * s.nk + g) * (x / c) + d / c) * s.bs + r) * c + d % c;
  }
  std::int64_t scale_at(std::int64_t mode, const Buffer& from, std::int64_t x, std::int64_t b, std::int64_t g,
                        std::int64_t k, std::int64_t d) const {
    const std::int64_t w = from.t.shape[from.t.rank - 1];
    switch (mode) {
      case 0:
        return from.t.elements() == 1 ? 0 : g * x + d;
      case 1:
        return b * w + k;
      case 2:
        return g;
      case 3:
        return (b * s.nk + g) * w + k;
      case 4:
        return page(b, k) * s.bs + k % s.bs;
      default:
        return (page(b, k) * s.nk + g) * s.bs + k % s.bs;
    }
  }

  // ---- what is seen
  bool hidden_by_mask(std::int64_t b, std::int64_t q, std::int64_t k) const {
    if (s.fill == MaskFill::zero) return false;
    if (s.fill == MaskFill::row_two) return q == 2;
    if (s.fill == MaskFill::columns) return k % 5 == 2;
    const std::int64_t of = s.mask[0] == 1 || (s.mask.size() == 2 && s.s1 > 1) ? 0 : b + s.first_b;
    Random r(s.seed * 31 + std::uint64_t((of * 5003 + q) * 100003 + k + s.first_k));
    return r.below(10) < 4;
  }
  bool visible(std::int64_t b, std::int64_t q, std::int64_t k) const {
    const std::int64_t delta = l2[b] - l1[b];
    if (!s.mask.empty() && hidden_by_mask(b, q, k)) return false;
    if (decode) return true;
    switch (s.mode) {
      case 0:
        return s.mask.empty() || (q - s.pre <= k && k <= q + s.next);
      case 2:
        return k <= q;
      case 3:
        return k <= q + delta;
      case 4:
        return q - s.pre <= k - delta && k - delta <= q + s.next;
      default:
        return true;
    }
  }
  bool seen(std::int64_t b, std::int64_t k) const {
    for (std::int64_t q = 0; q < l1[b]; ++q)
      if (visible(b, q, k)) return true;
    return false;
  }

  FusedInferAttentionScoreV2Args args() const;
  FusedInferAttentionScoreV2Outs outs() const { return {attention.t, lse.t}; }

 private:
  void lay_out_lists();
  void lay_out_pages();
  void queries(Buffer& to, DType type, std::int64_t x, std::uint64_t which);
  void keys(Buffer& to, DType type, std::int64_t x, std::uint64_t which);
  void parameters(Buffer& scale, Buffer& shift, const Shape& shape, DType type, std::int64_t mode, std::int64_t x,
                  std::uint64_t which);
  void query_scales();
  void masks();
  void results();
  Shape shape_of(const std::string& axes, std::int64_t n, std::int64_t rows, std::int64_t x) const;
};

}  // namespace dsakit::fused_infer_attention_score_v2_op
