// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "dsakit/context.hpp"
#include "kernels/kernels.hpp"
#include "kernels/tuning.hpp"
#include "ops/attention/dense_cases.hpp"

namespace dsakit::attention::dense {
namespace {

struct Result {
  Store out;
  std::vector<float> lse;
};

bool same(const Result& a, const Result& b) {
  return a.out.bytes == b.out.bytes &&
         (a.lse.empty() || std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0);
}

class DenseAttention : public ::testing::TestWithParam<const Kernels*> {
 protected:
  Result run(const Case& c, int threads = 1, bool same_products = false) {
    Result r;
    const Problem p = c.problem(r.out, r.lse);
    run(p, threads, same_products);
    return r;
  }
  void run(const Problem& p, int threads, bool same_products = false) {
    Context context({.threads = threads, .isa = GetParam()->isa, .same_products = same_products});
    Call call(context, "test", [&](int n) { return workspace(p, *GetParam(), n, same_products); });
    dense::run(p, call, call.memory());
    call.finish();
  }
};
INSTANTIATE_TEST_SUITE_P(Rungs, DenseAttention,
                         ::testing::ValuesIn(supported_kernels().begin(), supported_kernels().end()),
                         [](const auto& info) { return std::string(info.param->isa); });

/// The formula once more, row by row: in double, or plainly in float with the documented roundings.
template <class T>
void evaluate(const Case& c, std::vector<double>& out, std::vector<double>& lse) {
  const Shape& s = c.shape;
  constexpr bool kPlain = std::is_same_v<T, float>;
  const auto rounded = [](DType type, double x) {
    return type == DType::bf16  ? double(to_float(to_bf16(float(x))))
           : type == DType::f16 ? double(to_float(to_f16(float(x))))
                                : x;
  };
  out.assign(std::size_t(c.out_rows() * s.value), 0.0), lse.assign(std::size_t(c.out_rows()), INFINITY);
  for (std::int64_t b = 0; b < c.b; ++b)
    for (std::int64_t g = 0; g < s.kv_heads; ++g) {
      const std::int64_t keys = c.sequences[b].keys;
      std::vector<T> key(std::size_t(keys * s.width)), value(std::size_t(keys * s.value));
      for (std::int64_t k = 0; k < keys; ++k) {
        for (int d = 0; d < s.width; ++d) key[k * s.width + d] = c.key_at<T>(b, g, k, d);
        for (int d = 0; d < s.value; ++d) value[k * s.value + d] = c.value_at<T>(b, g, k, d);
      }
      for (std::int64_t q = 0; q < c.sequences[b].queries; ++q)
        for (std::int64_t h = g * s.group; h < (g + 1) * s.group; ++h) {
          const std::int64_t row = c.row(b, q) * c.heads + h;
          std::vector<T> score(std::size_t(keys), T(0)), sum(std::size_t(s.value), T(0));
          T most = -INFINITY, total = 0;
          for (std::int64_t k = 0; k < keys; ++k) {
            if (!c.sees(b, q, k)) continue;
            T dot = 0, rope = 0;
            if (s.query == DType::i8) {
              for (int d = 0; d < s.width; ++d)
                dot += T(c.query.get(row * s.width + d)) * T(c.key.get(c.at(b, g, k, d, s.width, c.nz_block(s.kv))));
            } else {
              for (int d = 0; d < s.width; ++d) dot += T(c.query.get(row * s.width + d)) * key[k * s.width + d];
            }
            for (int d = 0; d < s.rope; ++d)
              rope += T(c.query_rope.get(row * s.rope + d)) *
                      T(c.key_rope.get(c.at(b, g, k, d, s.rope, c.nz_block(c.rope_type))));
            T x = dot + rope;
            if (s.query == DType::i8)
              x = x * T(c.query_scale.get(row)) * T(c.parameter(c.key_scale, s.key, b, g, k, 0, s.width, 1));
            x *= T(c.scale);
            if (s.bias) x += T(c.bias.get(((b * c.heads + h) * c.longest_query + q) * c.longest_key + k));
            most = std::max(most, score[k] = x);
          }
          for (std::int64_t k = 0; k < keys; ++k) {
            if (!c.sees(b, q, k)) continue;
            const T p = std::exp(score[k] - most);
            total += p;
            const T weight = kPlain ? T(rounded(s.query, p)) : p;
            for (int d = 0; d < s.value; ++d) sum[d] += weight * value[k * s.value + d];
          }
          if (total == 0) {
            if (keys == 0) lse[row] = -3.4e38f;
            continue;
          }
          lse[row] = most + std::log(total);
          for (int d = 0; d < s.value; ++d)
            out[row * s.value + d] = kPlain ? rounded(s.out, sum[d] / total) : double(sum[d] / total);
        }
    }
}

/// The limits of the accuracy rules; absolute parts grow with the values.
void expect_accurate(const Case& c, const Result& r, const std::string& what) {
  const Shape& s = c.shape;
  std::vector<double> exact, exact_lse, plain, plain_lse;
  evaluate<double>(c, exact, exact_lse);
  evaluate<float>(c, plain, plain_lse);
  double largest = 1, worst = 0, ours = 0, theirs = 0;
  for (std::int64_t b = 0; b < c.b; ++b)
    for (std::int64_t k = 0; k < c.sequences[b].keys; ++k)
      for (int d = 0; d < s.value; ++d)
        if (const double v = std::fabs(c.value_at<double>(b, 0, k, d)); v > largest) largest = v;
  for (std::size_t i = 0; i < exact.size(); ++i) worst = std::fmax(worst, std::fabs(plain[i] - exact[i]));
  const double absolute = (s.out == DType::bf16 ? 4e-3 : s.out == DType::f16 ? 1e-3 : 1e-5) * largest / 4;
  const double relative = s.out == DType::bf16 ? 1e-2 : s.out == DType::f16 ? 2e-3 : 1e-4;
  for (std::int64_t b = 0; b < c.b; ++b)
    for (std::int64_t q = 0; q < c.sequences[b].queries; ++q)
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const std::int64_t row = c.row(b, q) * c.heads + h;
        if (std::isinf(exact_lse[row]) || exact_lse[row] < -3e38) {
          ASSERT_EQ(r.lse[row], float(exact_lse[row])) << what;
          for (int d = 0; d < s.value; ++d)
            ASSERT_EQ(r.out.get(row * s.value + d),
                      s.out == DType::i8 ? std::nearbyint(c.out_offset.get(h * s.value + d)) : 0)
                << what;
          continue;
        }
        ASSERT_NEAR(r.lse[row], exact_lse[row], 1e-4 + 1e-5 * std::fabs(exact_lse[row])) << what << " row " << row;
        for (int d = 0; d < s.value; ++d) {
          const std::int64_t i = row * s.value + d;
          if (s.out == DType::i8) {
            const double code = exact[i] * c.out_scale.get(h * s.value + d) + c.out_offset.get(h * s.value + d);
            ASSERT_NEAR(r.out.get(i), std::clamp(std::nearbyint(code), -128.0, 127.0), 1) << what;
            continue;
          }
          const double error = std::fabs(r.out.get(i) - exact[i]), their_error = std::fabs(plain[i] - exact[i]);
          ASSERT_LE(error, std::fmax(absolute + relative * std::fabs(exact[i]), 1.1 * worst))
              << what << " row " << row << " column " << d;
          ours += error * error, theirs += their_error * their_error;
        }
      }
  if (exact.size() >= 4096 && s.out != DType::i8) {
    EXPECT_LE(std::sqrt(ours), 1.1 * std::sqrt(theirs)) << what;
  }
}

/// One of all kinds of problem.
Shape any_shape(std::uint64_t seed) {
  Random r(seed * 77 + 5);
  const auto one_of = [&](auto... x) {
    const std::common_type_t<decltype(x)...> all[] = {x...};
    return all[r.below(sizeof...(x))];
  };
  Shape s;
  s.seed = seed;
  s.query = one_of(DType::bf16, DType::bf16, DType::f16, DType::f32, DType::i8);
  s.kv = s.query == DType::i8 ? DType::i8 : one_of(s.query, s.query, DType::i8, DType::i32);
  s.out = s.query == DType::i8 ? DType::bf16 : one_of(s.query, s.query, DType::i8);
  s.kv_heads = one_of(1, 2, 3), s.group = one_of(1, 1, 2, 4, 7, 40, 130);
  if (s.group > 8) s.kv_heads = 1;
  s.width = one_of(1, 7, 16, 64, 80, 128, 130, 192, 576, 700), s.value = one_of(s.width, s.width, 3, 33, 64, 100);
  if (s.kv == DType::i32) s.width = one_of(8, 64, 72), s.value = one_of(8, 64, 136);
  s.rope = s.query == DType::i8 ? 64 : one_of(0, 0, 5, 64);
  s.block = one_of(0, 0, 1, 16, 37, 128);
  s.layout = one_of(Layout::heads_inside, Layout::heads_outside);
  if (s.block && s.kv != DType::i32 && r.below(3) == 0) {
    s.layout = Layout::nz;
    s.width = one_of(32, 64, 128), s.value = one_of(32, 96), s.rope = s.rope ? 64 : 0;
  }
  s.lengths.clear();
  const int sequences = one_of(1, 2, 3), most = s.group > 8 || s.width > 200 ? 6 : 70;
  for (int b = 0; b < sequences; ++b)
    s.lengths.push_back({one_of(0, 1, 1, 2, 5, most), one_of(0, 1, 9, 40, 255, 256, 300, 700)});
  s.folded = r.below(2), s.causal = one_of(0, 0, 1, 1, 2, 3);
  s.mask = s.folded || r.below(3) ? 0 : one_of(1, 2, 20);
  s.bias = s.query != DType::i8 && r.below(4) == 0;
  if (s.query == DType::i8) {
    s.key = s.val = Per::tensor;
  } else if (s.kv != s.query) {
    s.key = s.val = one_of(Per::tensor, Per::head, Per::channel, Per::token, Per::token_head);
    if (s.block && r.below(2)) s.key = s.val = one_of(Per::page, Per::page_head);
    else if (r.below(4) == 0) s.key = Per::channel, s.val = Per::token;
    s.offsets = r.below(2), s.parameters = one_of(DType::f32, DType::f16, DType::bf16);
  }
  s.spread = one_of(1.0f, 1.0f, 8.0f, 0.0f);
  if (r.below(6) == 0) s.scale = -0.3f;
  return s;
}

std::string describe(const Shape& s) {
  std::string x = "seed " + std::to_string(s.seed) + " lengths";
  for (const auto& [l1, l2] : s.lengths) x += " " + std::to_string(l1) + "x" + std::to_string(l2);
  const auto add = [&](const char* name, double v) { x += std::string(" ") + name + "=" + std::to_string(v); };
  add("kv_heads", s.kv_heads), add("group", s.group), add("width", s.width), add("rope", s.rope), add("value", s.value);
  add("query", int(s.query)), add("kv", int(s.kv)), add("out", int(s.out)), add("key", int(s.key)),
      add("val", int(s.val));
  add("offsets", s.offsets), add("bias", s.bias), add("mask", s.mask), add("block", s.block), add("causal", s.causal);
  add("scale", s.scale), add("spread", s.spread), add("parameters", int(s.parameters));
  return x;
}

TEST_P(DenseAttention, AgreesWithTheFormula) {
  const std::uint64_t seeds = GetParam() == supported_kernels()[0] ? 60 : 160;  // plain loops take their time
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Case c(any_shape(seed));
    const Result one = run(c);
    expect_accurate(c, one, describe(c.shape));
    if (HasFatalFailure()) return;
    for (const int threads : {2, 3}) ASSERT_TRUE(same(one, run(c, threads))) << "seed " << seed;
    if (seed % 5 == 0) expect_accurate(c, run(c, 2, true), "fma, seed " + std::to_string(seed));
  }
}

