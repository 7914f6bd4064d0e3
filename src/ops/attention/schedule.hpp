// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/attention/partial.hpp"
#include "run/call.hpp"

// Which thread works on which rows and keys: the same for all attention, whatever feeds it keys (a list, an interval,
// pages) and however products are made. Query rows that share their keys are a tile; the keys of a tile come in chunks
// of kChunk positions, each of which leaves a partial softmax.
//
//   many tiles  each stays with one thread, which merges its chunks as they come
//   few tiles   split-K, unless they share evenly: chunks go to all threads, a slotful at a time, each to a slot of its
//               own; then the slots are merged
//
// Either way the chunks of a tile are the same and are merged in ascending order: the bits depend on nothing else.
namespace dsakit::attention {

inline constexpr std::size_t kLanesBytes = std::size_t{40} << 20;  // scratch of all threads
inline constexpr std::size_t kSlotsBytes = std::size_t{20} << 20;  // partial results on their way
inline constexpr int kSlots = 64;                                  // the same, in chunks
inline constexpr int kMostGroup = 8;                               // tiles that a thread takes at a time

/// Chunks first .. last of a tile; none: last < first.
struct ChunkRange {
  std::int64_t first, last;
};

/// Of the rows of a tile to a chunk.
template <class Queries>
struct Visit {
  const Queries* queries = nullptr;  // null: of nobody
  std::int64_t chunk = -1;
};

/// What one kind of attention says of a call, constant while it runs:
///
///   Tile     rows()                            how many it has
///   Queries  Queries(Carver&, engine)          the rows of a tile as products want them: tile, and all (Partial)
///   Scratch  Scratch(Carver&, engine)          what else a thread needs
///     begin()                          before a thread's first tile
///   Worker   Worker(engine, kernels, scratch)  a thread's work:
///     load(tile, queries)              reads the rows
///     attend(visit, next, partial)     merges a chunk into a partial result; `next` comes next: prefetch it
///     merge(all, later, row)           the same of a chunk that was attended apart: the same operations and bits
///     finish(tile, all, row)           partial result to output; spoils it
///   tiles, tile(i), chunks(tile)       how many; each; its ChunkRange
///   rows, columns, value_pitch         of a partial result: rows of a tile, at most, and of values
///   group                              tiles that a thread may take at a time, to prefetch across them
///   side_by_side(a, b)                 tiles of a group whose keys lie in the same lines of memory
template <class Engine>
class Schedule {
  using Tile = typename Engine::Tile;
  using Queries = typename Engine::Queries;
  using Scratch = typename Engine::Scratch;
  using Worker = typename Engine::Worker;

 public:
  static std::size_t lane_bytes(const Engine& engine, int group) {
    Carver memory;
    Lane(memory, engine, group);
    return memory.bytes();
  }
  static std::size_t slot_bytes(const Engine& engine) {
    Carver memory;
    Partial(memory, engine.rows, engine.value_pitch);
    return memory.bytes();
  }

  Schedule(const Engine& engine, int threads)
      : engine_(engine),
        tiles_(engine.tiles),
        lane_bytes_(lane_bytes(engine, engine.group)),
        slot_bytes_(slot_bytes(engine)),
        lanes_(std::int64_t(std::clamp<std::size_t>(kLanesBytes / lane_bytes_, 1, std::size_t(threads)))),
        slots_(lanes_ > 1 && tiles_ < 4 * lanes_
                   ? std::int64_t(std::clamp<std::size_t>(kSlotsBytes / slot_bytes_, 1, kSlots))
                   : 0),
        group_(int(std::clamp<std::int64_t>(lanes_ == 1 ? tiles_ : tiles_ / (4 * lanes_), 1, engine.group))) {}

  std::size_t bytes() const { return std::size_t(lanes_) * lane_bytes_ + std::size_t(slots_) * slot_bytes_; }

  void run(Call& call, std::byte* memory, const Work& work) const {
    const bool split = slots_ > 0 && !share_evenly();
    for (std::int64_t i = 0; i < lanes_; ++i) lane(memory, int(i)).scratch.begin();
    call.choice("tiles", tiles_), call.choice("tiles at a time", group_), call.choice("chunks shared", split);
    (this->*(split ? &Schedule::run_split : &Schedule::run_whole))(call, memory, work);
  }

 private:
  /// Whether each thread gets as many tiles as the others, all of the same chunks: nothing is left for split-K to level.
  bool share_evenly() const {
    if (tiles_ % lanes_ != 0) return false;
    const auto count = [&](std::int64_t i) {
      const ChunkRange c = engine_.chunks(engine_.tile(i));
      return c.last - c.first;
    };
    for (std::int64_t i = 1; i < tiles_; ++i)
      if (count(i) != count(0)) return false;
    return true;
  }

  /// A thread's memory.
  struct Lane {
    Scratch scratch;
    Queries queries[kMostGroup];

    Lane(Carver& memory, const Engine& engine, int group) : scratch(memory, engine) {
      for (int i = 0; i < group; ++i) queries[i] = Queries(memory, engine);
    }
  };
  Lane lane(std::byte* memory, int thread) const {
    Carver carver(memory + std::size_t(thread) * lane_bytes_);
    return Lane(carver, engine_, group_);
  }
  Partial slot(std::byte* memory, std::int64_t i) const {
    Carver carver(memory + std::size_t(lanes_) * lane_bytes_ + std::size_t(i) * slot_bytes_);
    return Partial(carver, engine_.rows, engine_.value_pitch);
  }
  /// At most one item per lane at a time where there are fewer lanes than threads.
  std::int64_t at_a_time(const Call& call, std::int64_t n) const {
    return lanes_ < call.threads() ? std::min(lanes_, n) : n;
  }

