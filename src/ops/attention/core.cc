// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/core.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/pack.hpp"

namespace dsakit::attention {
namespace {

constexpr int kHeads = 128;                          // heads worked on together: a key panel serves them all
constexpr std::size_t kWorkspace = std::size_t{40} << 20;  // of all lanes; half as much again for slots
constexpr std::ptrdiff_t kScorePitch = kChunk + 16;  // rows of scores and probabilities must not share cache sets
constexpr int kSlots = 64;                           // chunks in flight when lists are split
constexpr double kFlopsPerNanosecond = 200;          // of a thread, about

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
    if (none_before) {
      most[h] = later_most, sum[h] = later_sum;
      return {0, 1};
    }
    const float larger = std::max(most[h], later_most);
    const float mine = std::exp(most[h] - larger), theirs = std::exp(later_most - larger);
    most[h] = larger;
    sum[h] = sum[h] * mine + later_sum * theirs;
    return {mine, theirs};
  }
};

/// What does not change during a call.
struct Plan {
  int heads, blocks;          // heads of a block, blocks of a token
  int tile, tiles;            // of latent columns with one scale; a bf16 latent is one tile
  int rope_at, width;         // of a query row: latent, padded to pairs, then rope
  std::ptrdiff_t query_pitch, value_pitch;
  std::int64_t lanes, slots;  // threads with scratch; chunks whose partial results fit
  std::size_t lane_bytes, slot_bytes;
  bool quantised, same_products;
  bool split;                 // chunks of one token go to several threads

  Plan(const Problem& p, int threads, bool same_products);
};

/// One thread's memory.
struct Scratch {
  bf16* query;                // [heads][query_pitch]
  float* wide_query;          // the same for product_f32
  bf16* panel;                // a key panel, then value panels
  float *part, *part_low;     // [heads][kPanel], products on their way
  float* scores;              // [heads][kScorePitch], then the probabilities
  float* scales;              // [tiles][kChunk], then relative to the tile's unit
  bf16 *high, *low;           // [heads][kScorePitch], probability times scale as one or two bf16
  float* wide;                // the same for product_f32
  Partial all;                // of a list

  Scratch(Carver& memory, const Plan& plan) {
    const bool same = plan.same_products;
    query = memory.take<bf16>(plan.heads * plan.query_pitch);
    wide_query = memory.take<float>(same ? plan.heads * plan.query_pitch : 0);
    panel = memory.take<bf16>(std::int64_t(std::max(even(plan.width), kChunk)) * kPanel);
    part = memory.take<float>(plan.heads * kPanel);
    part_low = memory.take<float>(same ? 0 : plan.heads * kPanel);
    scores = memory.take<float>(plan.heads * kScorePitch);
    scales = memory.take<float>(plan.quantised ? std::int64_t(plan.tiles) * kChunk : 0);
    high = memory.take<bf16>(same ? 0 : plan.heads * kScorePitch);
    low = memory.take<bf16>(same ? 0 : plan.heads * kScorePitch);
    wide = memory.take<float>(same ? plan.heads * kScorePitch : 0);
    all = partial(memory, plan);
  }
  static Partial partial(Carver& memory, const Plan& plan) {
    return {memory.take<float>(plan.heads), memory.take<float>(plan.heads),
            memory.take<float>(plan.heads * plan.value_pitch)};
  }
};

