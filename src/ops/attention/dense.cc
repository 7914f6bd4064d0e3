// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/dense.hpp"

#include <algorithm>

#include "ops/attention/dense_tile.hpp"

namespace dsakit::attention::dense {
namespace {

constexpr std::size_t kLanesBytes = std::size_t{40} << 20, kSlotsBytes = std::size_t{20} << 20;
constexpr int kSlots = 64;                   // chunks in flight when tiles are split
constexpr int kTogether = 8;                 // tiles of few rows that a thread takes at a time
constexpr double kFlopsPerNanosecond = 200;  // of a thread, about

std::int64_t tiles_of(const Problem& p, const Plan& plan, std::int64_t b) {
  return (p.sequence[b].queries + plan.queries - 1) / plan.queries * p.kv_heads * plan.head_blocks;
}

std::int64_t longest(const Problem& p) {
  std::int64_t most = 1;
  for (std::int64_t b = 0; b < p.sequences; ++b) most = std::max(most, p.sequence[b].queries);
  return most;
}

/// A thread's memory.
struct Lane {
  Scratch scratch;
  Rows rows[kTogether];

  Lane(Carver& memory, const Problem& p, const Plan& plan, int together) : scratch(memory, p, plan) {
    for (int i = 0; i < together; ++i) rows[i] = Rows(memory, p, plan);
  }
};

std::size_t lane_bytes_of(const Problem& p, const Plan& plan, int together) {
  Carver memory;
  Lane(memory, p, plan, together);
  return memory.bytes();
}

/// Tiles that a thread takes at a time, if there are many.
int together_of(const Plan& plan) { return plan.rows <= kFew ? kTogether : 1; }

/// How a call is cut: by tiles, and by chunks where tiles are few.
struct Work {
  Plan plan;
  std::size_t lane_bytes, slot_bytes;
  std::int64_t tiles = 0, lanes, slots;
  int together;
  bool split;

  Work(const Problem& p, const Call& call) : plan(p, longest(p), call.same_products()) {
    Carver slot;
    Partial(slot, plan);
    lane_bytes = lane_bytes_of(p, plan, together_of(plan)), slot_bytes = slot.bytes();
    for (std::int64_t b = 0; b < p.sequences; ++b) tiles += tiles_of(p, plan, b);
    lanes = std::int64_t(std::clamp<std::size_t>(kLanesBytes / lane_bytes, 1, std::size_t(call.threads())));
    split = lanes > 1 && tiles < 4 * lanes;
    slots = split ? std::int64_t(std::clamp<std::size_t>(kSlotsBytes / slot_bytes, 1, kSlots)) : 0;
    const std::int64_t share = lanes == 1 ? tiles : tiles / (4 * lanes);
    together = int(std::clamp<std::int64_t>(share, 1, together_of(plan)));
  }
};

/// One call's memory: where each sequence's tiles begin, scratch of every lane, partial results of split tiles.
class Memory {
 public:
  Memory(std::byte* base, const Problem& p, const Work& work) : p_(p), work_(work) {
    Carver carver(base);
    first_tile_ = carver.take<std::int64_t>(p.sequences + 1);
    first_tile_[0] = 0;
    for (std::int64_t b = 0; b < p.sequences; ++b) first_tile_[b + 1] = first_tile_[b] + tiles_of(p, work.plan, b);
    base_ = base + carver.bytes();
  }

  Lane lane(int i) const {
    Carver carver(base_ + std::size_t(i) * work_.lane_bytes);
    return Lane(carver, p_, work_.plan, work_.together);
  }
  Partial slot(std::int64_t i) const {
    Carver carver(base_ + std::size_t(work_.lanes) * work_.lane_bytes + std::size_t(i) * work_.slot_bytes);
    return Partial(carver, work_.plan);
  }
  Tile tile(std::int64_t i) const {
    const std::int64_t b = std::upper_bound(first_tile_, first_tile_ + p_.sequences + 1, i) - first_tile_ - 1;
    const Plan& plan = work_.plan;
    const std::int64_t steps = (p_.sequence[b].queries + plan.queries - 1) / plan.queries;
    i -= first_tile_[b];
    // The queries of a head one after the other, the last ones, which see most, first.
    const std::int64_t first = (steps - 1 - i % steps) * plan.queries, g = i / steps / plan.head_blocks;
    const int head = int(i / steps % plan.head_blocks) * plan.heads;
    return {b,     g,
            first, int(std::min<std::int64_t>(plan.queries, p_.sequence[b].queries - first)),
            head,  int(std::min<std::int64_t>(plan.heads, p_.group - head))};
  }

