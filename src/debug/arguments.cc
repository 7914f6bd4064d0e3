// SPDX-License-Identifier: Apache-2.0
#include "debug/arguments.hpp"

#include <algorithm>
#include <utility>

#include "dsakit/dsakit.hpp"
#include "dsakit/error.hpp"

namespace dsakit::debug {
namespace {

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
