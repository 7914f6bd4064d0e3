// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sparse.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/attention/rounded.hpp"
#include "ops/attention/schedule.hpp"
#include "run/taps.hpp"

namespace dsakit::attention::sparse {
namespace {

constexpr int kTileHeads = 128;  // heads of a tile: a key panel serves them all

/// Heads of one query token: `first` is the row of the first one.
struct Tile {
  std::int64_t token, first;
  int heads;

  int rows() const { return heads; }
};

class Worker;
struct Queries;
struct Scratch;

/// What does not change during a call.
struct Plan {
  using Tile = sparse::Tile;
  using Queries = sparse::Queries;
  using Scratch = sparse::Scratch;
  using Worker = sparse::Worker;

  const Problem& p;
  const Token* token;  // null while memory is measured
  std::int64_t tiles;
  int rows, columns, group = 1;  // heads of a tile, latent columns
  int blocks;                    // tiles of a token
  std::ptrdiff_t query_pitch, value_pitch;
  int scale_columns, scale_tiles;  // latent columns with one scale; without scales all of them
  int rope_at, width;              // of a query row: latent, padded to a group of panel rows, then rope
  bool quantised, half;            // half: fp16 operands
  bool rounds;                     // probabilities to bf16, but for keys that decide; else products are of fp32
  Taps* taps = dsakit::taps;

  Plan(const Problem& p, const Token* token, const Call& call)
      : p(p),
        token(token),
        quantised(p.keys.tile > 0),
        half(p.type == DType::f16),
        rounds(!half && !call.same_products() && !call.kernels().widens_rows) {
    rows = int(std::min<std::int64_t>(p.heads, kTileHeads)), columns = p.latent;
    blocks = int((p.heads + rows - 1) / rows);
    tiles = p.tokens * blocks;
    scale_columns = quantised ? p.keys.tile : p.latent;
    scale_tiles = p.latent / scale_columns;
    rope_at = int(rounds ? Panel<bf16>::depth(p.latent) : p.latent);
    width = rope_at + p.rope;
    query_pitch = (width + 31) / 32 * 32, value_pitch = (p.latent + 15) / 16 * 16;
  }

  Tile tile(std::int64_t i) const {
    const std::int64_t t = i / blocks, head = i % blocks * rows;
    return {t, t * p.heads + head, int(std::min<std::int64_t>(rows, p.heads - head))};
  }
  ChunkRange chunks(const Tile& t) const { return {0, (token[t.token].count + kChunk - 1) / kChunk - 1}; }
  bool side_by_side(const Tile&, const Tile&) const { return false; }
};

/// The query rows of a tile, latent and rope part side by side.
struct Queries {
  Tile tile;
  bf16* rows;   // [heads][query_pitch]
  float* wide;  // instead
  Partial all;

  Queries() = default;
  Queries(Carver& memory, const Plan& plan)
      : rows(memory.take<bf16>(plan.rounds ? plan.rows * plan.query_pitch : 0)),
        wide(memory.take<float>(plan.rounds ? 0 : plan.rows * plan.query_pitch)),
        all(memory, plan.rows, plan.value_pitch) {}
};

/// One thread's memory.
struct Scratch {
  std::byte* panel;        // a key panel, then value panels
  std::uint16_t* rope;     // [kPanel][rope width], where packed rows have it at odd addresses
  float* part;             // [heads][kPanel], products on their way
  float* scores;           // [heads][kScorePitch], then the probabilities
  float* scales;           // [tiles][kChunk], then relative to the tile's unit
  bf16* rounded;           // [heads][kScorePitch], probability times scale
  float* wide;             // instead, if there are scales
  int* decide;             // of each head in turn: the keys that decide
  float* rest;             // what rounding has left of them
  bf16* rest_of_all;       // the same of all keys, for heads that are alike
  float* low;              // [kPanel], its product with values

