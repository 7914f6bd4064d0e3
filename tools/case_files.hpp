// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace dsakit::tools {

/// The case files among these paths: files as they are, of folders what is no weight beside a case, by name. A folder
/// without one is INVALID_PATH.
std::vector<std::string> case_files(const std::vector<std::string>& paths);

}  // namespace dsakit::tools
