// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/core.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/pack.hpp"

namespace dsakit::attention {
namespace {

constexpr int kHeads = 128;                         // heads worked on together: a key panel serves them all
constexpr std::size_t kWorkspace = std::size_t{40} << 20;
constexpr std::ptrdiff_t kScorePitch = kChunk + 16;  // rows of scores and probabilities must not share cache sets
constexpr int kSlots = 64;                           // chunks in flight when lists are split
constexpr double kFlopsPerNanosecond = 200;          // of a thread, about

int even(int n) { return (n + 1) / 2 * 2; }

/// Softmax over part of a list: maximum and sum of exponentials per head, and the unnormalised sum of values.
struct Partial {
  float *most, *sum, *values;
};

/// What does not change during a call.
struct Plan {
  int heads, blocks;          // heads of a block, blocks of a token
  int width;                  // of a key: latent (padded to pairs), then rope
  std::ptrdiff_t query_pitch, row_pitch, value_pitch;
  std::int64_t lanes, slots;  // threads with scratch; chunks whose partial results fit
  std::size_t slot_bytes;
  bool split;                 // chunks of one token go to several threads

  Plan(const Problem& p, int threads, bool same_products);
};

/// One thread's memory.
struct Scratch {
  bf16* query = nullptr;       // [heads][query_pitch]
  float* wide_query = nullptr; // the same for product_f32
  bf16* rows = nullptr;        // [kChunk][row_pitch], dequantised
  bf16* panel = nullptr;       // a key panel, then value panels
  float* scores = nullptr;     // [heads][kScorePitch]
  bf16* weights = nullptr;     // the probabilities in bf16
  Partial chunk{}, all{};      // of a list: the chunk at hand, everything before it

  Scratch(Carver& memory, const Plan& plan, bool quantised, bool same_products) {
    query = memory.take<bf16>(plan.heads * plan.query_pitch);
    if (same_products) wide_query = memory.take<float>(plan.heads * plan.query_pitch);
    if (quantised) rows = memory.take<bf16>(kChunk * plan.row_pitch);
    panel = memory.take<bf16>(std::int64_t(std::max(even(plan.width), kChunk)) * kPanel);
    scores = memory.take<float>(plan.heads * kScorePitch);
    if (!same_products) weights = memory.take<bf16>(plan.heads * kScorePitch);
    chunk = partial(memory, plan);
    all = partial(memory, plan);
  }
  static Partial partial(Carver& memory, const Plan& plan) {
    return {memory.take<float>(plan.heads), memory.take<float>(plan.heads),
            memory.take<float>(plan.heads * plan.value_pitch)};
  }
};

std::size_t scratch_bytes(const Plan& plan, bool quantised, bool same_products) {
  Carver measure;
  Scratch(measure, plan, quantised, same_products);
  return measure.bytes();
}

Plan::Plan(const Problem& p, int threads, bool same_products) {
  heads = int(std::min<std::int64_t>(p.heads, kHeads));
  blocks = int((p.heads + heads - 1) / heads);
  width = even(p.latent) + p.rope;
  query_pitch = (width + 31) / 32 * 32;
  row_pitch = (p.latent + 31) / 32 * 32 + 32;
  value_pitch = panels_of(p.latent) * kPanel;
  const std::size_t scratch = scratch_bytes(*this, p.keys.tile > 0, same_products);
  lanes = std::int64_t(std::clamp<std::size_t>(kWorkspace / scratch, 1, std::size_t(threads)));
  split = lanes > 1 && p.tokens * blocks < 4 * lanes;
  Carver slot;
  Scratch::partial(slot, *this);
  slot_bytes = slot.bytes();
  slots = split ? std::int64_t(std::clamp<std::size_t>(kWorkspace / 2 / slot_bytes, 1, kSlots)) : 0;
}

class Worker {
 public:
  Worker(const Problem& problem, const Plan& plan, Call& call, const Scratch& scratch)
      : p_(problem), plan_(plan), k_(call.kernels()), same_(call.same_products()), s_(scratch) {}

