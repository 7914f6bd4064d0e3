// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/paged.hpp"
#include "core/state.hpp"
#include "core/view.hpp"

// MLA attention in absorbed form, for every operator that has it: a latent row (beside its rope part) is key and
// value of all heads. What differs between operators (layouts, lists, packing) is gone when this begins.
namespace dsakit::attention {

/// List positions per partial softmax. Part of the contract: chunks are counted from the start of the list and merged
/// in ascending order, so bits depend on nothing else.
inline constexpr int kChunk = 256;

struct Keys {
  PagedRows rows;  // (sequence, position) -> number of the row below; strides in rows
  Rows latent;     // bf16, or int8 with scales
  Rows rope;       // bf16; not looked at when the rope width is 0
  Rows scales;     // f32, one per tile of latent columns; int8 latents only
  int tile = 0;    // 0: bf16 latents
};

/// What one query row attends to: `count` positions of `list`, or 0..count-1 without a list. A position counts as
/// often as it is listed.
struct Token {
  std::int64_t sequence;
  const std::int32_t* list;
  std::int64_t count;
};

struct Problem {
  Rows query, query_rope;  // bf16, row token * heads + head
  Keys keys;
  Rows out;                // bf16, likewise; zeroed where count is 0
  std::int64_t tokens;
  std::int64_t heads;
  int latent, rope;        // widths
  float scale;             // of the scores
};

std::size_t workspace(const Problem&, int threads, bool same_products);
/// `token` holds problem.tokens entries, every position of them valid.
void run(const Problem&, const Token* token, Call&, std::byte* memory) noexcept;

}  // namespace dsakit::attention
