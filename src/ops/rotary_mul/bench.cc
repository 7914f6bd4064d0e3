// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/rotary_mul.hpp"

namespace dsakit {

void bench_rotary_mul(std::vector<BenchCase>& cases) {
  const std::int64_t t = 128, heads = 64, n = 64;
  for (const char* mode : {"half", "interleave"})
    cases.push_back({.op = "rotary_mul",
                     .size = "t=128 heads=64 " + std::string(mode),
                     .bytes = double(4 * t * heads * n + 4 * t * n),
                     .prepare = [=] {
                       struct Data {
                         std::vector<bf16> x, r1, r2, y;
                       };
                       Random r(1);
                       auto d = std::make_shared<Data>(Data{random_bf16(r, t * heads * n), random_bf16(r, t * n),
                                                            random_bf16(r, t * n),
                                                            std::vector<bf16>(std::size_t(t * heads * n))});
                       return [=](Context& c) {
                         rotary_mul({.x = tensor(d->x.data(), {t, heads, n}),
                                     .r1 = tensor(d->r1.data(), {t, 1, n}),
                                     .r2 = tensor(d->r2.data(), {t, 1, n}),
                                     .rotary_mode = mode},
                                    {.y = tensor(d->y.data(), {t, heads, n})}, c);
                       };
                     }});
}

}  // namespace dsakit
