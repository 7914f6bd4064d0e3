// SPDX-License-Identifier: Apache-2.0
#include "ops/print.hpp"

#include <charconv>

namespace dsakit {

std::string to_text(const Tensor& t) {
  const auto axes = [&](const auto& values) {
    return brackets({values.data(), std::size_t(std::clamp(t.rank, 0, 8))});
  };
  std::string text = name_of(t.dtype) + axes(t.shape);
  if (t.format != Format::ND) return text + (t.format == Format::NZ ? " NZ" : " packed");
  Tensor dense = t;
  make_contiguous(dense);
  for (int a = 0; a < t.rank; ++a)
    if (t.shape[a] > 1 && t.stride[a] != dense.stride[a]) return text + " strides " + axes(t.stride);
  return text;
}

std::string to_text(const Default& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "True" : "False";
  if (const auto* word = std::get_if<std::string_view>(&value)) return '"' + std::string(*word) + '"';
  if (const auto* axes = std::get_if<Axes>(&value)) {
    const std::string text = brackets({axes->axis.data(), std::size_t(std::clamp<std::int64_t>(axes->count, 0, 8))});
    return "(" + text.substr(1, text.size() - 2) + ")";
  }
  if (const auto* number = std::get_if<double>(&value)) {
    char digits[32];
    const std::string text(digits, std::to_chars(digits, digits + sizeof digits, *number).ptr);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  }
  return "None";
}

}  // namespace dsakit
