// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <chrono>
#include <string_view>

#include "dsakit/model.hpp"

namespace dsakit {

/// Adds the time from its making to its end to one operator of `costs` (null: nobody asks).
class Timed {
 public:
  Timed(Costs* costs, std::string_view name, double bytes) : costs_(costs), name_(name), bytes_(bytes) {
    if (costs_) start_ = std::chrono::steady_clock::now();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    if (!costs_) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    auto& all = costs_->operators;
    auto at = std::find_if(all.begin(), all.end(), [&](const OperatorCost& c) { return c.name == name_; });
    if (at == all.end()) at = all.insert(all.end(), {.name = name_});
    ++at->calls;
    at->seconds += seconds;
    at->bytes += bytes_;
  }

 private:
  Costs* costs_;
  std::string_view name_;  // a literal
  double bytes_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace dsakit
