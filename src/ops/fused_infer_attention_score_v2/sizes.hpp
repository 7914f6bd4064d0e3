// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "dsakit/tensor.hpp"

// What a call is about, in numbers: layouts and lengths behind their names.
namespace dsakit::fused_infer_attention_score_v2_op {

enum class Axes { BSH, BSND, BNSD, NBSD, TND, NTD, NSD };

struct Layout {
  std::string_view name;
  Axes in, out;
  bool portable_only = false;
};

inline constexpr Layout kLayouts[] = {
    {"BSH", Axes::BSH, Axes::BSH},
    {"BSND", Axes::BSND, Axes::BSND},
    {"BNSD", Axes::BNSD, Axes::BNSD},
    {"BNSD_BSND", Axes::BNSD, Axes::BSND},
    {"BSH_NBSD", Axes::BSH, Axes::NBSD},
    {"BSND_NBSD", Axes::BSND, Axes::NBSD},
    {"BNSD_NBSD", Axes::BNSD, Axes::NBSD},
    {"TND", Axes::TND, Axes::TND},
    {"TND_NTD", Axes::TND, Axes::NTD},
    {"NTD_TND", Axes::NTD, Axes::TND},
    {"NTD", Axes::NTD, Axes::NTD, true},
    {"BSH_BNSD", Axes::BSH, Axes::BNSD, true},
    {"BSND_BNSD", Axes::BSND, Axes::BNSD, true},
    {"NSD", Axes::NSD, Axes::NSD, true},
};

constexpr int rank_of(Axes axes) {
  return axes == Axes::BSH || axes == Axes::TND || axes == Axes::NTD || axes == Axes::NSD ? 3 : 4;
}

/// A tensor of heads, whatever the order of its axes: sizes and strides, in elements. A folded tensor is one sequence
/// of all rows. The elements of a head are neighbours.
struct Heads {
  std::int64_t batch = 0, rows = 0, heads = 0, width = 0;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;

  Heads() = default;
  /// `n` heads: BSH keeps them in one axis with the width. Shapes may be anything of the rank of `axes`.
  Heads(const Tensor& t, Axes axes, std::int64_t n) {
    const auto &d = t.shape, &s = t.stride;
    switch (axes) {
      case Axes::BSH:
        *this = {d[0], d[1], n, n > 0 ? d[2] / n : 0, s[0], s[1], 0};
        head_stride = width;
        break;
      case Axes::BSND:
        *this = {d[0], d[1], d[2], d[3], s[0], s[1], s[2]};
        break;
      case Axes::BNSD:
        *this = {d[0], d[2], d[1], d[3], s[0], s[2], s[1]};
        break;
      case Axes::NBSD:
        *this = {d[1], d[2], d[0], d[3], s[1], s[2], s[0]};
        break;
      case Axes::TND:
        *this = {1, d[0], d[1], d[2], 0, s[0], s[1]};
        break;
      case Axes::NTD:
      case Axes::NSD:
        *this = {1, d[1], d[0], d[2], 0, s[1], s[0]};
        break;
    }
  }
  std::int64_t offset(std::int64_t b, std::int64_t row, std::int64_t head) const {
    return b * batch_stride + row * row_stride + head * head_stride;
  }

 private:
  Heads(std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t width, std::int64_t batch_stride,
        std::int64_t row_stride, std::int64_t head_stride)
      : batch(batch),
        rows(rows),
        heads(heads),
        width(width),
        batch_stride(batch_stride),
        row_stride(row_stride),
        head_stride(head_stride) {}
};

/// Rows per sequence as the caller gave them.
struct Lengths {
  enum class Kind { whole, one, counts, totals } kind = Kind::whole;
  const void* data = nullptr;
  bool wide = true;       // i64, else i32
  std::int64_t rows = 0;  // of a sequence when nothing is given

  Lengths() = default;
  Lengths(const Tensor& t, Kind kind, std::int64_t rows)
      : kind(t ? kind : Kind::whole), data(t.data), wide(t.dtype == DType::i64), rows(rows) {}

  std::int64_t at(std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
  /// Rows before those of sequence b in a folded tensor.
  std::int64_t first(std::int64_t b) const { return kind == Kind::totals && b > 0 ? at(b - 1) : 0; }
  std::int64_t count(std::int64_t b) const {
    switch (kind) {
      case Kind::whole:
        return rows;
      case Kind::one:
        return at(0);
      case Kind::counts:
        return at(b);
      case Kind::totals:
        return at(b) - first(b);
    }
    return 0;
  }
};

struct Sizes {
  const Layout* layout = nullptr;
  bool folded = false, paged = false, rope = false;
  bool int4 = false;       // keys and values are eight to an int32
  bool quantised = false;  // they are int8 or int4 beside a float query
  bool full = false;       // int8 query: fully quantised MLA
  bool decode = false;     // single-token decode
  bool band = false;       // pre and next count
  bool full_mask = false;  // atten_mask is read
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t sequences = 0;   // that are looked at: none where no result has elements, however large B is
  std::int64_t s1 = 0, s2 = 0;  // rows of a sequence, of all of them when folded; s2: contiguous keys
  std::int64_t width = 0, value_width = 0, rope_width = 0;
  std::int64_t out_width = 0;  // value_width, or width where there are no values at all
  std::int64_t pages = 0, page_rows = 0, columns = 0;
  std::int64_t key_columns = 0;  // that masks, biases and scales by position must have
  std::int64_t longest_query = 0, longest_key = 0;
  std::int64_t mode = 0, pre = 0, next = 0;
  Lengths query_rows, key_rows;
};

}  // namespace dsakit::fused_infer_attention_score_v2_op
