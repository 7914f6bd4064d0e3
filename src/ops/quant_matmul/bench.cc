// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "bench.hpp"
#include "dsakit/packed_weight.hpp"
#include "dsakit/quant_matmul.hpp"

namespace dsakit {

/// The index queries of tokens of DeepSeek-V3.2: query_norm times wq_b, bf16 out.
void bench_quant_matmul(std::vector<BenchCase>& cases) {
  const std::int64_t k = 1536, n = 64 * 128;
  for (const std::int64_t t : {1, 4, 8, 16, 32, 128, 1024})
    for (const std::string lies : {"packed", "row-major", "NZ", "transposed"}) {
      if (t == 128 && lies != "packed") continue;
      cases.push_back({.op = "quant_matmul",
                       .size = "t=" + std::to_string(t) + " " + lies,
                       .bytes = double(k * n + t * k + 2 * t * n),
                       .i8_ops = 2 * double(t) * double(k * n),
                       .prepare = [=] {
                         // Few rows read the weight from memory, as a model does: several take turns.
                         struct Weight {
                           std::vector<std::int8_t> w;
                           std::optional<PackedWeight> packed;
                         };
                         struct Data {
                           std::vector<std::int8_t> x;
                           std::vector<float> row, column;
                           std::vector<bf16> y;
                           std::vector<Weight> weights;
                           std::size_t turn = 0;
                         };
                         Random r(1);
                         auto d = std::make_shared<Data>(Data{random_i8(r, t * k), random_f32(r, t, 0.001f, 0.01f),
                                                              random_f32(r, n, 0.001f, 0.01f),
                                                              std::vector<bf16>(std::size_t(t * n)), {}});
                         for (int i = 0; i < (t <= 32 ? 24 : 1); ++i) {  // 300 MB: caches keep parts of 75
                           auto w = random_i8(r, k * n);
                           std::optional<PackedWeight> p;
                           if (lies == "packed") p.emplace(tensor(w.data(), {k, n})), w = {};
                           d->weights.push_back({std::move(w), std::move(p)});
                         }
                         return [=](Context& c) {
                           Weight& at = d->weights[d->turn++ % d->weights.size()];
                           Tensor weight = lies == "packed" ? at.packed->tensor() : tensor(at.w.data(), {k, n});
                           if (lies == "NZ") weight.format = Format::NZ;
                           if (lies == "transposed") weight.stride = {1, k};
                           quant_matmul({.x1 = tensor(d->x.data(), {t, k}),
                                         .x2 = weight,
                                         .scale = tensor(d->column.data(), {n}),
                                         .pertoken_scale = tensor(d->row.data(), {t}),
                                         .output_dtype = "bfloat16"},
                                        {.y = tensor(d->y.data(), {t, n})}, c);
                         };
                       }});
    }
}

}  // namespace dsakit
