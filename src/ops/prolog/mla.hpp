// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/view.hpp"
#include "ops/prolog/rows.hpp"
#include "ops/prolog/tile.hpp"
#include "ops/weight.hpp"

namespace dsakit::prolog {

/// The MLA prolog with every name, mode and layout resolved: rows in, rows out.
struct MlaProblem {
  Numerics numerics;
  bool quantised;  // int8 query projection and latent cache; else bf16
  std::int64_t tokens, hidden, rank, heads, nope, rope, latent, groups;
  float epsilon_cq, epsilon_ckv;
  Weight w_dq, w_uq_qr, w_uk, w_dkv_kr;
  const bf16 *gamma_cq, *gamma_ckv;
  Rows x, cos, sin;
  Rows channel_scale;                      // quantised: f32, one per column of w_uq_qr
  Rows cache_index;                        // i64
  Rows q_norm, q_norm_scale;               // written per token unless without memory
  Rows query_nope, query_rope;             // written, one row per (token, head)
  Rows kv_cache, kr_cache, k_scale_cache;  // written, one row per slot
};

/// One tile of tokens at a time, see tile.hpp.
class MlaProlog {
 public:
  MlaProlog(const MlaProblem& problem, const Kernels& kernels, const HiddenTile& hidden, bool same_products,
            int threads, Carver& memory);
  void begin(std::int64_t first, int count);
  std::int64_t tasks(Stage stage) const;
  double time(Stage stage) const;
  void task(Stage stage, std::int64_t i, int thread) const;

  /// Of the tile, after Stage::rows: codes of the low-rank query + 128 as product_i8 reads them, and their scales.
  const std::uint8_t* query_codes() const { return codes_; }
  std::int64_t query_codes_stride() const { return codes_stride_; }
  const float* query_scales() const { return scales_; }

 private:
  struct Scratch {  // of one thread
    std::byte* panel;
    float *sum, *sum2, *row, *wide;
  };
  void hidden_panel(std::int64_t i, const Scratch& s) const;
  void query_row(int r, const Scratch& s) const;
  void key_row(int r, const Scratch& s) const;
  void query_panel(std::int64_t i, const Scratch& s) const;
  void head(std::int64_t h, const Scratch& s) const;
  Scratch carve(Carver& memory) const;

  const MlaProblem& p_;
  const Kernels& kernels_;
  const HiddenTile& hidden_;
  std::int64_t first_ = 0, codes_stride_, q_width_, scratch_bytes_;
  int count_ = 0;
  bool same_products_;
  TileSlots slots_;
  float *gamma_cq_, *gamma_ckv_, *cos_, *sin_, *scales_;
  bf16 *c_, *kv_, *q_norm_, *q_;  // [kTile][rank], [kTile][latent+rope], [kTile][rank], [kTile][heads*(nope+rope)]
  float* q_norm_wide_;
  std::uint8_t* codes_;
  std::byte* scratch_;
};

}  // namespace dsakit::prolog
