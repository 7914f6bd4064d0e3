// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace dsakit::tools {

/// One decode step of the attention of one layer at DeepSeek-V3.2's sizes, on synthetic weights and caches filled
/// directly, with planted needles. Prints what it found; 0, or 1 if a check failed.
int full_size_step(std::int64_t context);

}  // namespace dsakit::tools
