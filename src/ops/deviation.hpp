// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

namespace dsakit::reference {

/// What a reference computes otherwise than its page says, to find out whether somebody else does (`dsakit explain`):
/// roundings, and a mistake that no argument can make.
struct Deviation {
  enum class Scale { documented, quotient, inverse, product };  // a / 127, 1 / (127 / a), a * (1 / 127)

  bool other_family = false;        // norms of a prolog as those of the other family round
  Scale scale = Scale::documented;  // of a group with the largest magnitude a
  bool divides = false;             // x / scale for codes of x * (127 / a); quantize: x * (1 / scale) and back
  bool away = false;                // ties away from zero; where they are by the page, to even
  bool more_steps = false;          // 128 for 127, 8 for 7
  bool keeps_mean = false;          // a layer norm is an RMS norm
  float floor = 0;                  // the least largest magnitude of a group

  float steps(float documented) const { return more_steps ? documented + 1 : documented; }
  float rounded(float x) const { return away ? std::round(x) : std::nearbyintf(x); }
  float scale_of(float a, float steps, Scale documented) const {
    switch (scale == Scale::documented ? documented : scale) {
      case Scale::inverse:
        return 1.0f / (steps / a);
      case Scale::product:
        return a * (1.0f / steps);
      default:
        return a / steps;
    }
  }
};

/// That of the references which this thread runs.
inline thread_local Deviation deviation;

/// While this lives.
class Deviating {
 public:
  explicit Deviating(const Deviation& d) : before_(deviation) { deviation = d; }
  ~Deviating() { deviation = before_; }
  Deviating(const Deviating&) = delete;
  Deviating& operator=(const Deviating&) = delete;

 private:
  Deviation before_;
};

}  // namespace dsakit::reference
