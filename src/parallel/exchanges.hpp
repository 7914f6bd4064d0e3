// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/grid.hpp"

// Which exchanges a step has, and how many bytes travel in each. Plans and the exchanges themselves take their sizes
// from here.
namespace dsakit {

/// In the order of a layer; the numbers are those of docs/distributed.md, E1 .. E13.
enum class ExchangeKind {
  first_products = 1,  // of x with q_a, kv_a, wk and weights_proj, fp32 (replica)
  index_queries,       // codes and scales, or bf16 (replica)
  samples,             // every g-th candidate (those who share index rows)
  candidates,          // key and position (those who share index rows)
  queries,             // absorbed, bf16 (kv group)
  attention,           // selected latent rows, or fp32 partial results (kv group)
  head_values,         // bf16 (replica)
  layer_output,        // fp32 (replica)
  mlp_hidden,          // fp32 (replica)
  mlp_output,          // fp32 (replica)
  logits,              // of the wanted rows, fp32 (replica)
  embedding,           // bf16 (replica)
  cache_rows,          // new ones, for their owners (query group)
};
inline constexpr std::array<std::string_view, 13> kExchangeNames = {
    "first_products", "index_queries", "samples",    "candidates", "queries", "attention", "head_values",
    "layer_output",   "mlp_hidden",    "mlp_output", "logits",     "embedding", "cache_rows"};
constexpr std::string_view name_of(ExchangeKind e) { return kExchangeNames[std::size_t(e) - 1]; }

/// Bytes that each rank of a group has for all the others, or that one rank gets from each.
using Shares = std::vector<std::size_t>;
std::size_t total(const Shares&);
/// What comes to `rank` from the others: the payload that is counted.
std::size_t received(const Shares&, int rank);

/// What of a model and a mode the sizes follow from.
struct ExchangeSizes {
  std::int64_t hidden = 0, heads = 0, value_dim = 0, q_lora = 0, latent = 0, rope = 0, vocab = 0;
  std::int64_t index_heads = 0, index_dim = 0, topk = 0;         // topk 0: every visible position is attended
  bool float_index = false, index_rest = false;  // two more first products: q_a in one sum, what bf16 took off weights_proj
  std::int64_t latent_row_bytes = 0, index_row_bytes = 0;        // cached of a token in a layer, scales included
};

// ---- Shares of the ranks of a replica

/// E1. A layer without an indexer has q_a and kv_a alone.
Shares first_products(const ExchangeSizes&, int ranks, std::int64_t rows, bool indexer);
/// E2. An index query of a head is stored as an index row is.
Shares index_queries(const ExchangeSizes&, int ranks, std::int64_t rows);
/// E7
Shares head_values(const ExchangeSizes&, int ranks, std::int64_t rows);
/// E8, E10
Shares layer_output(const ExchangeSizes&, int ranks, std::int64_t rows);
/// E9. `widths`: of all that a row goes through, one MLP or each of its experts and the shared ones.
Shares mlp_hidden(std::span<const std::int64_t> widths, int ranks, std::int64_t rows);
/// E11
Shares logits(const ExchangeSizes&, int ranks, std::int64_t wanted_rows);
/// E12, of so many rows that each rank has read.
Shares embedding(const ExchangeSizes&, std::span<const std::int64_t> rows_of_rank);

// ---- Selection over shards of index rows: of one row, for which rank r of the shards sees visible[r] of its own.
// Rank r keeps its best min(K, visible[r]) as 8 bytes each. In one step all of them travel. In two, every g-th is sent
// first (E3), and with that all ranks know how many of each the best K can be among.

/// g = 2^floor(log2(K) / 2)
std::int64_t sample_step(std::int64_t topk);
/// E3
Shares samples(std::span<const std::int64_t> visible, std::int64_t topk);
/// E4 in one step: exact.
Shares all_candidates(std::span<const std::int64_t> visible, std::int64_t topk);
/// E4 in two steps: exact. reached[r]: largest sampled number of rank r whose sample is at least the threshold, else 0.
Shares best_candidates(std::span<const std::int64_t> visible, std::span<const std::int64_t> reached,
                       std::int64_t topk);
/// The most candidates of all ranks together that two steps leave, whatever the scores.
std::int64_t most_candidates(std::span<const std::int64_t> visible, std::int64_t topk);

/// Predicted for exchanges: what `auto` decides by, on every machine alike.
struct Network {
  double bytes_per_second = 12.5e9;  // 100 Gb/s
  double latency = 5e-6;

