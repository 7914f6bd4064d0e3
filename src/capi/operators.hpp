// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "capi/arguments.hpp"
#include "dsakit/context.hpp"

namespace dsakit::capi {

/// An operator as it is called: what it takes, and its three entries.
struct Entry {
  Signature signature;
  void (*run)(Arguments&, Context&);
  void (*reference)(Arguments&);
  void (*infer)(Arguments&, const Signature&, std::span<dsakit_shape> results);
};

/// In the order of ops.inc.
const std::vector<Entry>& entries();

/// Throws, with the nearest name, if there is none. `call`: who asks, for the message.
const Entry& find_entry(const char* call, std::string_view name);

}  // namespace dsakit::capi
