// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

namespace dsakit::attention {

/// Positions to pages while lists are checked, where a division per entry would be most of the cost: with both below
/// 2^31, multiplying by 2^63 / size is exact.
class PageOf {
 public:
  explicit PageOf(std::int64_t page_size)
      : inverse_((std::uint64_t{1} << 63) / std::uint64_t(std::clamp<std::int64_t>(page_size, 1, INT32_MAX)) + 1) {}
  std::int64_t operator()(std::int64_t position) const {
    return std::int64_t(static_cast<unsigned __int128>(2 * position) * inverse_ >> 64);
  }

 private:
  std::uint64_t inverse_;
};

}  // namespace dsakit::attention