  /// Every chunk of n tiles, one visit behind, because a visit wants to know the next. Tiles side by side go through
  /// the chunks together: what memory brings along for one, or panels that one has made, are there for the others.
  void visit(Worker& worker, const Queries* queries, int n) const {
    Visit<Queries> held;
    const auto then = [&](Visit<Queries> next) {
      if (held.queries) worker.attend(held, next, held.queries->all);
      held = next;
    };
    for (int i = 0, end; i < n; i = end) {
      end = i + 1;
      while (end < n && engine_.side_by_side(queries[i].tile, queries[end].tile)) ++end;
      ChunkRange chunks[kMostGroup], all = {INT64_MAX, -1};
      for (int j = i; j < end; ++j) {
        const ChunkRange& own = chunks[j - i] = engine_.chunks(queries[j].tile);
        if (own.first <= own.last) all = {std::min(all.first, own.first), std::max(all.last, own.last)};
      }
      for (std::int64_t c = all.first; c <= all.last; ++c)
        for (int j = i; j < end; ++j)
          if (chunks[j - i].first <= c && c <= chunks[j - i].last) then({queries + j, c});
    }
    then({});
  }

  void run_whole(Call& call, std::byte* memory, const Work& work) const {
    const std::int64_t groups = (tiles_ + group_ - 1) / group_, step = at_a_time(call, groups);
    for (std::int64_t base = 0; base < groups; base += step) {
      const std::int64_t some = std::min(step, groups - base);
      call.parallel_for(some, work * (double(some) / double(groups)), [&](std::int64_t i, int thread) {
        Lane own = lane(memory, thread);
        Worker worker(engine_, call.kernels(), own.scratch);
        const std::int64_t first = (base + i) * group_;
        const int n = int(std::min<std::int64_t>(group_, tiles_ - first));
        for (int t = 0; t < n; ++t) {
          worker.load(engine_.tile(first + t), own.queries[t]);
          own.queries[t].all.clear(own.queries[t].tile.rows());
        }
        visit(worker, own.queries, n);
        for (const Queries* q = own.queries; q < own.queries + n; ++q)
          for (int r = 0; r < q->tile.rows(); ++r) worker.finish(q->tile, q->all, r);
      });
    }
  }

  /// A chunk of a split tile; `empty`: the tile has none.
  struct Item {
    Tile tile;
    std::int64_t chunk;
    bool first, last, empty;  // of the tile
  };

  void run_split(Call& call, std::byte* memory, const Work& work) const {
    Item item[kSlots];
    const std::int64_t slots = at_a_time(call, slots_);
    for (std::int64_t tile = 0, chunk = -1; tile < tiles_;) {
      std::int64_t n = 0;
      while (n < slots && tile < tiles_) {
        const Tile t = engine_.tile(tile);
        const ChunkRange chunks = engine_.chunks(t);
        const bool empty = chunks.last < chunks.first, first = chunk < 0;
        if (first) chunk = chunks.first;
        const bool last = empty || chunk == chunks.last;
        item[n++] = {t, chunk, first, last, empty};
        if (last) ++tile, chunk = -1;
        else ++chunk;
      }
      call.parallel_for(n, work, [&](std::int64_t i, int thread) {
        Lane own = lane(memory, thread);
        const Partial partial = slot(memory, i);
        partial.clear(item[i].tile.rows());
        if (item[i].empty) return;
        Worker worker(engine_, call.kernels(), own.scratch);
        worker.load(item[i].tile, own.queries[0]);
        worker.attend({own.queries, item[i].chunk}, {}, partial);
      });
      merge_slots(call, memory, item, n);
    }
  }

  /// Slots in ascending order into the first lane's result; tiles that are complete are finished.
  void merge_slots(Call& call, std::byte* memory, const Item* item, std::int64_t n) const {
    constexpr int kRows = 8;  // per piece of work
    const Lane zero = lane(memory, 0);
    const Partial& all = zero.queries[0].all;
    const Work work{.elements = double(n) * engine_.rows * engine_.columns};
    call.parallel_for((engine_.rows + kRows - 1) / kRows, work, [&](std::int64_t piece, int) {
      const Worker worker(engine_, call.kernels(), zero.scratch);
      for (std::int64_t i = 0; i < n; ++i) {
        const Partial partial = slot(memory, i);
        const int end = std::min(int(piece + 1) * kRows, item[i].tile.rows());
        for (int r = int(piece) * kRows; r < end; ++r) {
          if (item[i].first) all.sum[r] = 0;
          if (partial.sum[r] != 0) worker.merge(all, partial, r);
          if (item[i].last) worker.finish(item[i].tile, all, r);
        }
      }
    });
  }

  const Engine& engine_;
  std::int64_t tiles_;
  std::size_t lane_bytes_, slot_bytes_;
  std::int64_t lanes_;  // threads that have scratch
  std::int64_t slots_;  // chunks whose partial results fit; 0: so many tiles that none is split
  int group_;           // tiles that a thread takes at a time
};

}  // namespace dsakit::attention
