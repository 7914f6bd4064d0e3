// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"

#include "capi/as_c.hpp"
#include "dsakit/error.hpp"
#include "dsakit/quantize.hpp"

namespace dsakit {
namespace {

constexpr int kCalls = 1000;  // of each kind in one time: a clock costs as much as one of them

/// The same call, so small that it is hardly more than its door, from C++ and by name from C.
struct Data {
  std::vector<float> x = std::vector<float>(16, 1), scale = std::vector<float>(1, 1);
  std::vector<std::int8_t> codes = std::vector<std::int8_t>(16);
  QuantizeArgs args{.input = tensor(x.data(), {1, 16}), .scales = tensor(scale.data(), {1}), .dtype = "qint8"};
  QuantizeOuts outs{.y = tensor(codes.data(), {1, 16})};
  capi::AsC c{args, outs};
};

}  // namespace

void bench_c_call(std::vector<BenchCase>& cases) {
  cases.push_back({.op = "c_call", .size = "1000 times C++", .prepare = [] {
                     return [d = std::make_shared<Data>()](Context& c) {
                       for (int i = 0; i < kCalls; ++i) quantize(d->args, d->outs, c);
                     };
                   }});
  cases.push_back({.op = "c_call", .size = "1000 times C", .prepare = [] {
                     return [d = std::make_shared<Data>()](Context&) {
                       for (int i = 0; i < kCalls; ++i)
                         if (d->c.run("quantize") != DSAKIT_OK)
                           throw Error(Status::internal, "bench", "c_call", "", dsakit_last_error()->message,
                                       "a result");
                     };
                   }});
}

}  // namespace dsakit
