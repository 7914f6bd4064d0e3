// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>

#include "core/check.hpp"
#include "core/view.hpp"
#include "dsakit/field.hpp"
#include "ops/weight.hpp"

// What the doors of the prologs have in common: questions that concern every tensor of a call, and paged caches.
namespace dsakit::prolog {

/// The tensors of a call, by name. `role` may be changed: a cache that is both input and output is an inout.
struct Parameters {
  struct One {
    const Tensor* tensor;
    const char* name;
    Role role;
    Kind kind;
  };
  One list[32]{};
  int count = 0;

  template <class Args, class Outs>
  Parameters(const Args& a, const Outs& o) {
    for_each_field(a, o, [&](const Field& field, const auto& value) {
      if constexpr (std::same_as<std::remove_cvref_t<decltype(value)>, Tensor>)
        list[count++] = {&value, field.name, field.role, field.kind};
    });
  }
  const One* begin() const { return list; }
  const One* end() const { return list + count; }
  /// The tensor of this name is not looked at any more.
  void forget(std::string_view name) {
    static constexpr Tensor absent;
    for (One& p : list)
      if (p.name && p.name == name) p.tensor = &absent;
  }
};

inline bool is_written(Role role) { return role == Role::inout || role == Role::inout_opt || role == Role::out; }

/// Inputs and in-place tensors that the call cannot do without; and no shape that cannot be counted.
void check_presence(const Check& check, const Parameters& parameters);
/// Memory of every tensor given; what is written overlaps nothing else. In strict, only axis 0 of a cache is free.
void check_memory(const Check& check, const Parameters& parameters);

/// The shape of a paged cache [block_num, block_size, 1, width]. In portable the rows may be folded otherwise, see
/// Check::rows; then block_size is -1.
struct CacheShape {
  std::int64_t rows = 0, block_num = -1, block_size = -1;
};
/// Unless `like` is null: as many rows, in the same blocks where both show them.
CacheShape check_cache_shape(const Check& check, const Tensor& t, const char* name, std::int64_t width,
                             const CacheShape* like, const char* why);

/// Every slot is below `cache.rows`; negative ones skip their token. Not looked at when the cache has no rows.
void check_slots(const Check& check, const Tensor& index, const char* name, const CacheShape& cache);

/// Value checking: every element of every floating-point input but caches and weights is finite, and of a scale not
/// negative.
void check_finite(const Check& check, const Parameters& parameters);
/// The same for weights, whatever their format: their padding does not count.
struct NamedWeight {
  const Weight& weight;
  const char* name;
  bool stack = false;  // a position has three subscripts
};
void check_finite(const Check& check, std::initializer_list<NamedWeight> weights);

/// The rows of width `width` of a tensor that has been checked: flat, whatever its axes.
inline Rows flat_rows(const Tensor& t, std::int64_t width) { return Rows(t, width == 1 ? 0 : 1); }
inline std::byte* row_bytes(const Rows& rows, std::int64_t r) {
  return static_cast<std::byte*>(rows.tensor.data) + rows.offset(r) * size_of(rows.tensor.dtype);
}

}  // namespace dsakit::prolog
