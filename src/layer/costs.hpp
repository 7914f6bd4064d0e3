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
  /// Its line is made here: at the end there may be an exception on its way, and no memory.
  Timed(Costs* costs, std::string_view name, double bytes) : costs_(costs), bytes_(bytes) {
    if (!costs_) return;
    auto& all = costs_->operators;
    auto at = std::find_if(all.begin(), all.end(), [&](const OperatorCost& c) { return c.name == name; });
    if (at == all.end()) at = all.insert(all.end(), {.name = name});
    line_ = std::size_t(at - all.begin());
    start_ = std::chrono::steady_clock::now();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    if (!costs_) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    OperatorCost& line = costs_->operators[line_];
    ++line.calls;
    line.seconds += seconds;
    line.bytes += bytes_;
  }

 private:
  Costs* costs_;
  double bytes_;
  std::size_t line_ = 0;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace dsakit
