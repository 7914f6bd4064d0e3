// SPDX-License-Identifier: Apache-2.0
#include "ops/fused_infer_attention_score_v2/judge.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

/// The rows of one key head of one sequence as they count: dequantised by two fp32 operations.
struct Keys {
  std::vector<float> key, value;  // [k][d + dr], [k][dv]

  Keys(const Case& c, std::int64_t b, std::int64_t g) {
    const Spec& s = c.s;
    const std::int64_t dr = c.rope ? s.dr : 0;
    for (std::int64_t k = 0; k < c.l2[b]; ++k) {
      append(key, c, c.key, s.d, b, g, k, c.ks, c.ko, s.km);
      if (dr) append(key, c, c.key_rope, dr, b, g, k, {}, {}, 0);
      append(value, c, c.value, s.dv, b, g, k, c.vs, c.vo, s.vm);
    }
  }
  static void append(std::vector<float>& to, const Case& c, const Buffer& from, std::int64_t x, std::int64_t b,
                     std::int64_t g, std::int64_t k, const Buffer& scale, const Buffer& shift, std::int64_t mode) {
    for (std::int64_t d = 0; d < x; ++d) {
      const std::int64_t i = c.key_at(from, x, b, g, k, d);
      float v = from.t.dtype == DType::i32 ? code4(from, i) : from.get(i);
      if (c.quantised && scale.t) {
        if (shift.t) v = v + shift.get(c.scale_at(mode, shift, x, b, g, k, d));
        v = v * scale.get(c.scale_at(mode, scale, x, b, g, k, d));
      }
      to.push_back(v);
    }
  }
  static float code4(const Buffer& from, std::int64_t i) {
    const int code = int(std::to_integer<unsigned>(from.bytes[std::size_t(i / 2)]) >> i % 2 * 4 & 15u);
    return float(code < 8 ? code : code - 16);
  }
};

template <class T>
T softmax_row(const std::vector<T>& score, const std::vector<std::int64_t>& seen, const Keys& keys, std::int64_t dv,
              T value_factor, DType probability, float sink, std::vector<T>& out) {
  T most = T(sink), total = 0;
  for (const T x : score) most = std::max(most, x);
  if (sink > -INFINITY) total = std::exp(T(sink) - most);
  std::vector<T> sum(std::size_t(dv), T(0));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const T e = std::exp(score[i] - most);
    total += e;
    const T p = std::is_same_v<T, float> ? T(rounded(probability, float(e))) : e;
    for (std::int64_t d = 0; d < dv; ++d) sum[d] += p * T(keys.value[seen[i] * dv + d]);
  }
  for (std::int64_t d = 0; d < dv; ++d) out.push_back(seen.empty() ? T(0) : value_factor * (sum[d] / total));
  return most + std::log(total);
}

}  // namespace

Judged::Judged(const Case& c, bool with_plain) {
  const Spec& s = c.s;
  const std::int64_t dr = c.rope ? s.dr : 0, w = s.d + dr;
  const DType type = c.full ? DType::f32 : s.type;
  const float factor = c.scale(), value_factor = c.full ? c.vs.get(0) : 1.0f;
  for (std::int64_t b = 0; b < s.b; ++b) {
    std::vector<Keys> heads;
    for (std::int64_t g = 0; g < s.nk; ++g) heads.emplace_back(c, b, g);
    for (std::int64_t q = 0; q < c.l1[b]; ++q)
      for (std::int64_t h = 0; h < s.nq; ++h) {
        const Keys& rows = heads[h / (s.nq / s.nk)];
        std::vector<float> query;
        for (std::int64_t d = 0; d < s.d; ++d) query.push_back(c.query.get(c.query_at(s.d, b, h, q, d)));
        for (std::int64_t d = 0; d < dr; ++d) query.push_back(c.query_rope.get(c.query_at(dr, b, h, q, d)));
        std::vector<double> score;
        std::vector<float> plain_score;
        std::vector<std::int64_t> seen;
        for (std::int64_t k = 0; k < c.l2[b]; ++k) {
          if (!c.visible(b, q, k)) continue;
          double dot = 0;
          float plain_dot = 0;
          for (std::int64_t d = 0; d < w; ++d) {
            dot += double(query[d]) * double(rows.key[k * w + d]);
            plain_dot += query[d] * rows.key[k * w + d];
          }
          if (c.full) {
            const float sq = c.sq.get(c.query_at(1, b, h, q, 0)), sk = c.ks.get(0);
            dot *= double(sq) * sk, plain_dot = plain_dot * sq * sk;
          }
          dot *= factor, plain_dot *= factor;
          if (c.pse.t) {
            const std::int64_t at = (((s.pse[0] == 1 ? 0 : b) * s.nq + h) * s.pse[2] + q) * s.pse[3] + k;
            dot += c.pse.get(at), plain_dot += c.pse.get(at);
          }
          score.push_back(dot), plain_score.push_back(plain_dot), seen.push_back(k);
        }
        keys.push_back(!seen.empty());
        const double none = c.l2[b] == 0 && c.decode ? double(-3.4e38f) : INFINITY;
        const float sink = c.sink.t ? c.sink.get(h) : -INFINITY;
        const double l = softmax_row<double>(score, seen, rows, s.dv, value_factor, type, sink, out);
        lse.push_back(seen.empty() ? none : l);
        if (with_plain) softmax_row<float>(plain_score, seen, rows, s.dv, value_factor, type, sink, plain);
      }
  }
}

