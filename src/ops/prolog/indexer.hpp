// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>

#include "core/view.hpp"
#include "ops/prolog/mla.hpp"
#include "ops/prolog/rows.hpp"
#include "ops/prolog/tile.hpp"
#include "ops/weight.hpp"

namespace dsakit::prolog {

/// The indexer prolog with every name and layout resolved.
struct IndexerProblem {
  std::int64_t tokens, hidden, rank, heads, dim, rope;
  RopeLayout layout;
  float epsilon, head_scale;  // head_scale = fp32(1 / (sqrt(heads) * sqrt(dim)))
  Weight w_qb, wk, w_proj;
  Tensor gamma, beta;                      // [dim], bf16 or f32
  Tensor hadamard_q, hadamard_k;           // [dim, dim]; not given: identity
  Rows channel_scale;                      // f32, one per column of w_qb
  Rows x, q_norm, q_norm_scale, cos, sin;  // q_norm without memory: a MlaProlog's tile is used
  Rows cache_index;                        // i64
  Rows q_int8, q_scale;                    // written, one row per (token, head)
  Rows weights;                            // written per token
  Rows k_cache, k_scale_cache;             // written, one row per slot; scales f16 or f32
  HiddenSums sums{};                       // of wk and w_proj
  std::int64_t all_heads = heads;          // columns of w_proj: more than heads, where others have the queries of some
};

/// One tile of tokens at a time, see tile.hpp.
class IndexerProlog {
 public:
  /// `query`: whose codes to use, or null for those of the problem.
  IndexerProlog(const IndexerProblem& problem, const HiddenTile& hidden, const MlaProlog* query, const Call& call,
                Carver& memory);
  void begin(std::int64_t first, int count);
  std::int64_t tasks(Stage stage) const;
  Work work(Stage stage) const;
  void task(Stage stage, std::int64_t i, int thread) const;

 private:
  struct Scratch {  // of one thread
    std::byte* panel;
    float *sum, *row, *wide;
    bf16 *in, *rotated, *out;  // [heads of a task][tokens][dim], or [rope]
  };
  Scratch carve(Carver& memory) const;
  void hidden_panel(std::int64_t i, const Scratch& s) const;
  void take_sums(std::int64_t r) const;
  void write_weights(std::int64_t r, std::int64_t first, const float* sums, std::int64_t n) const;
  void key_row(int r, const Scratch& s) const;
  void query_heads(std::int64_t i, const Scratch& s) const;
  void query_panel(std::int64_t i, std::int64_t first, std::int64_t end, const Scratch& s) const;
  std::int64_t heads_of_task() const;
  int hidden_rows() const { return threads_ > 1 ? kTile / 2 : kTile; }
  std::int64_t most_rows() const { return heads_of_panels(p_.dim, p_.heads) * kTile; }
  void factors_of_elements(const bf16* given, bf16* factors) const;
  void rotate_first(bf16* rows, int token, int count, const Scratch& s) const;
  struct Hadamard {
    bf16* panels;                // null: no matrix is given
    std::optional<float> scale;  // it is Sylvester's times this, and needs no panels
  };
  void take_hadamard(const Tensor& matrix, const bf16** rows, Hadamard& to) const;
  const bf16* transformed(const bf16* in, int rows, const Hadamard& hadamard, const Scratch& s) const;

  const IndexerProblem& p_;
  const Kernels& kernels_;
  const HiddenTile& hidden_;
  const MlaProlog* query_;
  const int threads_;
  Taps* const taps_ = taps;
  std::int64_t first_ = 0, codes_stride_, scratch_bytes_;
  int count_ = 0;
  bool widens_;
  TileSlots slots_;
  float *gamma_, *beta_, *k_, *scales_;
  bf16 *cos_, *sin_;
  Hadamard hadamard_q_{}, hadamard_k_{};
  std::uint8_t* codes_;
  std::byte* scratch_;
};

}  // namespace dsakit::prolog
