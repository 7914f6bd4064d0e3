// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>

#include "kernels/kernels.hpp"

// How long work takes, about. Only a parallel loop asks, to decide whether waking the other threads pays: bits depend on
// none of these numbers, so that a factor of two does not matter.
namespace dsakit {

/// What one thread does in a nanosecond.
struct Rates {
  double products, products_i8;  // multiplications with their additions; int8 ones
  double bytes = 20;    // streamed from memory: cores of servers of 2018 to 2024 read 10 to 25 GB/s alone
  double elements = 1;  // of rows that are converted, normalised, rotated or quantised in a few passes: so `dsakit
                        // bench` measured dynamic_quant and rotary_mul on such a core
};

/// Those of an instruction set on this machine: its products are timed when it is first asked for, which takes less
/// than a millisecond.
const Rates& rates_of(const Kernels&);

/// What a loop has to do, altogether.
struct Work {
  double bytes = 0, products = 0, products_i8 = 0, elements = 0;

  /// On one thread. Memory is read while products are computed.
  double nanoseconds(const Rates& r) const {
    return std::max(bytes / r.bytes, products / r.products + products_i8 / r.products_i8) + elements / r.elements;
  }
  friend Work operator+(const Work& a, const Work& b) {
    return {a.bytes + b.bytes, a.products + b.products, a.products_i8 + b.products_i8, a.elements + b.elements};
  }
  friend Work operator*(const Work& a, double n) {
    return {a.bytes * n, a.products * n, a.products_i8 * n, a.elements * n};
  }
};

/// `rows` rows times a weight of so many elements: the weight is read once.
inline Work product_work(double rows, double weight_elements, bool i8) {
  const double products = rows * weight_elements;
  return {.bytes = weight_elements * (i8 ? 1 : 2), .products = i8 ? 0 : products, .products_i8 = i8 ? products : 0};
}

}  // namespace dsakit