Plan::Plan(const Problem& p, int threads, bool same_products)
    : quantised(p.keys.tile > 0), same_products(same_products) {
  heads = int(std::min<std::int64_t>(p.heads, kHeads));
  blocks = int((p.heads + heads - 1) / heads);
  tile = quantised ? p.keys.tile : p.latent;
  tiles = p.latent / tile;
  rope_at = even(p.latent);
  width = rope_at + p.rope;
  query_pitch = (width + 31) / 32 * 32;
  value_pitch = (p.latent + 15) / 16 * 16;
  Carver lane, slot;
  Scratch(lane, *this), Scratch::partial(slot, *this);
  lane_bytes = lane.bytes(), slot_bytes = slot.bytes();
  lanes = std::int64_t(std::clamp<std::size_t>(kWorkspace / lane_bytes, 1, std::size_t(threads)));
  split = lanes > 1 && p.tokens * blocks < 4 * lanes;
  slots = split ? std::int64_t(std::clamp<std::size_t>(kWorkspace / 2 / slot_bytes, 1, kSlots)) : 0;
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
      bf16* q = s_.query + h * plan_.query_pitch;
      std::memcpy(q, p_.query.row<const bf16>(first + h), sizeof(bf16) * std::size_t(p_.latent));
      if (p_.latent % 2) q[p_.latent] = {0};
      if (p_.rope)
        std::memcpy(q + plan_.rope_at, p_.query_rope.row<const bf16>(first + h), sizeof(bf16) * std::size_t(p_.rope));
      if (plan_.same_products) k_.widen_bf16(q, plan_.width, s_.wide_query + h * plan_.query_pitch);
    }
  }
  int heads() const { return heads_; }
  int heads_of(int block) const {
    return int(std::min<std::int64_t>(plan_.heads, p_.heads - std::int64_t(block) * plan_.heads));
  }

  /// Adds one chunk of the list to what `all` has of the chunks before, or, if there are none, writes it there.
  void attend(const Token& token, std::int64_t chunk, const Partial& all, bool none_before) {
    count_ = resolve(token, chunk);
    for (int j = 0; j < count_; j += kPanel) plan_.quantised ? score_tiles(j) : score(j);
    std::pair<float, float> weight[kHeads];
    int few[kHeads], n_few = 0;
    for (int h = 0; h < heads_; ++h) {
      float *x = s_.scores + h * kScorePitch, most;
      const float sum = k_.softmax(x, count_, p_.scale, &most);
      // Without any preference all heads are alike, and so are their errors: the scales get 16 bits.
      const bool alike = plan_.quantised && sum == float(count_);
      if (alike || sum * sum < kMany * k_.sum_squares(x, count_, 1)) few[n_few++] = h;
      weight[h] = all.rescale(h, most, sum, none_before);
    }
    for (int t = 0; t < plan_.tiles; ++t) {
      const float unit = plan_.quantised ? make_relative(s_.scales + std::ptrdiff_t(t) * kChunk) : 1;
      weigh(t, few, n_few);
      for (int c = 0; c < plan_.tile; c += kPanel) {
        const int first = t * plan_.tile + c, columns = std::min(kPanel, plan_.tile - c);
        multiply_values(first, columns, few, n_few);
        for (int h = 0; h < heads_; ++h)
          k_.blend(s_.part + h * kPanel, unit, weight[h].second, columns, weight[h].first,
                   all.values + h * plan_.value_pitch + first);
      }
    }
  }

  /// The same for a chunk that lies in `chunk` already: the same operations, the same bits.
  void merge(const Partial& all, const Partial& chunk, bool none_before, int h) const {
    const auto [mine, theirs] = all.rescale(h, chunk.most[h], chunk.sum[h], none_before);
    const std::ptrdiff_t row = h * plan_.value_pitch;
    k_.blend(chunk.values + row, 1, theirs, p_.latent, mine, all.values + row);
  }

  /// Sums to output; spoils the sums.
  void finish(const Partial& all, std::int64_t token, int block, int h) const {
    float* values = all.values + h * plan_.value_pitch;
    const float sum = all.sum[h];
    for (int c = 0; c < p_.latent; ++c) values[c] /= sum;
    k_.round_bf16(values, p_.latent, p_.out.row<bf16>(token * p_.heads + std::int64_t(block) * plan_.heads + h));
  }

 private:
  /// Where the rows of a chunk are, and their scales. Returns how many.
  int resolve(const Token& token, std::int64_t chunk) {
    const std::int64_t first = chunk * kChunk;
    const int count = int(std::min<std::int64_t>(kChunk, token.count - first));
    const Keys& keys = p_.keys;
    for (int j = 0; j < count; ++j) {
      const std::int64_t position = token.list ? token.list[first + j] : first + j;
      const std::int64_t row = keys.rows.offset(token.sequence, position);
      if (plan_.quantised) codes_[j] = keys.latent.row<const std::int8_t>(row);
      else latent_[j] = keys.latent.row<const bf16>(row);
      if (p_.rope) rope_[j] = keys.rope.row<const bf16>(row);
      if (plan_.quantised) scale_[j] = keys.scales.row<const float>(row), __builtin_prefetch(scale_[j]);
    }
    if (plan_.quantised)
      for (int j = 0; j < count; ++j)
        for (int t = 0; t < plan_.tiles; ++t) s_.scales[t * kChunk + j] = scale_[j][t];
    return count;
  }

  void product(int column, int depth, float* c, std::ptrdiff_t pitch) const {
    if (plan_.same_products)
      k_.product_f32(s_.wide_query + column, plan_.query_pitch, heads_, s_.panel, depth, c, pitch, false);
    else k_.product_bf16(s_.query + column, plan_.query_pitch, heads_, s_.panel, depth, c, pitch, false);
  }

  /// Scores of up to 64 rows from `first` on, for all heads.
  void score(int first) const {
    const int count = std::min(kPanel, count_ - first);
    k_.transpose_bf16(latent_ + first, count, p_.latent, s_.panel);
    if (p_.rope) k_.transpose_bf16(rope_ + first, count, p_.rope, s_.panel + std::ptrdiff_t(plan_.rope_at) * kPanel);
    product(0, plan_.width, s_.scores + first, kScorePitch);
  }

  /// The same with int8 latents: their scales go on the dot products of the tiles.
  void score_tiles(int first) const {
    const int count = std::min(kPanel, count_ - first);
    float* scores = s_.scores + first;
    if (p_.rope) {
      k_.transpose_bf16(rope_ + first, count, p_.rope, s_.panel);
      product(plan_.rope_at, p_.rope, scores, kScorePitch);
    } else {
      for (int h = 0; h < heads_; ++h) std::fill_n(scores + h * kScorePitch, count, 0.0f);
    }
    const std::int8_t* codes[kPanel];
    for (int t = 0; t < plan_.tiles; ++t) {
      for (int j = 0; j < count; ++j) codes[j] = codes_[first + j] + t * plan_.tile;
      k_.transpose_i8(codes, count, plan_.tile, s_.panel);
      product(t * plan_.tile, plan_.tile, s_.part, kPanel);
      const float* scales = s_.scales + std::ptrdiff_t(t) * kChunk + first;
      for (int h = 0; h < heads_; ++h)
        k_.multiply_add(s_.part + h * kPanel, scales, count, scores + h * kScorePitch);
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
      if (!plan_.same_products) {
        if (i < n_few && few[i] == h) k_.multiply_split(x, scales, count_, high, s_.low + i++ * kScorePitch);
        else k_.multiply_round(x, scales, count_, high);
      } else if (plan_.quantised) {
        for (int j = 0; j < count_; ++j) s_.wide[h * kScorePitch + j] = x[j] * scales[j];
      }
    }
  }

  /// part = weights x values, for some latent columns and all heads.
  void multiply_values(int first, int columns, const int* few, int n_few) const {
    if (plan_.quantised) {
      const std::int8_t* rows[kChunk];
      for (int j = 0; j < count_; ++j) rows[j] = codes_[j] + first;
      k_.interleave_i8(rows, count_, columns, s_.panel);
    } else {
      const bf16* rows[kChunk];
      for (int j = 0; j < count_; ++j) rows[j] = latent_[j] + first;
      k_.interleave_bf16(rows, count_, columns, s_.panel);
    }
    if (plan_.same_products) {
      const float* weights = plan_.quantised ? s_.wide : s_.scores;
      k_.product_f32(weights, kScorePitch, heads_, s_.panel, count_, s_.part, kPanel, false);
      return;
    }
    k_.product_bf16(s_.high, kScorePitch, heads_, s_.panel, count_, s_.part, kPanel, false);
    if (n_few > 0) k_.product_bf16(s_.low, kScorePitch, n_few, s_.panel, count_, s_.part_low, kPanel, false);
    for (int i = 0; i < n_few; ++i)
      for (int c = 0; c < columns; ++c) s_.part[few[i] * kPanel + c] += s_.part_low[i * kPanel + c];
  }

  const Problem& p_;
  const Plan& plan_;
  const Kernels& k_;
  const Scratch& s_;
  int heads_ = 0, count_ = 0;
  const std::int8_t* codes_[kChunk];
  const float* scale_[kChunk];
  const bf16 *latent_[kChunk], *rope_[kChunk];
};

