// SPDX-License-Identifier: Apache-2.0
#include "debug/arguments.hpp"

#include <algorithm>
#include <utility>

#include "dsakit/dsakit.hpp"
#include "dsakit/error.hpp"

namespace dsakit::debug {
namespace {

template <class Member>
void read(const Argument& from, Member& to) {
  if constexpr (std::is_same_v<Member, TensorList>) {
    if (const auto* list = std::get_if<std::vector<Tensor>>(&from)) to = *list;
  } else if constexpr (std::is_same_v<Member, std::string_view>) {
    if (const auto* text = std::get_if<std::string>(&from)) to = *text;
  } else if constexpr (std::is_same_v<Member, Level>) {
    if (const auto* text = std::get_if<std::string>(&from)) to = *text == "strict" ? Level::strict : Level::portable;
  } else if constexpr (std::is_same_v<Member, Axes>) {
    if (const auto* list = std::get_if<Integers>(&from)) to = Axes(list->data(), std::int64_t(list->size()));
  } else if constexpr (std::is_same_v<Member, double>) {
    if (const auto* integer = std::get_if<std::int64_t>(&from)) to = double(*integer);
    else if (const auto* number = std::get_if<double>(&from)) to = *number;
  } else if (const auto* value = std::get_if<Member>(&from)) {
    to = *value;
  }
}

/// Arguments of one type from the values, which outlive them.
template <class Args, class Outs>
void read_all(const Arguments& all, Args& args, Outs& outs) {
  auto value = all.values.begin();
  for_each_field(args, outs, [&](const Field&, auto& member) {
    if constexpr (!std::is_const_v<std::remove_reference_t<decltype(member)>>) read(*value, member);
    ++value;
  });
}

struct Entry {
  std::string_view name;
  void (*infer)(Arguments&);
  void (*run)(const Arguments&, Context&);
  void (*reference)(const Arguments&);
};

template <class Args, class Outs>
void infer_outputs(Arguments& all) {
  Args args{};
  Outs outs{};
  read_all(all, args, outs);
  dsakit::infer(std::as_const(args), outs);
  auto value = all.values.begin();
  for_each_field(args, outs, [&](const Field& field, const auto& member) {
    if (field.role == Role::out) *value = argument_of(member);
    ++value;
  });
}

template <class Args, class Outs, class Run>
void call(const Arguments& all, Run run) {
  Args args{};
  Outs outs{};
  read_all(all, args, outs);
  run(std::as_const(args), std::as_const(outs));
}

const Entry& entry_of(const Operator& op) {
  static const Entry all[] = {
#define DSAKIT_OP(name, Type)                                                                                \
  {#name, infer_outputs<Type##Args, Type##Outs>,                                                             \
   [](const Arguments& all, Context& context) {                                                              \
     call<Type##Args, Type##Outs>(all, [&](const auto& a, const auto& o) { dsakit::name(a, o, context); });  \
   },                                                                                                        \
   [](const Arguments& all) {                                                                                \
     call<Type##Args, Type##Outs>(all, [](const auto& a, const auto& o) { dsakit::reference::name(a, o); }); \
   }},
#include "ops/ops.inc"
#undef DSAKIT_OP
  };
  return *std::find_if(std::begin(all), std::end(all), [&](const Entry& e) { return e.name == op.name; });
}

}  // namespace

Argument& Arguments::at(std::string_view name) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (op->parameters[i].field.name == name) return values[i];
  throw Error(Status::internal, "case", std::string(name), "", "is no parameter of " + std::string(op->name), "one");
}

const Tensor& Arguments::tensor(std::string_view name) const {
  static const Tensor absent;
  const auto* tensor = std::get_if<Tensor>(&at(name));
  return tensor ? *tensor : absent;
}

void infer(Arguments& all) { entry_of(*all.op).infer(all); }
void run(const Arguments& all, Context& context) { entry_of(*all.op).run(all, context); }
void run_reference(const Arguments& all) { entry_of(*all.op).reference(all); }

}  // namespace dsakit::debug
