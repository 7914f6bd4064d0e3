// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/dense.hpp"

#include <algorithm>

#include "ops/attention/dense_worker.hpp"

namespace dsakit::attention::dense {

/// What no lengths can exceed: they need not be known yet.
std::size_t workspace(const Problem& p, const Kernels& kernels, int threads, bool same_products) {
  using Cut = Schedule<Plan>;
  const Plan plan(p, kernels, kTileRows, threads, same_products);
  Plan few = plan;
  few.rows = std::min(few.rows, kGemvRows), few.held = 1;
  const std::size_t lane = std::max(Cut::lane_bytes(plan, plan.group), Cut::lane_bytes(few, kMostGroup)),
                    slot = Cut::slot_bytes(plan);
  Carver offsets;
  offsets.take<std::int64_t>(p.sequences + 1);
  return offsets.bytes() + std::min(std::size_t(threads) * lane, std::max(kLanesBytes, lane)) +
         (threads > 1 ? std::min(kSlots * slot, std::max(kSlotsBytes, slot)) : 0);
}

void run(const Problem& p, Call& call, std::byte* memory) noexcept {
  std::int64_t longest = 1;
  double pairs = 0, keys = 0;  // pairs of a query row and a key
  for (const Sequence* s = p.sequence; s < p.sequence + p.sequences; ++s) {
    longest = std::max(longest, s->queries);
    pairs += double(s->queries) * double(s->keys), keys += double(s->keys);
  }
  Plan plan(p, call.kernels(), longest, call.threads(), call.same_products());
  Carver carver(memory);
  std::int64_t* first_tile = carver.take<std::int64_t>(p.sequences + 1);
  first_tile[0] = 0;
  for (std::int64_t b = 0; b < p.sequences; ++b)
    first_tile[b + 1] = first_tile[b] + plan.steps(b) * p.kv_heads * plan.head_blocks;
  plan.first_tile = first_tile, plan.tiles = first_tile[p.sequences];
  const double scores = pairs * double(p.kv_heads * p.group), width = double(p.width + p.rope + p.value),
               bytes = p.kv_type == DType::i32 ? 0.5 : double(size_of(p.kv_type));  // eight codes a word
  Schedule(plan, call.threads())
      .run(call, memory + carver.bytes(),
           {.bytes = keys * double(p.kv_heads) * width * bytes, .products = scores * width, .elements = scores / 4});
}

}  // namespace dsakit::attention::dense
