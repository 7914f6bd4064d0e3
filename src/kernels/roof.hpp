// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/kernels.hpp"

namespace dsakit {

// The limits of this machine, measured here and now: what a run compares its times with.

/// 1e9 operations per second of a rung's dot instruction, `threads` at once; 0 where it has none.
double measure_peak(const Kernels& kernels, Dot kind, int threads);

/// The same of the best instruction that any rung of this machine has for such products: where none has one for int8
/// or bf16, that for fp32, and where none for that either, what the fp32 product of the first rung reaches.
double measure_best_peak(Dot kind, int threads);

/// 1e9 bytes per second that `threads` read together from memory, each from its part of half a GiB.
double measure_read(int threads);

}  // namespace dsakit
