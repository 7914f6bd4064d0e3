// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

#include "dsakit/kv_quant_sparse_flash_attention.hpp"
#include "dsakit/sparse_flash_attention.hpp"
#include "ops/attention/sparse.hpp"
#include "ops/sequences.hpp"

// What sparse_flash_attention and kv_quant_sparse_flash_attention share behind the door: everything but the form of a
// key.
namespace dsakit::sparse_attention {

struct Problem {
  attention::sparse::Problem attention;
  Sequences sequences;
  Rows lists{Tensor{}, 0};   // i32, one per query row
  std::int64_t entries = 0;  // of a list
  std::int64_t block = 1;    // tokens of an entry

  /// A block longer than the sequence is as long as the sequence.
  std::int64_t block_of(const SequenceRows& s) const { return std::min(block, std::max<std::int64_t>(s.keys, 1)); }
  /// Entries below this begin where row i sees; compared without sign, no negative entry is.
  std::uint32_t visible_blocks(const SequenceRows& s, std::int64_t i) const {
    return std::uint32_t((s.visible(i) + block - 1) / block);
  }

  /// What row i of a sequence attends to; reads its list if it sees any key.
  attention::sparse::Token token(const SequenceRows& s, std::int64_t i) const {
    attention::sparse::Token t{.first = s.first_key, .block = block_of(s), .visible = s.visible(i)};
    if (i < s.queries) t.sequence = s.index;
    if (t.visible == 0) return t;
    t.list = lists.row<const std::int32_t>(s.first_row + i);
    const std::uint32_t seen = visible_blocks(s, i);
    std::int64_t last = -1;
    for (std::int64_t e = 0; e < entries && t.list[e] != -1; ++e)
      if (std::uint32_t(t.list[e]) < seen) last = e;
    t.count = (last + 1) * t.block;
    return t;
  }

  /// f(row, token) for every query row, ascending.
  template <class F>
  void each_token(F f) const {
    for (std::int64_t b = 0; b < sequences.count(); ++b) {
      const SequenceRows s = sequences.at(b);
      for (std::int64_t i = 0; i < s.rows; ++i) f(s.first_row + i, token(s, i));
    }
  }
};

/// All of docs/operators/sparse_flash_attention.md, "Errors", before anything is written. `infer`: absent results
/// receive dtype and shape, and no data is read. `shard`: of keys, where several ranks have some; lengths and lists are those
/// of whole sequences then, and so are the tokens that come of them.
template <class Args, class Outs>
Problem check(const Args&, Outs&, bool infer, bool check_values, const Ownership& shard = {});

}  // namespace dsakit::sparse_attention
