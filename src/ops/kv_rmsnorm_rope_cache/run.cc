// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "ops/convert.hpp"
#include "ops/kv_rmsnorm_rope_cache/problem.hpp"
#include "ops/last_wins.hpp"
#include "ops/norm.hpp"
#include "ops/prolog/tile.hpp"
#include "ops/rope.hpp"

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

/// A row of fp32 to where it goes: as it is, rounded once, and in the cache, there as codes if it is int8.
void put(const Kernels& kernels, const Part& part, DType dtype, std::int64_t token, std::int64_t slot, float* row,
         const float* scale, std::byte* stored) {
  const std::int64_t n = part.width, bytes = n * size_of(dtype);
  const bool out = part.out.tensor.data, rounded = slot >= 0 && !part.codes();
  if (out || rounded) narrow(kernels, row, n, {.data = stored, .dtype = dtype}, 0);
  if (out) std::memcpy(part.out.row<bf16>(token), stored, std::size_t(bytes));
  if (rounded) part.cache.store(slot, stored, bytes);
  if (slot < 0 || rounded) return;
  for (std::int64_t i = 0; i < n; ++i) row[i] = row[i] * scale[i];
  kernels.quantize(row, n, 1, reinterpret_cast<std::int8_t*>(stored));
  part.cache.store(slot, stored, n);
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
          widen(kernels, p.kv.tensor, p.kv.offset(t), p.width(), s.x);
          rms_norm(kernels, NormOrder::torch_npu, s.x + p.latent.column, p.latent.width, shared.gamma, p.epsilon, s.y);
          put(kernels, p.latent, dtype, t, slot, s.y, shared.latent_scale, s.stored);
          widen(kernels, p.cos.tensor, p.cos.offset(t), p.rope.width, s.cos);
          widen(kernels, p.sin.tensor, p.sin.offset(t), p.rope.width, s.sin);
          rotate(RopeLayout::interleaved_to_half, s.x + p.rope.column, s.cos, s.sin, p.rope.width / 2, s.y);
          put(kernels, p.rope, dtype, t, slot, s.y, shared.rope_scale, s.stored);
        }
      });
}

}  // namespace dsakit::kv_rmsnorm_rope_cache_op
