// SPDX-License-Identifier: Apache-2.0
#include "io/json.hpp"

#include <algorithm>
#include <charconv>
#include <deque>
#include <functional>

namespace dsakit::io {
namespace {

thread_local std::uint64_t visited = 0;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, std::uint32_t c) {
  const auto put = [&](std::uint32_t b) { out.push_back(static_cast<char>(b)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 63));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 63));
    put(0x80 | (c >> 6 & 63));
  }
  put(0x80 | (c & 63));
}

/// The four hexadecimal digits at `at`, or -1.
int hex4(std::string_view s, std::size_t at) {
  int value = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    const char c = i < s.size() ? s[i] : '?';
    const int digit = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/// Past the string whose opening quote stands at `at`, or npos if it does not end.
std::size_t end_of_string(std::string_view s, std::size_t at) {
  for (++at; at < s.size(); ++at) {
    if (s[at] == '"') return at + 1;
    if (s[at] == '\\') ++at;
  }
  return std::string_view::npos;
}

/// The characters of a quoted string that is known to be well formed.
std::string unquoted(std::string_view quoted) {
  visited += quoted.size();
  std::string out;
  for (std::size_t i = 1; i + 1 < quoted.size(); ++i) {
    if (quoted[i] != '\\') {
      out.push_back(quoted[i]);
      continue;
    }
    switch (quoted[++i]) {
      case 'b':
        out.push_back('\b');
        break;
      case 'f':
        out.push_back('\f');
        break;
      case 'n':
        out.push_back('\n');
        break;
      case 'r':
        out.push_back('\r');
        break;
      case 't':
        out.push_back('\t');
        break;
      case 'u': {
        auto c = static_cast<std::uint32_t>(hex4(quoted, i + 1));
        i += 4;
        if (c >= 0xD800 && c <= 0xDBFF) {  // its other half follows: checked
          c = 0x10000 + ((c - 0xD800) << 10) + (static_cast<std::uint32_t>(hex4(quoted, i + 3)) - 0xDC00);
          i += 6;
        }
        append_utf8(out, c);
        break;
      }
      default:
        out.push_back(quoted[i]);  // quote, backslash, slash
    }
  }
  return out;
}

/// The grammar. Recursion is harmless: the nesting has been counted before.
class Grammar {
 public:
  explicit Grammar(std::string_view text) : text_(text) {}

  std::optional<JsonFault> run() {
    space();
    if (value()) {
      space();
      if (at_ != text_.size()) fault();
    }
    visited += at_;
    return std::move(fault_);
  }

 private:
  // A key by its hash (of the resolved characters) and place; the characters are looked at again only where hashes
  // meet.
  struct Key {
    std::uint64_t hash;
    std::uint32_t begin, size;
  };

  bool fault() {
    fault_ = JsonFault{JsonFault::syntax, "is not JSON at byte " + std::to_string(at_), "one object by RFC 8259"};
    return false;
  }
  void space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view w) {
    if (text_.substr(at_, w.size()) != w) return fault();
    at_ += w.size();
    return true;
  }

  bool value() {
    switch (at_ < text_.size() ? text_[at_] : '\0') {
      case '{':
        return object();
      case '[':
        return array();
      case '"':
        return string();
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        return number();
    }
  }

  bool number() {
    const auto digits = [&] {
      const std::size_t from = at_;
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
      return at_ != from;
    };
    take('-');
    if (!take('0') && !digits()) return fault();
    if (take('.') && !digits()) return fault();
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) return fault();
    }
    return true;
  }

  bool string() {
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') return ++at_, true;
      if (static_cast<unsigned char>(c) < 0x20) return fault();
      if (c != '\\') continue;
      const char escape = ++at_ < text_.size() ? text_[at_] : '\0';
      if (escape == 'u') {
        const int unit = hex4(text_, at_ + 1);
        if (unit < 0 || (unit >= 0xDC00 && unit <= 0xDFFF)) return fault();
        at_ += 4;
        if (unit >= 0xD800 && unit <= 0xDBFF) {
          const int low = text_.substr(at_ + 1, 2) == "\\u" ? hex4(text_, at_ + 3) : -1;
          if (low < 0xDC00 || low > 0xDFFF) return fault();
          at_ += 6;
        }
      } else if (escape == '\0' || std::string_view("\"\\/bfnrt").find(escape) == std::string_view::npos) {
        return fault();
      }
    }
    return fault();
  }

  bool array() {
    ++at_;
    space();
    if (take(']')) return true;
    do {
      space();
      if (!value()) return false;
      space();
    } while (take(','));
    return take(']') || fault();
  }

  bool object() {
    std::deque<Key> keys;  // grows without copying
    ++at_;
    space();
    if (take('}')) return true;
    do {
      space();
      const std::size_t begin = at_;
      if (at_ == text_.size() || text_[at_] != '"') return fault();
      if (!string()) return false;
      const std::string key = unquoted(text_.substr(begin, at_ - begin));
      keys.push_back(
          {std::hash<std::string>()(key), static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(at_ - begin)});
      space();
      if (!take(':')) return fault();
      space();
      if (!value()) return false;
      space();
    } while (take(','));
    return take('}') ? unique(keys) : fault();
  }

  bool unique(std::deque<Key>& keys) {
    const auto characters = [&](const Key& k) { return unquoted(text_.substr(k.begin, k.size)); };
    std::sort(keys.begin(), keys.end(), [&](const Key& a, const Key& b) {
      return a.hash != b.hash ? a.hash < b.hash : a.begin != b.begin && characters(a) < characters(b);
    });
    for (std::size_t i = 1; i < keys.size(); ++i)
      if (keys[i].hash == keys[i - 1].hash && characters(keys[i]) == characters(keys[i - 1])) {
        fault_ = JsonFault{JsonFault::duplicate, "has the key \"" + printable(characters(keys[i])) + "\" twice",
                           "each key once in an object"};
        return false;
      }
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::optional<JsonFault> fault_;
};

}  // namespace

