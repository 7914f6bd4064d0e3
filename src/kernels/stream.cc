// SPDX-License-Identifier: Apache-2.0
#include "kernels/stream.hpp"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dsakit {
namespace {

constexpr std::size_t kAhead = 2048;  // bytes: memory answers within the time that so many take

#if defined(__SSE2__)

bool is_amd() {
  static const bool amd = __builtin_cpu_is("amd");
  return amd;
}

/// Sixteen bytes to an address that is a multiple of sixteen: half a line is completed by the row that follows.
void stream16(std::byte* to, const std::byte* from) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
void stream_run(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 16) stream16(to + i, from + i);
}
bool is_aligned(const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }
void fence() { _mm_sfence(); }

#else

bool is_amd() { return false; }
void stream_run(std::byte*, const std::byte*, std::size_t) {}
bool is_aligned(const std::byte*) { return false; }  // there are no such stores
void fence() {}

#endif

void stream(std::byte* to, const std::byte* from, const std::byte* ahead, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    __builtin_prefetch(ahead + i);
    stream_run(to + i, from + i, 64);
  }
  if (i < bytes) __builtin_prefetch(ahead + i);
  const std::size_t rest = (bytes - i) % 16;
  stream_run(to + i, from + i, bytes - i - rest);
  std::memcpy(to + bytes - rest, from + bytes - rest, rest);
}

void copy(std::byte* to, const std::byte* from, std::byte* to_ahead, const std::byte* ahead, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    __builtin_prefetch(ahead + i);
    __builtin_prefetch(to_ahead + i, 1);
    std::memcpy(to + i, from + i, 64);
  }
  std::memcpy(to + i, from + i, bytes - i);
}

}  // namespace

Stores fast_stores() noexcept { return is_amd() ? Stores::past_caches : Stores::plain; }

void stream_rows(std::byte* const* to, const std::byte* const* from, int count, std::size_t bytes,
                 Stores stores) noexcept {
  const int rows = bytes < kAhead ? int(kAhead / (bytes + 1)) : 0;  // that far ahead; 0: within the row
  for (int i = 0; i < count; ++i) {
    const int later = std::min(i + rows, count - 1);
    const std::size_t offset = rows == 0 ? kAhead : 0;
    if (stores == Stores::past_caches && is_aligned(to[i])) stream(to[i], from[i], from[later] + offset, bytes);
    else copy(to[i], from[i], to[later] + offset, from[later] + offset, bytes);
  }
}

void stream_parts(std::byte* const* to, std::ptrdiff_t to_offset, const std::byte* const* from,
                  std::ptrdiff_t from_offset, const std::byte* const* ahead, int count, Stores stores) noexcept {
  for (int i = 0; i < count; ++i) {
    std::byte* const y = to[i] + to_offset;
    const std::byte* const x = from[i] + from_offset;
    __builtin_prefetch(ahead[i] + from_offset);
    if (stores == Stores::past_caches && is_aligned(y)) stream_run(y, x, 32);
    else std::memcpy(y, x, 32);
  }
}

void stream_fence() noexcept { fence(); }

}  // namespace dsakit