namespace {

struct Tolerance {
  double abs, rel;
};
Tolerance tolerance(DType type) {
  if (type == DType::f16) return {1e-3, 2e-3};
  if (type == DType::bf16) return {4e-3, 1e-2};
  return {1e-5, 1e-4};
}

float largest_value(const Case& c) {  // of those that somebody sees, and of the padding's factor: at least 1
  float most = 1;
  for (std::int64_t b = 0; b < c.s.b; ++b)
    for (std::int64_t g = 0; g < c.s.nk; ++g)
      for (const float v : Keys(c, b, g).value)
        if (std::isfinite(v)) most = std::max(most, std::fabs(v) / 4);  // data of N(0, 1) reaches 4
  return most;
}

/// The quantised output of an exact value.
float code_of(const Case& c, double x, std::int64_t h, std::int64_t d) {
  const auto parameter = [&](const Buffer& p) { return p.get(p.t.elements() == 1 ? 0 : h * c.s.dv + d); };
  float y = float(x) * parameter(c.os);
  if (c.oo.t) y = y + parameter(c.oo);
  return std::clamp(std::nearbyintf(y), -128.0f, 127.0f);
}

}  // namespace

void expect_right(const Case& c, const Judged& j, bool is_reference) {
  const Spec& s = c.s;
  const DType type = c.attention.t.dtype;
  const bool codes = type == DType::i8;
  const Tolerance limit = is_reference ? Tolerance{1e-7, type == DType::f32   ? 1e-6
                                                         : type == DType::f16 ? 0x1p-11
                                                                              : 0x1p-8}
                                       : tolerance(type);
  const double scale = is_reference ? 1 : largest_value(c);
  double ours = 0, theirs = 0;
  std::size_t row = 0, different = 0, compared = 0;
  std::vector<bool> written(std::size_t(c.attention.t.elements())), lse_written(std::size_t(c.lse.t.elements()));
  for (std::int64_t b = 0; b < s.b; ++b)
    for (std::int64_t q = 0; q < c.l1[b]; ++q)
      for (std::int64_t h = 0; h < s.nq; ++h, ++row) {
        for (std::int64_t d = 0; d < s.dv; ++d, ++compared) {
          const std::int64_t at = c.out_at(b, h, q, d);
          const double wanted = j.out[row * s.dv + d];
          const float y = c.attention.get(at);
          written[at] = true;
          if (codes) {
            const float code = code_of(c, wanted, h, d);
            ASSERT_LE(std::fabs(y - code), j.keys[row] ? 1 : 0) << b << " " << q << " " << h << " " << d;
            different += y != code;
          } else if (!j.keys[row]) {
            ASSERT_EQ(y, 0) << b << " " << q << " " << h << " " << d;
          } else {
            ASSERT_LE(std::fabs(y - wanted), limit.abs * scale + limit.rel * std::fabs(wanted))
                << b << " " << q << " " << h << " " << d << ": " << y << " instead of " << wanted;
            ours += (y - wanted) * (y - wanted);
            if (!j.plain.empty()) {
              const double error = rounded(type, j.plain[row * s.dv + d]) - wanted;
              theirs += error * error;
            }
          }
        }
        if (!s.lse) continue;
        const std::int64_t at = c.lse_at(b, h, q);
        lse_written[at] = true;
        const float y = c.lse.get(at);
        if (j.keys[row]) {
          ASSERT_LE(std::fabs(y - j.lse[row]), (is_reference ? 1e-7 : 1e-4) + 1e-5 * std::fabs(j.lse[row]))
              << b << " " << q << " " << h << ": " << y << " instead of " << j.lse[row];
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(y), std::bit_cast<std::uint32_t>(float(j.lse[row])));
        }
      }
  for (std::size_t i = 0; i < written.size(); ++i)
    if (!written[i]) {
      ASSERT_EQ(c.attention.get(std::int64_t(i)), 0) << "padding, element " << i;
    }
  for (std::size_t i = 0; i < lse_written.size(); ++i)
    if (!lse_written[i]) {
      ASSERT_EQ(c.lse.get(std::int64_t(i)), INFINITY) << "padding, row " << i;
    }
  if (codes) {
    EXPECT_LE(double(different), 0.01 * double(compared)) << "of codes differ";
  }
  if (!is_reference && !codes && compared >= 4096 && !j.plain.empty()) {
    EXPECT_LE(std::sqrt(ours), 1.1 * std::sqrt(theirs)) << "root mean square error";
  }
}

