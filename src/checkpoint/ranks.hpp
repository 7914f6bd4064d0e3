// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/plan.hpp"

namespace dsakit {

/// A step on one grid.
struct GridPlan {
  Grid grid;
  StepCost cost;
  double memory = 0;        // of a rank: weights, caches, and the experts that are held
  double missing = 0;       // bytes that a rank would need besides; 0: it fits
  double held = 1;          // share of the experts
  double disk_seconds = 0;  // reading those of the step that are not held, each rank its own part

  bool fits() const { return missing == 0; }
  double seconds() const { return cost.all_seconds() + disk_seconds; }
};

/// Each rank has its own disk, or its part of a faster one.
inline constexpr double kRankDiskSpeed = kDiskSpeeds[1];

/// Every grid of `ranks`, the fastest first; options.grid is not looked at. `memory`: of each rank, kKeptFree of it is
/// left alone.
std::vector<GridPlan> plan_grids(const ModelWork&, int ranks, ParallelOptions options, const Step&, double memory,
                                 const MachineSpeed& = {}, const Network& = {});
/// The fastest that fits.
std::optional<Grid> best_of(const std::vector<GridPlan>&);

/// The grid for those who name none: the best one by default numbers; the fastest where none fits, since what cannot be
/// loaded is refused by loading.
Grid best_grid(const std::string& path, int ranks, double memory);

}  // namespace dsakit
