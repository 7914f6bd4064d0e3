// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/attention_update.hpp"

namespace dsakit {

void bench_attention_update(std::vector<BenchCase>& cases) {
  for (std::int64_t t : {1, 32}) {
    const std::int64_t shards = 4, rows = 128 * t, d = 512;
    cases.push_back({.op = "attention_update",
                     .size = "shards=4 heads=128 t=" + std::to_string(t),
                     .bytes = double(rows * (shards * (2 * d + 4) + 2 * d + 4)),
                     .prepare = [=] {
                       struct Data {
                         std::vector<std::vector<bf16>> values;
                         std::vector<std::vector<float>> lse;
                         std::vector<bf16> out;
                         std::vector<float> lse_out;
                       };
                       auto data = std::make_shared<Data>();
                       Random r(1);
                       for (std::int64_t i = 0; i < shards; ++i) {
                         data->values.push_back(random_bf16(r, rows * d));
                         data->lse.push_back(random_f32(r, rows));
                       }
                       data->out.resize(std::size_t(rows * d)), data->lse_out.resize(std::size_t(rows));
                       return [=](Context& c) {
                         Tensor lse[shards], values[shards];
                         for (std::size_t i = 0; i < shards; ++i) {
                           lse[i] = tensor(data->lse[i].data(), {rows});
                           values[i] = tensor(data->values[i].data(), {rows, d});
                         }
                         attention_update({lse, values, 1},
                                          {.out = tensor(data->out.data(), {rows, d}),
                                           .lse_out = tensor(data->lse_out.data(), {rows})},
                                          c);
                       };
                     }});
  }
}

}  // namespace dsakit
