// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "debug/arguments.hpp"

namespace dsakit::debug {

/// What the rows of an attention call attend to, in float64, whichever operator it is. Row r is query token r, sequence
/// by sequence, padding included.
class Attended {
 public:
  using Numbers = std::vector<double>;
  /// Rows of keys and values of one key head, one after the other.
  struct Rows {
    Numbers keys, values;
  };

  /// Of an accepted call whose results have memory; null for operators that do not attend.
  static std::unique_ptr<Attended> of(const Arguments&);
  virtual ~Attended() = default;

  std::int64_t rows = 0, heads = 0, group = 1;  // heads that share a key head
  std::int64_t width = 0, value_width = 0;      // of a key with its rope part, of a value
  DType type = DType::bf16;                     // of 16-bit products, or f32
  bool codes = false;                           // keys are dequantised

  /// Positions that the row attends to, in the order in which they are added; all that it could list.
  virtual Integers listed(std::int64_t row) const = 0;
  virtual Integers visible(std::int64_t row) const = 0;
  /// `rounded`: dequantised numbers in `type`.
  virtual Rows read(std::int64_t row, std::int64_t head, const Integers& positions, bool rounded) const = 0;
  /// Of the keys of read(), scaled, biased.
  virtual Numbers scores(std::int64_t row, std::int64_t head, const Integers& positions, const Rows&) const = 0;
  virtual double sink(std::int64_t head) const = 0;  // one more score, or -infinity
  /// Into attention_out, rounded once.
  virtual void put(std::int64_t row, std::int64_t head, const Numbers& values) const = 0;
};

/// Intermediate roundings that devices have.
struct AttentionRounding {
  enum class Probability { none, normalised, tiled, int8 };
  Probability probability = Probability::none;
  bool keys = false;  // dequantised, in 16 bits
};

/// Fills attention_out of a call whose results have memory.
void attend(const Attended&, const AttentionRounding&);

}  // namespace dsakit::debug
