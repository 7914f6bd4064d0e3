// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/rms_norm.hpp"

namespace dsakit {

void bench_rms_norm(std::vector<BenchCase>& cases) {
  for (std::int64_t t : {32, 1024}) {
    const std::int64_t n = 7168;
    cases.push_back({.op = "rms_norm", .size = "t=" + std::to_string(t), .bytes = double(4 * t * n), .prepare = [=] {
                       struct Data {
                         std::vector<bf16> x, gamma, y;
                         std::vector<float> rstd;
                       };
                       Random r(1);
                       auto d = std::make_shared<Data>(Data{random_bf16(r, t * n), random_bf16(r, n),
                                                            std::vector<bf16>(t * n), std::vector<float>(t)});
                       return [=](Context& c) {
                         rms_norm({.self = tensor(d->x.data(), {t, n}), .gamma = tensor(d->gamma.data(), {n})},
                                  {.y = tensor(d->y.data(), {t, n}), .rstd = tensor(d->rstd.data(), {t, 1})}, c);
                       };
                     }});
  }
}

}  // namespace dsakit
