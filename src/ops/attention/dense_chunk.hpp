// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>

#include "ops/attention/dense.hpp"
#include "ops/attention/schedule.hpp"

// What a tile of query rows sees of one chunk of keys, and where those keys are.
namespace dsakit::attention::dense {

inline constexpr int kTileRows = 128;  // query rows of a tile: a key panel serves them all
inline constexpr int kLanes = 16;      // of canonical sums (kernels.hpp)

constexpr int lanes_below(int n) { return n / kLanes * kLanes; }
constexpr int lanes_above(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

/// A tile: queries first..first+queries-1 of sequence b, heads of kv head g from `head` on. Its rows are query-major.
struct Tile {
  std::int64_t b, g, first;
  int queries, head, heads;

  int rows() const { return queries * heads; }
  std::int64_t query_head(const Problem& p, int h) const { return g * p.group + head + h; }
};

/// What a query sees: keys [low, high) of the chunk's piece, without those whose byte in `hidden` (if any) is not 0.
/// low == high: none.
struct Visible {
  int low, high;
  const std::uint8_t* hidden;

  bool any() const { return low < high; }
  bool whole(int count) const { return low == 0 && high == count && !hidden; }
  bool sees(int j) const { return j >= low && j < high && !(hidden && hidden[j]); }
};

/// The piece of a chunk that the tile's rows see, together. It begins on a multiple of kLanes, so that a row's sums
/// have the same lanes whatever the other rows see.
struct Chunk {
  std::int64_t first = 0;      // position of its first key
  int count = 0;               // 0: nobody sees anything
  bool whole = true;           // everybody sees all of it
  Visible visible[kTileRows];  // per query
  // Set only if not whole, 0 or 1: somebody may see the key (0: nobody does); everybody does who sees anything.
  std::uint8_t used[kChunk], shared[kChunk];
  std::int64_t number = -1;                                     // of the chunk
  const void* owner = nullptr;                                  // whose it is: Queries
  const std::byte *key[kChunk], *value[kChunk], *rope[kChunk];  // from count on: the last one

  void apply_masks(const Problem&, const Tile&, std::int64_t chunk);

 private:
  void find_used(int queries);
};

/// The chunks that the band leaves to a tile.
ChunkRange chunks_of(const Problem&, const Tile&);

/// Addresses of the rows of a piece; `element` bytes each element (int4: each word).
void find_rows(const Problem&, const Cache&, int element, const Tile&, const Chunk&, const std::byte** rows);

/// Elements first.. first+n-1 of a parameter that has no axis of keys; `absent` where it is not given.
void columns_of(const Parameter&, std::int64_t b, std::int64_t head, int first, int n, float absent, float* out);
/// Elements of a piece; 0 for a key that nobody sees, and where the parameter is not given.
void elements_of(const Problem&, const Parameter&, const Tile&, const Chunk&, float* out);

}  // namespace dsakit::attention::dense
