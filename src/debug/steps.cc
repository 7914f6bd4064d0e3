// SPDX-License-Identifier: Apache-2.0
#include "debug/steps.hpp"

#include <algorithm>
#include <cmath>

#include "core/nearest.hpp"
#include "debug/edit.hpp"
#include "debug/execute.hpp"
#include "debug/golden_plan.hpp"
#include "debug/rule.hpp"
#include "dsakit/error.hpp"
#include "io/json.hpp"

namespace dsakit::debug {
namespace {

constexpr float kMissing = NAN;

/// As the list of the operator has it; float32 for what it does not have.
DType type_of(std::string_view op, std::string_view step) {
  for (const Tap& tap : taps_of(op))
    if (tap.step == step) return dtype_named(tap.dtype).value_or(DType::f32);
  return DType::f32;
}

std::string key_of(std::string_view step) { return "tap." + std::string(step); }

/// What a sum in another order moves: a step of bfloat16, also of what only comes near zero.
double limit_of(double x, double largest) { return 0x1p-7 * std::abs(x) + 0x1p-10 * largest; }

StepFinding compare(std::string_view step, const Tensor& recorded, const Tensor& computed) {
  StepFinding f{.step = std::string(step)};
  if (recorded.rank != 2 || computed.rank != 2 || recorded.dtype == DType::other) return f;
  const bool codes = recorded.dtype == DType::i8;
  const std::int64_t width = std::min(recorded.shape[1], computed.shape[1]);
  const std::int64_t rows = std::min(recorded.shape[0], computed.shape[0]);
  double largest = 0, worst = 1;
  for (std::int64_t i = 0, n = computed.elements(); i < n; ++i)
    if (const double x = number_at(computed, i); std::isfinite(x)) largest = std::max(largest, std::abs(x));
  bool far = false;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < width; ++column) {
      const double a = number_at(recorded, row * recorded.shape[1] + column);
      const double g = number_at(computed, row * computed.shape[1] + column);
      if (std::isnan(g)) continue;  // not computed: hidden, or not stored
      ++f.elements;
      if (a == g) continue;
      const double share =
          std::isfinite(a) && std::isfinite(g) ? std::abs(a - g) / (codes ? 1 : limit_of(g, largest)) : 1e9;
      if (codes ? share >= 1 : share > 1) ++f.different;
      far |= codes ? share > 1 : share > 4;
      if (share > worst || (codes && share >= worst && f.row < 0))
        worst = share, f.row = row, f.column = column, f.recorded = a, f.computed = g;
    }
  f.departs = far || f.different > std::max<std::int64_t>(f.elements / 100, 1);
  return f;
}

}  // namespace

void check_steps(const char* who, const std::vector<std::string>& steps) {
  std::vector<std::string_view> known{"all"};
  for (const Operator& op : operators())
    for (const Tap& tap : taps_of(op.name)) known.push_back(tap.step);
  for (const std::string& step : steps)
    if (std::find(known.begin(), known.end(), step) == known.end())
      throw Error(Status::invalid_argument, who, "taps", "", "has \"" + io::printable(step) + "\"",
                  "steps such as 3.query_norm, or all", "nearest: " + std::string(nearest(step, known)));
}

bool Steps::wants(std::string_view step) const {
  return wanted_.empty() ||
         std::any_of(wanted_.begin(), wanted_.end(), [&](const auto& w) { return w == "all" || w == step; });
}

void Steps::row(const char* step, DType type, std::int64_t row, std::int64_t column, std::int64_t count,
                const void* data) noexcept {
  if (!wants(step)) return;
  try {
    std::lock_guard lock(lock_);
    if (ended_) return;
    Step& to = steps_[step];
    to.codes = type == DType::i8;
    if (to.rows.size() <= std::size_t(row)) to.rows.resize(std::size_t(row) + 1);
    std::vector<float>& x = to.rows[std::size_t(row)];
    if (x.size() < std::size_t(column + count)) x.resize(std::size_t(column + count), kMissing);
    for (std::int64_t i = 0; i < count; ++i)
      x[std::size_t(column + i)] = type == DType::i8     ? static_cast<const std::int8_t*>(data)[i]
                                   : type == DType::bf16 ? to_float(static_cast<const bf16*>(data)[i])
                                                         : static_cast<const float*>(data)[i];
  } catch (const std::exception&) {
    ended_ = true;
  }
}

void Steps::replace(const char* step, std::int64_t row, std::int64_t column, std::int64_t count, float* x) noexcept {
  if (!recorded_) return;
  try {
    const auto at = recorded_->tensors.find(key_of(step));
    if (at == recorded_->tensors.end()) return;
    const Tensor t = at->second.tensor();
    if (t.dtype == DType::other || t.rank != 2 || row >= t.shape[0] || column + count > t.shape[1]) return;
    std::vector<float> recorded(static_cast<std::size_t>(count));
    bool any = false;
    for (std::int64_t i = 0; i < count; ++i) {
      recorded[std::size_t(i)] = float(number_at(t, row * t.shape[1] + column + i));
      any |= !std::isnan(recorded[std::size_t(i)]);
    }
    if (any) std::copy(recorded.begin(), recorded.end(), x);
  } catch (const std::exception&) {
    // No memory: it stays as it was computed.
  }
}

ByName<Stored> Steps::tensors() const {
  ByName<Stored> all;
  for (const auto& [name, step] : steps_) {
    std::size_t width = 0;
    for (const auto& row : step.rows) width = std::max(width, row.size());
    const DType type = step.codes ? DType::i8 : type_of(op_, name);
    Stored& to = all[key_of(name)] =
        Stored(io::file_dtype_of(type), {std::int64_t(step.rows.size()), std::int64_t(width)});
    for (std::size_t r = 0; r < step.rows.size(); ++r)
      for (std::size_t i = 0; i < width; ++i) {
        const float x = i < step.rows[r].size() ? step.rows[r][i] : step.codes ? 0 : kMissing;
        set_number(to, std::int64_t(r * width + i), x);
      }
  }
  return all;
}

std::vector<StepFinding> judge_steps(const Case& c) {
  std::vector<StepFinding> all;
  if (c.names("tap").empty()) return all;
  Steps steps(c.op().name, {}, &c);
  if (execute(c, {.reference = true, .taps = &steps}).refusal) return all;
  const ByName<Stored> computed = steps.tensors();
  for (const Tap& tap : taps_of(c.op().name)) {
    const auto recorded = c.tensors.find(key_of(tap.step)), own = computed.find(key_of(tap.step));
    if (recorded != c.tensors.end() && own != computed.end())
      all.push_back(compare(tap.step, recorded->second.tensor(), own->second.tensor()));
  }
  return all;
}

std::string first_departing_step(const Case& c) {
  for (const StepFinding& f : judge_steps(c))
    if (f.departs) {
      std::string words = f.step;
      words[words.find('.')] = ' ';
      return "step " + words;
    }
  return "";
}

}  // namespace dsakit::debug