  void begin() const {}
  Scratch(Carver& memory, const Plan& plan) {
    const std::int64_t chunk = plan.rows * kScorePitch, depth = std::max(plan.width, kChunk);
    panel =
        memory.take<std::byte>(plan.rounds ? Panels<bf16>::bytes(depth, kPanel) : Panels<float>::bytes(depth, kPanel));
    rope = memory.take<std::uint16_t>(plan.p.keys.packed() ? std::int64_t(kPanel) * plan.p.rope : 0);
    part = memory.take<float>(plan.rows * kPanel);
    scores = memory.take<float>(chunk);
    scales = memory.take<float>(plan.quantised ? std::int64_t(plan.scale_tiles) * kChunk : 0);
    rounded = memory.take<bf16>(plan.rounds ? chunk : 0);
    wide = memory.take<float>(!plan.rounds && plan.quantised ? chunk : 0);
    decide = memory.take<int>(plan.rounds ? plan.rows * kManyKeys : 0);
    rest = memory.take<float>(plan.rounds ? plan.rows * kManyKeys : 0);
    rest_of_all = memory.take<bf16>(plan.quantised && plan.rounds ? kChunk : 0);
    low = memory.take<float>(plan.quantised && plan.rounds ? kPanel : 0);
  }
};

class Worker {
 public:
  Worker(const Plan& plan, const Kernels& kernels, const Scratch& scratch)
      : p_(plan.p), plan_(plan), k_(kernels), s_(scratch) {}

  void load(const Tile& tile, Queries& queries) const {
    queries.tile = tile;
    if (plan_.token[tile.token].count == 0) return;
    for (int h = 0; h < tile.heads; ++h) {
      const std::ptrdiff_t row = h * plan_.query_pitch;
      load(p_.query, tile.first + h, p_.latent, queries, row);
      for (int c = p_.latent; c < plan_.rope_at; ++c)
        plan_.rounds ? void(queries.rows[row + c] = {0}) : void(queries.wide[row + c] = 0);
      load(p_.query_rope, tile.first + h, p_.rope, queries, row + plan_.rope_at);
    }
  }

  void attend(Visit<Queries> visit, Visit<Queries>, const Partial& all) {
    q_ = visit.queries, heads_ = q_->tile.heads;
    if (plan_.half) attend<f16, float>(visit.chunk, all);
    else if (plan_.rounds) attend<bf16, bf16>(visit.chunk, all);
    else attend<bf16, float>(visit.chunk, all);
  }

  void merge(const Partial& all, const Partial& later, int h) const {
    const auto [mine, theirs] = all.merge(h, later.max[h], later.sum[h], later.shift[h]);
    const std::ptrdiff_t row = h * plan_.value_pitch;
    k_.blend(later.values + row, 1, theirs, p_.latent, mine, all.values + row);
  }

  void finish(const Tile& tile, const Partial& all, int h) const {
    const std::int64_t row = tile.first + h;
    const float logit = p_.sinks ? p_.sinks[row - tile.token * p_.heads] : -INFINITY;
    const bool has_sink = logit != -INFINITY;
    float *values = all.values + h * plan_.value_pitch, max = all.max[h], sum = all.sum[h];
    if (sum == 0) {  // no attended positions
      const bool sink = has_sink && plan_.token[tile.token].sequence >= 0;
      if (p_.wide_out) std::fill_n(p_.wide_out + row * p_.latent, p_.latent, 0.0f);
      else std::memset(p_.out.row<bf16>(row), 0, sizeof(bf16) * std::size_t(p_.latent));  // of either type
      return write_softmax(row, sink ? logit : 0, sink ? 1 : 0);
    }
    if (has_sink) {
      const float larger = std::max(max, logit), keep = std::exp(max - larger);
      sum = sum * keep + (logit == larger ? 1 : std::exp(logit - larger)), max = larger;
      for (int c = 0; c < p_.latent; ++c) values[c] *= keep;
    }
    if (p_.wide_out) k_.divide(values, sum, p_.latent, p_.wide_out + row * p_.latent);
    else if (plan_.half) k_.divide(values, sum, p_.latent, p_.out.row<f16>(row));
    else k_.divide(values, sum, p_.latent, p_.out.row<bf16>(row));
    write_softmax(row, max, sum);
  }

