// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "core/view.hpp"
#include "dsakit/error.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// "[4, 64]"
std::string brackets(std::span<const std::int64_t> shape);
/// "[3][17]"
std::string subscript(std::initializer_list<std::int64_t> position);
/// The same for the element at a row-major index.
std::string subscript(const Tensor& t, std::int64_t linear);

/// The door of one call: every question an operator asks about its arguments, each answered by silence or by an
/// Error that names operator, parameter, wanted and got. Ask in the order of the operator's validation table: the
/// first failure is the answer. No heap allocation while nothing is wrong.
class Check {
 public:
  Check(const char* op, Level level) : op_(op), level_(level) {}
  const char* op() const { return op_; }
  bool strict() const { return level_ == Level::strict; }

  [[noreturn]] void fail(Status status, std::string_view parameter, std::string position, std::string got,
                         std::string wanted, std::string why = {}) const;

  // ---- presence
  void required(const Tensor& t, const char* name) const;
  void absent(const Tensor& t, const char* name, const char* why) const;  // "is given, wanted absent (why)"

  // ---- one tensor: dtype, memory (null data, negative dims, overflow, strides, alignment), shape
  /// One of `wanted`. `why`: where the wanted comes from, or "".
  void dtype(const Tensor& t, const char* name, std::initializer_list<DType> wanted, const char* why = "") const;
  /// A shape at all: rank 0..8, dims >= 0, sizes fit 63 bits. For operators that compare shapes before they ask for memory.
  void sizes(const Tensor& t, const char* name) const;
  /// Memory that can be read: data unless empty, dims >= 0, sizes and offsets fit 63 bits, strides >= 0, innermost
  /// stride 1, address a multiple of the element size. `strict`: contiguous but for axis 0 if `free_first_axis`.
  void readable(const Tensor& t, const char* name, bool free_first_axis = false) const;
  /// The same for memory that is written: also not read-only, and no two elements share memory.
  void writable(const Tensor& t, const char* name, bool free_first_axis = false) const;
  /// The same as readable for a weight, which may also be NZ or packed; those two are refused everywhere else.
  void readable_weight(const Tensor& t, const char* name) const;
  void rank(const Tensor& t, const char* name, int wanted, const char* why) const;
  /// Exact shape. `why` names the sizes, e.g. "T and N1 of query".
  void shape(const Tensor& t, const char* name, std::initializer_list<std::int64_t> wanted, const char* why) const;
  /// Any shape with `rows` rows of `width` (0 axes of width: the row is one element), folded or unfolded,
  /// with or without axes of length 1. strict: exactly [rows, width...]. Axes of the row are those of `row_shape`.
  Rows rows(const Tensor& t, const char* name, std::int64_t rows, std::initializer_list<std::int64_t> row_shape,
            const char* why) const;
  /// A vector of n elements: [n], portable also [n, 1] and [1, n]. Returns the distance between elements.
  std::int64_t vector(const Tensor& t, const char* name, std::int64_t n, const char* why) const;

  // ---- several tensors
  void no_overlap(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) const;

  // ---- attributes
  void one_of(std::string_view value, const char* name, std::initializer_list<std::string_view> wanted) const;
  void positive(double value, const char* name) const;      // finite and > 0
  void at_least(std::int64_t value, const char* name, std::int64_t lowest) const;
  /// A limit of the chip: only strict asks. `holds` false: UNSUPPORTED, "[strict: Atlas A2/A3]".
  void chip(bool holds, const char* name, std::string got, const char* wanted) const;

 private:
  void memory(const Tensor& t, const char* name, bool free_first_axis, bool written) const;
  const char* op_;
  Level level_;
};

/// True if some byte belongs to both. Exact for views of one buffer whose rows have the same pitch (interleaved
/// columns), conservative otherwise.
bool overlap(const Tensor& a, const Tensor& b);
/// Same address, shape, dtype, and strides wherever an axis has steps.
bool same_storage(const Tensor& a, const Tensor& b);

}  // namespace dsakit
