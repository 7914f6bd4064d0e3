// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/indexer/problem.hpp"
#include "ops/indexer/select.hpp"
#include "run/call.hpp"
#include "run/taps.hpp"

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
  int threads = 1;
  bool joined = false;  // groups have several pieces: each piece has its own lists. Otherwise each worker has
  std::int64_t workers = 1;

  std::int64_t pieces_of(const SequenceRows& s) const {
    return s.queries > 0 ? std::max<std::int64_t>((s.keys + piece - 1) / piece, 1) : 1;
  }
  std::int64_t groups_of(const SequenceRows& s) const { return (s.rows + group - 1) / group; }
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
  SequenceRows sequence;
  std::int64_t i, n, first, last, number, of;  // piece `number` of the group's `of`
  std::int64_t list;                           // of row i; row i + r is at list + r * of
};
Piece piece_at(const Problem&, const Plan&, const Memory&, std::int64_t index);

/// Adds the scores of keys first, first + 1, ... to a list.
void append(const Kernels&, const Plan&, const float* scores, std::int64_t count, std::int64_t first, List& list,
            std::uint64_t* candidates, Histogram&) noexcept;

/// Leaves no more than `keep` candidates in row r's list of a piece, so that joining its lists is cheap.
void shorten(const Plan&, const Memory&, const Piece&, std::int64_t r, int thread) noexcept;

/// Joins the lists of row r of a piece's group and writes the row's outputs.
void finish_row(const Problem&, const Plan&, const Memory&, const Piece&, std::int64_t r, int thread) noexcept;

/// A Scorer knows how one group of query rows meets one block of keys:
///
///   static std::int64_t block(const Problem&)                 keys of a block
///   Scorer(const Problem&, const Kernels&, Plan, Carver&)     its scratch, of one thread
///   void take_query(r, row)                                   query row number r of the group
///   void take_keys(sequence, first, count)                    the block that score() then means
///   void score(r, count, scores)                              the block's first `count` keys
template <class Scorer>
class Selection {
 public:
  /// All of a call of the operator `op` behind its door.
  static void run(const char* op, const Problem& p, Context& context) {
    const Work output = output_of(p), scoring = scoring_of(p) + output;
    // Room for either cut: whether threads are awake is no reason to ask for memory.
    Call call(context, op, [&](const Call& c) {
      return std::max(bytes_of<Selection>(p, c, 1), bytes_of<Selection>(p, c, c.threads()));
    });
    Carver carver(call.memory());
    const Selection s(p, call, call.stays_alone(scoring) ? 1 : call.threads(), carver);
    const Plan& cut = s.cut_;
    const std::int64_t pieces = cut.pieces;
    s.number_pieces();
    call.choice("rows of a piece", cut.group), call.choice("keys of a block", cut.block);
    call.choice("keys of a piece", cut.piece), call.choice("lists joined", cut.joined);

    if (cut.joined) {
      call.parallel_for(pieces, scoring, [&](std::int64_t i, int thread) { s.score_piece(i, i, thread); });
      call.parallel_for(pieces, output, [&](std::int64_t i, int thread) {
        const Piece piece = piece_at(p, cut, s.m_, i);
        for (std::int64_t r = piece.number; r < piece.n; r += piece.of) finish_row(p, cut, s.m_, piece, r, thread);
      });
    } else if (cut.workers >= cut.threads) {
      call.parallel_for(pieces, scoring, [&](std::int64_t i, int thread) { s.score_piece(i, thread, thread); });
    } else {  // lists so long that there is no room for one per thread
      for (std::int64_t first = 0; first < pieces; first += cut.workers)
        call.parallel_for(std::min(cut.workers, pieces - first), scoring,
                          [&](std::int64_t i, int thread) { s.score_piece(first + i, i, thread); });
    }
    call.finish();
  }

  /// Pieces are cut for so many threads.
  Selection(const Problem& p, const Call& call, int threads, Carver& carver)
      : p_(p),
        kernels_(call.kernels()),
        cut_(plan(p, threads, Scorer::block(p))),
        m_(carver, p, cut_, call.threads()),
        scorer_bytes_(bytes_of<Scorer>(p, kernels_, cut_)),
        scorers_(carver.take<std::byte>(call.threads() * std::int64_t(scorer_bytes_))) {}

 private:
  /// Products, and what becomes of each dot: sixteen of them a nanosecond are clipped, weighted and added.
  static Work scoring_of(const Problem& p) {
    double dots = 0;
    for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
      const SequenceRows s = p.sequences.at(b);
      dots += double(s.queries * s.keys * p.heads);
    }
    const double products = dots * double(p.dims);
    return (p.type == DType::i8 ? Work{.products_i8 = products} : Work{.products = products}) + Work{.elements = dots / 16};
  }

  /// Sorting and writing a list: three passes of a radix sort, one over the candidates, one over the slots.
  static Work output_of(const Problem& p) {
    return {.elements = 5.0 * double(p.sequences.total_rows) * double(p.count)};
  }

  /// Which pieces are whose.
  void number_pieces() const {
    std::int64_t pieces = 0;
    for (std::int64_t b = 0; b < p_.sequences.count(); ++b) {
      const SequenceRows s = p_.sequences.at(b);
      m_.first_piece[b] = pieces;
      pieces += cut_.groups_of(s) * cut_.pieces_of(s);
    }
    m_.first_piece[p_.sequences.count()] = pieces;
  }

  /// `owner`: whose lists, where pieces have none of their own.
  void score_piece(std::int64_t index, std::int64_t owner, int thread) const {
    Piece piece = piece_at(p_, cut_, m_, index);
    if (!cut_.joined) piece.list = owner * cut_.group;
    Carver scratch(scorers_ + std::size_t(thread) * scorer_bytes_);
    Scorer scorer(p_, kernels_, cut_, scratch);
    float* scores = m_.scores + thread * cut_.block;
    for (std::int64_t r = 0; r < piece.n; ++r) {
      m_.list[piece.list + r * piece.of] = {0, 0};
      scorer.take_query(r, piece.sequence.first_row + piece.i + r);
    }
    for (std::int64_t first = piece.first; first < piece.last; first += cut_.block) {
      const std::int64_t count = std::min(cut_.block, piece.last - first);
      scorer.take_keys(piece.sequence, first, count);
      for (std::int64_t r = 0; r < piece.n; ++r) {
        const std::int64_t seen = std::min(count, piece.sequence.visible(piece.i + r) - first);
        if (seen <= 0) continue;
        scorer.score(r, seen, scores);
        if (taps_)
          taps_->row(p_.type == DType::i8 ? "4.scores" : "3.scores", DType::f32, piece.sequence.first_row + piece.i + r,
                     first, seen, scores);
        const std::int64_t list = piece.list + r * piece.of;
        append(kernels_, cut_, scores, seen, first, m_.list[list], m_.candidates + list * cut_.room,
               m_.histogram[thread]);
      }
    }
    for (std::int64_t r = 0; r < piece.n; ++r) {
      if (cut_.joined) shorten(cut_, m_, piece, r, thread);
      else finish_row(p_, cut_, m_, piece, r, thread);
    }
  }

  const Problem& p_;
  const Kernels& kernels_;
  const Plan cut_;
  const Memory m_;
  const std::size_t scorer_bytes_;
  std::byte* const scorers_;  // [threads][scorer_bytes_]
  Taps* const taps_ = taps;
};

}  // namespace dsakit::indexer
