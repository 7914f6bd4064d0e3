// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace dsakit {

/// From this many bytes on, a result leaves the caches of a core before anybody reads it. Stored past them, what it
/// overwrites need not be read first. (Zen 4, 1 MiB of L2: as fast at 4 MiB either way; at 16 MiB twice as fast as plain
/// stores, and five times as memcpy row by row.)
constexpr std::int64_t kStreamed = 4 << 20;

/// to[i] = from[i], i ascending, `bytes` each, past the caches where the machine has such stores. Other threads see it
/// after stream_fence() of this one.
void stream_rows(std::byte* const* to, const std::byte* const* from, int count, std::size_t bytes) noexcept;
void stream_fence() noexcept;
/// The same of the 32 bytes at those offsets; what lies as far into the rows `ahead` is asked for meanwhile.
void stream_parts(std::byte* const* to, std::ptrdiff_t to_offset, const std::byte* const* from,
                  std::ptrdiff_t from_offset, const std::byte* const* ahead, int count) noexcept;

}  // namespace dsakit
