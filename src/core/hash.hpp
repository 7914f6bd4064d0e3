// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dsakit {

/// A number by which bytes are told apart; not against people who mean harm. `seed`: what came before.
std::uint64_t hash_of(const void* bytes, std::size_t count, std::uint64_t seed = 0);
inline std::uint64_t hash_of(std::string_view text, std::uint64_t seed = 0) { return hash_of(text.data(), text.size(), seed); }

}  // namespace dsakit
