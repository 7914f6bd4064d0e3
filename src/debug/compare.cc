// SPDX-License-Identifier: Apache-2.0
#include "debug/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/check.hpp"
#include "core/float16.hpp"
#include "core/view.hpp"
#include "debug/check_layout.hpp"
#include "io/json.hpp"

namespace dsakit::debug {
namespace {

/// A tensor of a case, and the pages it has if it is partly stored.
struct Side {
  Tensor tensor;
  Integers pages;
};

Side side_of(const Case& c, const std::string& key) {
  const Origin o = origin_of(c, key);
  const Stored& stored = c.tensors.find(o.key)->second;
  Side side{stored.tensor(), {}};
  side.tensor.dtype = dtype_of(c, o.key);
  if (o.is_view) {
    side.tensor.rank = int(o.shape.size());
    std::copy(o.shape.begin(), o.shape.end(), side.tensor.shape.begin());
    std::copy(o.stride.begin(), o.stride.end(), side.tensor.stride.begin());
    side.tensor.data = static_cast<std::byte*>(side.tensor.data) + o.offset * size_of(side.tensor.dtype);
  }
  if (const auto l = c.layouts.find(o.key); l != c.layouts.end() && !l->second.pages.empty()) {
    const Stored& pages = c.tensors.find(l->second.pages)->second;
    const auto* page = reinterpret_cast<const std::int64_t*>(pages.bytes->data());
    side.pages.assign(page, page + pages.shape[0]);
  }
  return side;
}

std::string shape_text(const Tensor& t) { return brackets({t.shape.data(), std::size_t(t.rank)}); }

/// Which row of `b` is each row of `a`; pages that only `a` has are left out of the comparison.
void match_pages(Pair& pair, const Integers& a, const Integers& b) {
  if (a == b) return;
  std::map<std::int64_t, std::int64_t> entry;
  const auto page_of = [](const Integers& pages, std::int64_t i) { return pages.empty() ? i : pages[std::size_t(i)]; };
  for (std::int64_t i = 0; i < pair.computed.shape[0]; ++i) entry[page_of(b, i)] = i;
  const std::int64_t entries = pair.recorded.shape[0];
  const std::int64_t rows_of_entry =
      entries == 0
          ? 0
          : pair.recorded.elements() / entries / std::max<std::int64_t>(pair.recorded.shape[pair.recorded.rank - 1], 1);
  for (std::int64_t i = 0; i < entries; ++i) {
    const auto at = entry.find(page_of(a, i));
    if (at == entry.end()) pair.undefined.push_back({i * rows_of_entry, (i + 1) * rows_of_entry});
    for (std::int64_t r = 0; r < rows_of_entry; ++r)
      pair.rows.push_back(at == entry.end() ? 0 : at->second * rows_of_entry + r);
  }
}

Pair pair_of(const std::string& key, const Side& a, const Side& b) {
  Pair pair{key, "", a.tensor, b.tensor, {}, {}, ""};
  const bool paged = !a.pages.empty() || !b.pages.empty();
  if (a.tensor.dtype != b.tensor.dtype)
    pair.mismatch = std::string("has dtype ") + name_of(a.tensor.dtype) + ", beside " + name_of(b.tensor.dtype);
  else if (a.tensor.rank != b.tensor.rank || (paged && a.tensor.rank < 2) ||
           !std::equal(a.tensor.shape.begin() + paged, a.tensor.shape.begin() + a.tensor.rank,
                       b.tensor.shape.begin() + paged))
    pair.mismatch = "has shape " + shape_text(a.tensor) + ", beside " + shape_text(b.tensor);
  else if (paged) match_pages(pair, a.pages, b.pages);
  return pair;
}

/// Those of the metadata `undefined` for this tensor.
std::vector<RowRange> undefined_of(const Case& c, const std::string& key) {
  std::vector<RowRange> ranges;
  const auto at = c.metadata.find("undefined");
  if (at == c.metadata.end()) return ranges;
  const io::Json list(at->second);
  if (!list.is_array()) return ranges;
  list.items([&](const io::Json& item) {
    if (!item.is_array()) return;
    std::string name;
    Integers numbers;
    item.items([&](const io::Json& part) {
      if (part.is_string()) name = part.string();
      else if (const auto n = part.plain_integer()) numbers.push_back(*n);
    });
    if (name == key && numbers.size() == 2) ranges.push_back({numbers[0], numbers[1]});
  });
  return ranges;
}

void add_undefined(Pair& pair, const std::vector<RowRange>& more) {
  pair.undefined.insert(pair.undefined.end(), more.begin(), more.end());
  std::sort(pair.undefined.begin(), pair.undefined.end(),
            [](const RowRange& a, const RowRange& b) { return a.first < b.first; });
}

std::string list_suffix(const Place& place) { return place.element < 0 ? "" : "." + std::to_string(place.element); }

std::string parameter_of(const Case& c, std::string_view group, const std::string& name) {
  const Operator& op = c.op();
  const auto place = c.place(group, name);
  return std::string(op.parameters[std::size_t(place->parameter)].field.name) + list_suffix(*place);
}

std::vector<std::string_view> groups_of(std::string_view group) {
  return group == "out" ? std::vector<std::string_view>{"out", "after"} : std::vector<std::string_view>{group};
}

bool is_dense(const Tensor& t) {
  Tensor dense = t;
  make_contiguous(dense);
  return dense.stride == t.stride;
}

bool is_nan(const Tensor& t, std::int64_t offset) {
  switch (t.dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f32:
      return std::isnan(float_at(t, offset));
    case DType::f64:
      return std::isnan(static_cast<const double*>(t.data)[offset]);
    default:
      return false;
  }
}

}  // namespace

std::vector<Pair> pairs_of(const Case& c, std::string_view group, const Outcome& outcome) {
  std::vector<Pair> all;
  for (const std::string_view part : groups_of(group))
    for (const std::string& name : c.names(part)) {
      const std::string key = std::string(part) + "." + name, parameter = parameter_of(c, part, name);
      auto result = outcome.results.find("out." + parameter);
      if (part == "after" || result == outcome.results.end()) result = outcome.results.find("after." + parameter);
      if (result == outcome.results.end()) {
        all.push_back({key, parameter, {}, {}, {}, {}, "is recorded, and no result of the call"});
        continue;
      }
      Pair pair = pair_of(key, side_of(c, key), {result->second.tensor, result->second.pages});
      pair.parameter = parameter;
      add_undefined(pair, result->second.undefined);
      add_undefined(pair, undefined_of(c, key));
      all.push_back(std::move(pair));
    }
  return all;
}

std::vector<Pair> pairs_of(const Case& a, std::string_view group_a, const Case& b, std::string_view group_b) {
  std::vector<Pair> all;
  for (const std::string_view part_a : groups_of(group_a))
    for (const std::string& name : a.names(part_a)) {
      const std::string parameter = parameter_of(a, part_a, name);
      for (const std::string_view part_b : groups_of(group_b))
        for (const std::string& other : b.names(part_b)) {
          if (parameter_of(b, part_b, other) != parameter) continue;
          const std::string key = std::string(part_a) + "." + name, key_b = std::string(part_b) + "." + other;
          Pair pair = pair_of(key, side_of(a, key), side_of(b, key_b));
          pair.parameter = parameter;
          add_undefined(pair, undefined_of(a, key));
          add_undefined(pair, undefined_of(b, key_b));
          all.push_back(std::move(pair));
        }
    }
  return all;
}

Bits compare_bits(const Pair& pair, bool nan_fails) {
  Bits bits;
  const auto size = std::size_t(size_of(pair.recorded.dtype));
  const auto *a = static_cast<const std::byte*>(pair.recorded.data),
             *b = static_cast<const std::byte*>(pair.computed.data);
  if (!nan_fails && pair.rows.empty() && is_dense(pair.recorded) && is_dense(pair.computed) &&
      std::equal(a, a + std::size_t(pair.recorded.elements()) * size, b)) {
    bits.elements = pair.recorded.elements();
    return bits;
  }
  each_element(pair, [&](std::int64_t i, std::int64_t at, std::int64_t other) {
    ++bits.elements;
    const bool same = std::memcmp(a + std::size_t(at) * size, b + std::size_t(other) * size, size) == 0;
    if (same && !nan_fails) return;
    const bool nan = is_nan(pair.recorded, at);
    if (same ? !nan : !nan_fails && nan && is_nan(pair.computed, other)) return;
    if (bits.different++ == 0) bits.first = i;
  });
  return bits;
}

bool nan_fails(const Case& c) {
  const auto at = c.metadata.find("nan");
  return at != c.metadata.end() && at->second == "fail";
}

void want_results(Case& c, const Case& other) {
  if (&other.op() != &c.op())
    refuse_case(other, "call", "is " + other.call, "a call of " + std::string(c.op().name), "CASE_CALL");
  std::size_t taken = 0;
  for (const std::string group : {"out", "after"})
    for (const std::string& name : other.names(group)) {
      const auto tensor = other.tensors.find(group + "." + name);
      if (tensor == other.tensors.end() || other.layouts.contains(tensor->first)) continue;  // parts of caches, views
      c.tensors["ref." + name] = tensor->second;
      ++taken;
    }
  if (taken == 0) refuse_case(other, "group out", "is empty", "results that lie row-major", "CASE_MISSING");
  check_case(c);
}

}  // namespace dsakit::debug
