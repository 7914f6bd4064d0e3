// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/core.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/pack.hpp"

namespace dsakit::attention {
namespace {

constexpr int kHeads = 128;                                // heads worked on together: a key panel serves them all
constexpr std::size_t kWorkspace = std::size_t{40} << 20;  // of all lanes; half as much again for slots
constexpr int kSlots = 64;                                 // chunks in flight when lists are split
constexpr double kFlopsPerNanosecond = 200;                // of a thread, about

/// Probabilities are rounded to bf16 (8 bits) once. That is as good as the documented form and averages out over many
/// tokens; a head whose chunk is decided by fewer than this many (sum^2 / sum of squares) gets 16 bits.
constexpr float kMany = 32;

int even(int n) { return (n + 1) / 2 * 2; }

/// Softmax over part of a list: maximum and sum of exponentials per head, and the unnormalised sum of values.
struct Partial {
  float *most, *sum, *values;

  /// Takes in the maximum and sum of a head of a later part (`none_before`: of the first one). Returns what to multiply
  /// the values by: these, and that part's.
  std::pair<float, float> rescale(int h, float later_most, float later_sum, bool none_before) const {
    return take_in(most[h], sum[h], later_most, later_sum, none_before);
  }
};

/// What does not change during a call.
struct Plan {
  int heads, blocks;   // heads of a block, blocks of a token
  int tile, tiles;     // of latent columns with one scale; a bf16 latent is one tile
  int rope_at, width;  // of a query row: latent, padded to pairs, then rope
  std::ptrdiff_t query_pitch, value_pitch;
  std::int64_t lanes, slots;  // threads with scratch; chunks whose partial results fit
  std::size_t lane_bytes, slot_bytes;
  bool quantised, half;  // half: fp16 operands
  bool wide;             // fp32 products
  bool split;            // chunks of one token go to several threads

  Plan(const Problem& p, int threads, bool same_products);
};

/// One thread's memory.
struct Scratch {
  bf16* query;             // [heads][query_pitch]
  float* wide_query;       // the same for fp32 products
  std::byte* panel;        // a key panel, then value panels
  std::uint16_t* rope;     // [kPanel][rope width], where packed rows have it at odd addresses
  float *part, *part_low;  // [heads][kPanel], products on their way
  float* scores;           // [heads][kScorePitch], then the probabilities
  float* scales;           // [tiles][kChunk], then relative to the tile's unit
  bf16 *high, *low;        // [heads][kScorePitch], probability times scale as one or two bf16
  float* wide;             // the same for fp32 products
  Partial all;             // of a list

  Scratch(Carver& memory, const Plan& plan, const Problem& p) {
    const std::int64_t queries = plan.heads * plan.query_pitch, chunk = plan.heads * kScorePitch;
    query = memory.take<bf16>(plan.wide ? 0 : queries);
    wide_query = memory.take<float>(plan.wide ? queries : 0);
    panel = memory.take<std::byte>(std::int64_t(std::max(even(plan.width), kChunk)) * kPanel *
                                   std::int64_t(plan.half ? sizeof(float) : sizeof(bf16)));
    rope = memory.take<std::uint16_t>(p.keys.packed() ? std::int64_t(kPanel) * p.rope : 0);
    part = memory.take<float>(plan.heads * kPanel);
    part_low = memory.take<float>(plan.wide ? 0 : plan.heads * kPanel);
    scores = memory.take<float>(chunk);
    scales = memory.take<float>(plan.quantised ? std::int64_t(plan.tiles) * kChunk : 0);
    high = memory.take<bf16>(plan.wide ? 0 : chunk);
    low = memory.take<bf16>(plan.wide ? 0 : chunk);
    wide = memory.take<float>(plan.wide && plan.quantised ? chunk : 0);
    all = partial(memory, plan);
  }
  static Partial partial(Carver& memory, const Plan& plan) {
    return {memory.take<float>(plan.heads), memory.take<float>(plan.heads),
            memory.take<float>(plan.heads * plan.value_pitch)};
  }
};

Plan::Plan(const Problem& p, int threads, bool same_products)
    : quantised(p.keys.tile > 0), half(p.type == DType::f16), wide(half || same_products) {
  heads = int(std::min<std::int64_t>(p.heads, kHeads));
  blocks = int((p.heads + heads - 1) / heads);
  tile = quantised ? p.keys.tile : p.latent;
  tiles = p.latent / tile;
  rope_at = half ? p.latent : even(p.latent);  // bf16 panels have columns in pairs
  width = rope_at + p.rope;
  query_pitch = (width + 31) / 32 * 32;
  value_pitch = (p.latent + 15) / 16 * 16;
  Carver lane, slot;
  Scratch(lane, *this, p), Scratch::partial(slot, *this);
  lane_bytes = lane.bytes(), slot_bytes = slot.bytes();
  lanes = std::int64_t(std::clamp<std::size_t>(kWorkspace / lane_bytes, 1, std::size_t(threads)));
  split = lanes > 1 && p.tokens * blocks < 4 * lanes;
  slots = split ? std::int64_t(std::clamp<std::size_t>(kWorkspace / 2 / slot_bytes, 1, kSlots)) : 0;
}

bool has_sink(const Problem& p, std::int64_t head) { return p.sinks && p.sinks[head] != -INFINITY; }

void write_softmax(const Problem& p, std::int64_t row, float most, float sum) {
  if (p.most.tensor) *p.most.row<float>(row) = most;
  if (p.sum.tensor) *p.sum.row<float>(row) = sum;
}

/// A row without attended positions.
void write_empty(const Problem& p, const Token& token, std::int64_t row, std::int64_t head) {
  const bool sink = token.sequence >= 0 && has_sink(p, head);
  std::memset(p.out.row<bf16>(row), 0, sizeof(bf16) * std::size_t(p.latent));  // of either type
  write_softmax(p, row, sink ? p.sinks[head] : 0, sink ? 1 : 0);
}

class Worker {
 public:
  Worker(const Problem& problem, const Plan& plan, const Kernels& kernels, const Scratch& scratch)
      : p_(problem), plan_(plan), k_(kernels), s_(scratch) {}

