// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>
#include <type_traits>

#include "core/check.hpp"
#include "dsakit/error.hpp"
#include "dsakit/field.hpp"
#include "dsakit/tensor_list.hpp"

// The questions that every door asks of every tensor alike, answered from the operator's description. An operator asks
// them at their place in its own validation table, and has no list of its tensors.
namespace dsakit {

/// f(tensor) for each of a list; what it refuses is refused with its place in the list.
template <class F>
void each(TensorList list, F f) {
  for (std::size_t i = 0; i < list.size(); ++i) try {
      f(list[i]);
    } catch (const Error& e) {
      throw Error(e.status, e.op, e.parameter, subscript({std::int64_t(i)}) + e.position, e.got, e.wanted, e.why, e.reason);
    }
}

/// The tensors of a call, in the order of its description.
struct Tensors {
  struct One {
    const Tensor* tensor;  // of a list: null
    const char* name;
    Role role;
    Kind kind;
    TensorList list{};

    bool is_written() const { return role == Role::inout || role == Role::inout_opt || role == Role::out; }
    /// f(tensor) if it is given, for each of a list.
    template <class F>
    void each(F f) const {
      if (!tensor) dsakit::each(list, f);
      else if (*tensor) f(*tensor);
    }
  };
  static constexpr int kMost = 32;
  One list[kMost]{};
  int count = 0;

  /// They are looked at where they are: both outlive this.
  template <class Args, class Outs>
  Tensors(const Args& a, const Outs& o) {
    static_assert(count_of<Args, Outs>() <= kMost);
    for_each_field(a, o, [&](const Field& field, const auto& value) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::is_same_v<Value, Tensor>) list[count++] = {&value, field.name, field.role, field.kind};
      if constexpr (std::is_same_v<Value, TensorList>)
        list[count++] = {nullptr, field.name, field.role, field.kind, value};
    });
  }
  template <class Args, class Outs>
  Tensors(const Args&, const Outs&&) = delete;
  /// Without results.
  template <class Outs, class Args>
  static Tensors inputs(const Args& a) {
    static constexpr Outs none{};
    return {a, none};
  }

  const One* begin() const { return list; }
  const One* end() const { return list + count; }
  /// What `t`, one of them, is.
  Kind kind_of(const Tensor& t) const {
    for (const One& p : *this)
      if (p.tensor == &t) return p.kind;
    return Kind::data;
  }
  /// The tensor of this name is not looked at any more.
  void forget(std::string_view name) {
    static constexpr Tensor absent;
    for (One* p = list; p != end(); ++p)
      if (p->name == name) p->tensor = &absent;
  }

 private:
  template <class Args, class Outs>
  static constexpr int count_of() {
    int n = 0;
    const Args a{};
    const Outs o{};
    for_each_field(a, o, [&](const Field&, const auto& value) {
      using Value = std::remove_cvref_t<decltype(value)>;
      n += std::is_same_v<Value, Tensor> || std::is_same_v<Value, TensorList>;
    });
    return n;
  }
};

/// Inputs and in-place tensors that the call cannot do without are given.
void check_given(const Check&, const Tensors&);
/// What is reserved is not.
void check_reserved(const Check&, const Tensors&);
/// Every tensor given has a shape that can be counted, and only weights have a weight's format.
void check_countable(const Check&, const Tensors&);

/// In strict: the first axis of a cache may have room between its rows (paged caches), or not.
enum class Caches { contiguous, free_first_axis };
/// Memory of every tensor given: it can be read, or written.
void check_memory(const Check&, const Tensors&, Caches = Caches::contiguous);

/// Of two tensors that are written and overlap, the one that a refusal names first.
enum class Named { earlier, later };
/// What is written overlaps nothing else.
void check_separate(const Check&, const Tensors&, Named = Named::earlier);

/// Value checking: every element of every floating-point input but caches and weights is finite, and of a scale not
/// negative.
void check_finite(const Check&, const Tensors&);

}  // namespace dsakit
