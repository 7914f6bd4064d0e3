// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "kernels/stream.hpp"
#include "ops/prolog/mla_problem.hpp"
#include "ops/prolog/tile.hpp"
#include "run/taps.hpp"

namespace dsakit::prolog {

/// One tile of tokens at a time, see tile.hpp.
class MlaProlog {
 public:
  MlaProlog(const MlaProblem& problem, const HiddenTile& hidden, const Call& call, Carver& memory);
  void begin(std::int64_t first, int count);
  std::int64_t tasks(Stage stage) const;
  Work work(Stage stage) const;
  void task(Stage stage, std::int64_t i, int thread) const;

  /// Of the tile, after Stage::rows: codes of the low-rank query + 128 as products of codes read them, and their scales.
  const std::uint8_t* query_codes() const { return codes_; }
  std::int64_t query_codes_stride() const { return codes_stride_; }
  const float* query_scales() const { return scales_; }

 private:
  struct Scratch {  // of one thread
    std::byte* panel;
    float *sum, *sum2;  // [panels][kTile][64]
    std::byte* block;   // of hidden states
    float *row, *wide;
    bf16* q;                // [heads of the task][kTile][nope+rope]
    float *rope, *rotated;  // the rope columns of q before any rounding, [heads of the task][kTile][rope]; of a head
    std::byte* stored;      // what one token writes to a cache
    bf16* query;            // [kTile][latent] of a head, before it becomes codes or is streamed
  };
  std::int64_t head_width() const { return p_.nope + p_.rope; }
  bool streamed() const {
    return !p_.query_codes() && p_.tokens * p_.heads * p_.latent * std::int64_t(sizeof(bf16)) >= kStreamed;
  }
  void hidden_panels(std::int64_t i, const Scratch& s) const;
  void take_sums(std::int64_t i) const;
  void round_to_bf16(const float* x, std::int64_t n, float* y) const;
  void query_row(int r, const Scratch& s) const;
  void key_row(int r, const Scratch& s) const;
  void store_latent(std::int64_t slot, float* y, const Scratch& s) const;
  void store_key(std::int64_t slot, float* y, const Scratch& s) const;
  void query_heads(std::int64_t i, const Scratch& s) const;
  void query_panel(std::int64_t i, std::int64_t first, std::int64_t end, const Scratch& s) const;
  void head(std::int64_t h, std::int64_t slot, const Scratch& s) const;
  void query_products(std::int64_t h, const bf16* q, const Scratch& s) const;
  float code_query(std::int64_t out, const bf16* query, const Scratch& s) const;
  void product_of_codes(const std::uint8_t* codes, std::int64_t stride, const Weight& w, std::int64_t panel,
                        const float* token_scale, const Rows& column_scale, const Scratch& s, float* y,
                        std::int64_t y_stride) const;
  Scratch carve(Carver& memory) const;

  const MlaProblem& p_;
  const Kernels& kernels_;
  const HiddenTile& hidden_;
  const int threads_;
  Taps* const taps_ = taps;
  std::int64_t first_ = 0, codes_stride_, heads_of_task_, scratch_bytes_;
  int count_ = 0;
  bool keeps_rope_, widens_;
  TileSlots slots_;
  float *gamma_cq_, *gamma_ckv_, *cos_, *sin_, *x_scales_, *scales_;
  float *smooth_, *latent_scale_, *key_scale_;  // one per column, or null
  float *c_, *kv_;                              // [kTile][rank], [kTile][latent+rope]: results of steps 1 and 7
  bf16* q_norm_;                                // [kTile][rank]
  float* q_norm_wide_;
  std::uint8_t* codes_;
  std::byte* scratch_;
};

}  // namespace dsakit::prolog
