// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "dsakit/error.hpp"
#include "dsakit/group.hpp"

namespace dsakit::tools {

/// What a launcher such as mpirun says of itself in the environment.
struct Launch {
  std::string by;  // the variable that says so
  int processes;
  int processes_here;  // on this machine; 0 if unknown
};
std::optional<Launch> launch();

/// The ranks that mpirun or the like has started, of which this process is one; null where none has. It stays until the
/// program ends. UNSUPPORTED where a launcher has started several and this build has no MPI, or another one: they would be
/// copies that know nothing of each other. Warns of a rank that is bound to less than its share of the cores.
Group* launched_group(double timeout);

/// A line on stderr. Whatever its words were taken from, they do not control a terminal.
void say(std::string_view sentence);

/// Prints how this process failed, as a rank with where and which it is, and returns the exit status. Does not return
/// where ranks are gone: they are all ended.
int failed(const Error&);

}  // namespace dsakit::tools
