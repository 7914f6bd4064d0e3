// SPDX-License-Identifier: Apache-2.0
#include "ops/scatter_pa_kv_cache/problem.hpp"

namespace dsakit {
namespace {

using namespace scatter_pa_kv_cache_op;

/// One row [h, d] into the panels of c0 columns of its page.
void copy_nz(const Part& p, std::int64_t place, std::int64_t token) {
  const std::int64_t heads = p.rows.shape[1], width = p.rows.shape[2], c0 = p.cache.shape[3];
  const std::size_t size = std::size_t(size_of(p.rows.dtype));
  for (std::int64_t h = 0, column = 0; h < heads; ++h) {
    const std::byte* from = bytes_at(p.rows, token * p.rows.stride[0] + h * p.rows.stride[1]);
    for (std::int64_t done = 0, n; done < width; done += n, column += n) {
      n = std::min(width - done, c0 - column % c0);
      std::byte* to = bytes_at(p.cache, place + column / c0 * p.cache.stride[1] + column % c0);
      if (n == c0) std::memcpy(to, from, 32);
      else std::memcpy(to, from, std::size_t(n) * size);
      from += std::size_t(n) * size;
    }
  }
}

void run(Call& call, const Problem& p) {
  BlockCopy copy[2];
  std::int64_t bytes = 0;
  for (int i : {0, 1}) {
    const Part& part = p.parts[std::size_t(i)];
    if (part.copied) copy_all(call, part.cache, part.copied);
    if (!p.nz) copy[i] = BlockCopy(part.cache, 2, part.rows, 1);
    bytes += part.rows.shape[1] * part.rows.shape[2] * size_of(part.rows.dtype);
  }
  const auto walk = [&](auto write) {
    for (std::int64_t t = 0; t < p.tokens(); ++t)
      if (const std::int64_t slot = p.slot(t); slot >= 0) write(slot, t);
  };
  scatter(call, p.tokens(), bytes, walk, [&](std::int64_t slot, std::int64_t t) {
    for (int i : {0, 1}) {
      const Part& part = p.parts[std::size_t(i)];
      const std::int64_t place = p.place(part.cache, slot);
      if (p.nz) copy_nz(part, place, t);
      else copy[i](bytes_at(part.cache, place), bytes_at(part.rows, t * part.rows.stride[0]));
    }
  });
  call.finish();
}

}  // namespace

void scatter_pa_kv_cache(const ScatterPaKvCacheArgs& a, const ScatterPaKvCacheOuts& o, Context& context) {
  const Problem problem = check(a, o);
  Call call(context, "scatter_pa_kv_cache", std::size_t(0));
  run(call, problem);
}

void scatter_pa_kv_cache_functional(const ScatterPaKvCacheFunctionalArgs& a, const ScatterPaKvCacheFunctionalOuts& o,
                                    Context& context) {
  const Problem problem = check(a, o);
  Call call(context, "scatter_pa_kv_cache_functional", std::size_t(0));
  run(call, problem);
}

}  // namespace dsakit
