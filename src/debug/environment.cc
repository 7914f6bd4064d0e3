// SPDX-License-Identifier: Apache-2.0
#include "debug/environment.hpp"

#include <cstdlib>
#include <string>

#include "debug/verbose.hpp"
#include "dsakit/error.hpp"

namespace dsakit::debug {

void watch_as_environment_says() {
  capture_as_environment_says();
  const char* target = std::getenv("DSAKIT_VERBOSE");
  if (!target || !*target || std::string(target) == "0") return;
  try {
    add_watcher(verbose_watcher(target));
  } catch (const Error& e) {
    default_context().warn(std::string(e.what()) + " [DSAKIT_VERBOSE]");
  }
}

}  // namespace dsakit::debug
