// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "debug/case.hpp"
#include "ops/taps.hpp"
#include "run/taps.hpp"

// The steps inside of a call as tensors "tap.3.query_norm" of a case.
namespace dsakit::debug {

/// "all", or steps that some operator has; INVALID_ARGUMENT of `who` for any other.
void check_steps(const char* who, const std::vector<std::string>& steps);

/// Keeps the steps of one call. No call fails by it: where memory ends, so do the steps.
class Steps : public Taps {
 public:
  /// `wanted`: none is all. `recorded`: a case whose steps come in place of those that a reference computes.
  explicit Steps(std::string_view op, std::vector<std::string> wanted = {}, const Case* recorded = nullptr)
      : op_(op), wanted_(std::move(wanted)), recorded_(recorded) {}

  void row(const char* step, DType, std::int64_t row, std::int64_t column, std::int64_t count,
           const void* data) noexcept override;
  void replace(const char* step, std::int64_t row, std::int64_t column, std::int64_t count, float* x) noexcept override;

  /// By "tap.<step>". Rows and columns that nobody computed are NaN, of codes 0.
  ByName<Stored> tensors() const;

 private:
  struct Step {
    bool codes = false;
    std::vector<std::vector<float>> rows;
  };
  bool wants(std::string_view step) const;

  std::string op_;
  std::vector<std::string> wanted_;
  const Case* recorded_;
  std::mutex lock_;
  ByName<Step> steps_;
  bool ended_ = false;
};

/// A recorded step beside what the reference makes of the recorded steps in front of it.
struct StepFinding {
  std::string step;
  bool departs = false;
  std::int64_t elements = 0, different = 0;  // different: beyond what another order of sums explains
  std::int64_t row = -1, column = -1;        // of the worst
  double recorded = 0, computed = 0;
};
/// Of all steps that a case has, in their order; none if the reference refuses the call.
std::vector<StepFinding> judge_steps(const Case&);
/// "step 3 query_norm" of the first that departs, or "".
std::string first_departing_step(const Case&);

}  // namespace dsakit::debug
