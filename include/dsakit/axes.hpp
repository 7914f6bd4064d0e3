// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>

namespace dsakit {

/// An order of axes: {1, 0, 2}. More than eight entries count, to be refused, but are not kept.
struct Axes {
  std::int64_t count = 0;
  std::array<std::int64_t, 8> axis{};

  constexpr Axes() = default;
  constexpr Axes(const std::int64_t* list, std::int64_t n) : count(n) {
    for (std::int64_t i = 0; i < n && i < 8; ++i) axis[std::size_t(i)] = list[i];
  }
  constexpr Axes(std::initializer_list<std::int64_t> list) : Axes(list.begin(), std::int64_t(list.size())) {}

  constexpr bool operator==(const Axes&) const = default;
};

}  // namespace dsakit
