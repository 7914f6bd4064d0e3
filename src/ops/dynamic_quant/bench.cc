// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/dynamic_quant.hpp"

namespace dsakit {

void bench_dynamic_quant(std::vector<BenchCase>& cases) {
  for (std::int64_t t : {32, 1024}) {
    const std::int64_t n = 7168;
    cases.push_back({.op = "dynamic_quant", .size = "t=" + std::to_string(t), .bytes = double(t * n * 3), .prepare = [=] {
                       struct Data {
                         std::vector<bf16> input;
                         std::vector<std::int8_t> y;
                         std::vector<float> scale;
                       };
                       Random r(1);
                       auto d = std::make_shared<Data>(Data{random_bf16(r, t * n), std::vector<std::int8_t>(t * n),
                                                            std::vector<float>(t)});
                       return [=](Context& c) {
                         dynamic_quant({.input = tensor(d->input.data(), {t, n})},
                                       {.y = tensor(d->y.data(), {t, n}), .scale = tensor(d->scale.data(), {t})}, c);
                       };
                     }});
  }
}

}  // namespace dsakit
