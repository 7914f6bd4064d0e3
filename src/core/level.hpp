// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

#include "core/text.hpp"
#include "dsakit/error.hpp"
#include "dsakit/modes.hpp"

namespace dsakit {

/// The level of this name. Any other is refused by `op`, as what its parameter `name` has.
inline Level level_of(std::string_view level, std::string op, std::string name) {
  if (level == "portable") return Level::portable;
  if (level == "strict") return Level::strict;
  throw Error(Status::invalid_argument, std::move(op), std::move(name), "", "is \"" + printable(level) + "\"",
              "\"portable\" or \"strict\"");
}

}  // namespace dsakit
