// SPDX-License-Identifier: Apache-2.0
#include "core/environment.hpp"

#include <algorithm>
#include <cstdlib>

namespace dsakit {

long long number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (!text) return 0;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  return end == text || *end != '\0' ? 0 : std::max(value, 0ll);
}

}  // namespace dsakit