/// Where there are no dots of bf16 nothing is rounded for them, for one query (GEMV) or many: the bits of `same_products`.
TEST_P(DenseAttention, ProbabilitiesAreRoundedForDotsAlone) {
  for (const std::int64_t queries : {1, 70}) {
    Shape s;
    s.lengths = {{queries, 600}}, s.width = s.value = 128, s.query = s.kv = s.out = DType::bf16;
    const Case c(s);
    EXPECT_EQ(same(run(c), run(c, 1, true)), GetParam()->widens_rows) << queries;
  }
}

TEST_P(DenseAttention, PagesAndPoisonChangeNothing) {
  for (std::uint64_t seed = 300; seed < 360; ++seed) {
    Shape s = any_shape(seed);
    if (s.key >= Per::page) s.key = s.val = Per::token;
    s.layout = Layout::heads_inside, s.block = 0;
    const Result contiguous = run(Case(s));
    s.poison = false, s.layout = Layout::heads_outside;
    ASSERT_TRUE(same(contiguous, run(Case(s)))) << describe(s);
    for (const int block : {1, 16, 100, 1024}) {
      s.block = block, s.page_seed = block, s.poison = block % 3;
      ASSERT_TRUE(same(contiguous, run(Case(s), 2))) << describe(s);
    }
  }
}

