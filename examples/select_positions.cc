// SPDX-License-Identifier: Apache-2.0
// Which of 1000 cached positions does a query token attend to? One that looks like it comes first.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <dsakit/dsakit.hpp>

int main() {
  const std::int64_t heads = 4, dim = 128, keys = 1000, keep = 8;
  std::vector<std::int8_t> query(heads * dim), key(keys * dim);
  unsigned state = 1;
  for (auto* codes : {&query, &key})
    for (std::int8_t& c : *codes) c = std::int8_t((state = state * 1664525 + 1013904223) >> 24);
  for (std::int64_t c = 0; c < dim; ++c) key[567 * dim + c] = query[c];
  const std::vector<float> weights(heads, 1.f), query_scale(heads, 1.f), key_scale(keys, 1.f);
  std::vector<std::int32_t> indices(keep);

  dsakit::quant_lightning_indexer(
      {
          .query = dsakit::tensor(query.data(), {1, 1, heads, dim}),
          .key = dsakit::tensor(key.data(), {1, keys, 1, dim}),
          .weights = dsakit::tensor(weights.data(), {1, 1, heads}),
          .query_dequant_scale = dsakit::tensor(query_scale.data(), {1, 1, heads}),
          .key_dequant_scale = dsakit::tensor(key_scale.data(), {1, keys, 1}),
          .sparse_count = keep,
      },
      {.sparse_indices = dsakit::tensor(indices.data(), {1, 1, 1, keep})});

  for (std::int32_t i : indices) std::printf("%d ", i);
  std::printf("\n");

  try {
    dsakit::quant_lightning_indexer({}, {});
  } catch (const dsakit::Error& e) {
    std::printf("%s\n", e.what());
  }
  return indices[0] != 567;
}
