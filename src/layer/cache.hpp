// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <shared_mutex>
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
    if (memory_.size() < bytes) grow(bytes);
    return memory_.data();
  }

 private:
  void grow(std::size_t bytes);  // OUT_OF_MEMORY beyond DSAKIT_MEM_LIMIT

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
  RowKinds latents() const;     // without what the indexer keeps
  RowKinds index_keys() const;  // nothing else
};

/// Rows beside each other that are to be kept: one page, [1, rows, 1, width] of each kind; absent where a mode has
/// none.
struct NewRows {
  Tensor latent, rope, latent_scale, index_key, index_scale;
};

/// Pages of sequences that are copies of one another. A page may belong to several of them, which read it; it is
/// written by a sequence that has it alone.
struct PagePool {
  PagePool(const RowKinds& kinds, std::int64_t page_size);

  const std::int64_t page_size;
  CachePool latent, rope, latent_scale, index_key, index_scale;
  std::vector<std::int32_t> owners;  // of each page: sequences
  std::vector<std::int32_t> unused;  // pages; the last one is the next to be taken
  std::shared_mutex mutex;           // shared: rows are read and written; alone: pages are taken, given back or moved

  std::int64_t pages() const { return std::int64_t(owners.size()); }
  /// At least `count` unused pages.
  void require(std::int64_t count);
  std::int32_t take();
  /// A page of its own with the first `rows` rows of `page`, which has one owner less.
  std::int32_t part_with(std::int32_t page, std::int64_t rows);
  void give_back(std::int32_t page);

 private:
  std::array<CachePool*, 5> pools() { return {&latent, &rope, &latent_scale, &index_key, &index_scale}; }
};

/// A block table over the pools of a PagePool. A position lives in slot table[position / page_size] * page_size +
/// position % page_size of every pool. A copy shares the pages.
struct LayerCache::State {
  Mode mode;
  std::shared_ptr<PagePool> pool;
  std::int64_t page_size = pool->page_size, length = 0;
  CachePool &latent = pool->latent, &rope = pool->rope, &latent_scale = pool->latent_scale,
            &index_key = pool->index_key, &index_scale = pool->index_scale;
  std::vector<std::int32_t> table;  // behind the pages of `length`: those that are reserved, of nobody else
  ScratchMemory scratch;            // of a layer that is run on its own; not copied

  State(const RowKinds& kinds, Mode mode, std::int64_t page_size);
  State(const State&);
  ~State();

  std::int64_t slot(std::int64_t position) const {
    return std::int64_t(table[position / page_size]) * page_size + position % page_size;
  }
  /// Room for `positions`, to be written from `length` on; what is held stays.
  void reserve(std::int64_t positions);
  /// Forgets what is behind the first `positions`.
  void keep(std::int64_t positions);
  /// Rows row .. row+count-1 of `rows` become positions at .. at+count-1, which are reserved.
  void write(const NewRows& rows, std::int64_t row, std::int64_t count, std::int64_t at);
  /// All that is held, to rows of the same kinds.
  void read(const NewRows& rows) const;
  std::size_t bytes() const;
  /// Whether it was made for layers of these sizes.
  bool holds(const RowKinds&) const;

  /// [pages, page_size, 1, width]; absent when the mode has none.
  Tensor pages_of(CachePool& pool) const;
  /// [pages * page_size, width]
  Tensor rows_of(CachePool& pool) const;
  Tensor block_table();
};

}  // namespace dsakit
