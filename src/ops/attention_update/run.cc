// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "ops/attention_update/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit::attention_update_op {
namespace {

struct Shared {  // by all threads
  Rows *lse, *rows;

  Shared(const Problem& p, Carver& memory) : lse(memory.take<Rows>(p.shards())), rows(memory.take<Rows>(p.shards())) {}
};

/// lse of the row over all shards; the weight of each shard, 0 where it is not to be read.
float weights_of(const Problem& p, const Shared& shared, std::int64_t r, float* weight) {
  const std::int64_t shards = p.shards();
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int64_t i = 0; i < shards; ++i) {
    weight[i] = *shared.lse[i].row<const float>(r);
    if (!std::isinf(weight[i]) && !(weight[i] <= most)) most = weight[i];
  }
  for (std::int64_t i = 0; i < shards; ++i)
    if (!std::isinf(weight[i])) sum += std::exp(weight[i] - most);
  const double lse = most + std::log(sum);  // without a shard: -inf + -inf
  for (std::int64_t i = 0; i < shards; ++i) weight[i] = std::isinf(weight[i]) ? 0 : float(std::exp(weight[i] - lse));
  return float(lse);
}

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  Carver memory;
  Shared(p, memory);
  for (int i = 0; i < threads; ++i) memory.take<float>(p.shards());
  return memory.bytes();
}

void run(const Problem& p, Call& call) {
  constexpr std::int64_t kPiece = 2048;
  const Kernels& kernels = call.kernels();
  Carver memory(call.memory());
  const Shared shared(p, memory);
  for (std::int64_t i = 0; i < p.shards(); ++i)
    new (shared.lse + i) Rows(p.lse_of(i)), new (shared.rows + i) Rows(p.rows_of(i));
  float* const weights = memory.take<float>(0);
  const std::int64_t pitch = (p.shards() + 15) / 16 * 16;

  const auto merge = [&](std::int64_t r, const float* weight) {
    float x[kPiece], sum[kPiece];
    for (std::int64_t c = 0; c < p.width; c += kPiece) {
      const std::int64_t n = std::min(kPiece, p.width - c);
      bool first = true;
      for (std::int64_t i = 0; i < p.shards(); ++i) {
        if (std::isinf(*shared.lse[i].row<const float>(r))) continue;
        widen(kernels, shared.rows[i].tensor, shared.rows[i].offset(r) + c, n, x);
        kernels.blend(x, 1, weight[i], int(n), first ? 0.0f : 1.0f, sum);
        first = false;
      }
      if (first) std::fill_n(sum, n, 0.0f);
      narrow(kernels, sum, n, p.out.tensor, p.out.offset(r) + c);
    }
  };
  const std::int64_t rows = std::max<std::int64_t>(16384 / (p.width * p.shards()), 1);  // per task
  const double elements = double(p.rows) * double(p.shards()) * double(p.width + 32);   // two exp for each lse
  call.parallel_for((p.rows + rows - 1) / rows, {.elements = elements}, [&](std::int64_t task, int thread) {
    float* const weight = weights + thread * pitch;
    for (std::int64_t r = task * rows, end = std::min(r + rows, p.rows); r < end; ++r) {
      const float lse = weights_of(p, shared, r, weight);
      merge(r, weight);
      if (p.lse_out.tensor.data) *p.lse_out.row<float>(r) = lse;
    }
  });
}

}  // namespace dsakit::attention_update_op
