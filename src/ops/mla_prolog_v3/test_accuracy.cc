// SPDX-License-Identifier: Apache-2.0
#include "dsakit/kv_quant_sparse_flash_attention.hpp"
#include "dsakit/kv_rows.hpp"
#include "ops/mla_prolog_v3/runs.hpp"
#include "ops/prolog/formula.hpp"

// How far results are from the formula without roundings inside, and that the attention reads what is written here.
namespace dsakit::prolog_v3 {
namespace {

using Vector = std::vector<double>;

/// Row `row` of x times w [k, n], columns first .. first+count-1.
Vector times(const Vector& x, const Array& w, std::int64_t n, std::int64_t from_row, std::int64_t first,
             std::int64_t count) {
  Vector y(std::size_t(count), 0.0);
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::int64_t j = 0; j < count; ++j)
      y[std::size_t(j)] += x[i] * w.at((from_row + std::int64_t(i)) * n + first + j);
  return y;
}
Vector norm(Vector x, const Array& gamma) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = x[i] / std::sqrt(sum / double(x.size()) + double(1e-5f)) * gamma.at(std::int64_t(i));
  return x;
}
Vector rope(const Vector& v, const Array& cos, const Array& sin, std::int64_t t) {
  const std::int64_t n = std::int64_t(v.size()), half = n / 2;
  Vector y(v.size());
  for (std::int64_t j = 0; j < half; ++j) {
    const double even = v[std::size_t(2 * j)], odd = v[std::size_t(2 * j + 1)];
    y[std::size_t(j)] = even * cos.at(t * n + j) - odd * sin.at(t * n + j);
    y[std::size_t(half + j)] = odd * cos.at(t * n + half + j) + even * sin.at(t * n + half + j);
  }
  return y;
}

struct Errors {
  double squares = 0, largest = 0, value = 0;
  void add(double got, double exact) {
    squares += (got - exact) * (got - exact);
    largest = std::max(largest, std::fabs(got - exact)), value = std::max(value, std::fabs(exact));
  }
};

/// The root mean square error against float64 is at most 1.1 times that of the plain evaluation with all roundings, and
/// no value is off by more than 2^-6 of the largest.
TEST(MlaPrologV3Accuracy, NoWorseThanPlain) {
  for (const int row : {1, 2, 5}) {
    const Case c{.row = row, .cache_mode = "TND", .b = 1, .s = 40, .hidden = 512, .seed = 17};
    const Data d(c);
    const std::int64_t width = c.nope + c.rope;
    const Written plain = reference_of(d);
    for (const Kernels* k : supported_kernels()) {
      const Written got = run(d, {.isa = k->isa});
      Errors mine[4], of_plain[4];
      for (std::int64_t t = 0; t < c.tokens(); ++t) {
        auto add = [&](int what, const Array& a, const Array& b, std::int64_t at, const Vector& exact) {
          for (std::size_t j = 0; j < exact.size(); ++j) {
            mine[what].add(a.at(at + std::int64_t(j)), exact[j]);
            of_plain[what].add(b.at(at + std::int64_t(j)), exact[j]);
          }
        };
        Vector x, cq;
        for (std::int64_t i = 0; i < c.hidden; ++i) x.push_back(d.token_x.at(t * c.hidden + i));
        auto scaled = [&](Vector v, const Array& channel) {
          for (std::size_t j = 0; c.full() && j < v.size(); ++j) v[j] *= d.scale_x.at(t) * channel.at(std::int64_t(j));
          return v;
        };
        // Codes are results: what follows them is judged from the codes returned.
        if (row == 1) cq = norm(times(x, d.weight_dq, c.rank, 0, 0, c.rank), d.gamma_cq);
        else
          for (std::int64_t i = 0; i < c.rank; ++i)
            cq.push_back(got.query_norm.at(t * c.rank + i) * got.dequant_scale_q_norm.at(t));
        const bool same_codes = row == 1 || got.query_norm == plain.query_norm;
        for (std::int64_t h = 0; h < c.heads && same_codes; ++h) {
          Vector q = times(cq, d.weight_uq_qr, c.wide(), 0, h * width, width);
          for (std::int64_t j = 0; row != 1 && j < width; ++j) q[std::size_t(j)] *= d.scale_uq_qr.at(h * width + j);
          const Vector nope(q.begin(), q.begin() + c.nope), turned(q.begin() + c.nope, q.end());
          add(0, got.query, plain.query, (t * c.heads + h) * c.latent,
              times(nope, d.weight_uk, c.latent, h * c.nope, 0, c.latent));
          add(1, got.query_rope, plain.query_rope, (t * c.heads + h) * c.rope, rope(turned, d.rope_cos, d.rope_sin, t));
        }
        const Vector m = scaled(times(x, d.weight_dkv_kr, c.latent + c.rope, 0, 0, c.latent + c.rope), d.scale_dkv_kr);
        add(2, got.kv_cache, plain.kv_cache, t * c.latent, norm(Vector(m.begin(), m.begin() + c.latent), d.gamma_ckv));
        add(3, got.kr_cache, plain.kr_cache, t * c.rope,
            rope(Vector(m.begin() + c.latent, m.end()), d.rope_cos, d.rope_sin, t));
      }
      for (int what = 0; what < 4; ++what) {
        SCOPED_TRACE(c.name() + " " + k->isa + ", output " + std::to_string(what));
        EXPECT_LE(std::sqrt(mine[what].squares), 1.1 * std::sqrt(of_plain[what].squares));
        EXPECT_LE(mine[what].largest, 0x1p-6 * mine[what].value);
        EXPECT_GT(mine[what].value, 0);
      }
    }
  }
}

