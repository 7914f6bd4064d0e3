// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <vector>

#include "dsakit/group.hpp"
#include "dsakit/ownership.hpp"
#include "layer/mode.hpp"
#include "layer/weights.hpp"
#include "parallel/channel.hpp"
#include "parallel/grid.hpp"

namespace dsakit {

/// A rank among those that run a model together: where it stands in the grid, and how it speaks to the others. What is
/// computed is split by output columns and heads, never along a sum, so no bit depends on how many ranks there are.
struct Peers {
  const ParallelOptions options;
  const std::shared_ptr<Group> kept;
  Group& world = *kept;
  const int rank = world.rank(), c = options.grid.c(rank), h = options.grid.h(rank), q = options.grid.q(rank);
  const std::unique_ptr<Group> replica, kv, query;  // ranks with all weights; with all latent rows; of the same shards
  std::mutex turn;                                  // of one call
  bool all_experts_held = true;                     // by every rank
  std::int64_t least_slots = 0;                     // for experts, of all ranks
  Conversation talk;
  std::vector<std::byte> mine, all;  // of exchanges
  std::vector<std::size_t> sizes;

  /// All ranks make theirs at once.
  Peers(std::shared_ptr<Group> world, const ParallelOptions& options);

  /// An exchange of nothing, where one rank may take long: 300 s, while the group's timeout is for exchanges between which there
  /// is one layer's work.
  void wait_for_all(std::string_view name);
  LayerShare share() const {
    return {replica->rank(), replica->size(), options.prolog == Prolog::split};
  }
  Slice columns(std::int64_t width) const { return columns_of(width, replica->rank(), replica->size()); }
  Ownership latent_rows() const { return {options.grid.kv, c, options.interleave}; }
  Ownership index_rows() const;
  /// Who has the other index rows.
  Group& index_group() const { return options.index == IndexShards::all ? *replica : *kv; }
  /// Whether attention is merged from parts; else rows travel, if at all.
  bool merges_parts(Mode mode) const {
    return options.grid.kv > 1 && (!is_sparse(mode) || options.exchange == AttentionExchange::partials);
  }
};

/// The same for all ranks, or an error on all that names what differs. Without a grid: heads.
std::shared_ptr<Peers> make_peers(std::shared_ptr<Group> world, const ParallelWords& words);
/// One that its caller keeps.
inline std::shared_ptr<Group> borrowed(Group& group) { return {&group, [](Group*) {}}; }

/// Rows [rows, items] of which every rank of the replica has some columns, dealt out in panels or one by one (heads).
struct SharedColumns {
  const void* mine;  // [rows, own items]
  void* all;         // [rows, items]
  std::int64_t items, bytes;  // of an item
  bool panels = true;
  std::int64_t times = 1;  // so many rows for each row of the exchange

  Slice of(int rank, int ranks) const { return panels ? columns_of(items, rank, ranks) : slice_of(items, rank, ranks); }
};
/// One exchange for all of them.
void gather(Peers&, std::string_view name, std::int64_t rows, std::initializer_list<SharedColumns>);

/// Rows first .. first + rows - 1 of a sequence that go through a layer together, and which of them this replica takes:
/// two of 2Q blocks, an early one and a late one, so that all replicas see as many positions. Few rows are everybody's.
struct ChunkRows {
  std::int64_t first = 0, rows = 0;
  int replicas = 1;

  static constexpr std::int64_t kLeast = 16;  // rows of a replica
  bool split() const { return replicas > 1 && rows >= kLeast * replicas; }
  /// Of replica q, in rows of the chunk.
  Slice block(int q, int i) const {
    if (!split()) return i == 0 ? Slice{0, rows} : Slice{rows, rows};
    return slice_of(rows, i == 0 ? q : 2 * replicas - 1 - q, 2 * replicas);
  }
  std::int64_t count(int q) const { return block(q, 0).size() + block(q, 1).size(); }
  /// Position of row i of replica q.
  std::int64_t position(int q, std::int64_t i) const {
    const Slice early = block(q, 0);
    return first + (i < early.size() ? early.begin + i : block(q, 1).begin + i - early.size());
  }
};

/// A cache of a layer in shards: latents, and index keys, which other ranks may have.
struct ShardedCache {
  LayerCache::State &latents, &index_keys;
};

class ScratchMemory;
struct Lists;
class GatedMlp;

/// A chunk through an attention layer whose weights are a rank's share: hidden bf16 [count, He], out f32 alike, of the rows
/// of this replica; selection [count, K], or null in dense mode. The caches have room. Works through `talk`: what fails is
/// kept there.
void forward_parallel(Peers&, const AttentionLayer::State&, const Tensor& hidden, const Tensor& out, const ChunkRows&,
                      const ShardedCache&, Lists selection, ScratchMemory&, Context&, Costs*);

/// Of its scratch memory. `selects`: the mode is sparse.
std::size_t parallel_layer_bytes(Peers&, const AttentionLayer::State&, const ChunkRows&, const ShardedCache&, bool selects,
                                 Context&);

/// residual [rows, He] += mlp(x [rows, He]), whose columns the ranks share.
void add_parallel(Peers&, const GatedMlp&, const float* x, std::int64_t rows, float* residual, ScratchMemory&, Context&,
                  Costs*);
std::size_t parallel_mlp_bytes(const Peers&, const GatedMlp&, std::int64_t rows, int threads);

}  // namespace dsakit