 private:
  /// Rows of T, whose panels are of P: fp32 where products are, else each tile of heads would widen them anew. A chunk
  /// without attended positions is not there.
  template <class T, class P>
  void attend(std::int64_t chunk, const Partial& all) {
    count_ = gather(plan_.token[q_->tile.token], chunk);
    if (count_ == 0) return;
    for (int j = 0; j < count_; j += kPanel) plan_.quantised ? score_tiles<T, P>(j) : score<T, P>(j);
    if (plan_.taps) show_scores(chunk);
    std::pair<float, float> rescale[kTileHeads];
    softmax(all, rescale);
    for (int t = 0; t < plan_.scale_tiles; ++t) {
      const float unit = plan_.quantised ? make_relative(s_.scales + std::ptrdiff_t(t) * kChunk) : 1;
      round_probabilities(t);
      for (int c = 0; c < plan_.scale_columns; c += kPanel) {
        const int first = t * plan_.scale_columns + c, columns = std::min(kPanel, plan_.scale_columns - c);
        if (plan_.quantised) add_values<std::int8_t, P>(first, columns, unit, rescale, all);
        else add_values<T, P>(first, columns, unit, rescale, all);
      }
    }
  }

  /// By place in the list.
  void show_scores(std::int64_t chunk) const {
    const Token& token = plan_.token[q_->tile.token];
    int j = 0;
    each_attended(token, chunk * kChunk, std::min(token.count, (chunk + 1) * kChunk), [&](std::int64_t x, auto) {
      for (int h = 0; h < heads_; ++h) {
        const float score = s_.scores[h * kScorePitch + j] * p_.scale;
        plan_.taps->row("1.scores", DType::f32, q_->tile.first + h, x, 1, &score);
      }
      ++j;
    });
  }

  void write_softmax(std::int64_t row, float max, float sum) const {
    if (plan_.taps && sum != 0) {
      plan_.taps->row("2.max", DType::f32, row, 0, 1, &max);
      plan_.taps->row("3.sum", DType::f32, row, 0, 1, &sum);
    }
    if (p_.max.tensor) *p_.max.row<float>(row) = max;
    if (p_.sum.tensor) *p_.sum.row<float>(row) = sum;
  }

  void load(const Rows& rows, std::int64_t row, int width, Queries& queries, std::ptrdiff_t to) const {
    if (width == 0) return;
    if (plan_.half) return k_.widen(rows.row<const f16>(row), width, queries.wide + to);
    if (!plan_.rounds) return k_.widen(rows.row<const bf16>(row), width, queries.wide + to);
    std::memcpy(queries.rows + to, rows.row<const bf16>(row), sizeof(bf16) * std::size_t(width));
  }

  /// Where the attended rows of a chunk are, and their scales. Returns how many.
  int gather(const Token& token, std::int64_t chunk) {
    int count = 0;
    each_attended(token, chunk * kChunk, std::min(token.count, (chunk + 1) * kChunk), [&](auto, std::int64_t position) {
      const std::int64_t row = p_.key_row(token, position);
      latent_[count] = p_.keys.latent_at(row);
      if (p_.rope) rope_[count] = p_.keys.rope_at(row);
      if (plan_.quantised) scale_[count] = p_.keys.scales_at(row), __builtin_prefetch(scale_[count]);
      ++count;
    });
    if (plan_.quantised)
      for (int j = 0; j < count; ++j)
        for (int t = 0; t < plan_.scale_tiles; ++t)
          std::memcpy(&s_.scales[t * kChunk + j], scale_[j] + t * std::ptrdiff_t(sizeof(float)), sizeof(float));
    return count;
  }

  template <class P>
  void product(int column, int depth, const P* panel, float* c, std::ptrdiff_t pitch) const {
    const P* rows;
    if constexpr (std::is_same_v<P, bf16>) rows = q_->rows;
    else rows = q_->wide;
    k_.product(rows + column, plan_.query_pitch, heads_, panel, depth, c, pitch, false);
  }

