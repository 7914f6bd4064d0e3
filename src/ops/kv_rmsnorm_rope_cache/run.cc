// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/convert.hpp"
#include "ops/kv_rmsnorm_rope_cache/problem.hpp"
#include "ops/last_wins.hpp"
#include "ops/prolog/tile.hpp"

namespace dsakit::kv_rmsnorm_rope_cache_op {
namespace {

struct Shared {  // by all threads
  std::int64_t* slots;
  float *gamma, *latent_scale, *rope_scale;
  LastWins last_wins;

  Shared(const Problem& p, Carver& memory)
      : slots(memory.take<std::int64_t>(p.tokens)),
        gamma(memory.take<float>(p.latent.width)),
        latent_scale(memory.take<float>(p.latent.width)),
        rope_scale(memory.take<float>(p.rope.width)),
        last_wins(p.tokens, memory) {}
};

struct Scratch {  // of one thread
  float *x, *y, *cos, *sin;
  std::byte* stored;

  Scratch(const Problem& p, Carver& memory)
      : x(memory.take<float>(p.width())),
        y(memory.take<float>(p.width())),
        cos(memory.take<float>(p.rope.width)),
        sin(memory.take<float>(p.rope.width)),
        stored(memory.take<std::byte>(2 * p.width())) {}
};

/// A row that is rounded once, to where it goes: `make` writes it to its place among the results, or in a cache of one run.
template <class T, class Make>
void put_rounded(const Part& part, std::int64_t token, std::int64_t slot, std::byte* stored, Make make) {
  T* const out = part.out.tensor.data ? part.out.row<T>(token) : nullptr;
  T* const in_place = slot >= 0 && part.cache.piece == 0 ? part.cache.first.row<T>(slot) : nullptr;
  T* const y = out ? out : in_place ? in_place : reinterpret_cast<T*>(stored);
  make(y);
  if (slot >= 0 && y != in_place) part.cache.store(slot, y, part.width * std::int64_t(sizeof(T)));
}

/// A row of fp32 to where it goes: its rounded form to the results, its codes to an int8 cache.
template <class T>
void put_codes(const Kernels& kernels, const Part& part, std::int64_t token, std::int64_t slot, float* row,
               const float* scale, std::byte* stored) {
  if (part.out.tensor.data) kernels.round(row, part.width, part.out.row<T>(token));
  if (slot < 0) return;
  for (std::int64_t i = 0; i < part.width; ++i) row[i] = row[i] * scale[i];
  kernels.quantize(row, part.width, 1, reinterpret_cast<std::int8_t*>(stored));
  part.cache.store(slot, stored, part.width);
}

/// Both rows of a token.
template <class T>
void put_token(const Problem& p, const Kernels& kernels, const Shared& shared, const Scratch& s, std::int64_t token,
               std::int64_t slot) {
  const T* const kv = p.kv.row<T>(token);
  const T* const latent = kv + p.latent.column;
  if (p.latent.codes()) {
    kernels.widen(latent, p.latent.width, s.x);
    kernels.rms_norm_divided(s.x, shared.gamma, p.latent.width, p.epsilon, s.y);
    put_codes<T>(kernels, p.latent, token, slot, s.y, shared.latent_scale, s.stored);
  } else {
    put_rounded<T>(p.latent, token, slot, s.stored, [&](T* y) {
      kernels.rms_norm_divided(latent, shared.gamma, p.latent.width, p.epsilon, y);
    });
  }
  const T *const rope = kv + p.rope.column, *const cos = p.cos.row<T>(token), *const sin = p.sin.row<T>(token);
  const std::int64_t n = p.rope.width;
  const auto rotate = [&]<class N>(const N* x, const N* cosine, const N* sine, N* y) {
    kernels.rotate(RotateRows<N>{.pairs = RopePairs::adjacent_to_half,
                                 .x = x,
                                 .x_stride = n,
                                 .cos = cosine,
                                 .cos_stride = n,
                                 .sin = sine,
                                 .sin_stride = n,
                                 .y = y,
                                 .y_stride = n,
                                 .rows = 1,
                                 .half = n / 2});
  };
  if (p.rope.codes()) {
    kernels.widen(rope, n, s.x), kernels.widen(cos, n, s.cos), kernels.widen(sin, n, s.sin);
    rotate(s.x, s.cos, s.sin, s.y);
    put_codes<T>(kernels, p.rope, token, slot, s.y, shared.rope_scale, s.stored);
  } else {
    put_rounded<T>(p.rope, token, slot, s.stored, [&](T* y) { rotate(rope, cos, sin, y); });
  }
}

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  return bytes_of<Shared>(p) + std::size_t(threads) * bytes_of<Scratch>(p);
}

void run(const Problem& p, Call& call) {
  for (int i = 0; i < 2; ++i)
    if (p.from[i]) prolog::copy_rows(call, p.from[i], p.to[i], p.from[i].shape[3]);
  if (p.tokens == 0) return;
  const Kernels& kernels = call.kernels();
  Carver memory(call.memory());
  const Shared shared(p, memory);
  const auto load_scale = [](const Part& part, float* scale) {
    for (std::int64_t i = 0; part.codes() && i < part.width; ++i) scale[i] = *part.scale.row<const float>(i);
  };
  widen(kernels, p.gamma, 0, p.latent.width, shared.gamma);
  load_scale(p.latent, shared.latent_scale);
  load_scale(p.rope, shared.rope_scale);
  for (std::int64_t t = 0; t < p.tokens; ++t) shared.slots[t] = p.slots.of(t);
  shared.last_wins.apply(shared.slots, p.tokens);

  constexpr std::int64_t kTokens = 16;  // of a task
  const DType dtype = p.kv.tensor.dtype;
  call.parallel_for(
      (p.tokens + kTokens - 1) / kTokens, {.elements = 2 * double(p.tokens * p.width())},
      [&](std::int64_t task, int thread) {
        Carver mine(call.memory() + memory.bytes() + std::size_t(thread) * bytes_of<Scratch>(p));
        const Scratch s(p, mine);
        for (std::int64_t t = task * kTokens, end = std::min(t + kTokens, p.tokens); t < end; ++t) {
          const std::int64_t slot = shared.slots[t];
          if (slot < 0 && !p.latent.out.tensor.data) continue;
          if (dtype == DType::bf16) put_token<bf16>(p, kernels, shared, s, t, slot);
          else put_token<f16>(p, kernels, shared, s, t, slot);
        }
      });
}

}  // namespace dsakit::kv_rmsnorm_rope_cache_op