  /// The query rows of one block of heads, latent and rope part side by side.
  void load(std::int64_t token, int block) {
    const std::int64_t first = token * p_.heads + std::int64_t(block) * plan_.heads;
    heads_ = heads_of(block);
    for (int h = 0; h < heads_; ++h) {
      load(p_.query, first + h, p_.latent, h * plan_.query_pitch);
      const std::ptrdiff_t end = h * plan_.query_pitch + p_.latent;
      if (plan_.rope_at > p_.latent) plan_.wide ? void(s_.wide_query[end] = 0) : void(s_.query[end] = {0});
      load(p_.query_rope, first + h, p_.rope, h * plan_.query_pitch + plan_.rope_at);
    }
  }
  int heads() const { return heads_; }
  int heads_of(int block) const {
    return int(std::min<std::int64_t>(plan_.heads, p_.heads - std::int64_t(block) * plan_.heads));
  }

  /// Adds one chunk of the list to what `all` has of the chunks before, or, if there are none, writes it there.
  /// A chunk without attended positions is not there: false.
  bool attend(const Token& token, std::int64_t chunk, const Partial& all, bool none_before) {
    count_ = resolve(token, chunk);
    if (count_ == 0) return false;
    for (int j = 0; j < count_; j += kPanel) plan_.half ? score<f16>(j) : score<bf16>(j);
    std::pair<float, float> weight[kHeads];
    int few[kHeads], n_few = 0;
    for (int h = 0; h < heads_; ++h) {
      float *x = s_.scores + h * kScorePitch, most;
      const float sum = k_.softmax(x, count_, p_.scale, &most);
      // Without any preference all heads are alike, and so are their errors: the scales get 16 bits.
      const bool alike = plan_.quantised && sum == float(count_);
      if (!plan_.wide && (alike || sum * sum < kMany * k_.sum_squares(x, count_, 1))) few[n_few++] = h;
      weight[h] = all.rescale(h, most, sum, none_before);
    }
    for (int t = 0; t < plan_.tiles; ++t) {
      const float unit = plan_.quantised ? make_relative(s_.scales + std::ptrdiff_t(t) * kChunk) : 1;
      weigh(t, few, n_few);
      for (int c = 0; c < plan_.tile; c += kPanel) {
        const int first = t * plan_.tile + c, columns = std::min(kPanel, plan_.tile - c);
        if (plan_.quantised) multiply_values<std::int8_t>(first, columns, few, n_few);
        else if (plan_.half) multiply_values<f16>(first, columns, few, n_few);
        else multiply_values<bf16>(first, columns, few, n_few);
        for (int h = 0; h < heads_; ++h)
          k_.blend(s_.part + h * kPanel, unit, weight[h].second, columns, weight[h].first,
                   all.values + h * plan_.value_pitch + first);
      }
    }
    return true;
  }

