// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dsakit {
namespace {

/// Numbers of the e4m3 codes 0 to 127: 4 bits of exponent with bias 7, 3 of mantissa. 127 is NaN and never seen.
struct E4m3Magnitudes {
  float of[128];

  constexpr E4m3Magnitudes() : of() {
    for (int mantissa = 0; mantissa < 8; ++mantissa) {
      float step = 0x1p-9f;
      of[mantissa] = float(mantissa) * step;
      for (int exponent = 1; exponent < 16; ++exponent, step *= 2)
        of[8 * exponent + mantissa] = float(8 + mantissa) * step;
    }
  }
};
alignas(64) constexpr E4m3Magnitudes kE4m3Magnitudes;

}  // namespace
}  // namespace dsakit
