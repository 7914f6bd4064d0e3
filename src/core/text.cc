// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

namespace dsakit {

int utf8_length(std::string_view s, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < s.size() ? static_cast<unsigned char>(s[at + i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return follows(1) ? 2 : 0;
  if (b >= 0xE0 && b <= 0xEF) {
    const bool fits = (b != 0xE0 || byte(1) >= 0xA0) && (b != 0xED || byte(1) <= 0x9F);
    return fits && follows(1) && follows(2) ? 3 : 0;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    const bool fits = (b != 0xF0 || byte(1) >= 0x90) && (b != 0xF4 || byte(1) <= 0x8F);
    return fits && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

std::string printable(std::string_view text, std::size_t most) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  std::size_t characters = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (++characters > most) return out += "...";
    const auto n = static_cast<std::size_t>(utf8_length(text, at));
    const auto c = static_cast<unsigned char>(text[at]);
    const bool c1_control = n == 2 && c == 0xC2 && static_cast<unsigned char>(text[at + 1]) < 0xA0;
    if (n == 0 || c < 0x20 || c == 0x7F || c1_control) {
      const auto hidden = c1_control ? static_cast<unsigned char>(text[at + 1]) : c;
      out += n == 0 ? "\\x" : "\\u00";
      out += kHex[hidden >> 4];
      out += kHex[hidden & 15];
    } else {
      out += text.substr(at, n);
    }
    at += n == 0 ? 1 : n;
  }
  return out;
}

}  // namespace dsakit
