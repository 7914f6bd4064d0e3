// SPDX-License-Identifier: Apache-2.0
#include "ops/gather_pa_kv_cache/problem.hpp"

namespace dsakit::reference {
namespace {

using namespace gather_pa_kv_cache_op;

void run(const Problem& p) {
  for (const auto& [cache, rows, copied] : p.parts) {
    copy_elements(rows, copied);
    const std::int64_t width = rows.shape[1] * rows.shape[2], size = p.pages.block_size;
    for (std::int64_t b = 0, row = 0; b < p.batch; ++b)
      for (std::int64_t i = 0; i < p.length(b); ++i, ++row) {
        const std::int64_t position = p.offset(b) + i;
        const std::int64_t page = p.pages.table[b * p.pages.sequence + position / size * p.pages.step];
        for (std::int64_t j = 0; j < width; ++j)
          move_element(rows, offset_of(rows, row * width + j), cache,
                       offset_of(cache, (page * size + position % size) * width + j));
      }
  }
}

}  // namespace

void gather_pa_kv_cache(const GatherPaKvCacheArgs& a, const GatherPaKvCacheOuts& o) { run(check(a, o)); }

void gather_pa_kv_cache_functional(const GatherPaKvCacheFunctionalArgs& a, const GatherPaKvCacheFunctionalOuts& o) {
  run(check(a, o));
}

}  // namespace dsakit::reference
