// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsakit/model.hpp"
#include "io/aligned_array.hpp"
#include "io/config.hpp"
#include "layer/mode.hpp"

namespace dsakit {

/// Columns of the latent that share one scale: 128, or the largest divisor below where 128 does not divide.
std::int64_t latent_group(std::int64_t latent);

/// Memory between the operators of a layer, kept from call to call. Contents do not survive growing.
class ScratchMemory {
 public:
  std::byte* require(std::size_t bytes) {
    if (memory_.size() < bytes) memory_ = io::AlignedArray<std::byte>(bytes);
    return memory_.data();
  }

 private:
  io::AlignedArray<std::byte> memory_;
};

/// What is kept of a token, one of several.
struct RowKind {
  DType dtype = DType::bf16;
  std::int64_t width = 0;  // elements; 0: this mode has none

  std::int64_t row_bytes() const { return width * size_of(dtype); }
  bool operator==(const RowKind&) const = default;
};

/// Rows of one kind, one per token slot, in pages.
struct CachePool : RowKind {
  io::AlignedArray<std::byte> memory;
};

/// All that is kept of a token; latent may be packed rows: all three in one.
struct RowKinds {
  RowKind latent, rope, latent_scale, index_key, index_scale;

  RowKinds(const io::ModelConfig& config, bool indexer, Mode mode);
};

/// A block table over pools of equal page counts. A position lives in slot table[position / page_size] * page_size +
/// position % page_size of every pool.
struct LayerCache::State {
  Mode mode;
  std::int64_t page_size, length = 0;
  CachePool latent, rope, latent_scale, index_key, index_scale;
  std::vector<std::int32_t> table;  // a page for every page of capacity; pages are used in this order
  ScratchMemory scratch;            // of a layer that is run on its own; not copied

  State(const RowKinds& kinds, Mode mode, std::int64_t page_size);
  State(const State&);

  std::int64_t pages() const { return std::int64_t(table.size()); }
  std::int64_t slot(std::int64_t position) const {
    return std::int64_t(table[position / page_size]) * page_size + position % page_size;
  }
  /// Room for `positions`; what is held stays.
  void reserve(std::int64_t positions);
  std::size_t bytes() const;
  /// Whether it was made for layers of these sizes.
  bool holds(const RowKinds&) const;

  /// [pages, page_size, 1, width]; absent when the mode has none.
  Tensor pages_of(CachePool& pool) const;
  /// [pages * page_size, width]
  Tensor rows_of(CachePool& pool) const;
  Tensor block_table();

 private:
  std::vector<CachePool*> pools() { return {&latent, &rope, &latent_scale, &index_key, &index_scale}; }
};

}  // namespace dsakit