std::optional<JsonFault> find_json_fault(std::string_view text, int max_depth) {
  visited += text.size();
  for (std::size_t at = 0; at < text.size();) {
    const int n = static_cast<signed char>(text[at]) >= 0 ? 1 : utf8_length(text, at);
    if (n == 0) return JsonFault{JsonFault::encoding, "is not UTF-8 at byte " + std::to_string(at), "UTF-8"};
    at += static_cast<std::size_t>(n);
  }
  visited += text.size();
  std::int64_t depth = 0, deepest = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at);
      if (at == std::string_view::npos) break;
      --at;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  if (deepest > max_depth)
    return JsonFault{JsonFault::depth, "is nested " + std::to_string(deepest) + " deep",
                     "at most " + std::to_string(max_depth)};
  return Grammar(text).run();
}

std::uint64_t json_bytes_visited() { return visited; }

Json::Json(std::string_view checked) : text_(checked) {
  while (!text_.empty() && is_space(text_.front())) text_.remove_prefix(1);
  while (!text_.empty() && is_space(text_.back())) text_.remove_suffix(1);
}

std::optional<bool> Json::boolean() const {
  if (text_[0] != 't' && text_[0] != 'f') return {};
  return text_[0] == 't';
}

std::optional<std::int64_t> Json::plain_integer() const {
  std::int64_t value = 0;
  if (!is_digit(text_[0])) return {};
  const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
  if (error != std::errc() || end != text_.data() + text_.size()) return {};
  return value;
}

std::optional<std::int64_t> Json::integer() const {
  std::int64_t value = 0;
  if (text_[0] != '-' && !is_digit(text_[0])) return {};
  const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
  if (error != std::errc() || end != text_.data() + text_.size()) return {};
  return value;
}

std::optional<double> Json::number() const {
  double value = 0;
  if (text_[0] != '-' && !is_digit(text_[0])) return {};
  if (std::from_chars(text_.data(), text_.data() + text_.size(), value).ec != std::errc()) return {};
  return value;
}

std::string Json::string() const { return unquoted(text_); }

std::size_t Json::first() const {
  std::size_t at = 1;
  while (is_space(text_[at])) ++at;
  return at;
}

std::size_t Json::after(std::size_t at) const {
  while (is_space(text_[at]) || text_[at] == ',') ++at;
  return at;
}

std::size_t Json::value_start(std::size_t at) const {
  while (is_space(text_[at]) || text_[at] == ':') ++at;
  return at;
}

Json Json::value_at(std::size_t at) const {
  std::size_t end = at;
  if (text_[at] == '"') {
    end = end_of_string(text_, at);
  } else if (text_[at] == '{' || text_[at] == '[') {
    int depth = 0;
    do {
      const char c = text_[end];
      depth += (c == '{' || c == '[') - (c == '}' || c == ']');
      end = c == '"' ? end_of_string(text_, end) : end + 1;
    } while (depth > 0);
  } else {
    const auto ends = [](char c) { return c == ',' || c == ']' || c == '}' || is_space(c); };
    while (end < text_.size() && !ends(text_[end])) ++end;
  }
  visited += end - at;
  return Json(text_.substr(at, end - at));
}

std::string json_number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string json_quoted(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out += '"';
}

}  // namespace dsakit::io
