// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/add_rms_norm.hpp"

namespace dsakit {
namespace {

void bench(const char* op, bool bias, std::vector<BenchCase>& cases) {
  for (std::int64_t t : {32, 1024}) {
    const std::int64_t n = 7168;
    cases.push_back({.op = op, .size = "t=" + std::to_string(t), .bytes = double(8 * t * n), .prepare = [=] {
                       struct Data {
                         std::vector<bf16> x1, x2, gamma, beta, y, x;
                         std::vector<float> rstd;
                       };
                       Random r(1);
                       auto d = std::make_shared<Data>(
                           Data{random_bf16(r, t * n), random_bf16(r, t * n), random_bf16(r, n), random_bf16(r, n),
                                std::vector<bf16>(t * n), std::vector<bf16>(t * n), std::vector<float>(t)});
                       return [=](Context& c) {
                         const Tensor x1 = tensor(d->x1.data(), {t, n}), x2 = tensor(d->x2.data(), {t, n}),
                                      gamma = tensor(d->gamma.data(), {n});
                         const AddRmsNormOuts outs{.y = tensor(d->y.data(), {t, n}),
                                                   .rstd = tensor(d->rstd.data(), {t, 1}),
                                                   .x = tensor(d->x.data(), {t, n})};
                         if (bias) add_rms_norm_bias({x1, x2, gamma, tensor(d->beta.data(), {n})}, outs, c);
                         else add_rms_norm({x1, x2, gamma}, outs, c);
                       };
                     }});
  }
}

}  // namespace

void bench_add_rms_norm(std::vector<BenchCase>& cases) { bench("add_rms_norm", false, cases); }
void bench_add_rms_norm_bias(std::vector<BenchCase>& cases) { bench("add_rms_norm_bias", true, cases); }

}  // namespace dsakit
