// SPDX-License-Identifier: Apache-2.0
#include "debug/check_layout.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include "core/check.hpp"
#include "io/json.hpp"

namespace dsakit::debug {
namespace {

using Integers = std::vector<std::int64_t>;

std::string text_of(const Integers& list) { return brackets({list.data(), list.size()}); }

[[noreturn]] void refuse(const Case& c, const std::string& key, const std::string& got, const std::string& wanted) {
  refuse_case(c, "layout of " + io::printable(key), got, wanted, "CASE_LAYOUT");
}

Integers dense(const Integers& shape) {
  Integers stride(shape.size());
  std::int64_t step = 1;
  for (std::size_t a = shape.size(); a-- > 0;) {
    stride[a] = step;
    if (__builtin_mul_overflow(step, shape[a], &step)) step = INT64_MAX;
  }
  return stride;
}

/// Elements from the first to behind the last; INT64_MAX if that cannot be counted.
std::int64_t extent(const Integers& shape, const Integers& stride, std::int64_t offset) {
  std::int64_t last = offset;
  for (std::size_t a = 0; a < shape.size(); ++a) {
    std::int64_t way = 0;
    if (shape[a] == 0) return 0;
    if (__builtin_mul_overflow(shape[a] - 1, stride[a], &way) || __builtin_add_overflow(last, way, &last))
      return INT64_MAX;
  }
  return last == INT64_MAX ? last : last + 1;
}

const Layout* layout_at(const Case& c, const std::string& key) {
  const auto at = c.layouts.find(key);
  return at == c.layouts.end() ? nullptr : &at->second;
}

/// c0 of FRACTAL_NZ: 32 bytes of elements.
void check_nz(const Case& c, const std::string& key, const Layout& l, const Stored& stored) {
  if (!l.shape || l.shape->size() < 2) refuse(c, key, "has format NZ without a shape", "the logical [K, N]");
  const Integers& s = *l.shape;
  const std::int64_t bits = stored.type->bits, c0 = bits >= 8 ? 256 / bits : 64;
  std::int64_t elements = 1;
  bool counted = true;
  const auto times = [&](std::int64_t n) { counted = counted && !__builtin_mul_overflow(elements, n, &elements); };
  for (std::size_t a = 0; a + 2 < s.size(); ++a) times(s[a]);
  for (const auto& [length, block] : {std::pair{s[s.size() - 2], std::int64_t{16}}, std::pair{s.back(), c0}})
    times(length > INT64_MAX - block ? INT64_MAX : (length + block - 1) / block * block);
  if (!counted || elements != stored.elements())
    refuse(c, key, "is FRACTAL_NZ of " + text_of(s) + " with " + std::to_string(stored.elements()) + " elements",
           counted ? std::to_string(elements) : "a size that can be counted");
}

void check_pages(const Case& c, const std::string& key, const Layout& l, const Stored& stored) {
  const auto at = c.tensors.find(l.pages);
  if (at == c.tensors.end() || at->second.type->dtype != DType::i64 || at->second.shape.size() != 1)
    refuse(c, key, "has its pages in " + io::printable(l.pages), "a stored tensor [pages] of I64");
  if (!l.full || l.full->size() != stored.shape.size() || stored.shape.empty() ||
      !std::equal(l.full->begin() + 1, l.full->end(), stored.shape.begin() + 1))
    refuse(c, key, l.full ? "has the full shape " + text_of(*l.full) : "has no full shape",
           text_of(stored.shape) + " but for its first length");
  const std::int64_t n = at->second.shape[0];
  if (n != stored.shape[0])
    refuse(c, key, "has " + std::to_string(n) + " pages", std::to_string(stored.shape[0]) + " (entries stored)");
  std::set<std::int64_t> seen;
  const auto* page = reinterpret_cast<const std::int64_t*>(at->second.bytes->data());
  for (std::int64_t i = 0; i < n; ++i)
    if (page[i] < 0 || page[i] >= l.full->front() || !seen.insert(page[i]).second)
      refuse(c, key, "has page " + std::to_string(page[i]),
             "each page once, 0.." + std::to_string(l.full->front() - 1));
}

void check_stored(const Case& c, const std::string& key, const Layout& l, const Stored& stored) {
  if (!l.format.empty() && l.format != "ND" && l.format != "NZ")
    refuse(c, key, "has format " + io::printable(l.format), "ND or NZ");
  if (l.format == "NZ") check_nz(c, key, l, stored);
  else if (l.shape) refuse(c, key, "has a shape", "one of a view (of) or of format NZ only");
  if (l.offset) refuse(c, key, "has an offset", "one of a view (of) only");
  if (l.stride) {
    const Integers& shape = l.full ? *l.full : stored.shape;
    if (l.stride->size() != shape.size() || extent(shape, *l.stride, 0) == INT64_MAX)
      refuse(c, key, "has stride " + text_of(*l.stride), "one for each axis of " + text_of(shape));
  }
  if (!l.pages.empty()) check_pages(c, key, l, stored);
  else if (l.full) refuse(c, key, "has a full shape", "pages beside it");
  (void)dtype_of(c, key);
}

void check_view(const Case& c, const std::string& key) {
  const Origin o = origin_of(c, key);
  const Stored& stored = c.tensors.find(o.key)->second;
  const Layout* root = layout_at(c, o.key);
  if (root && !root->pages.empty() && (o.shape != stored.shape || o.stride != dense(stored.shape) || o.offset != 0))
    refuse(c, key, "is a part of " + io::printable(o.key) + ", which is partly stored", "all of it");
  const std::int64_t end = extent(o.shape, o.stride, o.offset);
  if (end > stored.elements())
    refuse(c, key, "leads to element " + std::to_string(end - 1) + " of " + io::printable(o.key),
           "below " + std::to_string(stored.elements()));
}

}  // namespace

Origin origin_of(const Case& c, const std::string& key) {
  Origin o{key, {}, {}, 0, false};
  std::set<std::string> way;
  std::optional<Integers> shape, stride;  // those of the outermost view that has any
  for (const Layout* l = layout_at(c, key); l && !l->of.empty(); l = layout_at(c, o.key)) {
    if (!way.insert(o.key).second) refuse(c, key, "is a view of itself", "a view of a stored tensor");
    if (c.tensors.contains(o.key)) refuse(c, o.key, "is a view and stored too", "one of the two");
    if (l->stride && !l->shape) refuse(c, o.key, "is a view with strides and without a shape", "both, or neither");
    if (!shape && l->shape) shape = l->shape, stride = l->stride ? *l->stride : dense(*l->shape);
    if (l->offset && __builtin_add_overflow(o.offset, *l->offset, &o.offset)) o.offset = INT64_MAX;
    if (stride && stride->size() != shape->size())
      refuse(c, key, "has stride " + text_of(*stride), "one for each axis of " + text_of(*shape));
    o.is_view = true;
    o.key = l->of;
    if (!c.has(o.key)) refuse(c, key, "is a view of " + io::printable(o.key), "a tensor of the case");
  }
  const auto stored = c.tensors.find(o.key);
  if (stored == c.tensors.end()) refuse(c, o.key, "belongs to no tensor", "one that is stored, or a view (of)");
  o.shape = shape ? *shape : stored->second.shape;
  o.stride = stride ? *stride : dense(o.shape);
  return o;
}

DType dtype_of(const Case& c, const std::string& key) {
  const Stored& stored = c.tensors.find(key)->second;
  const Layout* l = layout_at(c, key);
  if (!l || l->dtype.empty() || l->dtype == "int4x8") return stored.type->dtype;
  for (int i = 0; i < int(DType::other); ++i) {
    const std::string_view name = name_of(DType(i));
    if ((l->dtype == name || l->dtype == std::string(name) + "fn") && size_of(DType(i)) * 8 == stored.type->bits)
      return DType(i);
  }
  refuse(c, key, "has dtype " + io::printable(l->dtype),
         "int4x8, float8_e4m3fn or another name of " + std::to_string(stored.type->bits) + " bits");
}

void check_layouts(const Case& c) {
  for (const auto& [key, layout] : c.layouts) {
    if (!layout.of.empty()) {
      check_view(c, key);
      continue;
    }
    const auto stored = c.tensors.find(key);
    if (stored == c.tensors.end()) refuse(c, key, "belongs to no tensor", "one that is stored, or a view (of)");
    check_stored(c, key, layout, stored->second);
  }
}

}  // namespace dsakit::debug
