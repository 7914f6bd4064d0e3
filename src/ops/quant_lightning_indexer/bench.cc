// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/quant_lightning_indexer.hpp"

namespace dsakit {

void bench_quant_lightning_indexer(std::vector<BenchCase>& cases) {
  const std::int64_t heads = 64, dim = 128, topk = 2048;
  struct Size {
    std::int64_t keys, t;
    bool of_contexts = false;
  };
  std::vector<Size> sizes = {{8192, 1}, {8192, 32}, {131072, 1}, {131072, 4}};
  for (const std::int64_t context : kContexts) sizes.push_back({context, 1, true});
  for (const auto [keys, t, of_contexts] : sizes) {
    cases.push_back({.op = "quant_lightning_indexer",
                     .size = of_contexts ? "t=1 context=" + std::to_string(keys)
                                         : "keys=" + std::to_string(keys) + " t=" + std::to_string(t),
                     .bytes = double(keys * (dim + 2)),
                     .i8_ops = double(2 * keys * t * heads * dim),
                     .prepare = [=, keys = keys, t = t] {
                       struct Data {
                         std::vector<std::int8_t> query, key;
                         std::vector<f16> weights, query_scale, key_scale;
                         std::vector<std::int32_t> lengths_query, lengths_key, block_table, out;
                       };
                       Random r(1);
                       const std::int64_t block = 128, blocks = keys / block;
                       auto d = std::make_shared<Data>(Data{random_i8(r, t * heads * dim),
                                                            random_i8(r, keys * dim),
                                                            random_f16(r, t * heads),
                                                            random_f16(r, t * heads, 0, 1),
                                                            random_f16(r, keys, 0, 1),
                                                            {std::int32_t(t)},
                                                            {std::int32_t(keys)},
                                                            std::vector<std::int32_t>(std::size_t(blocks)),
                                                            std::vector<std::int32_t>(std::size_t(t * topk))});
                       for (std::int64_t b = 0; b < blocks; ++b)
                         d->block_table[std::size_t(b)] = std::int32_t(blocks - 1 - b);
                       return [=](Context& c) {
                         quant_lightning_indexer({.query = tensor(d->query.data(), {t, heads, dim}),
                                                  .key = tensor(d->key.data(), {blocks, block, 1, dim}),
                                                  .weights = tensor(d->weights.data(), {t, heads}),
                                                  .query_dequant_scale = tensor(d->query_scale.data(), {t, heads}),
                                                  .key_dequant_scale = tensor(d->key_scale.data(), {blocks, block, 1}),
                                                  .actual_seq_lengths_query = tensor(d->lengths_query.data(), {1}),
                                                  .actual_seq_lengths_key = tensor(d->lengths_key.data(), {1}),
                                                  .block_table = tensor(d->block_table.data(), {1, blocks}),
                                                  .layout_query = "TND",
                                                  .layout_key = "PA_BSND",
                                                  .sparse_count = topk,
                                                  .sparse_mode = 0},
                                                 {.sparse_indices = tensor(d->out.data(), {t, 1, topk})}, c);
                       };
                     },
                     .of_contexts = of_contexts});
  }
}

}  // namespace dsakit
