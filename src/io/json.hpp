// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <climits>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/text.hpp"

namespace dsakit::io {

/// What is wrong with a text that should be one JSON value: the kind, and the two halves of a sentence.
struct JsonFault {
  enum Kind { encoding, depth, duplicate, syntax } kind;
  std::string got, wanted;
};

/// The first fault of `text` as one RFC 8259 value, or nothing. Asked in this order: valid UTF-8, brackets nested at
/// most `max_depth` deep (counted without recursion), then the grammar and no key twice in an object, in text order; a
/// duplicate belongs to the end of its object. Stricter than most: no byte order mark, no NUL, no lone surrogate
/// escape. Memory: 16 bytes for each key of the objects that are open.
std::optional<JsonFault> find_json_fault(std::string_view text, int max_depth);

/// How many bytes of text this thread has gone through here and in Json: that the work is linear is shown by counting.
std::uint64_t json_bytes_visited();

/// A value inside text in which find_json_fault found nothing; only a view, the text must outlive it. Nothing is
/// unpacked before it is asked for, so a header of 100 MB costs no tree.
class Json {
 public:
  explicit Json(std::string_view checked);

  bool is_object() const { return text_[0] == '{'; }
  bool is_array() const { return text_[0] == '['; }
  bool is_string() const { return text_[0] == '"'; }
  bool is_null() const { return text_[0] == 'n'; }
  std::optional<bool> boolean() const;
  /// A plain integer in 0..2^63-1: digits only, no sign, fraction or exponent.
  std::optional<std::int64_t> plain_integer() const;
  /// An integer of 64 bits: digits, perhaps behind a minus sign.
  std::optional<std::int64_t> integer() const;
  /// Any number that a double can hold.
  std::optional<double> number() const;
  std::string string() const;  // of a string: escapes resolved, UTF-8
  std::string_view text() const { return text_; }

  /// visit(key, value) for the members of an object, in text order.
  template <class F>
  void members(F&& visit) const {
    for (std::size_t at = first(); text_[at] != '}'; at = after(at)) {
      const Json key = value_at(at);
      at = value_start(at + key.text_.size());
      const Json value = value_at(at);
      visit(key.string(), value);
      at += value.text_.size();
    }
  }
  /// visit(value) for the elements of an array, in text order; not for more than `most` of them.
  template <class F>
  void items(F&& visit, int most = INT_MAX) const {
    for (std::size_t at = first(); text_[at] != ']' && most-- > 0; at = after(at)) {
      const Json value = value_at(at);
      visit(value);
      at += value.text_.size();
    }
  }

 private:
  std::size_t first() const;                      // start of the first member or element, or the closing bracket
  std::size_t after(std::size_t at) const;        // start of the next one, or the closing bracket
  std::size_t value_start(std::size_t at) const;  // past the colon
  Json value_at(std::size_t at) const;

  std::string_view text_;  // exactly the value
};

/// The shortest JSON number that reads back as `value`, which is finite.
std::string json_number(double value);

/// `text` as a JSON string, quotes included.
std::string json_quoted(std::string_view text);

using dsakit::printable;

}  // namespace dsakit::io
