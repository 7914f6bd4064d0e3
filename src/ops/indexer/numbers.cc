// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <string>

#include "ops/indexer/problem.hpp"

namespace dsakit::indexer {
namespace {

[[noreturn]] void refuse(const Check& c, const Tensor& t, const char* name, std::int64_t linear, float x,
                         const char* wanted) {
  c.fail(Status::invalid_value, name, subscript(t, linear), "is " + std::to_string(x), wanted, "value checking");
}

void finite(const Check& c, const Tensor& t, const char* name, std::int64_t linear, std::int64_t offset) {
  const float x = float_at(t, offset);
  if (!std::isfinite(x)) refuse(c, t, name, linear, x, "a finite number");
}

void scale(const Check& c, const Tensor& t, const char* name, std::int64_t linear, std::int64_t offset) {
  finite(c, t, name, linear, offset);
  if (const float x = float_at(t, offset); x < 0) refuse(c, t, name, linear, x, "0 or above");
}

void query_row(const Check& c, const Arguments& a, const Problem& p, std::int64_t r) {
  if (!a.quantised)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t d = 0; d < p.dims; ++d)
        finite(c, a.query, "query", (r * p.heads + h) * p.dims + d, p.query.offset(r) + h * p.head_stride + d);
  for (std::int64_t h = 0; h < p.heads; ++h) {
    const std::int64_t i = r * p.heads + h;
    finite(c, a.weights, "weights", i, p.weights.offset(r, h));
    if (!a.quantised) continue;
    scale(c, a.query_scale, "query_dequant_scale", i, p.query_scale.offset(r, h));
    const bool halves = a.weights.dtype == DType::f16 && a.query_scale.dtype == DType::f16;
    const float product = to_float(to_f16(p.weights.at(r, h) * p.query_scale.at(r, h)));
    if (halves && !std::isfinite(product))
      refuse(c, a.weights, "weights", i, p.weights.at(r, h), "a product with query_dequant_scale within float16");
  }
}

void keys(const Check& c, const Arguments& a, const Problem& p, const SequenceRows& s) {
  for (std::int64_t j = 0; j < s.keys; ++j) {
    const std::int64_t at = s.first_key + j, size = p.keys.page_size;
    std::int64_t row = p.keys.page_stride == 0 && !p.keys.table ? at : s.index * size + at;
    if (p.keys.table) row = p.keys.table[s.index * p.keys.table_stride + at / size] * size + at % size;
    if (a.quantised) {
      scale(c, a.key_scale, "key_dequant_scale", row, p.key_scales.offset(s.index, at));
      continue;
    }
    for (std::int64_t d = 0; d < p.dims; ++d) finite(c, a.key, "key", row * p.dims + d, p.keys.offset(s.index, at) + d);
  }
}

}  // namespace

void warn(const char* op, const Problem& p, Context& context) {
  const auto sentence = [&](const char* parameter, std::int64_t rows, const char* rest) {
    if (rows == 0) return;
    char text[240];  // a warm call allocates nothing
    std::snprintf(text, sizeof text,
                  "%s: %s: lengths in TND are running totals; the last must be the number of rows, %lld%s", op,
                  parameter, static_cast<long long>(rows), rest);
    context.warn(text);
  };
  sentence("actual_seq_lengths_key", p.rows_behind_keys, "");
  sentence("actual_seq_lengths_query", p.rows_behind_queries, ", or the rows behind it are padding");
}

void check_numbers(const Check& c, const Arguments& a, const Problem& p) {
  for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
    const SequenceRows s = p.sequences.at(b);
    for (std::int64_t i = 0; i < s.queries; ++i) query_row(c, a, p, s.first_row + i);
    keys(c, a, p, s);
  }
}

}  // namespace dsakit::indexer
