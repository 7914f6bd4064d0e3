// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/interleave_rope.hpp"

namespace dsakit {

void bench_interleave_rope(std::vector<BenchCase>& cases) {
  for (const std::int64_t t : {128, 1024}) {
    const std::int64_t heads = 128, n = 64;
    cases.push_back({.op = "interleave_rope",
                     .size = "t=" + std::to_string(t) + " heads=128",
                     .bytes = double(4 * t * heads * n + 4 * t * n),
                     .prepare = [=] {
                       struct Data {
                         std::vector<bf16> x, cos, sin, y;
                       };
                       Random r(1);
                       auto d = std::make_shared<Data>(Data{random_bf16(r, t * heads * n), random_bf16(r, t * n),
                                                            random_bf16(r, t * n),
                                                            std::vector<bf16>(std::size_t(t * heads * n))});
                       return [=](Context& c) {
                         interleave_rope({.x = tensor(d->x.data(), {t, heads, 1, n}),
                                          .cos = tensor(d->cos.data(), {t, 1, 1, n}),
                                          .sin = tensor(d->sin.data(), {t, 1, 1, n})},
                                         {.y = tensor(d->y.data(), {t, heads, 1, n})}, c);
                       };
                     }});
  }
}

}  // namespace dsakit
