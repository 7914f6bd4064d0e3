// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace dsakit::io {

/// Bytes that this process may still take without pushing anything out: what the system calls available, or less where
/// its control group has less left. 2^63-1 where neither can be asked.
std::uint64_t available_memory();

}  // namespace dsakit::io