/// A row has the bits it has alone: without its neighbours, and with its group cut in single heads.
TEST_P(DenseAttention, RowsAreIndependent) {
  for (std::uint64_t seed = 400; seed < 440; ++seed) {
    const Case c(any_shape(seed));
    const Result all = run(c);
    Result alone;
    const Problem whole = c.problem(alone.out, alone.lse);
    Random r(seed);
    for (std::int64_t b = 0; b < c.b; ++b)
      for (int times = 0; times < 3 && c.sequences[b].queries > 0; ++times) {
        const std::int64_t q = r.below(c.sequences[b].queries), h = r.below(c.heads), g = h / c.shape.group;
        Problem p = whole;
        Sequence s = c.sequences[b];
        const auto move = [&](Grid& grid, int size) {
          grid.data = static_cast<std::byte*>(grid.data) + (grid.sequence * b + grid.token * q + grid.head * h) * size;
        };
        const auto shift = [&](Parameter& x, std::ptrdiff_t by) {
          if (x.data) x.data = static_cast<const std::byte*>(x.data) + by * c.key_scale.size();
        };
        const auto cut = [&](Cache& cache, int size) {
          cache.data = static_cast<const std::byte*>(cache.data) + (cache.sequence * b + cache.head * g) * size;
        };
        move(p.query, c.query.size()), move(p.query_rope, c.query_rope.size()), move(p.query_scale, 4);
        move(p.out, Store(c.shape.out, 0).size()), move(p.lse, 4), move(p.bias, c.bias.size());
        cut(p.key, c.key.size()), cut(p.values, c.values.size()), cut(p.key_rope, c.key_rope.size());
        for (Parameter* x : {&p.key_scale, &p.key_offset, &p.value_scale, &p.value_offset})
          shift(*x, x->sequence * b + x->head * g);
        shift(p.out_scale, p.out_scale.head * h), shift(p.out_offset, p.out_offset.head * h);
        if (p.pages.table) p.pages.table += b * p.pages.sequence;
        if (p.mask) p.mask += b * p.mask_sequence + q * p.mask_row;
        if (p.bias.data == nullptr || !c.shape.bias) p.bias = {};
        s.queries = 1, s.from += q, s.to += q;
        p.sequence = &s, p.sequences = 1, p.kv_heads = 1, p.group = 1;
        run(p, 1 + times % 2);
        const std::int64_t row = c.row(b, q) * c.heads + h;
        ASSERT_EQ(std::memcmp(&alone.lse[row], &all.lse[row], 4), 0) << seed;
        for (int d = 0; d < c.shape.value; ++d)
          ASSERT_EQ(alone.out.get(row * c.shape.value + d), all.out.get(row * c.shape.value + d))
              << seed << " row " << row;
      }
  }
}

