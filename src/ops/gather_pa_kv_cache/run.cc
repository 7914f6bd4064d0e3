// SPDX-License-Identifier: Apache-2.0
#include "ops/gather_pa_kv_cache/problem.hpp"

#include "ops/direct.hpp"

namespace dsakit {
namespace {

using namespace gather_pa_kv_cache_op;

constexpr std::int64_t kTaskBytes = 1 << 18;

void run(Call& call, const Problem& p) {
  for (const Part& part : p.parts)
    if (part.copied) copy_all(call, part.rows, part.copied);
  const auto& [keys, values] = p.parts;
  const BlockCopy copy[] = {{keys.rows, 1, keys.cache, 2}, {values.rows, 1, values.cache, 2}};
  const std::int64_t bytes = copy[0].bytes() + copy[1].bytes();
  const std::int64_t total = p.total(), each = std::max<std::int64_t>(kTaskBytes / std::max<std::int64_t>(bytes, 1), 1);
  call.parallel_for(
      (total + each - 1) / each, {.bytes = 2.0 * double(total) * double(bytes)}, [&](std::int64_t task, int) {
        Mover<BlockCopy> move[] = {{copy[0], total * bytes}, {copy[1], total * bytes}};
        const std::int64_t begin = task * each, end = std::min(begin + each, total);
        for (std::int64_t b = 0, first = 0; first < end; first += p.length(b++)) {
          const std::int64_t from = std::max(begin - first, std::int64_t(0)), to = std::min(end - first, p.length(b));
          if (from >= to) continue;
          p.pages.each_run(b, p.offset(b) + from, to - from,
                           [&](std::int64_t j, std::int64_t n, std::int64_t page, std::int64_t row) {
                             for (int i : {0, 1}) {
                               const auto& [cache, rows, copied] = p.parts[std::size_t(i)];
                               for (std::int64_t r = 0; r < n; ++r)
                                 move[i](bytes_at(rows, (first + from + j + r) * rows.stride[0]),
                                         bytes_at(cache, page * cache.stride[0] + (row + r) * cache.stride[1]));
                             }
                           });
        }
      });
  call.finish();
}

}  // namespace

void direct::gather_pa_kv_cache(const GatherPaKvCacheArgs& a, const GatherPaKvCacheOuts& o, Context& context) {
  const Problem problem = check(a, o);
  Call call(context, "gather_pa_kv_cache", std::size_t(0));
  run(call, problem);
}

void direct::gather_pa_kv_cache_functional(const GatherPaKvCacheFunctionalArgs& a,
                                           const GatherPaKvCacheFunctionalOuts& o, Context& context) {
  const Problem problem = check(a, o);
  Call call(context, "gather_pa_kv_cache_functional", std::size_t(0));
  run(call, problem);
}

}  // namespace dsakit
