// SPDX-License-Identifier: Apache-2.0
#include "layer/dense_attention.hpp"

#include "ops/attention/dense.hpp"
#include "run/call.hpp"

namespace dsakit {

void dense_attention(const DenseAttention& d, LayerCache::State& cache, Context& context) {
  using namespace attention::dense;
  constexpr std::int64_t kAll = std::int64_t{1} << 61;
  const std::ptrdiff_t latent = cache.latent.width, rope = cache.rope.width;
  const Sequence sequence{0, d.rows, 0, d.first + d.rows, -kAll, d.first};
  const auto rows = [&](bf16* x, std::ptrdiff_t width) { return Grid{x, 0, d.heads * width, width}; };
  const auto pages = [&](const CachePool& pool, std::ptrdiff_t width) {
    return Cache{.data = pool.memory.data(), .page = cache.page_size * width, .row = width};
  };
  Problem p;
  p.sequence = &sequence, p.sequences = 1;
  p.group = d.heads, p.width = int(latent), p.rope = int(rope), p.value = int(latent);
  p.scale = float(d.scale);
  p.query = rows(d.query_nope, latent), p.query_rope = rows(d.query_rope, rope), p.out = rows(d.out, latent);
  p.key = p.values = pages(cache.latent, latent), p.key_rope = pages(cache.rope, rope);
  p.pages = {cache.table.data(), 0, 1, cache.page_size};
  Call call(context, "attention_layer", [&](const Call& call) {
    return workspace(p, call.kernels(), call.threads(), call.same_products());
  });
  run(p, call, call.memory());
  call.finish();
}

}  // namespace dsakit
