// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/kernels.hpp"

namespace dsakit {

// The limits of this machine, measured here and now: what a run compares its times with.

/// 1e9 operations per second of the best that a rung has for such products, `threads` at once.
double measure_peak(const Kernels& kernels, Dot kind, int threads);

/// The same of the best rung of this machine.
double measure_best_peak(Dot kind, int threads);

/// 1e9 bytes per second that `threads` read together from memory, each from its part of half a GiB.
double measure_read(int threads);

}  // namespace dsakit
