// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/swiglu.hpp"

namespace dsakit {

void bench_swiglu(std::vector<BenchCase>& cases) {
  for (std::int64_t t : {32, 1024}) {
    const std::int64_t n = 4096;
    cases.push_back(
        {.op = "swiglu", .size = "t=" + std::to_string(t), .bytes = double(3 * t * n), .prepare = [=] {
           struct Data {
             std::vector<bf16> x, y;
           };
           Random r(1);
           auto d = std::make_shared<Data>(Data{random_bf16(r, t * n, -8, 8), std::vector<bf16>(t * n / 2)});
           return [=](Context& c) {
             swiglu({.self = tensor(d->x.data(), {t, n})}, {.y = tensor(d->y.data(), {t, n / 2})}, c);
           };
         }});
  }
}

}  // namespace dsakit
