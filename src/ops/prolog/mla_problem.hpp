// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <cstring>

#include "core/view.hpp"
#include "ops/prolog/rows.hpp"
#include "ops/weight.hpp"

namespace dsakit::prolog {

/// Where the tokens' rows of one kind are stored. A row is one run of bytes, or (NZ blocks) pieces at a pitch.
struct CacheRows {
  Rows first;                         // slot -> its first piece
  std::int64_t begin = 0;             // bytes into the row: a packed row holds rows of three kinds
  std::int64_t piece = 0, pitch = 0;  // bytes; piece 0: one run

  std::int64_t count() const { return first.count; }
  void store(std::int64_t slot, const void* row, std::int64_t bytes) const {
    std::byte* to =
        static_cast<std::byte*>(first.tensor.data) + first.offset(slot) * size_of(first.tensor.dtype) + begin;
    if (piece == 0) {
      std::memcpy(to, row, std::size_t(bytes));
      return;
    }
    const auto* from = static_cast<const std::byte*>(row);
    for (std::int64_t at = 0; at < bytes; at += piece, to += pitch) std::memcpy(to, from + at, std::size_t(piece));
  }
};

/// The rows of a cache that has been checked, which in NZ is [block_num, block_size, 1, width].
inline CacheRows cache_rows(const Tensor& t, std::int64_t width, bool nz) {
  if (!nz) return {.first = Rows(t, width == 1 ? 0 : 1)};
  Tensor pieces = t;  // [block_num, block_size, c0]: the first group of columns of every slot
  const std::int64_t c0 = 32 / size_of(t.dtype);
  pieces.rank = 3, pieces.shape[2] = pieces.stride[1] = c0, pieces.stride[2] = 1;
  return {.first = Rows(pieces, 1), .piece = 32, .pitch = 32 * t.shape[1]};
}

/// How rows are stored: as bf16, as int8 codes with given multipliers, or as int8 codes of groups of columns, whose
/// scales are stored too.
enum class Store { bf16, given_scale, groups };

/// Products of the hidden states, fp32 before any rounding, that a call makes and does nothing else (`made`; the weights may
/// be some columns of the whole ones), or that are there (`given`; hidden states and their weights are not looked at).
struct HiddenSums {
  enum class Use { none, made, given } use = Use::none;
  float *first = nullptr, *second = nullptr;  // [tokens, columns] of the one weight and of the other
  std::int64_t first_stride = 0, second_stride = 0;

  bool made() const { return use == Use::made; }
  bool given() const { return use == Use::given; }
};

/// The MLA prolog with every name, mode and layout resolved: rows in, rows out. Dtypes of x and of the weights say how
/// they are multiplied: int8 products are exact and dequantised by the scales of token and column.
struct MlaProblem {
  Numerics numerics;
  std::int64_t tokens, hidden, rank, heads, nope, rope, latent;
  float epsilon_cq, epsilon_ckv;
  float query_factor = 1, latent_factor = 1;  // multiply the normalised rows; 1: no multiplication
  Weight w_dq, w_uq_qr, w_uk, w_dkv_kr;
  const bf16 *gamma_cq, *gamma_ckv;
  Rows x, cos, sin;
  Rows x_scale;                              // int8 x: f32 per token
  Rows dq_scale, uq_qr_scale, dkv_kr_scale;  // int8 weights: f32 per column
  Rows smooth;                               // f32 per column of the low-rank query, or without memory
  Rows cache_index;                          // i64, slot per token
  Rows q_norm, q_norm_scale;                 // written per token unless without memory
  Rows query_nope, query_rope;               // written, one row per (token, head)
  Rows query_scale;                          // written per (token, head) where query_nope is int8
  Store latent_store, key_store;             // key_store: bf16 or given_scale
  std::int64_t groups = 1;                   // of latent columns: Store::groups
  float clip = 1;                            // where scales come first: largest value * clip is a group's limit
  Rows latent_scale, key_scale;              // Store::given_scale: f32 multipliers, one per column or one for all
  CacheRows kv_cache, kr_cache, k_scale_cache;
  HiddenSums sums{};  // of w_dq and w_dkv_kr

  bool quantised_hidden() const { return w_dq.dtype == DType::i8; }
  bool quantised_query() const { return w_uq_qr.dtype == DType::i8; }
  bool query_codes() const { return query_nope.tensor.dtype == DType::i8; }
};

/// Rows that a call does not have.
inline Rows no_rows() { return Rows(Tensor{.rank = 0}, 0); }

}  // namespace dsakit::prolog
