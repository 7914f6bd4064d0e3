// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "ops/attention_update/problem.hpp"
#include "ops/convert.hpp"

namespace dsakit::attention_update_op {
namespace {

struct Shared {  // by all threads
  Rows *lse, *rows;

  Shared(const Problem& p, Carver& memory) : lse(memory.take<Rows>(p.shards())), rows(memory.take<Rows>(p.shards())) {}
};

struct Scratch {  // of one thread
  float* weight;
  const void** row;

  Scratch(const Problem& p, Carver& memory)
      : weight(memory.take<float>(p.shards())), row(memory.take<const void*>(p.shards())) {}
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

/// Row r of all shards that are to be read, weighted.
template <class T>
void merge(const Problem& p, const Kernels& kernels, const Shared& shared, std::int64_t r, const Scratch& s) {
  int count = 0;
  const T** const row = reinterpret_cast<const T**>(s.row);
  for (std::int64_t i = 0; i < p.shards(); ++i) {
    if (std::isinf(*shared.lse[i].row<const float>(r))) continue;
    s.weight[count] = s.weight[i];
    row[count++] = shared.rows[i].row<const T>(r);
  }
  kernels.weighted_sum(row, s.weight, count, p.width, p.out.row<T>(r));
}

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  return bytes_of<Shared>(p) + std::size_t(threads) * bytes_of<Scratch>(p);
}

void run(const Problem& p, Call& call) {
  Carver memory(call.memory());
  const Shared shared(p, memory);
  for (std::int64_t i = 0; i < p.shards(); ++i)
    new (shared.lse + i) Rows(p.lse_of(i)), new (shared.rows + i) Rows(p.rows_of(i));
  const std::int64_t rows = std::max<std::int64_t>(16384 / std::max<std::int64_t>(p.width * p.shards(), 1), 1);  // per task
  const double each = double(p.rows) * double(p.shards());
  with_float(p.out.tensor.dtype, [&]<class T>() {
    const Work work{.bytes = each * double(p.width) * sizeof(T), .elements = 32 * each};  // two exp for each lse
    call.parallel_for((p.rows + rows - 1) / rows, work, [&](std::int64_t task, int thread) {
      Carver mine(call.memory() + memory.bytes() + std::size_t(thread) * bytes_of<Scratch>(p));
      const Scratch scratch(p, mine);
      for (std::int64_t r = task * rows, end = std::min(r + rows, p.rows); r < end; ++r) {
        const float lse = weights_of(p, shared, r, scratch.weight);
        merge<T>(p, call.kernels(), shared, r, scratch);
        if (p.lse_out.tensor.data) *p.lse_out.row<float>(r) = lse;
      }
    });
  });
}

}  // namespace dsakit::attention_update_op
