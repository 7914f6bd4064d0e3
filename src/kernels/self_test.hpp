// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/kernels.hpp"

namespace dsakit {

/// Whether `rung` gives the bits of `judge` for products, index scores and GEMV of codes and of small integers as bf16,
/// whose sums are exact in any order: whole tiles and parts of them. Half a millisecond.
bool passes_self_test(const Kernels& rung, const Kernels& judge);

}  // namespace dsakit
