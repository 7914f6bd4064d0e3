// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/ranks.hpp"

#include <algorithm>

namespace dsakit {
namespace {

GridPlan plan_grid(const ModelWork& work, const ParallelOptions& options, const Step& step, double memory,
                   const MachineSpeed& machine, const Network& network) {
  GridPlan plan{.grid = options.grid, .cost = cost_of(work, options, step, machine, network)};
  const StepCost& cost = plan.cost;
  const double left = memory - kKeptFree - cost.weight_bytes - cost.cache_bytes;
  const double least =
      work.experts > 0 ? double(work.experts_of_row + 1) / double(work.experts) * cost.routed_bytes : 0;
  plan.missing = std::max(0.0, least - left);
  if (cost.routed_bytes > 0) plan.held = std::clamp(left / cost.routed_bytes, 0.0, 1.0);
  plan.memory = cost.weight_bytes + cost.cache_bytes + plan.held * cost.routed_bytes;
  plan.disk_seconds = (1 - plan.held) * cost.routed_read / kRankDiskSpeed;
  return plan;
}

}  // namespace

std::vector<GridPlan> plan_grids(const ModelWork& work, int ranks, ParallelOptions options, const Step& step,
                                 double memory, const MachineSpeed& machine, const Network& network) {
  std::vector<GridPlan> plans;
  for (const Grid& grid : grids_of(ranks)) {
    options.grid = grid;
    plans.push_back(plan_grid(work, options, step, memory, machine, network));
  }
  std::stable_sort(plans.begin(), plans.end(), [](auto& a, auto& b) { return a.seconds() < b.seconds(); });
  return plans;
}

std::optional<Grid> best_of(const std::vector<GridPlan>& plans) {
  const auto best = std::find_if(plans.begin(), plans.end(), [](const GridPlan& plan) { return plan.fits(); });
  return best == plans.end() ? std::nullopt : std::optional(best->grid);
}

Grid best_grid(const std::string& path, int ranks, double memory) {
  const Step step;
  const auto plans = plan_grids(work_of(path), ranks, {}, step, memory);
  return best_of(plans).value_or(plans.front().grid);
}

}  // namespace dsakit
