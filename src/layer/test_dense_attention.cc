// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "core/random.hpp"
#include "kernels/kernels.hpp"
#include "layer/dense_attention.hpp"
#include "ops/attention/sparse.hpp"

namespace dsakit {
namespace {

/// A cache, queries that come after `first` positions, and three ways to attend: the layer's, the same positions as
/// lists, and the formula in double.
struct Case {
  std::int64_t latent, rope, rows, first, heads;
  float spread;  // of the query
  LayerCache::State cache;
  std::vector<bf16> query, query_rope;

  Case(std::int64_t latent, std::int64_t rope, std::int64_t rows, std::int64_t first, std::int64_t heads, float spread,
       std::int64_t page_size)
      : latent(latent),
        rope(rope),
        rows(rows),
        first(first),
        heads(heads),
        cache(RowKinds(config(latent, rope), false, Mode::dense_bf16), Mode::dense_bf16, page_size) {
    Random r(std::uint64_t(latent + rows + heads));
    query = random_bf16(r, rows * heads * latent, -spread, spread);
    query_rope = random_bf16(r, rows * heads * rope, -spread, spread);
    cache.reserve(first + rows);
    std::reverse(cache.table.begin(), cache.table.end());
    for (CachePool* pool : {&cache.latent, &cache.rope}) {
      const std::vector<bf16> nan(pool->memory.size() / sizeof(bf16), bf16{0xffff});
      std::memcpy(pool->memory.data(), nan.data(), pool->memory.size());
      for (std::int64_t i = 0; i < first + rows; ++i) {
        const std::vector<bf16> row = random_bf16(r, pool->width);
        std::memcpy(pool->memory.data() + cache.slot(i) * pool->row_bytes(), row.data(), sizeof(bf16) * row.size());
      }
    }
  }
  static io::ModelConfig config(std::int64_t latent, std::int64_t rope) {
    io::ModelConfig c{};
    c.kv_lora_rank = latent, c.qk_rope_head_dim = rope;
    return c;
  }
  double scale() const { return 1 / std::sqrt(double(latent + rope)); }

  std::vector<bf16> dense(Context& context) {
    std::vector<bf16> out(query.size(), bf16{0x1234});
    dense_attention({query.data(), query_rope.data(), rows, first, heads, scale(), out.data()}, cache, context);
    return out;
  }

  std::vector<bf16> listed(Context& context) {
    using namespace attention::sparse;
    std::vector<bf16> out(query.size());
    struct {
      Problem attention;
      std::int64_t first;
      void each_token(const std::function<void(std::int64_t, const Token&)>& f) const {
        for (std::int64_t i = 0; i < attention.tokens; ++i) f(i, Token{.sequence = 0, .count = first + i + 1});
      }
    } const all{{.query = Rows(tensor(query.data(), {rows * heads, latent}), 1),
                 .query_rope = Rows(tensor(query_rope.data(), {rows * heads, rope}), 1),
                 .keys = {.rows = {nullptr, cache.page_size, 1, cache.page_size, cache.table.data()},
                          .latent = Rows(cache.rows_of(cache.latent), 1),
                          .rope = Rows(cache.rows_of(cache.rope), 1)},
                 .out = Rows(tensor(out.data(), {rows * heads, latent}), 1),
                 .tokens = rows,
                 .heads = heads,
                 .latent = int(latent),
                 .rope = int(rope),
                 .scale = float(scale())},
                first};
    run("test", all, context);
    return out;
  }

  std::vector<double> exact() const {
    const auto key = [&](const CachePool& pool, std::int64_t i) {
      return reinterpret_cast<const bf16*>(pool.memory.data()) + cache.slot(i) * pool.width;
    };
    const auto dot = [](const bf16* a, const bf16* b, std::int64_t n) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += double(to_float(a[i])) * double(to_float(b[i]));
      return sum;
    };
    std::vector<double> out(query.size());
    for (std::int64_t row = 0; row < rows * heads; ++row) {
      const std::int64_t n = first + row / heads + 1;
      std::vector<double> p;
      for (std::int64_t i = 0; i < n; ++i)
        p.push_back(scale() * (dot(query.data() + row * latent, key(cache.latent, i), latent) +
                               dot(query_rope.data() + row * rope, key(cache.rope, i), rope)));
      const double max = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - max);
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t c = 0; c < latent; ++c)
          out[row * latent + c] += p[i] / sum * double(to_float(key(cache.latent, i)[c]));
    }
    return out;
  }
};

class DenseAttentionOfALayer : public testing::TestWithParam<const Kernels*> {};
INSTANTIATE_TEST_SUITE_P(Rungs, DenseAttentionOfALayer,
                         testing::ValuesIn(supported_kernels().begin(), supported_kernels().end()),
                         [](const auto& info) { return std::string(info.param->isa); });

/// Steps of one token and prompts, at one and at several threads, with heads that fill tiles and that do not.
TEST_P(DenseAttentionOfALayer, IsAttentionToAListOfAllPositions) {
  Case cases[] = {{512, 64, 1, 700, 16, 2, 64},   {128, 16, 40, 0, 3, 2, 16},  {72, 16, 90, 300, 2, 8, 1},
                  {128, 32, 2, 600, 130, 1, 100}, {64, 8, 130, 20, 1, 0, 128}, {128, 64, 5, 511, 24, 5, 33}};
  for (Case& c : cases) {
    SCOPED_TRACE(std::to_string(c.rows) + " rows behind " + std::to_string(c.first));
    const auto run = [&](int threads, bool same_products, bool listed) {
      Context context({.threads = threads, .isa = GetParam()->isa, .same_products = same_products});
      return listed ? c.listed(context) : c.dense(context);
    };
    const std::vector<double> exact = c.exact();
    for (const bool same_products : {false, true}) {
      const std::vector<bf16> one = run(1, same_products, false), listed = run(1, same_products, true);
      double ours = 0, theirs = 0;
      for (std::size_t i = 0; i < one.size(); ++i) {
        const double a = to_float(one[i]), b = to_float(listed[i]);
        ASSERT_NEAR(a, b, 1e-3 + 0x1p-7 * std::fabs(exact[i])) << i;
        ours += (a - exact[i]) * (a - exact[i]), theirs += (b - exact[i]) * (b - exact[i]);
      }
      EXPECT_LE(std::sqrt(ours), 1.01 * std::sqrt(theirs));
      for (const int threads : {2, 3, 8})
        EXPECT_EQ(std::memcmp(run(threads, same_products, false).data(), one.data(), sizeof(bf16) * one.size()), 0)
            << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace dsakit
