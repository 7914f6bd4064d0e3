// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sched.h>

#include <algorithm>

namespace dsakit {

/// Cores that this process may run on.
inline int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return 1;
}

}  // namespace dsakit
