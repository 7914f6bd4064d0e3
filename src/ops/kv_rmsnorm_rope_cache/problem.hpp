// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/check.hpp"
#include "core/view.hpp"
#include "dsakit/kv_rmsnorm_rope_cache.hpp"
#include "ops/prolog/mla_problem.hpp"
#include "run/call.hpp"

namespace dsakit::kv_rmsnorm_rope_cache_op {

/// Which row of the caches a token goes to. Norm: the caches' sequences lie behind each other, `length` rows each.
struct Slots {
  enum class Kind { row, slot, page } kind;  // what an entry is: of its sequence, of the pages, or of a block of tokens
  Rows index;                                // i64
  std::int64_t sequence, length, blocks;  // tokens of a sequence; its rows, or those of a page; entries of a sequence

  /// Negative: it is not stored.
  std::int64_t of(std::int64_t token) const {
    const std::int64_t b = token / sequence, s = token % sequence;
    if (kind != Kind::page) {
      const std::int64_t row = *index.row<const std::int64_t>(token);
      return row < 0 || kind == Kind::slot ? row : b * length + row;
    }
    const std::int64_t first = *index.row<const std::int64_t>(b * blocks + s / length);
    return first < 0 ? first : first + s % length;
  }
};

/// One of the two rows that a token has, and where it goes.
struct Part {
  std::int64_t column, width;  // of kv
  prolog::CacheRows cache;
  Rows scale;  // of an int8 cache: a factor for each column; else without memory
  Rows out;    // the row before it is quantised, or without memory

  bool codes() const { return cache.first.tensor.dtype == DType::i8; }
};

struct Problem {
  std::int64_t tokens;
  float epsilon;
  Rows kv, cos, sin;
  Tensor gamma;
  Part latent, rope;
  Slots slots;
  Tensor from[2]{}, to[2]{};  // the functional form: caches, and what receives their rows first

  std::int64_t width() const { return latent.width + rope.width; }
};

std::size_t workspace(const Problem&, int threads);
void run(const Problem&, Call&);
void reference(const Problem&);

}  // namespace dsakit::kv_rmsnorm_rope_cache_op