std::int64_t chunks(const Token& token) { return (token.count + kChunk - 1) / kChunk; }

void zero(const Problem& p, std::int64_t token) {
  for (std::int64_t h = 0; h < p.heads; ++h)
    std::memset(p.out.row<bf16>(token * p.heads + h), 0, sizeof(bf16) * std::size_t(p.latent));
}

/// One call's memory: scratch of every lane, then the partial results of split lists.
class Memory {
 public:
  Memory(std::byte* base, const Plan& plan) : base_(base), plan_(plan) {}

  Scratch lane(int i) const {
    Carver carver(base_ + std::size_t(i) * plan_.lane_bytes);
    return Scratch(carver, plan_);
  }
  Partial slot(std::int64_t i) const {
    Carver carver(base_ + std::size_t(plan_.lanes) * plan_.lane_bytes + std::size_t(i) * plan_.slot_bytes);
    return Scratch::partial(carver, plan_);
  }

 private:
  std::byte* base_;
  const Plan& plan_;
};

/// Lists that are many: each stays with one thread.
void run_whole(const Problem& p, const Plan& plan, const Memory& memory, const Token* token, double work, Call& call) {
  const std::int64_t n = p.tokens * plan.blocks, step = plan.lanes < call.threads() ? plan.lanes : n;
  for (std::int64_t base = 0; base < n; base += step) {
    const std::int64_t some = std::min(step, n - base);
    call.parallel_for(some, work * double(some) / double(n), [&](std::int64_t i, int thread) {
      const std::int64_t t = (base + i) / plan.blocks;
      const int block = int((base + i) % plan.blocks);
      if (token[t].count == 0) {
        if (block == 0) zero(p, t);
        return;
      }
      const Scratch scratch = memory.lane(thread);
      Worker worker(p, plan, call.kernels(), scratch);
      worker.load(t, block);
      for (std::int64_t c = 0; c < chunks(token[t]); ++c) worker.attend(token[t], c, scratch.all, c == 0);
      for (int h = 0; h < worker.heads(); ++h) worker.finish(scratch.all, t, block, h);
    });
  }
}

