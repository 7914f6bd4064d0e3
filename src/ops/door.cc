// SPDX-License-Identifier: Apache-2.0
#include "ops/door.hpp"

#include <cmath>
#include <string>

#include "core/view.hpp"

namespace dsakit {

void check_given(const Check& check, const Tensors& tensors) {
  for (const auto& p : tensors) {
    if (p.role != Role::in && p.role != Role::inout) continue;
    if (p.tensor) check.required(*p.tensor, p.name);
    else if (p.list.empty()) check.fail(Status::invalid_argument, p.name, "", "is missing", "a list of tensors");
    else p.each([&](const Tensor& t) { check.required(t, p.name); });
  }
}

void check_reserved(const Check& check, const Tensors& tensors) {
  for (const auto& p : tensors)
    if (p.kind == Kind::reserved && p.tensor && *p.tensor)
      check.fail(Status::unsupported, p.name, "", "is given", "absent", "reserved");
}

void check_countable(const Check& check, const Tensors& tensors) {
  for (const auto& p : tensors)
    p.each([&](const Tensor& t) {
      check.sizes(t, p.name);
      if (t.format != Format::ND && p.kind != Kind::weight)
        check.fail(Status::invalid_argument, p.name, "", "is in a weight's format", "a plain strided tensor");
    });
}

void check_memory(const Check& check, const Tensors& tensors, Caches caches) {
  for (const auto& p : tensors) {
    const bool free_first_axis = p.kind == Kind::cache && caches == Caches::free_first_axis;
    p.each([&](const Tensor& t) {
      if (p.kind == Kind::weight) check.readable_weight(t, p.name);
      else if (p.is_written()) check.writable(t, p.name, free_first_axis);
      else check.readable(t, p.name, free_first_axis);
    });
  }
}

void check_separate(const Check& check, const Tensors& tensors, Named named) {
  for (const auto& p : tensors) {
    if (!p.is_written()) continue;
    for (const auto& other : tensors)
      if (!other.is_written() || (&other != &p && (&other > &p) == (named == Named::earlier)))
        for (const Tensor& t : other.tensor ? TensorList(other.tensor, 1) : other.list)
          check.no_overlap(*p.tensor, p.name, t, other.name);
  }
}

void check_finite(const Check& check, const Tensors& tensors) {
  for (const auto& p : tensors) {
    if (p.is_written() || p.kind == Kind::cache || p.kind == Kind::weight) continue;
    p.each([&](const Tensor& t) {
      if (t.dtype != DType::bf16 && t.dtype != DType::f16 && t.dtype != DType::f32) return;
      const bool scale = p.kind == Kind::scale;
      for (std::int64_t i = 0, n = t.elements(); i < n; ++i) {
        const float x = float_at(t, offset_of(t, i));
        if (std::isfinite(x) && !(scale && x < 0)) continue;
        check.fail(Status::invalid_value, p.name, subscript(t, i), "is " + std::to_string(x),
                   scale ? "finite and not negative" : "a finite number");
      }
    });
  }
}

}  // namespace dsakit
