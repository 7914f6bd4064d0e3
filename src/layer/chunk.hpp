// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <initializer_list>
#include <span>

#include "layer/layer.hpp"

namespace dsakit {

/// Rows first .. first+count-1 of t.
inline Tensor slice(Tensor t, std::int64_t first, std::int64_t count) {
  t.data = static_cast<std::byte*>(t.data) + first * t.stride[0] * size_of(t.dtype);
  t.shape[0] = count;
  return t;
}

/// The same memory, which has no gaps, in another shape.
inline Tensor reshaped(const Tensor& t, std::initializer_list<std::int64_t> shape) {
  Tensor other = shaped(t.dtype, shape);
  other.data = t.data;
  return other;
}

template <class T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.data);
}

/// One chunk of tokens on its way through an attention layer, of one sequence or of several beside each other: what is
/// given, and what its operators hand on to each other in memory between them. Arrays that the mode does not need are
/// absent.
struct Chunk {
  const AttentionLayer::State& layer;
  std::span<const ChunkPart> parts;
  Context& context;
  Costs* costs;
  Tensor hidden, out;       // [rows, He]
  Lists selection;

  const io::ModelConfig& config = layer.config;
  const LayerCache::State& cache = *parts[0].cache;  // one of those of its kind
  std::int64_t rows = hidden.shape[0];
  Tensor slots{};                       // i64 [rows], in what follows
  NewRows kept{};                       // what caches get
  Tensor cos{}, sin{};                  // [rows, Dr]
  Tensor hidden_i8{}, hidden_scale{};   // [rows, He], [rows, 1]
  Tensor c_q{}, c_q_scale{};            // [rows, Hcq] bf16 and [0], or int8 and [rows, 1]
  Tensor query_nope{}, query_rope{};    // [rows, N, Hckv], [rows, N, Dr], side by side in sparse_w8a8_packed
  Tensor index_query{};                 // [rows, Ni, Di] bf16, or int8 and
  Tensor index_query_scale{};           // [rows, Ni, 1] f16
  Tensor index_weights{};               // [rows, Ni] f32, or f16
  Tensor attended{}, values{};          // [rows, N, Hckv], [rows, N, Dv]

  bool sparse() const { return is_sparse(cache.mode); }
  bool quantised() const { return is_quantised(cache.mode); }
  bool packed() const { return is_packed(cache.mode); }
  /// Finds its own selection.
  bool scores() const { return sparse() && layer.indexer; }

  /// Takes the arrays from `memory` and says how many bytes they are; measures where it is null.
  std::size_t take_arrays(std::byte* memory);
};

// ---- its way, in this order

/// Latent, rope and index keys; queries and index queries. Weights are read once for all parts.
void run_prolog(const Chunk&);
// Every part by itself, once its rows are in its cache.
/// The positions that each row attends to.
void select(const Chunk&, const ChunkPart&);
void attend(const Chunk&, const ChunkPart&);
/// Each head's latent through its W_UV, rounded to bf16: `values`.
void project_heads(const Chunk&);
/// Values [rows, width] through the output projection, to `out`, whose first columns are those of w_o.
void project_out(const Chunk&, const bf16* values, std::int64_t width, const Tensor& out);

}  // namespace dsakit