  /// The query rows of one block of heads, latent and rope part side by side.
  void load(std::int64_t token, int block) {
    const std::int64_t first = token * p_.heads + std::int64_t(block) * plan_.heads;
    heads_ = heads_of(block);
    for (int h = 0; h < heads_; ++h) {
      const std::int64_t row = first + h;
      bf16* q = s_.query + h * plan_.query_pitch;
      std::memcpy(q, p_.query.row<const bf16>(row), sizeof(bf16) * std::size_t(p_.latent));
      if (p_.latent % 2) q[p_.latent] = {0};
      if (p_.rope) std::memcpy(q + even(p_.latent), p_.query_rope.row<const bf16>(row), sizeof(bf16) * std::size_t(p_.rope));
      if (same_) k_.widen_bf16(q, plan_.width, s_.wide_query + h * plan_.query_pitch);
    }
  }
  int heads() const { return heads_; }
  int heads_of(int block) const {
    return int(std::min<std::int64_t>(plan_.heads, p_.heads - std::int64_t(block) * plan_.heads));
  }

  /// Softmax and unnormalised values over one chunk of the list.
  void attend(const Token& token, std::int64_t chunk, const Partial& out) {
    const int count = resolve(token, chunk);
    for (int j = 0; j < count; j += kPanel) score(j, std::min(kPanel, count - j));
    for (int h = 0; h < heads_; ++h) {
      float* x = s_.scores + h * kScorePitch;
      out.sum[h] = k_.softmax(x, count, p_.scale, &out.most[h]);
      if (!same_) k_.round_bf16(x, count, s_.weights + h * kScorePitch);
    }
    const bf16* columns[kChunk];
    for (int c = 0; c < p_.latent; c += kPanel) {
      for (int j = 0; j < count; ++j) columns[j] = latent_[j] + c;
      k_.interleave_bf16(columns, count, std::min(kPanel, p_.latent - c), s_.panel);
      if (same_) k_.product_f32(s_.scores, kScorePitch, heads_, s_.panel, count, out.values + c, plan_.value_pitch, false);
      else k_.product_bf16(s_.weights, kScorePitch, heads_, s_.panel, count, out.values + c, plan_.value_pitch, false);
    }
  }

  /// Adds the softmax of a later chunk to that of the list so far.
  void merge(const Partial& so_far, const Partial& chunk, int h) const {
    const float most = std::max(so_far.most[h], chunk.most[h]);
    const float old_weight = std::exp(so_far.most[h] - most), new_weight = std::exp(chunk.most[h] - most);
    so_far.most[h] = most;
    so_far.sum[h] = so_far.sum[h] * old_weight + chunk.sum[h] * new_weight;
    float* __restrict to = so_far.values + h * plan_.value_pitch;
    const float* __restrict from = chunk.values + h * plan_.value_pitch;
    for (int c = 0; c < p_.latent; ++c) to[c] = to[c] * old_weight + from[c] * new_weight;
  }

  void copy(const Partial& to, const Partial& from, int h) const {
    to.most[h] = from.most[h], to.sum[h] = from.sum[h];
    std::memcpy(to.values + h * plan_.value_pitch, from.values + h * plan_.value_pitch,
                sizeof(float) * std::size_t(p_.latent));
  }

  /// Sums to output; spoils the sums.
  void finish(const Partial& all, std::int64_t token, int block, int h) const {
    float* values = all.values + h * plan_.value_pitch;
    const float sum = all.sum[h];
    for (int c = 0; c < p_.latent; ++c) values[c] /= sum;
    k_.round_bf16(values, p_.latent, p_.out.row<bf16>(token * p_.heads + std::int64_t(block) * plan_.heads + h));
  }

 private:
  /// Where the rows of a chunk are. Returns how many.
  int resolve(const Token& token, std::int64_t chunk) {
    const std::int64_t first = chunk * kChunk;
    const int count = int(std::min<std::int64_t>(kChunk, token.count - first));
    const Keys& keys = p_.keys;
    for (int j = 0; j < count; ++j) {
      const std::int64_t position = token.list ? token.list[first + j] : first + j;
      const std::int64_t row = keys.rows.offset(token.sequence, position);
      if (keys.tile) {
        codes_[j] = keys.latent.row<const std::int8_t>(row);
        scales_[j] = keys.scales.row<const float>(row);
        latent_[j] = s_.rows + j * plan_.row_pitch;
      } else {
        latent_[j] = keys.latent.row<const bf16>(row);
      }
      if (p_.rope) rope_[j] = keys.rope.row<const bf16>(row);
    }
    return count;
  }