/// Packed rows unpacked are the codes, the scales and the rope key of a computation of their own; the attention over
/// them is that over codes times scales.
TEST(MlaPrologV3Accuracy, PackedRowsAreWhatTheAttentionReads) {
  using namespace prolog::formula;
  const Case c{.row = 4,
               .b = 1,
               .s = 12,
               .hidden = 64,
               .rank = 32,
               .heads = 2,
               .nope = 16,
               .rope = 64,
               .latent = 512,
               .tile = 128,
               .blocks = 3,
               .block_size = 5,
               .query_norm = false,
               .alpha = 0.8f,
               .exact = true};
  Data d(c);
  auto* slot = d.cache_index.as<std::int64_t>();
  const std::int32_t table[] = {2, 0, 1};  // pages of the sequence
  for (std::int64_t t = 0; t < 12; ++t) slot[t] = table[t / 5] * 5 + t % 5;
  const Written w = run(d);

  std::vector<std::int8_t> codes(15 * 512);
  std::vector<bf16> turned(15 * 64);
  std::vector<float> scales(15 * 4);
  unpack_kv_rows({.rows = w.kv_cache}, {.codes = tensor(codes.data(), {3, 5, 1, 512}),
                                        .rope = tensor(turned.data(), {3, 5, 1, 64}),
                                        .scales = tensor(scales.data(), {3, 5, 1, 4})});
  const Vector weights = [&] {
    Vector v;
    for (std::int64_t i = 0; i < d.weight_dkv_kr.size(); ++i) v.push_back(d.weight_dkv_kr.at(i));
    return v;
  }();
  std::vector<Vector> keys;  // codes times scales, then rope
  for (std::int64_t t = 0; t < 12; ++t) {
    Row m(576);
    for (std::size_t j = 0; j < m.size(); ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < c.hidden; ++i)
        sum += d.token_x.at(t * c.hidden + i) * weights[std::size_t(i * 576) + j];
      m[j] = bf16_of(sum);
    }
    const Row kr = bf16_of(rope_to_half(Row(m.begin() + 512, m.end()), row_of(d.rope_cos.as<bf16>() + t * 64, 64),
                                        row_of(d.rope_sin.as<bf16>() + t * 64, 64)));
    m.resize(512);
    const Row ckv = prolog::formula::norm(m, row_of(d.gamma_ckv.as<bf16>(), 512), 1e-5f);
    Vector key;
    for (std::int64_t tile = 0; tile < 4; ++tile) {
      std::int8_t wanted[128];
      const float scale = tileq(ckv.data() + tile * 128, 128, c.alpha, wanted);
      ASSERT_EQ(scales[std::size_t(slot[t] * 4 + tile)], scale);
      ASSERT_EQ(std::memcmp(codes.data() + slot[t] * 512 + tile * 128, wanted, 128), 0);
      for (const std::int8_t code : wanted) key.push_back(double(code) * double(scale));
    }
    for (std::int64_t j = 0; j < 64; ++j) {
      ASSERT_EQ(to_float(turned[std::size_t(slot[t] * 64 + j)]), kr[std::size_t(j)]);
      key.push_back(kr[std::size_t(j)]);
    }
    keys.push_back(key);
  }

  std::vector<bf16> query, out(12 * 2 * 512);
  for (std::int64_t th = 0; th < 24; ++th) {
    query.insert(query.end(), w.query.as<bf16>() + th * 512, w.query.as<bf16>() + (th + 1) * 512);
    query.insert(query.end(), w.query_rope.as<bf16>() + th * 64, w.query_rope.as<bf16>() + (th + 1) * 64);
  }
  std::vector<std::int32_t> list(12 * 12);
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = std::int32_t(i % 12);
  const std::int32_t tokens = 12;
  const double softmax_scale = 0.01;
  kv_quant_sparse_flash_attention({.query = tensor(query.data(), {12, 2, 576}),
                                   .key = w.kv_cache,
                                   .value = w.kv_cache,
                                   .sparse_indices = tensor(list.data(), {12, 1, 12}),
                                   .scale_value = softmax_scale,
                                   .key_quant_mode = 2,
                                   .value_quant_mode = 2,
                                   .block_table = tensor(table, {1, 3}),
                                   .actual_seq_lengths_query = tensor(&tokens, {1}),
                                   .actual_seq_lengths_kv = tensor(&tokens, {1}),
                                   .layout_query = "TND",
                                   .layout_kv = "PA_BSND",
                                   .sparse_mode = 0,
                                   .attention_mode = 2},
                                  {.attention_out = tensor(out.data(), {12, 2, 512})});
  for (std::size_t th = 0; th < 24; ++th) {
    Vector p(12), wanted(512, 0.0);
    double most = -INFINITY, sum = 0;
    for (std::size_t s = 0; s < 12; ++s) {
      for (std::size_t j = 0; j < 576; ++j) p[s] += double(to_float(query[th * 576 + j])) * keys[s][j] * softmax_scale;
      most = std::max(most, p[s]);
    }
    for (double& v : p) sum += v = std::exp(v - most);
    for (std::size_t s = 0; s < 12; ++s)
      for (std::size_t j = 0; j < 512; ++j) wanted[j] += p[s] / sum * keys[s][j];
    for (std::size_t j = 0; j < 512; ++j)
      ASSERT_LE(std::fabs(to_float(out[th * 512 + j]) - wanted[j]), 1e-3 + 0x1p-7 * std::fabs(wanted[j]))
          << th << " " << j;
  }
}

}  // namespace
}  // namespace dsakit::prolog_v3
