// SPDX-License-Identifier: Apache-2.0
#include "capi/operators.hpp"

#include <algorithm>
#include <utility>

#include "core/dlpack.hpp"
#include "core/nearest.hpp"
#include "dsakit/dsakit.hpp"
#include "io/json.hpp"

namespace dsakit::capi {
namespace {

template <class Member>
constexpr dsakit_kind kind_of() {
  if constexpr (std::is_same_v<Member, Tensor>) return DSAKIT_TENSOR;
  else if constexpr (std::is_same_v<Member, TensorList>) return DSAKIT_TENSORS;
  else if constexpr (std::is_same_v<Member, std::int64_t>) return DSAKIT_INTEGER;
  else if constexpr (std::is_same_v<Member, double>) return DSAKIT_REAL;
  else if constexpr (std::is_same_v<Member, bool>) return DSAKIT_BOOLEAN;
  else if constexpr (std::is_same_v<Member, Absent>) return DSAKIT_NONE;
  else if constexpr (std::constructible_from<Member, const std::int64_t*, std::int64_t>) return DSAKIT_INTEGERS;
  else return DSAKIT_STRING;
}

template <class Args, class Outs>
Signature signature_of(const char* name) {
  Signature s{name, {}};
  for (Parameter& p : describe_operator<Args, Outs>(name).parameters)
    s.slots.push_back({std::move(p), DSAKIT_NONE, false});
  if (s.slots.size() > Signature::kMost) throw std::length_error("more parameters than Signature::kMost");
  std::size_t i = 0;
  const Args args{};
  const Outs outs{};
  for_each_field(args, outs, [&](const Field& field, const auto& value) {
    Slot& slot = s.slots[i++];
    slot.given_as = kind_of<std::remove_cvref_t<decltype(value)>>();
    const bool value_needed = field.role == Role::attribute && slot.required && field.kind != Kind::dtype;
    slot.needed = field.is_required() || value_needed;
  });
  return s;
}

dsakit_shape shape_of(const Tensor& t, const char* name) {
  dsakit_shape shape{name, {}, t.rank, {}};
  if (!t) return shape;
  shape.dtype = dlpack_of(t.dtype);
  std::copy_n(t.shape.begin(), t.rank, shape.shape);
  return shape;
}

template <class Args, class Outs>
void infer_shapes(Arguments& given, const Signature& signature, std::span<dsakit_shape> results) {
  Args args{};
  Outs outs{};
  given.read(args, outs, false);
  infer(std::as_const(args), outs);
  std::size_t i = 0;
  for_each_field(args, outs, [&](const Field& field, const auto& value) {
    const int place = signature.slots[i++].result;
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Tensor>)
      if (place >= 0 && std::size_t(place) < results.size()) results[std::size_t(place)] = shape_of(value, field.name);
  });
}

template <class Args, class Outs, class Run>
void call(Arguments& given, Run run) {
  Args args{};
  Outs outs{};
  given.read(args, outs, true);
  run(std::as_const(args), std::as_const(outs));
}

}  // namespace

const std::vector<Entry>& entries() {
  static const auto* all = new std::vector<Entry>{
#define DSAKIT_OP(name, Type)                                                                           \
  Entry{signature_of<Type##Args, Type##Outs>(#name),                                                    \
        [](Arguments& given, Context& context) {                                                        \
          call<Type##Args, Type##Outs>(given, [&](auto& a, auto& o) { dsakit::name(a, o, context); });  \
        },                                                                                              \
        [](Arguments& given) {                                                                          \
          call<Type##Args, Type##Outs>(given, [](auto& a, auto& o) { dsakit::reference::name(a, o); }); \
        },                                                                                              \
        infer_shapes<Type##Args, Type##Outs>},
#include "ops/ops.inc"
#undef DSAKIT_OP
  };
  return *all;
}

const Entry& find_entry(const char* call, std::string_view name) {
  for (const Entry& e : entries())
    if (e.signature.op == name) return e;
  std::vector<std::string_view> names;
  for (const Entry& e : entries()) names.push_back(e.signature.op);
  const std::string shown = io::printable(name.substr(0, 500));
  throw Error(Status::invalid_argument, call, "name", "", "is \"" + shown + "\"", "the name of an operator",
              "nearest: " + std::string(nearest(shown, names)));
}

}  // namespace dsakit::capi
