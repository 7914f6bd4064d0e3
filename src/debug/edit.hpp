// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "core/view.hpp"
#include "debug/bind.hpp"
#include "debug/rule.hpp"

namespace dsakit::debug {

/// Element i, rounded to its type, integers to the nearest.
void set_number(void* to, DType, std::int64_t i, double value);
/// `i` is row-major.
void set_number(Stored& to, std::int64_t i, double value);

/// A bound call that is rewritten: tensors are replaced by new memory, never written. Functions that find nothing to
/// rewrite return false.
class Edit {
 public:
  explicit Edit(Bound& bound) : bound_(bound) {}

  const Operator& op() const { return *bound_.arguments.op; }
  const Arguments& arguments() const { return bound_.arguments; }
  bool is_partly_stored() const { return !bound_.pools.empty(); }

  /// A tensor that is given, has elements and lies row by row; the parameter need not exist.
  bool has(std::string_view name) const;
  const Tensor& tensor(std::string_view name) const { return bound_.arguments.tensor(name); }
  /// Also of a cache that is the same memory: value is key. Matrices that are shared are edited one by one.
  void set(std::string_view name, const Stored&);

  /// A tensor that the call does not have.
  void give(std::string_view name, const Stored&);

  bool has_parameter(std::string_view name) const;
  bool set(std::string_view name, const Argument& value);  // false where it is that already
  bool swap(std::string_view a, std::string_view b);       // tensors of one shape and type

  /// Element i becomes what element from(i) was.
  template <class F>
  bool gather(std::string_view name, F from) {
    return gather_blocks(name, 1, from);
  }
  /// The same of blocks of `width` elements.
  template <class F>
  bool gather_blocks(std::string_view name, std::int64_t width, F from) {
    if (!has(name)) return false;
    const Stored before(tensor(name));
    Stored after(*before.type, before.shape);
    const std::size_t bytes = before.bytes->size() / std::size_t(before.elements()) * std::size_t(width);
    for (std::int64_t i = 0, n = before.elements() / width; i < n; ++i)
      std::copy_n(before.bytes->data() + std::size_t(from(i)) * bytes, bytes,
                  after.bytes->data() + std::size_t(i) * bytes);
    set(name, after);
    return true;
  }
  /// Element i becomes f(i, what it was).
  template <class F>
  bool map(std::string_view name, F f) {
    if (!has(name)) return false;
    const Stored before(tensor(name));
    Stored after(*before.type, before.shape);
    const Tensor from = before.tensor();
    for (std::int64_t i = 0, n = from.elements(); i < n; ++i) set_number(after, i, f(i, number_at(from, i)));
    set(name, after);
    return true;
  }

 private:
  Bound& bound_;
};

}  // namespace dsakit::debug