  /// The same for a chunk that lies in `chunk` already: the same operations, the same bits.
  void merge(const Partial& all, const Partial& chunk, bool none_before, int h) const {
    const auto [mine, theirs] = all.rescale(h, chunk.most[h], chunk.sum[h], none_before);
    const std::ptrdiff_t row = h * plan_.value_pitch;
    k_.blend(chunk.values + row, 1, theirs, p_.latent, mine, all.values + row);
  }

  /// Sums to output (`none`: there are none); spoils the sums.
  void finish(const Partial& all, const Token& token, std::int64_t t, int block, int h, bool none) const {
    const std::int64_t head = std::int64_t(block) * plan_.heads + h, row = t * p_.heads + head;
    if (none) return write_empty(p_, token, row, head);
    float *values = all.values + h * plan_.value_pitch, most = all.most[h], sum = all.sum[h];
    if (has_sink(p_, head)) {
      const float sink = p_.sinks[head], larger = std::max(most, sink), keep = std::exp(most - larger);
      sum = sum * keep + (sink == larger ? 1 : std::exp(sink - larger)), most = larger;
      for (int c = 0; c < p_.latent; ++c) values[c] *= keep;
    }
    for (int c = 0; c < p_.latent; ++c) values[c] /= sum;
    if (plan_.half) k_.round(values, p_.latent, p_.out.row<f16>(row));
    else k_.round(values, p_.latent, p_.out.row<bf16>(row));
    write_softmax(p_, row, most, sum);
  }

 private:
  /// The panels that a kind of rows is brought into for products.
  template <class T>
  using PanelOf = std::conditional_t<std::is_same_v<T, f16>, float, bf16>;

  void load(const Rows& rows, std::int64_t row, int width, std::ptrdiff_t to) const {
    if (width == 0) return;
    if (plan_.half) return k_.widen(rows.row<const f16>(row), width, s_.wide_query + to);
    if (plan_.wide) return k_.widen(rows.row<const bf16>(row), width, s_.wide_query + to);
    std::memcpy(s_.query + to, rows.row<const bf16>(row), sizeof(bf16) * std::size_t(width));
  }

  /// Where the attended rows of a chunk are, and their scales. Returns how many.
  int resolve(const Token& token, std::int64_t chunk) {
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
        for (int t = 0; t < plan_.tiles; ++t)
          std::memcpy(&s_.scales[t * kChunk + j], scale_[j] + t * std::ptrdiff_t(sizeof(float)), sizeof(float));
    return count;
  }

  void product(int column, int depth, const bf16* panel, float* c, std::ptrdiff_t pitch) const {
    if (plan_.wide) k_.product(s_.wide_query + column, plan_.query_pitch, heads_, panel, depth, c, pitch, false);
    else k_.product(s_.query + column, plan_.query_pitch, heads_, panel, depth, c, pitch, false);
  }
  void product(int column, int depth, const float* panel, float* c, std::ptrdiff_t pitch) const {
    k_.product(s_.wide_query + column, plan_.query_pitch, heads_, panel, depth, c, pitch, false);
  }

  void transpose(const bf16* const* rows, int count, int dims, bf16* to) const {
    k_.transpose(rows, count, dims, to);
  }
  void transpose(const f16* const* rows, int count, int dims, float* to) const {
    k_.transpose(rows, count, dims, to);
  }
  void transpose(const std::int8_t* const* rows, int count, int dims, bf16* to) const {
    k_.transpose(rows, count, dims, to);
  }
  void interleave(const bf16* const* rows, int dims, bf16* to) const { k_.interleave(rows, count_, dims, to); }
  void interleave(const f16* const* rows, int dims, float* to) const { k_.interleave(rows, count_, dims, to); }
  void interleave(const std::int8_t* const* rows, int dims, bf16* to) const {
    k_.interleave(rows, count_, dims, to);
  }

  template <class T>
  static void columns_of(const std::byte* const* from, int count, int column, const T** rows) {
    for (int j = 0; j < count; ++j) rows[j] = reinterpret_cast<const T*>(from[j]) + column;
  }

  /// The rope parts of up to 64 rows from `first` on as a panel.
  template <class T>
  void rope_panel(int first, int count, PanelOf<T>* panel) const {
    if (p_.rope == 0) return;
    const T* rows[kPanel];
    if (!p_.keys.packed()) columns_of(rope_ + first, count, 0, rows);
    for (int j = 0; p_.keys.packed() && j < count; ++j) {
      T* copy = reinterpret_cast<T*>(s_.rope + std::ptrdiff_t(j) * p_.rope);
      std::memcpy(copy, rope_[first + j], sizeof(T) * std::size_t(p_.rope));
      rows[j] = copy;
    }
    transpose(rows, count, p_.rope, panel);
  }