  /// Scores of `count` <= 64 rows from `first` on, for all heads.
  void score(int first, int count) {
    if (p_.keys.tile) {
      constexpr int kAhead = 8;  // rows lie anywhere in a big cache
      const int end = first + count;
      for (int j = first; j < end; ++j) {
        if (j + kAhead < end)
          for (int c = 0; c < p_.latent; c += 64) __builtin_prefetch(codes_[j + kAhead] + c);
        k_.dequantize_bf16(codes_[j], scales_[j], p_.keys.tile, p_.latent, s_.rows + j * plan_.row_pitch);
      }
    }
    k_.transpose_bf16(latent_ + first, count, p_.latent, s_.panel);
    if (p_.rope) k_.transpose_bf16(rope_ + first, count, p_.rope, s_.panel + std::ptrdiff_t(even(p_.latent)) * kPanel);
    float* scores = s_.scores + first;
    if (same_)
      k_.product_f32(s_.wide_query, plan_.query_pitch, heads_, s_.panel, plan_.width, scores, kScorePitch, false);
    else k_.product_bf16(s_.query, plan_.query_pitch, heads_, s_.panel, plan_.width, scores, kScorePitch, false);
  }

  const Problem& p_;
  const Plan& plan_;
  const Kernels& k_;
  const bool same_;
  const Scratch& s_;
  int heads_ = 0;
  const std::int8_t* codes_[kChunk];
  const float* scales_[kChunk];
  const bf16* latent_[kChunk];
  const bf16* rope_[kChunk];
};

std::int64_t chunks(const Token& token) { return (token.count + kChunk - 1) / kChunk; }

void zero(const Problem& p, std::int64_t token) {
  for (std::int64_t h = 0; h < p.heads; ++h)
    std::memset(p.out.row<bf16>(token * p.heads + h), 0, sizeof(bf16) * std::size_t(p.latent));
}

/// One call's memory: scratch of every lane, then the partial results of split lists.
class Memory {
 public:
  Memory(std::byte* base, const Problem& p, const Plan& plan, bool same_products)
      : base_(base), plan_(plan), quantised_(p.keys.tile > 0), same_(same_products),
        lane_bytes_(scratch_bytes(plan, quantised_, same_)) {}

  Scratch lane(int i) const {
    Carver carver(base_ + std::size_t(i) * lane_bytes_);
    return Scratch(carver, plan_, quantised_, same_);
  }
  Partial slot(std::int64_t i) const {
    Carver carver(base_ + std::size_t(plan_.lanes) * lane_bytes_ + std::size_t(i) * plan_.slot_bytes);
    return Scratch::partial(carver, plan_);
  }

 private:
  std::byte* base_;
  const Plan& plan_;
  bool quantised_, same_;
  std::size_t lane_bytes_;
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
      Worker worker(p, plan, call, scratch);
      worker.load(t, block);
      worker.attend(token[t], 0, scratch.all);
      for (std::int64_t c = 1; c < chunks(token[t]); ++c) {
        worker.attend(token[t], c, scratch.chunk);
        for (int h = 0; h < worker.heads(); ++h) worker.merge(scratch.all, scratch.chunk, h);
      }
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
      Worker worker(p, plan, call, scratch);
      worker.load(item[i].token, item[i].block);
      worker.attend(token[item[i].token], item[i].chunk, memory.slot(i));
    });
    call.parallel_for((plan.heads + kMerge - 1) / kMerge, double(n) * plan.heads * p.latent, [&](std::int64_t g, int) {
      const Worker worker(p, plan, call, first);
      for (std::int64_t i = 0; i < n; ++i) {
        const Item& x = item[i];
        const Partial chunk = memory.slot(i);
        const int end = int(std::min<std::int64_t>((g + 1) * kMerge, worker.heads_of(x.block)));
        for (int h = int(g) * kMerge; h < end; ++h) {
          if (x.chunk == 0) worker.copy(first.all, chunk, h);
          else worker.merge(first.all, chunk, h);
          if (x.chunk + 1 == chunks(token[x.token])) worker.finish(first.all, x.token, x.block, h);
        }
      }
    });
  }
}

}  // namespace

std::size_t workspace(const Problem& p, int threads, bool same_products) {
  const Plan plan(p, threads, same_products);
  return std::size_t(plan.lanes) * scratch_bytes(plan, p.keys.tile > 0, same_products) +
         std::size_t(plan.slots) * plan.slot_bytes;
}

void run(const Problem& p, const Token* token, Call& call, std::byte* memory) noexcept {
  const Plan plan(p, call.threads(), call.same_products());
  double positions = 0;
  for (std::int64_t t = 0; t < p.tokens; ++t) positions += double(token[t].count);
  const double work = positions * double(p.heads) * 2 * (2 * p.latent + p.rope) / kFlopsPerNanosecond;
  const Memory areas(memory, p, plan, call.same_products());
  (plan.split ? run_split : run_whole)(p, plan, areas, token, work, call);
}

}  // namespace dsakit::attention
