// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace dsakit {

/// From this many bytes on, copies leave the caches of a core before anybody reads them: whole lines are asked for ahead,
/// or written past the caches, so that what they overwrite need not be read first. (Zen 4, 1 MiB of L2: as fast at 4 MiB
/// either way; at 16 MiB twice as fast as plain stores, and five times as memcpy row by row.)
constexpr std::int64_t kStreamed = 4 << 20;

/// Which stores move rows that leave the caches fastest. AMD's cores write past the caches at the speed of memory; Intel's
/// pass such stores through the few buffers that their reads wait in (Cascade Lake, 16384 rows of 1152 bytes: 4.3 ms, and
/// 3.1 ms by plain stores to lines that were asked for).
enum class Stores { plain, past_caches };
Stores fast_stores() noexcept;

/// to[i] = from[i], i ascending, `bytes` each. Other threads see it after stream_fence() of this one.
void stream_rows(std::byte* const* to, const std::byte* const* from, int count, std::size_t bytes,
                 Stores = fast_stores()) noexcept;
void stream_fence() noexcept;
/// The same of the 32 bytes at those offsets; what lies as far into the rows `ahead` is asked for meanwhile.
void stream_parts(std::byte* const* to, std::ptrdiff_t to_offset, const std::byte* const* from,
                  std::ptrdiff_t from_offset, const std::byte* const* ahead, int count,
                  Stores = fast_stores()) noexcept;

}  // namespace dsakit
