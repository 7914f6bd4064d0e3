// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/check.hpp"
#include "ops/describe.hpp"

// A call as a failing test shows it.
namespace dsakit {

/// "int8[4, 1, 32]", "int8[4, 16] NZ", "float32[2, 8] strides [16, 1]".
std::string to_text(const Tensor&);
/// As Python writes it.
std::string to_text(const Default&);

/// "quantize(input=float32[4, 12], scales=float32[12], dtype="qint8", y=int8[4, 12])": the tensors that are given, and
/// the attributes that are not at their default.
template <class Args, class Outs>
std::string to_text(std::string_view op, const Args& args, const Outs& outs) {
  std::string text;
  std::size_t i = 0;
  const Operator described = describe_operator<Args, Outs>(op);
  for_each_field(args, outs, [&](const Field& field, const auto& value) {
    std::string shown;
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Tensor>) {
      if (value) shown = to_text(value);
    } else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, TensorList>) {
      for (const Tensor& t : value) shown += (shown.empty() ? "[" : ", ") + to_text(t);
      if (!shown.empty()) shown += "]";
    } else if (const Default now = default_of(value); now != described.parameters[i].default_value) {
      shown = to_text(now);
    }
    ++i;
    if (!shown.empty()) text += (text.empty() ? "" : ", ") + std::string(field.name) + "=" + shown;
  });
  return std::string(op) + "(" + text + ")";
}

}  // namespace dsakit
