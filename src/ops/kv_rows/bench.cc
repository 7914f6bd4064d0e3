// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/kv_rows.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kRows = 16384;

struct Data {
  std::vector<std::int8_t> codes, rows;
  std::vector<bf16> rope;
  std::vector<float> scales;

  Tensor codes_tensor() { return tensor(codes.data(), {kRows, 512}); }
  Tensor rope_tensor() { return tensor(rope.data(), {kRows, 64}); }
  Tensor scales_tensor() { return tensor(scales.data(), {kRows, 4}); }
  Tensor rows_tensor() { return tensor(rows.data(), {kRows, kv_row_bytes()}); }
};

std::shared_ptr<Data> data() {
  Random r(1);
  return std::make_shared<Data>(Data{random_i8(r, kRows * 512), random_i8(r, kRows * kv_row_bytes()),
                                     random_bf16(r, kRows * 64), random_f32(r, kRows * 4)});
}

}  // namespace

void bench_pack_kv_rows(std::vector<BenchCase>& cases) {
  cases.push_back({.op = "pack_kv_rows", .size = "rows=16384", .bytes = double(2 * kRows * 656), .prepare = [] {
                     return [d = data()](Context& c) {
                       pack_kv_rows(
                           {.codes = d->codes_tensor(), .rope = d->rope_tensor(), .scales = d->scales_tensor()},
                           {.rows = d->rows_tensor()}, c);
                     };
                   }});
}

void bench_unpack_kv_rows(std::vector<BenchCase>& cases) {
  cases.push_back({.op = "unpack_kv_rows", .size = "rows=16384", .bytes = double(2 * kRows * 656), .prepare = [] {
                     return [d = data()](Context& c) {
                       unpack_kv_rows(
                           {.rows = d->rows_tensor()},
                           {.codes = d->codes_tensor(), .rope = d->rope_tensor(), .scales = d->scales_tensor()}, c);
                     };
                   }});
}

}  // namespace dsakit
