// SPDX-License-Identifier: Apache-2.0
#include "ops/describe.hpp"

#include "dsakit/dsakit.hpp"

namespace dsakit {

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all{
#define DSAKIT_OP(name, Type) describe_operator<Type##Args, Type##Outs>(#name),
#include "ops/ops.inc"
#undef DSAKIT_OP
  };
  return all;
}

std::vector<std::string_view> Operator::results() const {
  std::vector<std::string_view> names;
  for (const Parameter& p : parameters) {
    if (p.result < 0) continue;
    if (names.size() <= std::size_t(p.result)) names.resize(std::size_t(p.result) + 1);
    names[std::size_t(p.result)] = p.field.name;
  }
  return names;
}

const char* name_of(Role role) {
  switch (role) {
    case Role::in:
      return "in";
    case Role::in_opt:
      return "in_opt";
    case Role::inout:
      return "inout";
    case Role::inout_opt:
      return "inout_opt";
    case Role::out:
      return "out";
    case Role::attribute:
      return "attribute";
    case Role::reserved:
      return "reserved";
    case Role::hint:
      return "hint";
    case Role::tolerated:
      return "tolerated";
  }
  return "";
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::data:
      return "data";
    case Kind::weight:
      return "weight";
    case Kind::cache:
      return "cache";
    case Kind::scale:
      return "scale";
    case Kind::index:
      return "index";
    case Kind::table:
      return "table";
    case Kind::lengths:
      return "lengths";
    case Kind::mask:
      return "mask";
    case Kind::reserved:
      return "reserved";
    case Kind::number:
      return "number";
    case Kind::flag:
      return "flag";
    case Kind::mode:
      return "mode";
    case Kind::layout:
      return "layout";
    case Kind::axes:
      return "axes";
    case Kind::dtype:
      return "dtype";
    case Kind::level:
      return "level";
  }
  return "";
}

const char* name_of(Family family) {
  switch (family) {
    case Family::torch_npu:
      return "torch_npu";
    case Family::pypto:
      return "PyPTO";
    case Family::vllm_ascend:
      return "vllm-ascend";
    case Family::dsakit:
      return "dsakit";
  }
  return "";
}

}  // namespace dsakit
