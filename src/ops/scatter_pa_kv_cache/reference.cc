// SPDX-License-Identifier: Apache-2.0
#include "ops/scatter_pa_kv_cache/problem.hpp"

namespace dsakit::reference {
namespace {

using namespace scatter_pa_kv_cache_op;

void run(const Problem& p) {
  for (const Part& part : p.parts) {
    copy_elements(part.cache, part.copied);
    const std::int64_t width = part.rows.shape[1] * part.rows.shape[2];
    for (std::int64_t t = 0; t < p.tokens(); ++t)
      for (std::int64_t j = 0, slot = p.slot(t); j < width && slot >= 0; ++j) {
        const std::int64_t page = slot / p.block_size, place = slot % p.block_size, c0 = part.cache.shape[3];
        const std::int64_t element =
            p.nz ? ((page * (width / c0) + j / c0) * p.block_size + place) * c0 + j % c0 : slot * width + j;
        move_element(part.cache, offset_of(part.cache, element), part.rows, offset_of(part.rows, t * width + j));
      }
  }
}

}  // namespace

void scatter_pa_kv_cache(const ScatterPaKvCacheArgs& a, const ScatterPaKvCacheOuts& o) { run(check(a, o)); }

void scatter_pa_kv_cache_functional(const ScatterPaKvCacheFunctionalArgs& a, const ScatterPaKvCacheFunctionalOuts& o) {
  run(check(a, o));
}

}  // namespace dsakit::reference