 private:
  const Problem& p_;
  const Work& work_;
  std::int64_t* first_tile_;
  std::byte* base_;
};

/// Every chunk of n tiles, one visit behind, because a visit wants to know the next. Heads whose keys lie next to each
/// other go through the chunks together: what memory brings along for one is there for the others.
void visit(const Problem& p, Worker& worker, const Rows* rows, int n) {
  Worker::Visit held{nullptr, -1};
  const auto next = [&](Worker::Visit v) {
    if (held.rows) worker.attend(held, v, held.rows->all);
    held = v;
  };
  const bool heads_are_neighbours = p.key.head < p.key.row;
  for (int i = 0, end; i < n; i = end) {
    const Tile& tile = rows[i].tile;
    end = i + 1;
    while (heads_are_neighbours && end < n && rows[end].tile.b == tile.b && rows[end].tile.first == tile.first) ++end;
    const Chunks chunks(p, tile);
    for (std::int64_t c = chunks.first; c <= chunks.last; ++c)
      for (int j = i; j < end; ++j) next({rows + j, c});
  }
  next({nullptr, -1});
}

/// Tiles that are many: each stays with one thread.
void run_whole(const Problem& p, const Work& work, const Memory& memory, double cost, Call& call) {
  const std::int64_t groups = (work.tiles + work.together - 1) / work.together;
  const std::int64_t step = work.lanes < call.threads() ? work.lanes : groups;
  for (std::int64_t base = 0; base < groups; base += step) {
    const std::int64_t some = std::min(step, groups - base);
    call.parallel_for(some, cost * double(some) / double(groups), [&](std::int64_t i, int thread) {
      Lane lane = memory.lane(thread);
      Worker worker(p, work.plan, call.kernels(), lane.scratch);
      const std::int64_t first = (base + i) * work.together;
      const int n = int(std::min<std::int64_t>(work.together, work.tiles - first));
      for (int t = 0; t < n; ++t) {
        worker.load(memory.tile(first + t), lane.rows[t]);
        lane.rows[t].all.clear(lane.rows[t].tile.rows());
      }
      visit(p, worker, lane.rows, n);
      for (const Rows* rows = lane.rows; rows < lane.rows + n; ++rows)
        for (int r = 0; r < rows->tile.rows(); ++r) worker.finish(rows->tile, rows->all, r);
    });
  }
}

/// Tiles that are few: their chunks go to all threads, a slotful at a time, and are merged in order.
void run_split(const Problem& p, const Work& work, const Memory& memory, double cost, Call& call) {
  struct Item {
    Tile tile;
    std::int64_t chunk;
    bool first, last, empty;  // of the tile; empty: it has no chunk
  } item[kSlots];
  constexpr int kMerge = 8;  // rows per piece of work
  const std::int64_t slots = work.lanes < call.threads() ? std::min(work.lanes, work.slots) : work.slots;
  const Lane zero = memory.lane(0);
  std::int64_t tile = 0, chunk = -1;
  while (tile < work.tiles) {
    std::int64_t n = 0;
    while (n < slots && tile < work.tiles) {
      const Tile t = memory.tile(tile);
      const Chunks chunks(p, t);
      const bool empty = chunks.last < chunks.first, first = chunk < 0;
      if (first) chunk = chunks.first;
      const bool last = empty || chunk == chunks.last;
      item[n++] = {t, chunk, first, last, empty};
      if (last) ++tile, chunk = -1;
      else ++chunk;
    }
    call.parallel_for(n, cost, [&](std::int64_t i, int thread) {
      Lane lane = memory.lane(thread);
      const Partial slot = memory.slot(i);
      slot.clear(item[i].tile.rows());
      if (item[i].empty) return;
      Worker worker(p, work.plan, call.kernels(), lane.scratch);
      worker.load(item[i].tile, lane.rows[0]);
      worker.attend({lane.rows, item[i].chunk}, {nullptr, -1}, slot);
    });
    call.parallel_for((work.plan.rows + kMerge - 1) / kMerge, double(n) * work.plan.rows * p.value,
                      [&](std::int64_t piece, int) {
                        const Worker worker(p, work.plan, call.kernels(), zero.scratch);
                        const Partial& all = zero.rows[0].all;
                        for (std::int64_t i = 0; i < n; ++i) {
                          const Item& x = item[i];
                          const int end = int(std::min<std::int64_t>((piece + 1) * kMerge, x.tile.rows()));
                          for (int r = int(piece) * kMerge; r < end; ++r) {
                            if (x.first) all.sum[r] = 0;
                            worker.merge(all, memory.slot(i), r);
                            if (x.last) worker.finish(x.tile, all, r);
                          }
                        }
                      });
  }
}

}  // namespace

/// What no lengths can exceed: they need not be known yet.
std::size_t workspace(const Problem& p, int threads, bool same_products) {
  const Plan plan(p, kTileRows, same_products);
  Plan few = plan;
  few.rows = std::min(few.rows, kFew);
  const std::size_t lane = std::max(lane_bytes_of(p, plan, 1), lane_bytes_of(p, few, together_of(few)));
  Carver offsets, slot;
  offsets.take<std::int64_t>(p.sequences + 1), Partial(slot, plan);
  return offsets.bytes() + std::min(std::size_t(threads) * lane, std::max(kLanesBytes, lane)) +
         (threads > 1 ? std::min(kSlots * slot.bytes(), std::max(kSlotsBytes, slot.bytes())) : 0);
}

void run(const Problem& p, Call& call, std::byte* memory) noexcept {
  const Work work(p, call);
  double pairs = 0;
  for (std::int64_t b = 0; b < p.sequences; ++b) pairs += double(p.sequence[b].queries) * double(p.sequence[b].keys);
  const double cost = pairs * double(p.kv_heads * p.group) * 2 * (p.width + p.rope + p.value) / kFlopsPerNanosecond;
  (work.split ? run_split : run_whole)(p, work, Memory(memory, p, work), cost, call);
}

}  // namespace dsakit::attention::dense
