// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "checkpoint/ranks.hpp"
#include "commands.hpp"

namespace dsakit::tools {

/// `dsakit plan --ranks`: what was asked for, and every grid.
struct RanksReport {
  RanksReport(const PlanOptions&, double memory);

  void print() const;
  nlohmann::ordered_json json() const;

  int ranks;
  double memory;
  MachineSpeed machine;
  Network network;
  Step step;
  ModelWork work;
  std::vector<GridPlan> grids;
};

}  // namespace dsakit::tools
