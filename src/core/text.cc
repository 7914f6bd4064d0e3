// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

namespace dsakit {
namespace {

/// Controls, spaces but for the first, and what shows nothing, moves other characters, or is of private use (Unicode 15).
constexpr struct {
  char32_t first, last;
} kHidden[] = {{0, 0x1F},           {0x7F, 0xA0},       {0xAD, 0xAD},         {0x600, 0x605},     {0x61C, 0x61C},
               {0x6DD, 0x6DD},      {0x70F, 0x70F},     {0x890, 0x891},       {0x8E2, 0x8E2},     {0x1680, 0x1680},
               {0x180E, 0x180E},    {0x2000, 0x200F},   {0x2028, 0x202F},     {0x205F, 0x206F},   {0x3000, 0x3000},
               {0xE000, 0xF8FF},    {0xFDD0, 0xFDEF},   {0xFEFF, 0xFEFF},     {0xFFF9, 0xFFFB},   {0x110BD, 0x110BD},
               {0x110CD, 0x110CD},  {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3},   {0x1D173, 0x1D17A}, {0xE0000, 0xE007F},
               {0xF0000, 0x10FFFF}};

bool is_hidden(char32_t c) {
  if ((c & 0xFFFE) == 0xFFFE) return true;  // the last two of each plane are no characters
  for (const auto& [first, last] : kHidden)
    if (c <= last) return c >= first;
  return false;
}

/// Of a character of n bytes.
char32_t code_point(std::string_view text, std::size_t at, int n) {
  char32_t c = static_cast<unsigned char>(text[at]) & (n == 1 ? 0x7F : 0x7F >> n);
  for (int i = 1; i < n; ++i) c = c << 6 | (static_cast<unsigned char>(text[at + std::size_t(i)]) & 0x3F);
  return c;
}

/// In so many digits at least.
void append_hex(std::string& out, char32_t c, int digits) {
  while (digits < 6 && c >> 4 * digits != 0) ++digits;
  while (digits > 0) out += "0123456789abcdef"[c >> 4 * --digits & 15];
}

}  // namespace

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
  std::string out;
  std::size_t characters = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (++characters > most) return out += "...";
    const int n = utf8_length(text, at);
    if (n == 0) append_hex(out += "\\x", static_cast<unsigned char>(text[at]), 2);
    else if (const char32_t c = code_point(text, at, n); is_hidden(c)) append_hex(out += "\\u", c, 4);
    else out += text.substr(at, std::size_t(n));
    at += n == 0 ? 1 : std::size_t(n);
  }
  return out;
}

}  // namespace dsakit