/// Lists that are few: their chunks go to all threads, a slotful at a time, and are merged in order.
void run_split(const Problem& p, const Plan& plan, const Memory& memory, const Token* token, double work, Call& call) {
  struct Item {
    std::int64_t token, chunk;
    int block;
  } item[kSlots];
  constexpr int kMerge = 8;  // heads per piece of work
  const std::int64_t slots = plan.lanes < call.threads() ? std::min(plan.lanes, plan.slots) : plan.slots;
  const Scratch first = memory.lane(0);
  Item next{0, 0, 0};
  for (;;) {
    std::int64_t n = 0;
    while (n < slots && next.token < p.tokens) {
      const Token& t = token[next.token];
      if (t.count == 0) {
        zero(p, next.token++);
        continue;
      }
      item[n++] = next;
      if (++next.chunk < chunks(t)) continue;
      next.chunk = 0;
      if (++next.block < plan.blocks) continue;
      next.block = 0, ++next.token;
    }
    if (n == 0) return;
    call.parallel_for(n, work, [&](std::int64_t i, int thread) {
      const Scratch scratch = memory.lane(thread);
      Worker worker(p, plan, call.kernels(), scratch);
      worker.load(item[i].token, item[i].block);
      worker.attend(token[item[i].token], item[i].chunk, memory.slot(i), true);
    });
    call.parallel_for((plan.heads + kMerge - 1) / kMerge, double(n) * plan.heads * p.latent, [&](std::int64_t g, int) {
      const Worker worker(p, plan, call.kernels(), first);
      for (std::int64_t i = 0; i < n; ++i) {
        const Item& x = item[i];
        const Partial chunk = memory.slot(i);
        const int end = int(std::min<std::int64_t>((g + 1) * kMerge, worker.heads_of(x.block)));
        for (int h = int(g) * kMerge; h < end; ++h) {
          worker.merge(first.all, chunk, x.chunk == 0, h);
          if (x.chunk + 1 == chunks(token[x.token])) worker.finish(first.all, x.token, x.block, h);
        }
      }
    });
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
  (plan.split ? run_split : run_whole)(p, plan, Memory(memory, plan), token, work, call);
}

}  // namespace dsakit::attention
