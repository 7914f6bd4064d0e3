// SPDX-License-Identifier: Apache-2.0
#include "ops/indexer/run.hpp"

#include <cstring>
#include <limits>

namespace dsakit::indexer {
namespace {

constexpr std::int64_t kGroup = 8;             // query rows that share a block of keys
constexpr std::int64_t kListBytes = 48 << 20;  // of all lists, whatever the context
constexpr std::int64_t kShortestPiece = 2048;  // keys: below, joining costs more than it brings

std::int64_t up(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

}  // namespace

Plan plan(const Problem& p, int threads, std::int64_t block) {
  Plan c;
  c.block = block;
  c.threads = threads;
  std::int64_t longest = 0, most_rows = 0;
  for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
    const SequenceRows s = p.sequences.at(b);
    if (s.queries > 0) longest = std::max(longest, s.keys);
    most_rows = std::max(most_rows, s.queries);
  }
  c.keep = std::max<std::int64_t>(std::min(p.count, longest), 1);
  const std::int64_t slack = std::max(block, std::min<std::int64_t>(2 * c.keep, 1 << 16));
  c.room = std::max<std::int64_t>(std::min(c.keep + slack, longest), 1);  // room for all keys: never full
  const std::int64_t affordable = std::max<std::int64_t>(kListBytes / (c.room * 8), 1);  // lists
  c.group = std::clamp<std::int64_t>(std::min(most_rows, affordable / threads), 1, kGroup);

  // Enough pieces for all threads, if their lists fit.
  std::int64_t keys = 0;
  for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
    const SequenceRows s = p.sequences.at(b);
    c.groups += c.groups_of(s);
    keys += c.groups_of(s) * (s.queries > 0 ? s.keys : 0);
  }
  c.piece = std::max<std::int64_t>(longest, 1);
  if (threads > 1) {
    const std::int64_t piece = up(std::max(up(keys, 2 * threads), kShortestPiece), block) * block;
    if (piece < longest && (c.groups + keys / piece) * c.group <= affordable) c.piece = piece, c.joined = true;
  }
  for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
    const SequenceRows s = p.sequences.at(b);
    c.pieces += c.groups_of(s) * c.pieces_of(s);
  }
  c.workers = c.joined ? threads : std::clamp<std::int64_t>(affordable / c.group, 1, threads);
  c.lists = (c.joined ? c.pieces : c.workers) * c.group;
  return c;
}

Memory::Memory(Carver& carver, const Problem& p, const Plan& c, int threads)
    : first_piece(carver.take<std::int64_t>(p.sequences.count() + 1)),
      candidates(carver.take<std::uint64_t>(c.lists * c.room)),
      list(carver.take<List>(c.lists)),
      sort_room(std::min(c.keep, kSortWithScratch)) {
  scratch = carver.take<std::uint64_t>(threads * sort_room);
  histogram = carver.take<Histogram>(threads);
  scores = carver.take<float>(threads * c.block);
}

Piece piece_at(const Problem& p, const Plan& c, const Memory& m, std::int64_t index) {
  const std::int64_t *begin = m.first_piece, *end = begin + p.sequences.count() + 1;
  const std::int64_t b = std::upper_bound(begin, end, index) - begin - 1;
  Piece piece{.sequence = p.sequences.at(b), .i = 0, .n = 0, .first = 0, .last = 0, .number = 0, .of = 1, .list = 0};
  const std::int64_t local = index - m.first_piece[b];
  piece.of = c.pieces_of(piece.sequence);
  piece.number = local % piece.of;
  piece.i = local / piece.of * c.group;
  piece.n = std::min(c.group, piece.sequence.rows - piece.i);
  std::int64_t seen = 0;  // by any row of the group
  for (std::int64_t r = 0; r < piece.n; ++r) seen = std::max(seen, piece.sequence.visible(piece.i + r));
  piece.first = piece.number * c.piece;
  piece.last = std::min(piece.first + c.piece, seen);
  piece.list = (index - piece.number) * c.group + piece.number;
  return piece;
}

void append(const Kernels& kernels, const Plan& c, const float* scores, std::int64_t count, std::int64_t first,
            List& list, std::uint64_t* candidates, Histogram& h) noexcept {
  if (list.size + count > c.room) {
    list.floor = keep_best(candidates, list.size, c.keep, h);
    list.size = c.keep;
  }
  list.size += kernels.append_candidates(scores, int(count), std::uint32_t(first), list.floor, candidates + list.size);
}

void shorten(const Plan& c, const Memory& m, const Piece& piece, std::int64_t r, int thread) noexcept {
  const std::int64_t list = piece.list + r * piece.of;
  if (m.list[list].size <= c.keep) return;
  keep_best(m.candidates + list * c.room, m.list[list].size, c.keep, m.histogram[thread]);
  m.list[list].size = c.keep;
}

void finish_row(const Problem& p, const Plan& c, const Memory& m, const Piece& piece, std::int64_t r,
                int thread) noexcept {
  const std::int64_t list = piece.list - piece.number + r * piece.of;
  std::uint64_t* best = m.candidates + list * c.room;
  std::int64_t n = m.list[list].size;
  for (std::int64_t i = 1; i < piece.of; ++i) {
    const List& next = m.list[list + i];
    std::memmove(best + n, m.candidates + (list + i) * c.room, std::size_t(next.size) * sizeof *best);
    n += next.size;
  }
  if (n > c.keep) {
    keep_best(best, n, c.keep, m.histogram[thread]);
    n = c.keep;
  }
  sort_best_first(best, n, m.scratch + thread * m.sort_room, m.histogram[thread]);

  const std::int64_t row = piece.sequence.first_row + piece.i + r;
  if (p.candidates) {
    std::uint64_t* const kept = p.candidates + row * p.count;
    std::fill(std::copy_n(best, n, kept), kept + p.count, 0);
  }
  write_list(p, row, best, n);
}

void write_list(const Problem& p, std::int64_t row, const std::uint64_t* best, std::int64_t n) noexcept {
  std::int32_t* out = p.indices.rows.row<std::int32_t>(row);
  for (std::int64_t i = 0; i < n; ++i) out[i * p.indices.step] = std::int32_t(position_of(best[i]));
  for (std::int64_t i = n; i < p.count; ++i) out[i * p.indices.step] = -1;
  if (!p.values.rows.tensor) return;
  auto* value = p.values.rows.row<std::uint16_t>(row);
  for (std::int64_t i = 0; i < p.count; ++i) {
    const float x = i < n ? score_of(key_of(best[i])) : -std::numeric_limits<float>::infinity();
    value[i * p.values.step] = p.type == DType::bf16 ? to_bf16(x).bits : to_f16(x).bits;
  }
}

}  // namespace dsakit::indexer
