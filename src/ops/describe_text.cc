// SPDX-License-Identifier: Apache-2.0
#include "ops/describe_text.hpp"

#include <algorithm>
#include <vector>

#include "ops/print.hpp"
#include "ops/taps.hpp"

namespace dsakit {
namespace {

bool in_signature(const Parameter& p) { return p.field.has_member() && p.field.role != Role::out; }

/// `words` in lines of at most `width` columns; those behind the first are indented.
std::string fill(const std::vector<std::string>& words, std::size_t width, std::string_view indent) {
  std::string text;
  std::size_t column = 0;
  for (const std::string& word : words) {
    if (column > 0 && column + 1 + word.size() > width) text += '\n', text += indent, column = indent.size();
    else if (column > 0) text += ' ', ++column;
    text += word, column += word.size();
  }
  return text;
}

std::string list(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

std::string indented(std::string_view lines, std::string_view indent) {
  std::string text;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    text += std::string(indent) + std::string(lines.substr(begin, end - begin)) + '\n';
    begin = end + 1;
  }
  return text;
}

/// What stands in the column of shapes or values.
std::string shape_or_values(const Field& field) {
  return field.shape.empty() && field.kind == Kind::flag ? "True, False" : std::string(field.shape);
}

std::string default_text(const Parameter& p) {
  return p.required || p.field.is_required() || p.field.role == Role::out ? "" : to_text(p.default_value);
}

/// Text of a table's cell: nothing in it is markup.
std::string cell(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '*' || c == '|' || c == '<') safe += '\\';
    safe += c;
  }
  return safe;
}

/// The names of the parameters of this role, as one row of a table.
std::string row_of(const Operator& op, Role role, std::string_view meaning) {
  std::vector<std::string_view> names;
  for (const Parameter& p : op.parameters)
    if (p.field.role == role) names.push_back(p.field.name);
  return names.empty() ? "" : "| " + list(names) + " | | | None | " + std::string(meaning) + " |\n";
}

}  // namespace

std::string signature(const Operator& op, std::size_t width) {
  std::vector<std::string> words;
  int place = 0;
  for (const Parameter& p : op.parameters) {
    if (!in_signature(p)) continue;
    if (place++ == op.description.positional) words.push_back("*,");
    words.push_back(std::string(p.field.name) + (p.required ? "" : "=" + to_text(p.default_value)) + ",");
  }
  words.front().insert(0, std::string(op.name) + "(");
  words.back().back() = ')';
  const std::vector<std::string_view> results = op.results();
  words.push_back("-> " + (results.size() == 1 ? list(results) : "(" + list(results) + ")"));
  return fill(words, width, "    ") + '\n';
}

std::string to_text(const Operator& op) {
  std::string text = signature(op, 110) + "\n" + std::string(op.description.summary) + ".\n\n";
  text += indented(op.description.formula, "    ") + "\n";
  for (const Parameter& p : op.parameters) {
    std::string line = "  " + std::string(p.field.name);
    line.resize(std::max<std::size_t>(line.size() + 2, 30), ' ');
    text += line + name_of(p.field.role);
    if (const std::string text_of_default = default_text(p); in_signature(p) && !text_of_default.empty())
      text += ", default " + text_of_default;
    text += '\n';
    for (const std::string_view said : {p.field.dtypes, p.field.shape, p.field.meaning})
      if (!said.empty()) text += "      " + std::string(said) + '\n';
  }
  if (!taps_of(op.name).empty()) text += "\nSteps that can be recorded (dsakit.capture(taps=..)):\n";
  for (const Tap& tap : taps_of(op.name)) {
    std::string line = "  " + std::string(tap.step);
    line.resize(std::max<std::size_t>(line.size() + 2, 30), ' ');
    text += line + std::string(tap.dtype) + ' ' + std::string(tap.shape) + ", " + std::string(tap.meaning) + '\n';
  }
  text += "\nErrors, in about this order:\n" + indented(op.description.errors, "  ") + indented(kCommonErrors, "  ");
  return text + "\nFollows " + std::string(op.description.source) + "; docs/operators/" +
         std::string(op.description.page) + "\n";
}

std::string to_markdown(const Operator& op) {
  std::string text = "```\n" + signature(op, 118) + "```\n\n";
  text += "| parameter | dtype | shape or values | default | meaning |\n|---|---|---|---|---|\n";
  for (const Parameter& p : op.parameters) {
    if (!p.field.has_member()) continue;
    const bool result = p.field.role == Role::out;
    const std::string name = result ? "**" + std::string(p.field.name) + "**" : p.field.name;
    const bool in_place = p.field.role == Role::inout || p.field.role == Role::inout_opt;
    text += "| " + name + " | " + cell(p.field.dtypes) + " | " + cell(shape_or_values(p.field)) + " | " +
            cell(default_text(p)) + " | " + cell(p.field.meaning) + (in_place ? "; updated in place" : "") + " |\n";
  }
  text += row_of(op, Role::reserved, "reserved: must stay None");
  text += row_of(op, Role::hint, "of no effect");
  return text + row_of(op, Role::tolerated, "not documented, and passed by engines: None is accepted in portable");
}

std::string with_tables(std::string_view page) {
  static constexpr std::string_view kBegin = "<!-- operator ", kClose = " -->\n", kEnd = "<!-- end -->\n";
  std::string text;
  for (;;) {
    const std::size_t begin = page.find(kBegin), name = begin + kBegin.size();
    if (begin == page.npos) return text + std::string(page);
    const std::size_t close = page.find(kClose, name), end = page.find(kEnd, name);
    const Operator* op = close == page.npos ? nullptr : find_operator(page.substr(name, close - name));
    if (!op || end == page.npos) return text + std::string(page);
    text += std::string(page.substr(0, close + kClose.size())) + to_markdown(*op) + std::string(kEnd);
    page.remove_prefix(end + kEnd.size());
  }
}

const Operator* find_operator(std::string_view name) {
  for (const Operator& op : operators())
    if (op.name == name) return &op;
  return nullptr;
}

}  // namespace dsakit
