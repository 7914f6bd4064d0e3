// SPDX-License-Identifier: Apache-2.0
#include "kernels/stream.hpp"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dsakit {

#if defined(__SSE2__)
namespace {

constexpr std::size_t kAhead = 2048;  // bytes: memory answers within the time that so many take

/// Sixteen bytes to an address that is a multiple of sixteen: half a line is completed by the row that follows.
void stream16(std::byte* to, const std::byte* from) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

void stream(std::byte* to, const std::byte* from, const std::byte* ahead, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::size_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    __builtin_prefetch(ahead + i);
    stream16(to + i, from + i), stream16(to + i + 16, from + i + 16);
    stream16(to + i + 32, from + i + 32), stream16(to + i + 48, from + i + 48);
  }
  if (i < bytes) __builtin_prefetch(ahead + i);
  for (; i + 16 <= bytes; i += 16) stream16(to + i, from + i);
  if (i < bytes) std::memcpy(to + i, from + i, bytes - i);
}

}  // namespace

void stream_rows(std::byte* const* to, const std::byte* const* from, int count, std::size_t bytes) noexcept {
  const int rows = bytes < kAhead ? int(kAhead / (bytes + 1)) : 0;  // that far ahead; 0: within the row
  for (int i = 0; i < count; ++i)
    stream(to[i], from[i], rows == 0 ? from[i] + kAhead : from[std::min(i + rows, count - 1)], bytes);
}

void stream_parts(std::byte* const* to, std::ptrdiff_t to_offset, const std::byte* const* from,
                  std::ptrdiff_t from_offset, const std::byte* const* ahead, int count) noexcept {
  for (int i = 0; i < count; ++i) {
    std::byte* const y = to[i] + to_offset;
    const std::byte* const x = from[i] + from_offset;
    __builtin_prefetch(ahead[i] + from_offset);
    if (reinterpret_cast<std::uintptr_t>(y) % 16 == 0) stream16(y, x), stream16(y + 16, x + 16);
    else std::memcpy(y, x, 32);
  }
}

void stream_fence() noexcept { _mm_sfence(); }

#else

void stream_rows(std::byte* const* to, const std::byte* const* from, int count, std::size_t bytes) noexcept {
  for (int i = 0; i < count; ++i) std::memcpy(to[i], from[i], bytes);
}

void stream_parts(std::byte* const* to, std::ptrdiff_t to_offset, const std::byte* const* from,
                  std::ptrdiff_t from_offset, const std::byte* const*, int count) noexcept {
  for (int i = 0; i < count; ++i) std::memcpy(to[i] + to_offset, from[i] + from_offset, 32);
}

void stream_fence() noexcept {}

#endif

}  // namespace dsakit
