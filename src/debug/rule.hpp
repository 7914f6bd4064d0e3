// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "debug/compare.hpp"

// How a result is judged beside a golden one: the presets of `dsakit check --rule NAME`. docs/debugging.md
namespace dsakit::debug {

/// Of one tensor, a, beside a golden one, g: differences in float64 whatever the dtype. What nobody wrote is left out.
struct Figures {
  std::int64_t elements = 0, equal = 0;
  std::int64_t nonfinite = 0;  // NaN or infinite on one side only, or with another sign
  double max_abs = 0, mean_abs = 0;
  double mere = 0, mare = 0;  // mean and largest relative error, over |g| + 1e-7
  double rms = 0, cosine = 1;
  std::int64_t worst = -1;  // the largest difference among all
  double worst_a = 0, worst_g = 0;
  std::int64_t departing = 0;  // by a rule that looks at elements
  std::int64_t worst_departing = -1;
  double departing_a = 0, departing_g = 0;
};

struct Finding {
  std::string key, parameter;
  bool passes = false;
  std::string sentence;  // what the rule measured, and its limit
  Figures figures;
  Tensor shape;  // to name a position
};

struct RuleInfo {
  std::string_view name, passes;  // what passes
  bool third = false;   // needs a third result beside ours and a golden one
  bool scores = false;  // of selections: needs those of all keys
};
const std::vector<RuleInfo>& rules();

/// a is `recorded` of the pair, g `computed`. `third`: a third result of the same tensor, for rules that need one;
/// `scores`: index_scores. Throws INVALID_ARGUMENT for a rule that there is not, or that lacks its third result.
Finding judge(std::string_view rule, const Operator&, const Pair&, const Pair* third = nullptr,
              const std::vector<std::vector<double>>* scores = nullptr);
/// Whether the rule of this name does.
bool needs_scores(std::string_view rule);

/// An element as float64, whatever its type; offset in elements.
double number_at(const Tensor&, std::int64_t offset);

}  // namespace dsakit::debug
