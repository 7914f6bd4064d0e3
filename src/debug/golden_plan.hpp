// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "debug/arguments.hpp"
#include "debug/case.hpp"
#include "debug/golden.hpp"

namespace dsakit::debug {

/// What is usual for the operators `ops` (names, a trailing * for any ending) where `when` holds, as words NAME=VALUE.
/// Later ones come before earlier ones, and what a caller asks for before all.
///   axis       an expression: numbers, + - * /, ceil(a/b), axes, integer attributes, TENSOR.bytes of an element
///   attribute  a value; an integer may be an expression, a float rsqrt(expression)
///   tensor     dtype, [axes], dtype[axes], dtype:2x3, given, absent, @other (the same memory), 40+23*2 (its values)
/// `when`: NAME=VALUE, all of them; ! in front: not so; a tensor is given, or of a dtype; AXIS=* where the caller set
/// it.
struct Form {
  std::string_view ops, when, words;
};
extern const std::vector<Form> kForms;

/// Sizes and types of all tensors of one call, from the description of its operator, its forms and the settings.
class Plan {
 public:
  struct Planned {
    int parameter = -1;
    int element = -1;  // of a list
    DType dtype = DType::other;
    Format format = Format::ND;
    Integers shape;
    Integers values;    // if they are given
    std::string alias;  // the parameter whose memory it is
  };

  Plan(const Operator&, const Settings&);

  const Operator& op() const { return op_; }
  const std::vector<Planned>& tensors() const { return tensors_; }
  /// Those of the settings and of the forms.
  const ByName<Attribute>& attributes() const { return attributes_; }
  std::uint64_t seed() const { return seed_; }
  int data() const { return data_; }  // of V1..V19
  std::string_view pages() const { return pages_; }
  double fill() const { return fill_; }  // of lists: the share that names something
  /// Inside of the call that are stored.
  const std::vector<std::string>& steps() const { return steps_; }

  bool has_axis(std::string_view name) const;
  std::int64_t axis(std::string_view name) const;
  std::int64_t axis(std::string_view name, std::int64_t otherwise) const {
    return has_axis(name) ? axis(name) : otherwise;
  }
  /// Null where it is not given.
  const Planned* tensor(std::string_view parameter) const;
  std::string text(std::string_view attribute) const;
  std::int64_t integer(std::string_view attribute, std::int64_t otherwise) const;

 private:
  struct Words {  // of one tensor
    std::string dtype, shape, alias, values;
    std::string usual;  // shape of the form where the caller asked for one
    std::optional<bool> given;
    Format format = Format::ND;
  };

  [[noreturn]] void refuse(std::string_view what, std::string_view got, std::string wanted, std::string why = {}) const;
  const Parameter* parameter(std::string_view name) const;
  void take(std::string_view name, std::string_view value, bool asked);
  void take_option(std::string_view name, std::string_view value);
  void take_tensor(const Parameter&, std::string_view value, bool asked);
  bool holds(std::string_view when) const;
  void apply_forms();
  void shift_width();
  void axes_of_shapes();
  Attribute attribute_of(const Parameter&, const std::string& value) const;
  void plan_tensors();
  bool is_given(const Parameter&) const;
  DType dtype_of(const Parameter&) const;
  std::optional<Integers> shape_of(const Parameter&) const;
  std::optional<Integers> shape_of_text(std::string_view text) const;
  std::optional<Integers> shape_in_words(std::string_view text) const;
  void check_all_used() const;

  const Operator& op_;
  ByName<std::string> axes_, values_;  // of axes and attributes
  ByName<Words> words_;                // of tensors
  std::set<std::string, std::less<>> asked_, asked_tensors_;
  mutable std::set<std::string, std::less<>> used_;
  mutable ByName<std::string> instead_;  // of an axis, while a shape is read with another one
  mutable int depth_ = 0;
  std::vector<Planned> tensors_;
  ByName<Attribute> attributes_;
  std::uint64_t seed_ = 1;
  int data_ = 1;
  std::string pages_ = "mixed";
  std::vector<std::string> steps_{"all"};
  double fill_ = 1;
};

/// The type of this name, as Python spells it or short as lines of DSAKIT_VERBOSE have it.
std::optional<DType> dtype_named(std::string_view name);

}  // namespace dsakit::debug
