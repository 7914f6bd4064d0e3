// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <span>
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
  bool of_contexts = false;  // of `dsakit bench contexts` alone
};

/// The lengths of `dsakit bench contexts`.
inline constexpr std::int64_t kContexts[] = {1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};

/// A kernel of one rung at one size.
struct KernelTime {
  std::string kernel, isa, size;
  double seconds;     // of one call
  double per_second;  // operations of products (two for each multiplication), else elements
};

/// Times every kernel of every rung of this machine; with `wanted`, those whose "kernel isa" contains all of it.
void bench_kernels(const std::vector<std::string>& wanted, const std::function<void(const KernelTime&)>& each);

/// What memory is made of: huge pages, where the system has them for who asks (packed weights, large arrays of numpy, the
/// memory whose speed is the limit), or small ones (tensors of torch, files).
enum class PageSize { huge, small };

/// Many numbers on such pages.
template <class T>
class OnPages {
 public:
  OnPages(std::span<const T> numbers, PageSize pages) {
    const std::size_t bytes = (numbers.size_bytes() / kPage + 1) * kPage;
    memory_.reset(static_cast<T*>(std::aligned_alloc(kPage, bytes)));
    if (!memory_) throw std::bad_alloc();
    madvise(memory_.get(), bytes, pages == PageSize::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::copy(numbers.begin(), numbers.end(), memory_.get());
  }
  T* data() { return memory_.get(); }

 private:
  static constexpr std::size_t kPage = std::size_t{2} << 20;
  std::unique_ptr<T[], decltype(&std::free)> memory_{nullptr, std::free};
};

template <class T>
OnPages<T> on_huge_pages(const std::vector<T>& numbers) {
  return {numbers, PageSize::huge};
}

// Each src/ops/<op>/bench.cc defines  void bench_<op>(std::vector<BenchCase>&).
#define DSAKIT_OP(name, Type) void bench_##name(std::vector<BenchCase>&);
#include "ops/ops.inc"
#undef DSAKIT_OP
/// Weights of one byte, experts: src/layer/bench.cc.
void bench_layer(std::vector<BenchCase>&);
/// What a call by name costs: src/capi/bench.cc.
void bench_c_call(std::vector<BenchCase>&);

}  // namespace dsakit
