// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "dsakit/lightning_indexer.hpp"
#include "ops/indexer/cases.hpp"

namespace dsakit::lightning_indexer_cases {

using indexer::Batch;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

/// 16-bit floats of either kind.
struct Halves {
  std::vector<bf16> brain;
  std::vector<f16> half;

  explicit Halves(const std::vector<float>& values = {}) {
    for (float x : values) brain.push_back(to_bf16(x)), half.push_back(to_f16(x));
  }
  Tensor of(Tensor t, DType d) {
    t.dtype = d;
    t.data = d == DType::bf16 ? static_cast<void*>(brain.data()) : half.data();
    return t;
  }
  float at(std::size_t i, DType d) const { return d == DType::bf16 ? to_float(brain[i]) : to_float(half[i]); }
};

struct Lists {
  std::vector<std::int32_t> indices;
  std::vector<float> values;  // as numbers: -0 equals +0

  bool operator==(const Lists& o) const {
    auto same = [](float a, float b) { return a == b || (a != a && b != b); };
    return indices == o.indices && std::equal(values.begin(), values.end(), o.values.begin(), o.values.end(), same);
  }
};

/// One call with all its memory.
struct Case {
  using Args = LightningIndexerArgs;
  using Outs = LightningIndexerOuts;
  static constexpr const char* kName = "lightning_indexer";
  static void call(const Args& a, const Outs& o, Context& context = default_context()) {
    lightning_indexer(a, o, context);
  }
  static void twin(const Args& a, const Outs& o) { dsakit::reference::lightning_indexer(a, o); }

  Batch batch;
  std::int64_t heads = 4, dims = 16, count = 8, mode = 3;
  std::string numerics = "fp32";
  DType type = DType::bf16;
  bool wide_weights = false, values = true;
  std::vector<float> query, key, weights;  // in the order of the tokens; unused places hold NaN

  Halves query_memory, key_memory, weight_memory, value_memory;
  std::vector<float> wide_memory;
  std::vector<std::int32_t> out;

  LightningIndexerArgs args() {
    out.assign(std::size_t(batch.query_rows * count), 12345);
    value_memory = Halves(std::vector<float>(out.size(), 99));
    query_memory = Halves(Batch::spread(query, heads * dims, batch.query_place, batch.query_rows, kNan));
    key_memory = Halves(Batch::spread(key, dims, batch.key_place, batch.key_rows, kNan));
    wide_memory = Batch::spread(weights, heads, batch.query_place, batch.query_rows, kNan);
    weight_memory = Halves(wide_memory);
    return {.query = query_memory.of(batch.query_tensor<float>(nullptr, heads, dims), type),
            .key = key_memory.of(batch.key_tensor<float>(nullptr, dims), type),
            .weights = wide_weights ? batch.row_tensor(wide_memory.data(), heads)
                                    : weight_memory.of(batch.row_tensor<float>(nullptr, heads), type),
            .actual_seq_lengths_query = tensor(batch.lengths_query.data(), {batch.size()}),
            .actual_seq_lengths_key = tensor(batch.lengths_key.data(), {batch.size()}),
            .block_table = batch.table_tensor(),
            .layout_query = batch.layout_query,
            .layout_key = batch.layout_key,
            .sparse_count = count,
            .sparse_mode = mode,
            .return_value = values,
            .numerics = numerics};
  }
  LightningIndexerOuts outs() {
    return {.sparse_indices = batch.list_tensor(out.data(), count),
            .sparse_values = values ? value_memory.of(batch.list_tensor<float>(nullptr, count), type) : Tensor{}};
  }
  Lists lists() const {
    Lists l{out, {}};
    for (std::size_t i = 0; i < value_memory.brain.size(); ++i) l.values.push_back(value_memory.at(i, type));
    return l;
  }
  Lists reference() {
    const auto a = args();
    twin(a, outs());
    return lists();
  }
  Lists fast(Context& context) {
    const auto a = args();
    call(a, outs(), context);
    return lists();
  }

  /// Those of the tokens, in their order.
  Lists gathered(const Lists& l) const { return {batch.gather(l.indices, count), batch.gather(l.values, count)}; }
  static void append(Lists& to, const Lists& more) {
    to.indices.insert(to.indices.end(), more.indices.begin(), more.indices.end());
    to.values.insert(to.values.end(), more.values.begin(), more.values.end());
  }
  /// Sequence i alone.
  Case only(std::size_t i) const {
    Case c = *this;
    c.batch = batch.only(i);
    c.query = Batch::part(query, batch.queries, i), c.weights = Batch::part(weights, batch.queries, i);
    c.key = Batch::part(key, batch.keys, i);
    return c;
  }
};

inline void fill(Case& c, Random& r, int data) {
  const auto q = std::accumulate(c.batch.queries.begin(), c.batch.queries.end(), std::int64_t{0});
  const auto k = std::accumulate(c.batch.keys.begin(), c.batch.keys.end(), std::int64_t{0});
  auto numbers = [&](std::int64_t n, float range) {
    std::vector<float> v(static_cast<std::size_t>(n));
    for (float& x : v) x = data == 0 ? r.uniform(-range, range) : data == 1 ? float(r.below(5) - 2) : r.normal() * 1e4f;
    return v;
  };
  c.query = numbers(q * c.heads * c.dims, 1), c.key = numbers(k * c.dims, 1), c.weights = numbers(q * c.heads, 130);
}

inline Case random_case(std::uint64_t seed) {
  static const std::int64_t heads[] = {1, 3, 8, 16, 17, 32, 64, 70}, widths[] = {1, 16, 33, 64, 128};
  static const std::int64_t counts[] = {1, 7, 16, 64, 95};
  Random r(seed);
  Case c;
  c.batch = indexer::random_batch(r, 90);
  c.heads = heads[r.below(8)], c.dims = widths[r.below(5)], c.count = counts[r.below(5)], c.mode = r.below(2) * 3;
  c.type = r.below(2) ? DType::bf16 : DType::f16, c.wide_weights = r.below(2) == 0;
  fill(c, r, int(r.below(3)));
  return c;
}

}  // namespace dsakit::lightning_indexer_cases
