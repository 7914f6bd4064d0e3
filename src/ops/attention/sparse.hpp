// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/paged.hpp"
#include "core/view.hpp"
#include "dsakit/probability_rounding.hpp"
#include "run/call.hpp"

// Sparse MLA attention in absorbed form, for every operator that has it: each query token attends to a list of
// positions, and a latent row (beside its rope part) is key and value of all heads. What differs between operators
// (layouts, lists, packing) is gone when this begins.
namespace dsakit::attention::sparse {

struct Keys {
  PagedRows rows;                      // (sequence, position) -> number of the row below; strides in rows
  Rows latent{Tensor{}, 0};            // of the query's type, or int8 with scales
  Rows rope{Tensor{}, 0};              // of the query's type; not looked at when the rope width is 0
  Rows scales{Tensor{}, 0};            // f32, one per tile of latent columns; int8 latents only
  int tile = 0;                        // 0: latents are not int8
  int rope_from = 0, scales_from = 0;  // packed rows: byte of `latent` where they begin, at any address

  bool packed() const { return scales_from > 0; }
  const std::byte* latent_at(std::int64_t r) const { return at(latent, r); }
  const std::byte* rope_at(std::int64_t r) const { return packed() ? at(latent, r) + rope_from : at(rope, r); }
  const std::byte* scales_at(std::int64_t r) const { return packed() ? at(latent, r) + scales_from : at(scales, r); }

 private:
  static const std::byte* at(const Rows& rows, std::int64_t r) {
    return static_cast<const std::byte*>(rows.tensor.data) + rows.offset(r) * size_of(rows.tensor.dtype);
  }
};

/// What one query row attends to. List position x is token list[x / block] * block + x % block, without a list x
/// itself. Positions from `visible` on are masked; the others count as often as they are listed.
struct Token {
  std::int64_t sequence = -1;  // -1: no sequence's row
  std::int64_t first = 0;      // where its keys begin, in the positions of Keys::rows
  const std::int32_t* list = nullptr;
  std::int64_t block = 1;
  std::int64_t count = 0;  // list positions
  std::int64_t visible = INT64_MAX;
};

/// f(list position, token position) for the attended list positions of first .. end - 1, ascending.
template <class F>
void each_attended(const Token& t, std::int64_t first, std::int64_t end, F f) {
  std::int64_t entry = first / t.block, offset = first % t.block;
  for (std::int64_t x = first; x < end; ++x) {
    const std::int64_t position = t.list ? t.list[entry] * t.block + offset : x;
    if (++offset == t.block) offset = 0, ++entry;
    if (position < t.visible) f(x, position);
  }
}

/// Intermediate roundings that a caller asks for, to compare with a device or its golden. With any of probabilities,
/// dequantised keys are rounded to the query's type. `away`: fp16 results round ties away from zero.
struct Roundings {
  reference::ProbabilityRounding probability = reference::ProbabilityRounding::none;
  bool away = false;

  bool any() const { return probability != reference::ProbabilityRounding::none; }
};

struct Problem {
  DType type = DType::bf16;  // bf16 or f16: of query, rope, out, and of latents that are not int8
  Rows query{Tensor{}, 0}, query_rope{Tensor{}, 0};  // row token * heads + head
  Keys keys;
  Rows out{Tensor{}, 0};                    // likewise
  float* wide_out = nullptr;                // instead, [tokens * heads][latent]: a part to be merged with others
  Rows max{Tensor{}, 0}, sum{Tensor{}, 0};  // f32, likewise: maximum and sum of the softmax; no tensor: not wanted
  const float* sinks = nullptr;             // one more logit per head, without a value
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  int latent = 0, rope = 0;  // widths
  float scale = 1;           // of the scores
  Roundings rounding{};

  std::int64_t key_row(const Token& t, std::int64_t position) const {
    return keys.rows.offset(t.sequence, t.first + position);
  }
};

std::size_t workspace(const Problem&, const Call&);
/// `token` holds problem.tokens entries, every position of them valid. A row that attends to nothing is 0, with maximum
/// and sum 0; with a sink (that is not -inf) they are the sink and 1, unless the row belongs to no sequence.
void run(const Problem&, const Token* token, Call&, std::byte* memory) noexcept;

/// One call of an operator whose checked problem has `attention` and each_token(f).
template <class Checked>
void run(const char* op, const Checked& problem, Context& context) {
  Carver tokens;
  tokens.take<Token>(problem.attention.tokens);
  Call call(context, op, [&](const Call& call) { return tokens.bytes() + workspace(problem.attention, call); });
  auto* token = reinterpret_cast<Token*>(call.memory());
  problem.each_token([&](std::int64_t t, const Token& attended) { token[t] = attended; });
  run(problem.attention, token, call, call.memory() + tokens.bytes());
  call.finish();
}

}  // namespace dsakit::attention::sparse