  /// Scores of up to 64 rows from `first` on, for all heads.
  template <class T>
  void score(int first) const {
    if (plan_.quantised) return score_tiles<T>(first);
    const int count = std::min(kPanel, count_ - first);
    auto* panel = reinterpret_cast<PanelOf<T>*>(s_.panel);
    const T* rows[kPanel];
    columns_of(latent_ + first, count, 0, rows);
    transpose(rows, count, p_.latent, panel);
    rope_panel<T>(first, count, panel + std::ptrdiff_t(plan_.rope_at) * kPanel);
    product(0, plan_.width, panel, s_.scores + first, kScorePitch);
  }

  /// The same with int8 latents: their scales go on the dot products of the tiles.
  template <class T>
  void score_tiles(int first) const {
    const int count = std::min(kPanel, count_ - first);
    float* scores = s_.scores + first;
    if (p_.rope) {
      auto* panel = reinterpret_cast<PanelOf<T>*>(s_.panel);
      rope_panel<T>(first, count, panel);
      product(plan_.rope_at, p_.rope, panel, scores, kScorePitch);
    } else {
      for (int h = 0; h < heads_; ++h) std::fill_n(scores + h * kScorePitch, count, 0.0f);
    }
    auto* panel = reinterpret_cast<bf16*>(s_.panel);
    const std::int8_t* codes[kPanel];
    for (int t = 0; t < plan_.tiles; ++t) {
      columns_of(latent_ + first, count, t * plan_.tile, codes);
      transpose(codes, count, plan_.tile, panel);
      product(t * plan_.tile, plan_.tile, panel, s_.part, kPanel);
      const float* scales = s_.scales + std::ptrdiff_t(t) * kChunk + first;
      for (int h = 0; h < heads_; ++h) k_.multiply_add(s_.part + h * kPanel, scales, count, scores + h * kScorePitch);
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
  void weigh(int t, const int* few, int n_few) const {
    const float* scales = plan_.quantised ? s_.scales + std::ptrdiff_t(t) * kChunk : nullptr;
    for (int h = 0, i = 0; h < heads_; ++h) {
      const float* x = s_.scores + h * kScorePitch;
      bf16* high = s_.high + h * kScorePitch;
      if (!plan_.wide) {
        if (i < n_few && few[i] == h) k_.multiply_split(x, scales, count_, high, s_.low + i++ * kScorePitch);
        else k_.multiply_round(x, scales, count_, high);
      } else if (plan_.quantised) {
        for (int j = 0; j < count_; ++j) s_.wide[h * kScorePitch + j] = x[j] * scales[j];
      }
    }
  }

  /// part = weights x values, for some latent columns and all heads.
  template <class T>
  void multiply_values(int first, int columns, const int* few, int n_few) const {
    auto* panel = reinterpret_cast<PanelOf<T>*>(s_.panel);
    const T* rows[kChunk];
    columns_of(latent_, count_, first, rows);
    interleave(rows, columns, panel);
    const float* weights = plan_.quantised ? s_.wide : s_.scores;
    if constexpr (std::is_same_v<T, f16>) {
      k_.product(weights, kScorePitch, heads_, panel, count_, s_.part, kPanel, false);
    } else if (plan_.wide) {
      k_.product(weights, kScorePitch, heads_, panel, count_, s_.part, kPanel, false);
    } else {
      k_.product(s_.high, kScorePitch, heads_, panel, count_, s_.part, kPanel, false);
      if (n_few > 0) k_.product(s_.low, kScorePitch, n_few, panel, count_, s_.part_low, kPanel, false);
      for (int i = 0; i < n_few; ++i)
        for (int c = 0; c < columns; ++c) s_.part[few[i] * kPanel + c] += s_.part_low[i * kPanel + c];
    }
  }

  const Problem& p_;
  const Plan& plan_;
  const Kernels& k_;
  const Scratch& s_;
  int heads_ = 0, count_ = 0;
  const std::byte *latent_[kChunk], *rope_[kChunk], *scale_[kChunk];
};

std::int64_t chunks(const Token& token) { return (token.count + kChunk - 1) / kChunk; }

/// One call's memory: scratch of every lane, then the partial results of split lists.
class Memory {
 public:
  Memory(std::byte* base, const Plan& plan, const Problem& problem) : base_(base), plan_(plan), problem_(problem) {}

  Scratch lane(int i) const {
    Carver carver(base_ + std::size_t(i) * plan_.lane_bytes);
    return Scratch(carver, plan_, problem_);
  }
  Partial slot(std::int64_t i) const {
    Carver carver(base_ + std::size_t(plan_.lanes) * plan_.lane_bytes + std::size_t(i) * plan_.slot_bytes);
    return Scratch::partial(carver, plan_);
  }

 private:
  std::byte* base_;
  const Plan& plan_;
  const Problem& problem_;
};

/// Lists that are many: each stays with one thread.
void run_whole(const Problem& p, const Plan& plan, const Memory& memory, const Token* token, double work, Call& call) {
  const std::int64_t n = p.tokens * plan.blocks, step = plan.lanes < call.threads() ? plan.lanes : n;
  for (std::int64_t base = 0; base < n; base += step) {
    const std::int64_t some = std::min(step, n - base);
    call.parallel_for(some, work * double(some) / double(n), [&](std::int64_t i, int thread) {
      const std::int64_t t = (base + i) / plan.blocks;
      const int block = int((base + i) % plan.blocks);
      const Scratch scratch = memory.lane(thread);
      Worker worker(p, plan, call.kernels(), scratch);
      bool none = true;
      if (token[t].count > 0) worker.load(t, block);
      for (std::int64_t c = 0; c < chunks(token[t]); ++c) none &= !worker.attend(token[t], c, scratch.all, none);
      for (int h = 0; h < worker.heads_of(block); ++h) worker.finish(scratch.all, token[t], t, block, h, none);
    });
  }
}

/// Lists that are few: their chunks go to all threads, a slotful at a time, and are merged in order.
void run_split(const Problem& p, const Plan& plan, const Memory& memory, const Token* token, double work, Call& call) {
  struct Item {
    std::int64_t token, chunk;
    int block;
    bool attended;
  } item[kSlots];
  constexpr int kMerge = 8;  // heads per piece of work
  const std::int64_t slots = plan.lanes < call.threads() ? std::min(plan.lanes, plan.slots) : plan.slots;
  const Scratch first = memory.lane(0);
  Item next{};
  bool none = true;  // of the list that the last slot belongs to has been attended
  for (;;) {
    std::int64_t n = 0;
    for (; n < slots && next.token < p.tokens; ++n) {
      item[n] = next;
      if (++next.chunk < chunks(token[next.token])) continue;
      next.chunk = 0;
      if (++next.block < plan.blocks) continue;
      next.block = 0, ++next.token;
    }
    if (n == 0) return;
    call.parallel_for(n, work, [&](std::int64_t i, int thread) {
      Item& x = item[i];
      const Scratch scratch = memory.lane(thread);
      Worker worker(p, plan, call.kernels(), scratch);
      if (token[x.token].count > 0) worker.load(x.token, x.block);
      x.attended = worker.attend(token[x.token], x.chunk, memory.slot(i), true);
    });
    call.parallel_for((plan.heads + kMerge - 1) / kMerge, double(n) * plan.heads * p.latent, [&](std::int64_t g, int) {
      const Worker worker(p, plan, call.kernels(), first);
      bool none_before = none;
      for (std::int64_t i = 0; i < n; ++i) {
        const Item& x = item[i];
        const bool last = x.chunk + 1 >= chunks(token[x.token]);
        const int end = int(std::min<std::int64_t>((g + 1) * kMerge, worker.heads_of(x.block)));
        for (int h = int(g) * kMerge; h < end; ++h) {
          if (x.attended) worker.merge(first.all, memory.slot(i), none_before, h);
          if (last) worker.finish(first.all, token[x.token], x.token, x.block, h, none_before && !x.attended);
        }
        none_before = last || (none_before && !x.attended);
      }
    });
    for (std::int64_t i = 0; i < n; ++i)
      none = item[i].chunk + 1 >= chunks(token[item[i].token]) || (none && !item[i].attended);
  }
}

}  // namespace

std::size_t workspace(const Problem& p, int threads, bool same_products) {
  const Plan plan(p, threads, same_products);
  return std::size_t(plan.lanes) * plan.lane_bytes + std::size_t(plan.slots) * plan.slot_bytes;
}

void run(const Problem& p, const Token* token, Call& call, std::byte* memory) noexcept {
  const Plan plan(p, call.threads(), call.same_products());
  double positions = 0;
  for (std::int64_t t = 0; t < p.tokens; ++t) positions += double(token[t].count);
  const double work = positions * double(p.heads) * 2 * (2 * p.latent + p.rope) / kFlopsPerNanosecond;
  (plan.split ? run_split : run_whole)(p, plan, Memory(memory, plan, p), token, work, call);
}

}  // namespace dsakit::attention
