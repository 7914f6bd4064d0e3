// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "layer/chunk.hpp"
#include "layer/parallel.hpp"
#include "parallel/selection.hpp"
#include "run/carver.hpp"

namespace dsakit {

/// A chunk on its way through a layer that several ranks share: beside what Chunk has (queries and values of this rank's
/// heads alone), what of the same is of all ranks, or of this one before it is exchanged.
struct SharedChunk {
  Peers& parallel;
  Chunk& chunk;
  const ChunkRows& rows;  // chunk.rows are this replica's
  const ShardedCache& cache;

  // Products of the hidden states, fp32 [rows, columns]: of this rank's columns, and of all.
  struct Sums {
    float *c_q, *kv, *key, *weights;
    float *plain_c_q, *rest;  // sparse_bf16: two more products (layer/index_prolog.hpp); rest null: nothing was rounded off
  } mine{}, sums{};
  Tensor own_index_query{}, own_index_scale{};  // of this rank's index heads
  bf16* values = nullptr;                       // [rows, all heads, Dv]
  float* own_out = nullptr;                     // [rows, own columns]

  void take_arrays(Carver&);
  std::int64_t position(std::int64_t i) const { return rows.position(parallel.q, i); }
  std::int64_t end() const { return rows.first + rows.rows; }
  /// The two blocks of rows, as parts of a sequence that this rank has all of.
  std::vector<ChunkPart> parts(LayerCache::State&) const;
};

// ---- its way, in this order. Queries of some rows are made while new rows of the cache travel, those of the others while
// candidates do.

/// What caches get, and index queries of this rank's heads.
void run_prolog(const SharedChunk&);

/// The new rows of all replicas on their way into the shards of the cache.
class NewCacheRows {
 public:
  explicit NewCacheRows(const SharedChunk&);
  void poll() noexcept {
    if (under_) under_->poll();
  }
  /// They are there.
  void finish();

 private:
  const SharedChunk& s_;
  std::vector<std::byte> all_;
  std::unique_ptr<Underway> under_;
};

void gather_index_queries(const SharedChunk&);
void make_queries(const SharedChunk&, Slice rows);

/// The selection on its way, of rows that see more positions than they select.
class SelectionUnderway {
 public:
  explicit SelectionUnderway(const SharedChunk&);
  void poll() noexcept {
    if (merged_) merged_->poll();
  }
  void finish();

 private:
  const SharedChunk& s_;
  std::int64_t first_ = 0;              // of these rows
  std::vector<std::int64_t> visible_;   // positions that each of them sees
  std::vector<std::uint64_t> candidates_;
  std::optional<MergedRows> merged_;
};

void attend(const SharedChunk&);
void project(const SharedChunk&);

}  // namespace dsakit
