// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/indexer/problem.hpp"
#include "ops/indexer/select.hpp"
#include "run/call.hpp"

// Scoring and selection are cut in pieces: a few query rows of one sequence against a range of its keys. Inside a piece
// blocks of keys, small enough to stay in the cache, meet all its rows. Each row keeps a short list of candidates;
// lists of one row are joined in key order. The order of candidates is total, so neither the cut nor the threads show.
namespace dsakit::indexer {

/// The candidates of one row and piece, and what they must reach to be admitted.
struct List {
  std::int64_t size;
  std::uint32_t floor;
};

/// How a problem is cut for so many threads.
struct Plan {
  std::int64_t group = 1;           // query rows of a piece
  std::int64_t block = 1;           // keys
  std::int64_t piece = 1;           // keys of a piece
  std::int64_t keep = 0, room = 0;  // of a list
  std::int64_t groups = 0, pieces = 0, lists = 0;
  bool joined = false;  // groups have several pieces: each piece has its own lists. Otherwise each worker has
  std::int64_t workers = 1;

  std::int64_t pieces_of(const Sequence& s) const {
    return s.queries > 0 ? std::max<std::int64_t>((s.keys + piece - 1) / piece, 1) : 1;
  }
  std::int64_t groups_of(const Sequence& s) const { return (s.rows + group - 1) / group; }
};

Plan plan(const Problem&, int threads, std::int64_t block);

/// Everything that does not depend on how keys are scored.
struct Memory {
  std::int64_t* first_piece;  // of each sequence, and their end
  std::uint64_t* candidates;  // [lists][room]
  List* list;
  std::uint64_t* scratch;  // [threads][sort_room]
  Histogram* histogram;    // [threads]
  float* scores;           // [threads][block]
  std::int64_t sort_room;

  Memory(Carver&, const Problem&, const Plan&, int threads);
};

/// One piece: rows i..i+n-1 of a sequence against keys first..last-1, with the first of its lists.
struct Piece {
  Sequence sequence;
  std::int64_t i, n, first, last, number, of;  // piece `number` of the group's `of`
  std::int64_t list;                           // of row i; row i + r is at list + r * of
};
Piece piece_at(const Problem&, const Plan&, const Memory&, std::int64_t index);

/// Adds the scores of keys first, first + 1, ... to a list.
void append(const Kernels&, const Plan&, const float* scores, std::int64_t count, std::int64_t first, List& list,
            std::uint64_t* candidates, Histogram&) noexcept;

/// Joins the lists of row r of a piece's group and writes the row's outputs.
void finish_row(const Problem&, const Plan&, const Memory&, const Piece&, std::int64_t r, int thread) noexcept;

/// A Scorer knows how one group of query rows meets one block of keys:
///
///   static std::int64_t block(const Problem&)                      keys of a block
///   Scorer(const Problem&, const Kernels*, Carver&, Plan)          its scratch; measured with null kernels
///   void take_query(r, row)                                        query row number r of the group
///   void take_keys(sequence, first, count)                         the block that score() then means
///   void score(r, count, scores)                                   the block's first `count` keys
template <class Scorer>
struct Selection {
  static std::size_t scorer_bytes(const Problem& p, const Plan& plan) {
    Carver carver;
    Scorer(p, nullptr, carver, plan);
    return (carver.bytes() + 63) / 64 * 64;
  }

  static std::size_t workspace(const Problem& p, int threads) {
    const Plan cut = plan(p, threads, Scorer::block(p));
    Carver carver;
    Memory(carver, p, cut, threads);
    return carver.bytes() + std::size_t(threads) * scorer_bytes(p, cut);
  }

  static void run(const Problem& p, Call& call, std::byte* base) {
    const int threads = call.threads();
    const Plan cut = plan(p, threads, Scorer::block(p));
    Carver carver(base);
    const Memory m(carver, p, cut, threads);
    std::byte* scorers = base + carver.bytes();
    const std::size_t scorer_size = scorer_bytes(p, cut);

    std::int64_t pieces = 0, pairs = 0;  // pairs of a query row and a key
    for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
      const Sequence s = p.sequences.at(b);
      m.first_piece[b] = pieces;
      pieces += cut.groups_of(s) * cut.pieces_of(s);
      pairs += s.queries * s.keys;
    }
    m.first_piece[p.sequences.count()] = pieces;
    const double output = 5.0 * double(p.sequences.total_rows) * double(p.count);  // ns, as is the next
    const double scoring = double(pairs) * double(p.heads * p.dims) / 500 + output;

    auto score = [&](std::int64_t index, std::int64_t worker, int thread) {
      Piece piece = piece_at(p, cut, m, index);
      if (!cut.joined) piece.list = worker * cut.group;
      Carver scratch(scorers + std::size_t(thread) * scorer_size);
      Scorer scorer(p, &call.kernels(), scratch, cut);
      float* scores = m.scores + thread * cut.block;
      for (std::int64_t r = 0; r < piece.n; ++r) {
        m.list[piece.list + r * piece.of] = {0, 0};
        scorer.take_query(r, piece.sequence.first_row + piece.i + r);
      }
      for (std::int64_t first = piece.first; first < piece.last; first += cut.block) {
        const std::int64_t count = std::min(cut.block, piece.last - first);
        scorer.take_keys(piece.sequence, first, count);
        for (std::int64_t r = 0; r < piece.n; ++r) {
          const std::int64_t seen = std::min(count, piece.sequence.visible(piece.i + r) - first);
          if (seen <= 0) continue;
          scorer.score(r, seen, scores);
          const std::int64_t list = piece.list + r * piece.of;
          append(call.kernels(), cut, scores, seen, first, m.list[list], m.candidates + list * cut.room,
                 m.histogram[thread]);
        }
      }
      if (!cut.joined) {
        for (std::int64_t r = 0; r < piece.n; ++r) finish_row(p, cut, m, piece, r, thread);
        return;
      }
      for (std::int64_t r = 0; r < piece.n; ++r) {  // short lists, so that joining them is
        const std::int64_t list = piece.list + r * piece.of;
        if (m.list[list].size <= cut.keep) continue;
        keep_best(m.candidates + list * cut.room, m.list[list].size, cut.keep, m.histogram[thread]);
        m.list[list].size = cut.keep;
      }
    };

    if (cut.joined) {
      call.parallel_for(pieces, scoring, [&](std::int64_t index, int thread) { score(index, index, thread); });
      call.parallel_for(pieces, output, [&](std::int64_t index, int thread) {
        const Piece piece = piece_at(p, cut, m, index);
        for (std::int64_t r = piece.number; r < piece.n; r += piece.of) finish_row(p, cut, m, piece, r, thread);
      });
    } else if (cut.workers >= threads) {
      call.parallel_for(pieces, scoring, [&](std::int64_t index, int thread) { score(index, thread, thread); });
    } else {  // lists so long that there is no room for one per thread
      for (std::int64_t first = 0; first < pieces; first += cut.workers)
        call.parallel_for(std::min(cut.workers, pieces - first), scoring,
                          [&](std::int64_t i, int thread) { score(first + i, i, thread); });
    }
  }
};

}  // namespace dsakit::indexer
