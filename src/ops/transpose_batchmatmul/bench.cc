// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "dsakit/packed_weight.hpp"
#include "dsakit/transpose_batchmatmul.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kHeads = 128, kLatent = 512, kValue = 128;

/// Attention output of tokens of DeepSeek-V3.2 times W_UV.
void add(std::vector<BenchCase>& cases, const char* op, std::int64_t t, bool packed, bool into) {
  cases.push_back(
      {.op = op,
       .size = "t=" + std::to_string(t) + " heads=128 " + (packed ? "packed" : "row-major"),
       .bytes = 2.0 * double(kHeads * kLatent * kValue + t * kHeads * (kLatent + kValue)),
       .bf16_flops = 2.0 * double(t) * double(kHeads * kLatent * kValue),
       .prepare = [=] {
         struct Data {
           std::vector<bf16> x, y;
           OnPages<bf16> w;
           PackedWeight packed;
         };
         Random r(1);
         auto w = random_bf16(r, kHeads * kLatent * kValue);
         PackedWeight p(tensor(w.data(), {kHeads, kLatent, kValue}));
         auto d = std::make_shared<Data>(Data{random_bf16(r, t * kHeads * kLatent),
                                              std::vector<bf16>(std::size_t(t * kHeads * kValue)), on_huge_pages(w),
                                              std::move(p)});
         return [=](Context& c) {
           const Tensor x = tensor(d->x.data(), {t, kHeads, kLatent}), y = tensor(d->y.data(), {t, kHeads, kValue});
           const Tensor weight = packed ? d->packed.tensor() : tensor(d->w.data(), {kHeads, kLatent, kValue});
           if (into) batch_matmul_transpose({.tensor_a = x, .tensor_b = weight, .tensor_c = y}, {}, c);
           else transpose_batchmatmul({.input = x, .weight = weight, .perm_x1 = {1, 0, 2}}, {.y = y}, c);
         };
       }});
}

}  // namespace

void bench_transpose_batchmatmul(std::vector<BenchCase>& cases) {
  for (const std::int64_t t : {1, 8})
    for (const bool packed : {true, false}) add(cases, "transpose_batchmatmul", t, packed, false);
  add(cases, "transpose_batchmatmul", 512, true, false);
  add(cases, "transpose_batchmatmul", 512, false, false);
}
void bench_batch_matmul_transpose(std::vector<BenchCase>& cases) {
  add(cases, "batch_matmul_transpose", 16, true, true);
}

}  // namespace dsakit