Results results(const Case& c) { return {c.attention.bytes, c.lse.bytes}; }

Results run(Case& c, const Kernels& kernels, int threads, bool same_products) {
  std::fill(c.attention.bytes.begin(), c.attention.bytes.end(), std::byte{0x5a});
  std::fill(c.lse.bytes.begin(), c.lse.bytes.end(), std::byte{0x5a});
  Context context({.threads = threads, .isa = kernels.isa, .same_products = same_products});
  fused_infer_attention_score_v2(c.args(), c.outs(), context);
  return results(c);
}

Results bits(const Spec& spec, const Kernels& kernels) {
  Case c(spec);
  return run(c, kernels, 1);
}

Shape rows_without_keys(const Spec& spec) {
  Case c(spec);
  reference::fused_infer_attention_score_v2(c.args(), c.outs());
  Shape rows;
  for (std::int64_t q = 0; q < c.l1[0]; ++q)
    if (std::isinf(c.lse.get(c.lse_at(0, 0, q)))) rows.push_back(q);
  return rows;
}

void expect_right_once(const Spec& spec) {
  Case c(spec);
  const Judged judged(c);
  reference::fused_infer_attention_score_v2(c.args(), c.outs());
  expect_right(c, judged, true);
  for (const Kernels* kernels : supported_kernels()) {
    SCOPED_TRACE(kernels->isa);
    run(c, *kernels, 2);
    expect_right(c, judged, false);
  }
}

namespace {

/// infer answers with the results that the case has made by itself.
void expect_inferred(const Case& c) {
  FusedInferAttentionScoreV2Outs outs;
  infer(c.args(), outs);
  for (const auto& [inferred, wanted] :
       {std::pair{&outs.attention_out, &c.attention.t}, {&outs.softmax_lse, &c.lse.t}}) {
    if (!*wanted) continue;
    EXPECT_EQ(inferred->dtype, wanted->dtype);
    EXPECT_EQ(inferred->rank, wanted->rank);
    EXPECT_EQ(inferred->shape, wanted->shape);
  }
}

}  // namespace

void expect_all_right(const Spec& spec) {
  Case c(spec);
  expect_inferred(c);
  const Judged judged(c);
  reference::fused_infer_attention_score_v2(c.args(), c.outs());
  {
    SCOPED_TRACE("reference");
    ASSERT_NO_FATAL_FAILURE(expect_right(c, judged, true));
  }
  for (const Kernels* kernels : supported_kernels()) {
    SCOPED_TRACE(kernels->isa);
    const Results one = run(c, *kernels, 1);
    ASSERT_NO_FATAL_FAILURE(expect_right(c, judged, false));
    for (const int threads : {2, 3}) EXPECT_EQ(run(c, *kernels, threads), one) << threads << " threads";
    run(c, *kernels, 2, true);
    SCOPED_TRACE("same products");
    ASSERT_NO_FATAL_FAILURE(expect_right(c, judged, false));
  }
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
