// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <mutex>
#include <string>

#include "dsakit/context.hpp"
#include "dsakit/dsakit.h"

struct dsakit_context {
  dsakit::Context context;
  std::mutex warning{};                // guards warnings
  std::deque<std::string> warnings{};  // handed out: they stay where they are
};
