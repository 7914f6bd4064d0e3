// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/dense_chunk.hpp"

#include <cstring>
#include <span>

#include "core/float16.hpp"

namespace dsakit::attention::dense {
namespace {

/// Keys [from, end) that the band leaves to query q.
struct Band {
  std::int64_t from, end;
  Band(const Sequence& s, std::int64_t q)
      : from(std::max<std::int64_t>(q + s.from, 0)), end(std::min(q + s.to + 1, s.keys)) {}
};

/// Bytes that are not 0 among n.
bool any_set(const std::uint8_t* x, int n) {
  std::uint64_t all = 0, word;
  int i = 0;
  for (; i + 8 <= n; i += 8) std::memcpy(&word, x + i, 8), all |= word;
  for (; i < n; ++i) all |= x[i];
  return all != 0;
}
bool any_clear(const std::uint8_t* x, int n) { return std::find(x, x + n, 0) != x + n; }

/// f(the typed data)
template <class F>
void typed(const Parameter& p, F f) {
  switch (p.dtype) {
    case DType::f16:
      return f(static_cast<const f16*>(p.data));
    case DType::bf16:
      return f(static_cast<const bf16*>(p.data));
    default:
      return f(static_cast<const float*>(p.data));
  }
}

}  // namespace

ChunkRange chunks_of(const Problem& p, const Tile& t) {
  const Sequence& s = p.sequence[t.b];
  const std::int64_t end = Band(s, t.first + t.queries - 1).end;
  return {Band(s, t.first).from / kChunk, end <= 0 ? -1 : (end - 1) / kChunk};
}

void Chunk::apply_masks(const Problem& p, const Tile& t, std::int64_t chunk) {
  const Sequence& s = p.sequence[t.b];
  const std::int64_t base = chunk * kChunk;
  int low = kChunk, high = 0;
  for (int i = 0; i < t.queries; ++i) {
    const Band band(s, t.first + i);
    Visible x{int(std::clamp<std::int64_t>(band.from - base, 0, kChunk)),
              int(std::clamp<std::int64_t>(band.end - base, 0, kChunk)), nullptr};
    if (x.any() && p.mask) {
      const std::uint8_t* row = p.mask + p.mask_sequence * t.b + p.mask_row * (t.first + i) + base;
      if (any_set(row + x.low, x.high - x.low)) {
        if (any_clear(row + x.low, x.high - x.low)) x.hidden = row;
        else x.high = x.low;
      }
    }
    if (x.any()) low = std::min(low, x.low), high = std::max(high, x.high);
    else x = {0, 0, nullptr};
    visible[i] = x;
  }
  low = lanes_below(low);
  first = base + low;
  count = std::max(high - low, 0);
  whole = true;
  for (int i = 0; i < t.queries; ++i) {
    Visible& x = visible[i];
    if (x.any()) x.low -= low, x.high -= low;
    if (x.hidden) x.hidden += low;
    whole = whole && x.whole(count);
  }
  if (!whole) find_used(t.queries);
}

void Chunk::find_used(int queries) {
  int latest = 0, earliest = count;  // what everybody sees: between the two
  bool hides = false;
  for (const Visible& x : std::span(visible, std::size_t(queries))) {
    if (x.any()) latest = std::max(latest, x.low), earliest = std::min(earliest, x.high);
    hides = hides || x.hidden;
  }
  std::memset(used, !hides, sizeof used), std::memset(shared, 0, sizeof shared);
  if (latest < earliest) std::memset(shared + latest, 1, std::size_t(earliest - latest));
  for (int i = 0; i < queries && hides; ++i) {
    const auto [from, end, hidden] = visible[i];
    for (int j = from; j < end; ++j) {
      const std::uint8_t sees = !hidden || hidden[j] == 0;
      used[j] |= sees, shared[j] &= sees;
    }
  }
}

void find_rows(const Problem& p, const Cache& cache, int element, const Tile& t, const Chunk& chunk,
               const std::byte** rows) {
  const auto* base = static_cast<const std::byte*>(cache.data);
  const std::ptrdiff_t step = cache.row * element;
  if (!p.pages.table) base += cache.sequence * element * t.b + step * p.sequence[t.b].first_key;
  base += cache.head * element * t.g;
  p.pages.each_run(t.b, chunk.first, chunk.count, [&](std::int64_t j, std::int64_t n, auto page, auto row) {
    const std::byte* x = base + cache.page * element * page + step * row;
    for (const std::int64_t end = j + n; j < end; ++j, x += step) rows[j] = x;
  });
}

void columns_of(const Parameter& p, std::int64_t b, std::int64_t head, int first, int n, float absent, float* out) {
  if (!p.data) {
    std::fill_n(out, n, absent);
    return;
  }
  typed(p, [&](const auto* x) {
    x += p.sequence * b + p.head * head + p.column * first;
    for (int c = 0; c < n; ++c) out[c] = to_float(x[c * p.column]);
  });
}

void elements_of(const Problem& problem, const Parameter& p, const Tile& t, const Chunk& chunk, float* out) {
  if (!p.data) {
    std::fill_n(out, chunk.count, 0.0f);
    return;
  }
  typed(p, [&](const auto* x) {
    x += p.sequence * t.b + p.head * t.g;
    problem.pages.each_run(t.b, chunk.first, chunk.count, [&](std::int64_t j, std::int64_t n, auto page, auto row) {
      const auto* from = x + p.position * (chunk.first + j) + p.page * page + p.row * row;
      for (std::int64_t i = 0; i < n; ++i) out[j + i] = to_float(from[i * (p.position + p.row)]);
    });
  });
  if (!chunk.whole)
    for (int j = 0; j < chunk.count; ++j)
      if (!chunk.used[j]) out[j] = 0;
}

}  // namespace dsakit::attention::dense
