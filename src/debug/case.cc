// SPDX-License-Identifier: Apache-2.0
#include "debug/case.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>

#include "core/check.hpp"
#include "core/view.hpp"
#include "debug/spelling.hpp"
#include "dsakit/error.hpp"
#include "io/json.hpp"

namespace dsakit::debug {
namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t length : shape) n *= length;
  return n;
}

/// A position: digits, few enough for an int.
int position_of(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

/// The parameter of a result by its place; of operators without results by that of what they update, which some faces
/// return.
int result_at(const Operator& op, int position) {
  const bool none = op.results().empty();
  for (std::size_t i = 0; i < op.parameters.size(); ++i) {
    const Parameter& p = op.parameters[i];
    if (none ? p.field.is_written() && position-- == 0 : p.result == position) return int(i);
  }
  return -1;
}

bool is_argument(const Parameter& p) { return p.field.role != Role::out; }

}  // namespace

Stored::Stored(const io::FileDType& type, std::vector<std::int64_t> lengths) : type(&type), shape(std::move(lengths)) {
  bytes = std::make_shared<io::AlignedArray<std::byte>>(std::size_t(product(shape)) * std::size_t(type.bits) / 8);
}

Stored::Stored(const Tensor& copied)
    : Stored(io::file_dtype_of(copied.dtype), {copied.shape.begin(), copied.shape.begin() + copied.rank}) {
  const std::int64_t n = copied.elements(), size = size_of(copied.dtype);
  Tensor dense = copied;
  make_contiguous(dense);
  const auto* from = static_cast<const std::byte*>(copied.data);
  // Runs of elements that are neighbours in both.
  std::int64_t run = 1;
  for (int a = copied.rank - 1; a >= 0 && (copied.stride[a] == dense.stride[a] || copied.shape[a] == 1); --a)
    run *= copied.shape[a];
  for (std::int64_t i = 0; i < n; i += run)
    std::memcpy(bytes->data() + i * size, from + offset_of(copied, i) * size, std::size_t(run * size));
}

std::int64_t Stored::elements() const { return product(shape); }

Tensor Stored::tensor() const {
  Tensor t{.data = bytes->data(), .dtype = type->dtype, .rank = int(shape.size())};
  std::copy(shape.begin(), shape.end(), t.shape.begin());
  make_contiguous(t);
  return t;
}

const Operator& Case::op() const {
  const Operator* op = find_spelling(call);
  if (!op)
    refuse_case(*this, "call", "is \"" + io::printable(call) + "\"", "the name of an operator", "CASE_CALL",
                "nearest: " + nearest_spelling(call));
  return *op;
}

std::optional<Place> Case::place(std::string_view group, std::string_view name) const {
  return place_of(op(), group, own_name(call, name));
}

std::optional<std::string> Case::refusal() const {
  const auto at = metadata.find("status");
  if (at == metadata.end()) return {};
  const io::Json text(at->second);
  return text.is_string() ? text.string() : std::string(text.text());
}

void Case::set_refusal(std::string_view sentence) { metadata["status"] = io::json_quoted(sentence); }

std::vector<std::string> Case::names(std::string_view group) const {
  std::vector<std::string> all;
  const auto take = [&](const auto& map) {
    for (const auto& [key, value] : map)
      if (key.size() > group.size() + 1 && key.starts_with(group) && key[group.size()] == '.')
        all.push_back(key.substr(group.size() + 1));
  };
  take(tensors);
  take(layouts);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::optional<Place> place_of(const Operator& op, std::string_view group, std::string_view name) {
  Place place;
  const std::size_t dot = name.find('.');
  if (dot != name.npos) {
    place.element = position_of(name.substr(dot + 1));
    if (place.element < 0) return {};
  }
  const std::string_view head = name.substr(0, dot);
  const bool results = group == "out" || group == "ref";
  int position = position_of(head);
  if (position >= 0 && results) {
    place.parameter = result_at(op, position);
  } else if (position >= 0) {
    for (std::size_t i = 0; i < op.parameters.size() && place.parameter < 0; ++i)
      if (is_argument(op.parameters[i]) && position-- == 0) place.parameter = int(i);
  } else {
    for (std::size_t i = 0; i < op.parameters.size(); ++i)
      if (op.parameters[i].field.name == head) place.parameter = int(i);
  }
  if (place.parameter < 0) return {};
  const Parameter& p = op.parameters[std::size_t(place.parameter)];
  const Role role = p.field.role;
  const bool fits = results                   ? p.field.is_written()
                    : role == Role::attribute ? group == "attributes"
                                              : role != Role::out;
  if (!fits || (p.list != (place.element >= 0) && group != "attributes")) return {};
  return place;
}

void refuse_case(const Case& c, const std::string& what, const std::string& got, const std::string& wanted,
                 const char* reason, const std::string& why) {
  throw Error(Status::invalid_file, "case", c.name + (what.empty() ? "" : ": " + what), "", got, wanted, why, reason);
}

}  // namespace dsakit::debug
