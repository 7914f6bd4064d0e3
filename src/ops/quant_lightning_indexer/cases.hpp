// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "dsakit/quant_lightning_indexer.hpp"
#include "ops/indexer/cases.hpp"

namespace dsakit::quant_lightning_indexer_cases {

using indexer::Batch;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

/// One call with all its memory.
struct Case {
  using Args = QuantLightningIndexerArgs;
  using Outs = QuantLightningIndexerOuts;
  static constexpr const char* kName = "quant_lightning_indexer";
  static void call(const Args& a, const Outs& o, Context& context = default_context()) {
    quant_lightning_indexer(a, o, context);
  }
  static void twin(const Args& a, const Outs& o) { dsakit::reference::quant_lightning_indexer(a, o); }

  Batch batch;
  std::int64_t heads = 4, dims = 16, count = 8, mode = 3;
  std::string numerics = "fp32";
  DType weight_type = DType::f16, scale_type = DType::f16;
  // In the order of the tokens; unused places hold NaN and 127.
  std::vector<std::int8_t> query, key;
  std::vector<float> weights, query_scale, key_scale;

  struct Floats {
    std::vector<float> wide;
    std::vector<f16> half;
    std::vector<bf16> brain;
    Tensor of(Tensor t, DType d) {
      t.dtype = d;
      t.data = d == DType::f32   ? static_cast<void*>(wide.data())
               : d == DType::f16 ? static_cast<void*>(half.data())
                                 : brain.data();
      return t;
    }
    void fill(std::vector<float> values) {
      wide = std::move(values);
      for (float x : wide) half.push_back(to_f16(x)), brain.push_back(to_bf16(x));
    }
  };
  std::vector<std::int8_t> query_memory, key_memory;
  Floats weight_memory, query_scale_memory, key_scale_memory;
  std::vector<std::int32_t> out;

  QuantLightningIndexerArgs args() {
    out.assign(std::size_t(batch.query_rows * count), 12345);
    query_memory = Batch::spread(query, heads * dims, batch.query_place, batch.query_rows, std::int8_t{127});
    key_memory = Batch::spread(key, dims, batch.key_place, batch.key_rows, std::int8_t{127});
    weight_memory = query_scale_memory = key_scale_memory = {};
    weight_memory.fill(Batch::spread(weights, heads, batch.query_place, batch.query_rows, kNan));
    query_scale_memory.fill(Batch::spread(query_scale, heads, batch.query_place, batch.query_rows, kNan));
    key_scale_memory.fill(Batch::spread(key_scale, 1, batch.key_place, batch.key_rows, kNan));
    return {.query = batch.query_tensor(query_memory.data(), heads, dims),
            .key = batch.key_tensor(key_memory.data(), dims),
            .weights = weight_memory.of(batch.row_tensor<float>(nullptr, heads), weight_type),
            .query_dequant_scale = query_scale_memory.of(batch.row_tensor<float>(nullptr, heads), scale_type),
            .key_dequant_scale = key_scale_memory.of(batch.scale_tensor<float>(nullptr), scale_type),
            .actual_seq_lengths_query = tensor(batch.lengths_query.data(), {batch.size()}),
            .actual_seq_lengths_key = tensor(batch.lengths_key.data(), {batch.size()}),
            .block_table = batch.table_tensor(),
            .layout_query = batch.layout_query,
            .layout_key = batch.layout_key,
            .sparse_count = count,
            .sparse_mode = mode,
            .numerics = numerics};
  }
  QuantLightningIndexerOuts outs() { return {.sparse_indices = batch.list_tensor(out.data(), count)}; }

  const std::vector<std::int32_t>& lists() const { return out; }
  std::vector<std::int32_t> reference() {
    const auto a = args();
    twin(a, outs());
    return out;
  }
  std::vector<std::int32_t> fast(Context& context) {
    const auto a = args();
    call(a, outs(), context);
    return out;
  }

  /// Those of the tokens, in their order.
  std::vector<std::int32_t> gathered(const std::vector<std::int32_t>& lists) const {
    return batch.gather(lists, count);
  }
  static void append(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }
  /// Sequence i alone.
  Case only(std::size_t i) const {
    Case c = *this;
    c.batch = batch.only(i);
    c.query = Batch::part(query, batch.queries, i), c.weights = Batch::part(weights, batch.queries, i);
    c.query_scale = Batch::part(query_scale, batch.queries, i);
    c.key = Batch::part(key, batch.keys, i), c.key_scale = Batch::part(key_scale, batch.keys, i);
    return c;
  }
};

inline void fill(Case& c, Random& r, int data) {
  const auto q = std::accumulate(c.batch.queries.begin(), c.batch.queries.end(), std::int64_t{0});
  const auto k = std::accumulate(c.batch.keys.begin(), c.batch.keys.end(), std::int64_t{0});
  auto codes = [&](std::int64_t n, int sign) {
    std::vector<std::int8_t> v(static_cast<std::size_t>(n));
    for (auto& x : v)
      x = std::int8_t(data == 0   ? r.below(256) - 128
                      : data == 1 ? r.below(5) - 2
                      : data == 2 ? sign * r.below(5)
                                  : -128);
    return v;
  };
  auto spread = [&] { return data == 3 ? std::ldexp(1.f, int(r.below(21)) - 10) : 1.f; };
  auto floats = [&](std::int64_t n, float low, float high) {
    std::vector<float> v(static_cast<std::size_t>(n));
    for (float& x : v) x = data == 1 ? 1 : r.uniform(low, high) * spread();
    return v;
  };
  c.query = codes(q * c.heads * c.dims, 1), c.key = codes(k * c.dims, -1);
  c.weights = floats(q * c.heads, -1, 1);
  c.query_scale = floats(q * c.heads, 0, 0.01f);
  c.key_scale = floats(k, 0, 0.01f);
  for (float& x : c.key_scale)
    if (r.below(10) == 0) x = 0;
}

inline Case random_case(std::uint64_t seed, std::int64_t longest = 90) {
  static const std::int64_t heads[] = {1, 3, 8, 16, 17, 32, 64, 70}, widths[] = {1, 16, 33, 64, 128};
  static const DType weights[] = {DType::f16, DType::bf16, DType::f32}, scales[] = {DType::f16, DType::f32};
  Random r(seed);
  Case c;
  c.batch = indexer::random_batch(r, longest);
  c.heads = heads[r.below(8)], c.dims = widths[r.below(5)], c.mode = r.below(2) * 3;
  const std::int64_t counts[] = {1, 7, 16, 64, longest + 5};
  c.count = counts[r.below(5)];
  c.weight_type = weights[r.below(3)], c.scale_type = scales[r.below(2)];
  fill(c, r, int(r.below(5)));
  return c;
}

/// A small paged call that is accepted as it is.
inline Case small_case() {
  Random r(9);
  Case c;
  c.batch.queries = {2, 1}, c.batch.keys = {40, 33};
  c.batch.place();
  fill(c, r, 0);
  return c;
}

}  // namespace dsakit::quant_lightning_indexer_cases
