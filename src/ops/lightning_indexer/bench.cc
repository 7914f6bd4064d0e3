// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/lightning_indexer.hpp"

namespace dsakit {

void bench_lightning_indexer(std::vector<BenchCase>& cases) {
  const std::int64_t heads = 64, dim = 128, topk = 2048, keys = 8192, t = 1;
  for (const char* numerics : {"fp32", "fast"})
    cases.push_back({.op = "lightning_indexer",
                     .size = "keys=8192 t=1 " + std::string(numerics),
                     .bytes = double(keys * dim * 2),
                     .bf16_flops = double(2 * keys * t * heads * dim),
                     .prepare = [=] {
                       struct Data {
                         std::vector<bf16> query, key;
                         std::vector<float> weights;
                         std::vector<std::int32_t> out;
                       };
                       Random r(1);
                       auto d = std::make_shared<Data>(Data{random_bf16(r, t * heads * dim), random_bf16(r, keys * dim),
                                                            random_f32(r, t * heads),
                                                            std::vector<std::int32_t>(std::size_t(t * topk))});
                       return [=](Context& c) {
                         lightning_indexer({.query = tensor(d->query.data(), {1, t, heads, dim}),
                                            .key = tensor(d->key.data(), {1, keys, 1, dim}),
                                            .weights = tensor(d->weights.data(), {1, t, heads}),
                                            .sparse_count = topk,
                                            .sparse_mode = 0,
                                            .numerics = numerics},
                                           {.sparse_indices = tensor(d->out.data(), {1, t, 1, topk}),
                                            .sparse_values = shaped(DType::bf16, {0})},
                                           c);
                       };
                     }});
}

}  // namespace dsakit
