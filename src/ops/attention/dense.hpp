// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/paged.hpp"
#include "dsakit/tensor.hpp"
#include "run/call.hpp"

// Dense attention of grouped heads: softmax(scale * Q K^T + bias, masked) V. Layouts, page ranks, quantisation modes
// and mask modes are gone when this begins: what is left are addresses, strides in elements and numbers.
namespace dsakit::attention::dense {

/// One row (or number) per query token and query head: at sequence * b + token * (first_query + q) + head * h.
/// Token-folded tensors have a sequence stride of 0, others a first_query of 0.
struct Grid {
  void* data = nullptr;
  std::ptrdiff_t sequence = 0, token = 0, head = 0;
};

/// The rows of a key or value tensor. Position k of sequence b and kv head g begins at
///   contiguous: sequence * b + row * (first_key + k) + head * g
///   pages:      page * table(b, k / block_size) + row * (k % block_size) + head * g
/// and its columns are contiguous, or (rank-5 pages) lie in blocks of `block` columns that are `block_stride` apart.
/// int4: in 32-bit words of eight, the strides too.
struct Cache {
  const void* data = nullptr;
  std::ptrdiff_t sequence = 0, page = 0, row = 0, head = 0;
  int block = 0;
  std::ptrdiff_t block_stride = 0;
};

/// A scale or offset of keys or values, whatever it is given per: strides of axes it does not have are 0. Element
///   sequence * b + head * g + position * k + page * (page of k) + row * (row of k in its page) + column * d
/// `per_key`: it has an axis position, or page and row; `per_column`: it has an axis d (never both).
struct Parameter {
  const void* data = nullptr;  // null: absent (scale 1, offset 0)
  DType dtype = DType::f32;    // f32, f16 or bf16
  std::ptrdiff_t sequence = 0, head = 0, position = 0, page = 0, row = 0, column = 0;
  bool per_key = false, per_column = false;
};

/// One sequence. Query row q < queries sees keys k with max(0, q + from) <= k <= q + to, k < keys (and no mask bit).
struct Sequence {
  std::int64_t first_query, queries;
  std::int64_t first_key, keys;
  std::int64_t from, to;  // of the band, |.| <= 2^62: no overflow when a position is added
};

struct Problem {
  const Sequence* sequence = nullptr;  // outlives the call
  std::int64_t sequences = 0;
  std::int64_t kv_heads = 1, group = 1;  // query heads of kv head g: group * g .. group * g + group - 1
  int width = 0, rope = 0, value = 0;    // columns of a key, of its rope part (0: none), of a value
  float scale = 1;                       // of the scores

  DType query_type = DType::bf16;  // bf16, f16, f32; i8: fully quantised
  DType kv_type = DType::bf16;     // as the query's, i8, or i32: int4 in words of eight (bf16, f16 and f32 queries)
  DType rope_type = DType::bf16;   // the query's; bf16 for i8

  Grid query, query_rope;
  Grid query_scale;  // f32, i8 queries only: scores are ((dot + rope dot) * query_scale) * key_scale * scale
  Cache key, key_rope, values;
  Pages pages;                                                 // entries that a visible position needs are valid
  Parameter key_scale, key_offset, value_scale, value_offset;  // x = (code + offset) * scale

  const std::uint8_t* mask = nullptr;  // nonzero: hidden; row q of sequence b at mask_sequence * b + mask_row * q
  std::ptrdiff_t mask_sequence = 0, mask_row = 0;
  Parameter sink;  // axis head (query head): one more score, without a value, of rows that see a key; -inf is none
  Grid bias;  // of the query's type, `token` its row stride, first_query not added; data null: none

  /// Queries q < queries are written, also those without a key (zeros, quantised as any other); padding is the door's.
  Grid out;
  DType out_type = DType::bf16;     // bf16, f16, f32 or i8
  Parameter out_scale, out_offset;  // i8: sat8(rint(o * scale + offset)); axes head (query head) and column, or none
  Grid lse;                         // f32; data null: not wanted
  float lse_of_no_keys = 0;         // of sequences without keys; other rows that see none hold +inf
};

/// Does not apply_masks at the sequences, only at how many there are.
std::size_t workspace(const Problem&, const Kernels&, int threads, bool same_products);
void run(const Problem&, Call&, std::byte* memory) noexcept;

}  // namespace dsakit::attention::dense