/// The next key after all that a tile sees, odd in number, is one that the tile beside it has seen.
TEST_P(DenseAttention, WhatTheTileBesideSeesCannotLeak) {
  for (const DType type : {DType::bf16, DType::f16, DType::f32})
    for (const int keys : {257, 258, 259, 260, 275}) {
      Shape s;
      s.lengths = {{256, keys}}, s.width = s.value = 64, s.causal = 1;
      s.query = s.kv = s.out = type;
      Case clean(s), dirty(s);
      const std::int64_t first = keys - 256 + 128;  // that no query of the first tile of 128 sees
      for (std::int64_t k = first; k < first + 32; ++k)
        for (int d = 0; d < s.value; ++d) {
          dirty.values.set(dirty.at(0, 0, k, d, s.value, 0), d % 2 ? INFINITY : NAN);
          dirty.key.set(dirty.at(0, 0, k, d, s.width, 0), NAN);
        }
      const Result expected = run(clean), got = run(dirty);
      for (std::int64_t i = 0; i < 128 * s.value; ++i) ASSERT_EQ(got.out.get(i), expected.out.get(i)) << keys << " " << i;
      ASSERT_FALSE(std::isfinite(got.out.get(255 * s.value)));
    }
}

/// NaN and infinity in keys and values that some rows see: they reach those rows and no other.
TEST_P(DenseAttention, WhatIsHiddenCannotLeak) {
  for (const DType type : {DType::bf16, DType::f16, DType::f32})
    for (const int mask : {0, 3})
      for (const int causal : {1, 2}) {
        Shape s;
        s.lengths = {{130, 300}}, s.group = 2, s.width = 64, s.value = 100, s.causal = causal, s.mask = mask;
        s.query = s.kv = s.out = type;
        Case clean(s), dirty(s);
        for (const std::int64_t k : {200, 211, 299})
          for (const int d : {0, 17, 99}) {
            dirty.values.set(dirty.at(0, 0, k, d, s.value, 0), d == 17 ? INFINITY : NAN);
            if (k == 211 && d < 64) dirty.key.set(dirty.at(0, 0, k, d, s.width, 0), NAN);
          }
        const Result expected = run(clean), got = run(dirty, 2);
        int reached = 0;
        for (std::int64_t row = 0; row < clean.out_rows(); ++row) {
          const std::int64_t q = row / clean.heads;
          bool dirt = false, poisoned = clean.sees(0, q, 211);
          for (const std::int64_t k : {200, 211, 299}) dirt = dirt || clean.sees(0, q, k);
          for (int d = 0; d < s.value; ++d) {
            const float x = got.out.get(row * s.value + d);
            const bool bad = poisoned || (dirt && (d == 0 || d == 17 || d == 99));
            ASSERT_EQ(!std::isfinite(x), bad) << q << " " << d;
            if (!bad) {
              ASSERT_EQ(x, expected.out.get(row * s.value + d)) << q << " " << d;
            }
            reached += bad;
          }
        }
        ASSERT_GT(reached, 0);
      }
}

