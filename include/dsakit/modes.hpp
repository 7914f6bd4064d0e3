// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <limits>
#include <string>

namespace dsakit {

/// What a call is checked against. `portable` rejects what has no meaning or would touch memory it must not;
/// `strict` also rejects what Atlas A2/A3 would reject.
enum class Level { portable, strict };

/// The documents write "a window nobody computes" as anything but this.
inline constexpr long long kAllTokens = std::numeric_limits<long long>::max();

// Layouts, cache modes, RoPE layouts and numerics travel as the strings of the documents ("TND", "PA_BSND", "half", ...):
// an unknown one has to be named in the refusal. check() turns them into what the operator needs.

}  // namespace dsakit
