// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/kernels.hpp"

namespace dsakit {

// The limits of this machine, measured here and now: what a run compares its times with.

/// 1e9 operations per second of a rung's dot instruction, `threads` at once; 0 where it has none.
double measure_peak(const Kernels& kernels, Dot kind, int threads);

/// 1e9 bytes per second that `threads` read together from memory, each from its part of half a GiB.
double measure_read(int threads);

}  // namespace dsakit
