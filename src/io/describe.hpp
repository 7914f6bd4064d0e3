// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace dsakit::io {

/// What a safetensors file or a checkpoint folder holds, for people: a line for each tensor (name, dtype, shape, bytes)
/// and a last line "<n> tensors" with their bytes. Everything a reader checks is checked; what is wrong is an Error.
std::string describe(const std::string& path);

}  // namespace dsakit::io
