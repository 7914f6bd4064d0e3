// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace dsakit::tools {

/// The subcommands that Python computes. They are described here for help, completion and the manual; the command of the
/// Python package takes them before this program sees them (python/command.py).
class PythonCommands {
 public:
  explicit PythonCommands(CLI::App&);
  /// Throws what to install if one of them was asked for.
  void refuse() const;

 private:
  CLI::App *plot_, *report_, *import_, *export_;
  std::vector<std::string> unread_{};  // what Python reads
};

}  // namespace dsakit::tools
