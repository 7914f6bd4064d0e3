// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace dsakit {

/// Bytes of the UTF-8 character at `at`, 0 if there is none: no overlong form, no surrogate, nothing above U+10FFFF.
int utf8_length(std::string_view text, std::size_t at);

/// Text from a file or a caller, fit for a message: cut after `most` characters, those that nobody would see (controls,
/// marks of direction, odd spaces, ..) and bytes that are not UTF-8 escaped.
std::string printable(std::string_view text, std::size_t most = 120);

}  // namespace dsakit
