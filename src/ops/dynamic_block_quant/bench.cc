// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/dynamic_block_quant.hpp"

namespace dsakit {

void bench_dynamic_block_quant(std::vector<BenchCase>& cases) {
  for (std::int64_t t : {32, 4096}) {
    const std::int64_t n = 512;
    cases.push_back(
        {.op = "dynamic_block_quant",
         .size = "t=" + std::to_string(t),
         .bytes = double(t * n * 3 + t * 16),
         .prepare = [=] {
           struct Data {
             std::vector<bf16> x;
             std::vector<std::int8_t> y;
             std::vector<float> scale;
           };
           Random r(1);
           auto d = std::make_shared<Data>(Data{random_bf16(r, t * n), std::vector<std::int8_t>(std::size_t(t * n)),
                                                std::vector<float>(std::size_t(t * 4))});
           return [=](Context& c) {
             dynamic_block_quant({.x = tensor(d->x.data(), {t, n})},
                                 {.y = tensor(d->y.data(), {t, n}), .scale = tensor(d->scale.data(), {t, 4})}, c);
           };
         }});
  }
}

}  // namespace dsakit
