// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsakit {

/// The instructions for products among `cpuinfo` (the text of /proc/cpuinfo) that no rung uses yet, as it spells them:
/// "amx_fp16, avx10", or nothing. A rung that comes to use one takes it off the list.
std::string unused_instructions(std::string_view cpuinfo);

/// The same of this machine.
std::string unused_instructions();

/// The rungs that do not run here, and what this machine lacks.
std::vector<std::pair<std::string, std::string>> rungs_elsewhere();

}  // namespace dsakit