  template <class T>
  static void columns_of(const std::byte* const* from, int count, int column, const T** rows) {
    for (int j = 0; j < count; ++j) rows[j] = reinterpret_cast<const T*>(from[j]) + column;
  }

  /// The rope parts of up to 64 rows from `first` on as a panel.
  template <class T, class P>
  void rope_panel(int first, int count, P* panel) const {
    if (p_.rope == 0) return;
    const T* rows[kPanel];
    if (!p_.keys.packed()) columns_of(rope_ + first, count, 0, rows);
    for (int j = 0; p_.keys.packed() && j < count; ++j) {
      T* copy = reinterpret_cast<T*>(s_.rope + std::ptrdiff_t(j) * p_.rope);
      std::memcpy(copy, rope_[first + j], sizeof(T) * std::size_t(p_.rope));
      rows[j] = copy;
    }
    k_.transpose(rows, count, p_.rope, panel);
  }

  /// Scores of up to a panel of rows from `first` on, for all heads.
  template <class T, class P>
  void score(int first) const {
    const int count = std::min(kPanel, count_ - first);
    auto* panel = reinterpret_cast<P*>(s_.panel);
    const T* rows[kPanel];
    columns_of(latent_ + first, count, 0, rows);
    k_.transpose(rows, count, p_.latent, panel);
    rope_panel<T>(first, count, panel + Panel<P>::row(plan_.rope_at));
    product(0, plan_.width, panel, s_.scores + first, kScorePitch);
  }

  /// The same with int8 latents: their scales go on the dot products of the tiles.
  template <class T, class P>
  void score_tiles(int first) const {
    const int count = std::min(kPanel, count_ - first);
    auto* panel = reinterpret_cast<P*>(s_.panel);
    float* scores = s_.scores + first;
    if (p_.rope) {
      rope_panel<T>(first, count, panel);
      product(plan_.rope_at, p_.rope, panel, scores, kScorePitch);
    } else {
      for (int h = 0; h < heads_; ++h) std::fill_n(scores + h * kScorePitch, count, 0.0f);
    }
    const std::int8_t* codes[kPanel];
    for (int t = 0; t < plan_.scale_tiles; ++t) {
      columns_of(latent_ + first, count, t * plan_.scale_columns, codes);
      k_.transpose(codes, count, plan_.scale_columns, panel);
      product(t * plan_.scale_columns, plan_.scale_columns, panel, s_.part, kPanel);
      const float* scales = s_.scales + std::ptrdiff_t(t) * kChunk + first;
      for (int h = 0; h < heads_; ++h) k_.multiply_add(s_.part + h * kPanel, scales, count, scores + h * kScorePitch);
    }
  }

  /// Scores to probabilities, merged into `all` but for the values; which keys decide.
  void softmax(const Partial& all, std::pair<float, float>* rescale) {
    SoftmaxRow row[kTileHeads];
    for (int h = 0; h < heads_; ++h) row[h] = {s_.scores + h * kScorePitch, count_, p_.scale, 0, 0};
    k_.softmax(row, heads_);
    int* decide = s_.decide;
    for (int h = 0; h < heads_; ++h) {
      const float sum = row[h].sum;
      // Without any preference all heads are alike, and so are their errors, those of the scales: they get 16 bits.
      alike_[h] = plan_.quantised && plan_.rounds && sum == float(count_);
      deciding_[h] = !plan_.rounds || alike_[h] ? 0 : deciding_keys(k_, row[h].x, count_, sum, decide);
      decide += deciding_[h];
      rescale[h] = all.merge(h, row[h].largest, sum, 0);
    }
  }

  /// Scales relative to the largest, which is returned: a token that is alone keeps its value exactly.
  float make_relative(float* scales) const {
    const float unit = k_.max_abs(scales, count_);
    if (unit == 0 || std::isinf(unit)) return 1;
    for (int j = 0; j < count_; ++j) scales[j] /= unit;
    return unit;
  }

