// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "dsakit/context.hpp"

namespace dsakit {

/// One line of `dsakit bench`: an operator at one size, and the work that no implementation can avoid.
struct BenchCase {
  std::string op, size;
  double bytes = 0;   // read or written once from memory
  double i8_ops = 0;  // multiplications and additions of int8 products
  double bf16_flops = 0;
  /// Makes the data and returns the call to time; the data lives as long as the call.
  std::function<std::function<void(Context&)>()> prepare;
};

/// Numbers that begin on a cache line, as those of torch and of serving engines do, and those of malloc do not.
template <class T>
class OnLine {
 public:
  template <class Fill>
  OnLine(Fill fill, Random& r, std::int64_t n) : numbers_(fill(r, n + kLine)) {}
  T* data() {
    auto* const first = numbers_.data();
    return first + (kLine - reinterpret_cast<std::uintptr_t>(first) / sizeof(T) % kLine) % kLine;
  }

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(T);
  std::vector<T> numbers_;
};

// Each src/ops/<op>/bench.cc defines  void bench_<op>(std::vector<BenchCase>&).
#define DSAKIT_OP(name, Type) void bench_##name(std::vector<BenchCase>&);
#include "ops/ops.inc"
#undef DSAKIT_OP

}  // namespace dsakit