TEST_P(DenseAttention, EmptyMaskAndLateModesChangeNothing) {
  for (const auto& [l1, l2] : {std::pair{1, 300}, {5, 5}, {70, 600}}) {
    Shape s;
    s.lengths = {{l1, l2}}, s.width = s.value = 64, s.group = 3;
    const Case plain(s);
    Case masked(s), explicit_triangle(s);
    masked.mask.assign(std::size_t(l1) * l2, 0);
    masked.shape.mask = 1;
    EXPECT_TRUE(same(run(plain), run(masked)));
    s.causal = 1, s.poison = false;
    const Case causal(s);
    s.causal = 0;
    Case triangle(s);
    triangle.mask.assign(std::size_t(l1) * l2, 0), triangle.shape.mask = 1;
    for (int q = 0; q < l1; ++q)
      for (int k = 0; k < l2; ++k) triangle.mask[q * l2 + k] = k > q + l2 - l1;
    EXPECT_TRUE(same(run(causal), run(triangle)));
  }
}

/// Tiles of many queries that share the panels of their keys, of two key heads and two sequences: one thread takes four at a
/// time, and three threads (a twelfth of them at a time) one each. Some see more chunks than have panels that stay.
TEST_P(DenseAttention, SharedPanelsChangeNothing) {
  for (const int causal : {0, 1, 2}) {
    Shape s;
    s.lengths = {{640, 900}, {300, 300}}, s.kv_heads = 2, s.width = 24, s.value = 70, s.causal = causal;
    std::vector<Shape> shapes(9, s);
    shapes[1].query = shapes[1].kv = shapes[1].out = DType::f16, shapes[1].rope = 5;
    shapes[2].kv = DType::i8, shapes[2].key = shapes[2].val = Per::token, shapes[2].offsets = true;
    shapes[3].kv = DType::i32, shapes[3].key = shapes[3].val = Per::channel, shapes[3].value = 64;
    shapes[4].layout = Layout::nz, shapes[4].block = 128, shapes[4].width = shapes[4].value = 32;
    shapes[5].mask = 20, shapes[5].block = 16, shapes[5].rope = 8;
    shapes[6].query = shapes[6].out = DType::f32, shapes[6].kv = DType::i8, shapes[6].key = shapes[6].val = Per::head;
    shapes[7].lengths = {{200, 2605}, {70, 2400}}, shapes[7].width = 128;
    shapes[8] = shapes[7], shapes[8].out = DType::i8;
    for (const Shape& shape : shapes) {
      const Case c(shape);
      const Result shared = run(c);
      ASSERT_TRUE(same(shared, run(c, 3))) << describe(shape);
      if (causal == 1 && GetParam() != supported_kernels()[0]) expect_accurate(c, shared, describe(shape));
      if (HasFatalFailure()) return;
    }
  }
}