  /// What multiplies the values of tile t: the probabilities, times their token's scale.
  void round_probabilities(int t) const {
    const float* scales = plan_.quantised ? s_.scales + std::ptrdiff_t(t) * kChunk : nullptr;
    for (int h = 0, i = 0; h < heads_; i += deciding_[h++]) {
      const std::ptrdiff_t row = h * kScorePitch;
      const float* x = s_.scores + row;
      if (plan_.rounds) round_row(h, x, scales, s_.decide + i, s_.rest + i, s_.rounded + row);
      else if (scales) k_.multiply(x, scales, count_, s_.wide + row);
    }
  }

  /// Those of head h, and what rounding leaves of the keys that decide.
  void round_row(int h, const float* x, const float* scales, const int* decide, float* rest, bf16* rounded) const {
    for (int i = 0; i < deciding_[h]; ++i) rest[i] = scales ? x[decide[i]] * scales[decide[i]] : x[decide[i]];
    k_.multiply(x, scales, count_, rounded);
    for (int i = 0; i < deciding_[h]; ++i) rest[i] -= to_float(rounded[decide[i]]);
    for (int j = 0; alike_[h] && j < count_; ++j) s_.rest_of_all[j] = to_bf16(scales[j] - to_float(rounded[j]));
  }

  /// Probabilities x values, in units of `unit`, for some latent columns and all heads.
  template <class T, class P>
  void add_values(int first, int columns, float unit, const std::pair<float, float>* rescale,
                  const Partial& all) const {
    auto* panel = reinterpret_cast<P*>(s_.panel);
    const T* rows[kChunk];
    columns_of(latent_, count_, first, rows);
    k_.interleave(rows, count_, columns, panel);
    if constexpr (std::is_same_v<P, float>) {
      k_.product(plan_.quantised ? s_.wide : s_.scores, kScorePitch, heads_, panel, count_, s_.part, kPanel, false);
    } else {
      k_.product(s_.rounded, kScorePitch, heads_, panel, count_, s_.part, kPanel, false);
      if (std::find(alike_, alike_ + heads_, true) != alike_ + heads_)
        k_.product(s_.rest_of_all, kChunk, 1, panel, count_, s_.low, kPanel, false);
    }
    for (int h = 0, i = 0; h < heads_; i += deciding_[h++]) {
      float* part = s_.part + h * kPanel;
      for (int c = 0; alike_[h] && c < columns; ++c) part[c] += s_.low[c];
      float* y = all.values + h * plan_.value_pitch + first;
      const auto [keep, factor] = rescale[h];
      if constexpr (std::is_same_v<P, bf16>)
        if (deciding_[h] > 0) {
          const T* own[kManyKeys];
          for (int j = 0; j < deciding_[h]; ++j) own[j] = rows[s_.decide[i + j]];
          k_.blend(part, own, s_.rest + i, deciding_[h], unit, factor, columns, keep, y);
          continue;
        }
      k_.blend(part, unit, factor, columns, keep, y);
    }
  }

  const Problem& p_;
  const Plan& plan_;
  const Kernels& k_;
  const Scratch& s_;
  const Queries* q_ = nullptr;
  int heads_ = 0, count_ = 0;
  int deciding_[kTileHeads];  // keys
  bool alike_[kTileHeads];
  const std::byte *latent_[kChunk], *rope_[kChunk], *scale_[kChunk];
};

}  // namespace

std::size_t workspace(const Problem& p, const Call& call) {
  if (p.rounding.any()) return workspace_rounded(p, call.threads());
  return Schedule(Plan(p, nullptr, call), call.threads()).bytes();
}

void run(const Problem& p, const Token* token, Call& call, std::byte* memory) noexcept {
  if (p.rounding.any()) return run_rounded(p, token, call, memory);
  double positions = 0;
  for (std::int64_t t = 0; t < p.tokens; ++t) positions += double(token[t].count);
  const Plan plan(p, token, call);
  Schedule(plan, call.threads())
      .run(call, memory, {.products = positions * double(p.heads) * (2 * p.latent + p.rope)});
}

}  // namespace dsakit::attention::sparse
