// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/quantize.hpp"

namespace dsakit {

void bench_quantize(std::vector<BenchCase>& cases) {
  for (std::int64_t t : {32, 1024}) {
    const std::int64_t n = 7168;
    cases.push_back(
        {.op = "quantize", .size = "t=" + std::to_string(t), .bytes = double(t * n * 3), .prepare = [=] {
           struct Data {
             std::vector<bf16> input;
             std::vector<float> scales;
             std::vector<std::int8_t> y;
           };
           Random r(1);
           auto d = std::make_shared<Data>(Data{random_bf16(r, t * n), random_f32(r, n, 0.01f, 0.1f),
                                                std::vector<std::int8_t>(std::size_t(t * n))});
           return [=](Context& c) {
             quantize(
                 {.input = tensor(d->input.data(), {t, n}), .scales = tensor(d->scales.data(), {n}), .dtype = "qint8"},
                 {.y = tensor(d->y.data(), {t, n})}, c);
           };
         }});
  }
}

}  // namespace dsakit
