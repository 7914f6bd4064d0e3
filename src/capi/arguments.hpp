// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/check.hpp"
#include "dsakit/dsakit.h"
#include "dsakit/packed_weight.hpp"
#include "ops/describe.hpp"

struct dsakit_packed_weight {
  dsakit::PackedWeight weight;
};

namespace dsakit::capi {

/// One parameter, and as which kind of argument it is given.
struct Slot : Parameter {
  dsakit_kind given_as;
  bool needed;  // a call without it is refused at once
};

/// All parameters of an operator, in the order of for_each_field.
struct Signature {
  std::string op;
  std::vector<Slot> slots;

  static constexpr std::size_t kMost = 64;
};

/// A DLTensor as the library has it. `position`: of an element of an array, or "".
Tensor tensor_of(const Check& check, const char* parameter, const dsakit_tensor* from, std::uint32_t flags,
                 const std::string& position = {});

/// The arguments of one call, found by name and read by type. Allocates only for lengths that come as 64-bit integers, and
/// for arrays of tensors.
class Arguments {
 public:
  /// Refuses names that are null, unknown or there twice, and a call that lacks what it needs.
  Arguments(const Signature& signature, const dsakit_argument* arguments, std::size_t count);

  /// Into the members of Args and Outs; outputs stay absent unless `with_outputs`.
  template <class Args, class Outs>
  void read(Args& args, Outs& outs, bool with_outputs) {
    const dsakit_argument* const* next = given_.data();
    for_each_field(args, outs, [&](const Field& field, auto& value) {
      if (const dsakit_argument* a = *next++; a && (with_outputs || field.role != Role::out)) {
        if constexpr (std::is_const_v<std::remove_reference_t<decltype(value)>>) without_member(field, *a);
        else read(field, *a, value);
      }
    });
  }

 private:
  void read(const Field&, const dsakit_argument&, Tensor&);
  void read(const Field&, const dsakit_argument&, TensorList&);
  void read(const Field&, const dsakit_argument&, std::int64_t&);
  void read(const Field&, const dsakit_argument&, double&);
  void read(const Field&, const dsakit_argument&, bool&);
  void read(const Field&, const dsakit_argument&, std::string_view&);
  void read(const Field&, const dsakit_argument&, Level&);
  template <std::constructible_from<const std::int64_t*, std::int64_t> List>
  void read(const Field& field, const dsakit_argument& a, List& value) {
    check_kind(field, a, DSAKIT_INTEGERS);
    value = List(a.value.integers, std::int64_t(a.count));
  }
  void without_member(const Field&, const dsakit_argument&) const;

  void check_kind(const Field&, const dsakit_argument&, dsakit_kind wanted) const;
  [[noreturn]] void wrong_kind(const Field&, const dsakit_argument&, const char* wanted) const;
  Tensor lengths(const char* name, std::int64_t count, std::int64_t (*at)(const void*, std::int64_t),
                 const void* values);

  const Signature& signature_;
  Check check_;
  std::array<const dsakit_argument*, Signature::kMost> given_{};
  std::vector<std::unique_ptr<std::int32_t[]>> memory_;
  std::vector<std::unique_ptr<Tensor[]>> lists_;
};

}  // namespace dsakit::capi