/// Where products are of fp32, panels may be too.
TEST_P(DenseAttention, PanelsOfEitherTypeHaveTheSameBits) {
  Shape s;
  s.lengths = {{140, 700}}, s.width = 130, s.rope = 33, s.value = 70, s.causal = 1, s.out = DType::i8;
  std::vector<Shape> shapes(3, s);
  shapes[1].out = DType::bf16;
  shapes[2].kv = DType::i8, shapes[2].key = shapes[2].val = Per::token, shapes[2].out = DType::bf16;
  for (const Shape& shape : shapes) {
    const Case c(shape);
    const Tuning before = tuning;
    tuning.wide_panels = 0;
    const Result pairs = run(c);
    tuning.wide_panels = 1 << 30;
    const Result wide = run(c);
    tuning = before;
    ASSERT_TRUE(same(pairs, wide)) << describe(shape);
  }
}

/// Maxima in the first, a middle and the last chunk, chunks far below it, and scores of ten thousand.
TEST_P(DenseAttention, PeaksAndLargeScores) {
  for (const DType kv : {DType::bf16, DType::i8})
    for (const float spread : {30.0f, 3000.0f}) {
      Shape s;
      s.lengths = {{33, 1000}}, s.width = s.value = 128, s.kv = kv, s.spread = spread;
      if (kv == DType::i8) s.key = s.val = Per::token;
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        s.seed = seed, s.causal = seed % 2;
        const Case c(s);
        expect_accurate(c, run(c, 2), "spread");
      }
    }
}

TEST_P(DenseAttention, WorkspaceIsBounded) {
  Shape s;
  s.lengths = {{4096, 1 << 20}}, s.group = 128, s.width = 512, s.rope = 64, s.value = 512;
  Problem p;
  p.sequences = 1, p.group = 128, p.width = 512, p.rope = 64, p.value = 512;
  for (const DType type : {DType::bf16, DType::i8}) {
    p.kv_type = type;
    for (const int threads : {1, 2, 16, 128}) EXPECT_LE(workspace(p, *GetParam(), threads, false), std::size_t{64} << 20);
  }
}

}  // namespace
}  // namespace dsakit::attention::dense
