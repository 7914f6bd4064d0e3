// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace dsakit {

/// Memory, and the cores that are near to it.
struct NumaNode {
  int number;
  std::string cores;  // "0-15,32-47", as the system lists them
};

/// Those of this machine that have cores; none where the system does not say. `root`: where sysfs lies, for tests.
std::vector<NumaNode> numa_nodes(const std::string& root = "/sys");

/// Cores that all processes here may use together: the machine's, or those of the control group; 0 if unknown.
int cores_here(const std::string& root = "/sys");

/// How many a list such as "0-15,32-47" has; 0 if it is none.
int count_of_cores(const std::string& list);

/// The command that puts one rank on each node.
std::string rank_per_node(int nodes);

/// What to say where one of `ranks` ranks of this machine may use only `usable` cores of `cores`; "": nothing.
std::string binding_warning(int usable, int cores, int ranks);

/// The share of a large array that lies on huge pages where they are asked for; none if the system does not say.
std::optional<double> huge_page_share();

}  // namespace dsakit