  /// Of an exchange among so many ranks: as many rounds as a tree has.
  double seconds(int ranks, double received_bytes) const;
};
inline constexpr double kMergeSeconds = 2.5e-9;  // a candidate, measured

/// What the rows of a call have to merge, either way.
class MergeLoad {
 public:
  MergeLoad(int shards, std::int64_t topk) : shards_(shards), topk_(topk) {}
  void add_row(std::span<const std::int64_t> visible, std::int64_t times = 1);

  bool in_two(MergeSteps) const;
  /// Bytes of E3 and at most of E4, and candidates that a rank merges.
  std::int64_t sample_bytes(bool two) const { return two ? samples_ * 8 : 0; }
  std::int64_t candidate_bytes(bool two) const { return candidates(two) * 8; }
  std::int64_t candidates(bool two) const { return two ? most_ : all_; }

 private:
  double seconds(bool two) const;

  int shards_;
  std::int64_t topk_, samples_ = 0, all_ = 0, most_ = 0;
};

// ---- Attention over shards of latent rows: of the kv group of column h

inline Slice heads_of(const ExchangeSizes& s, const Grid& g, int h, int c) {
  return slice_of(s.heads, std::int64_t(h) * g.kv + c, g.replica_ranks());
}
/// E5
Shares queries(const ExchangeSizes&, const Grid&, int h, std::int64_t rows);
/// E6, `rows`: of so many distinct selected rows that each rank owns.
Shares selected_rows(const ExchangeSizes&, std::span<const std::int64_t> rows_of_rank);
/// In how many blocks they travel: what is gathered at a time takes 256 MiB at most.
inline constexpr std::int64_t kRowsBlockBytes = std::int64_t{256} << 20;
std::int64_t row_blocks(const ExchangeSizes&, std::int64_t distinct_rows);
/// E6, `partials`: what rank c gets from each of the group, for its own heads.
Shares partial_results(const ExchangeSizes&, const Grid&, int h, int c, std::int64_t rows);

/// E13: of so many new rows of the shard that each replica has computed.
Shares cache_rows(const ExchangeSizes&, std::span<const std::int64_t> latent_rows,
                  std::span<const std::int64_t> index_rows);

// ---- The exchanges of a step

/// Of `rows` positions, each of which sees `visible`.
struct Step {
  std::int64_t rows = 1, visible = 32768;
};

/// Where every row of a call goes through every replica: fewer rows than this for each are not worth parting.
inline constexpr std::int64_t kLeastQueryRows = 16;
/// Rows that a replica computes, at most.
std::int64_t rows_of_replica(const Grid&, std::int64_t rows);

/// How many ranks share the index rows of a token: 1, the kv group or the replica.
int index_shards(const ParallelOptions&);
/// Whether partial results travel instead of rows: always where nothing is selected.
bool exchanges_partials(const ParallelOptions&, const ExchangeSizes&);

struct ForetoldExchange {
  ExchangeKind what;
  int ranks = 0;              // that join it
  double received = 0;        // bytes, by a rank on average
  std::int64_t messages = 1;  // in which they come
};

/// Of one attention layer; where rows come from is taken to be even, and E4 in two steps as large as it can be.
std::vector<ForetoldExchange> attention_exchanges(const ExchangeSizes&, const ParallelOptions&, const Step&,
                                                  bool indexer);
std::vector<ForetoldExchange> mlp_exchanges(const ExchangeSizes&, const ParallelOptions&, const Step&,
                                            std::span<const std::int64_t> widths);
/// Outside of the layers: embedding, and the logits of one row.
std::vector<ForetoldExchange> model_exchanges(const ExchangeSizes&, const ParallelOptions&, const Step&);

/// What one row of a step has to merge.
MergeLoad merge_load(const ExchangeSizes&, const ParallelOptions&, const Step&);

}  // namespace dsakit
