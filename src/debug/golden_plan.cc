// SPDX-License-Identifier: Apache-2.0
#include "debug/golden_plan.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/nearest.hpp"
#include "debug/bind.hpp"
#include "debug/steps.hpp"
#include "dsakit/error.hpp"
#include "io/json.hpp"

namespace dsakit::debug {
namespace {

constexpr std::string_view kOptions[] = {"data", "fill", "pages", "seed", "taps"};

constexpr std::int64_t kLargest = std::int64_t{1} << 48;  // of an axis or an element count

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A name, with a trailing * any that begins so, with a leading one any that ends so.
bool fits(std::string_view pattern, std::string_view name) {
  if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == name;
}

template <class F>
void each_word(std::string_view text, F f) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size()), equals = text.find('=');
    if (end > 0) f(text.substr(0, equals), text.substr(equals + 1, end - equals - 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] == '[' || text[i] == '(')) ++depth;
    if (i < text.size() && (text[i] == ']' || text[i] == ')')) --depth;
    if (i < text.size() && (text[i] != at || depth > 0)) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return parts;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::optional<std::int64_t> integer_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

/// "40+23*2": 40, 23, 23.
std::optional<Integers> integers_of(std::string_view text) {
  Integers all;
  for (const std::string_view part : split(text, '+')) {
    const std::size_t star = part.find('*');
    const auto value = integer_of(part.substr(0, star));
    const auto times = star == part.npos ? std::optional<std::int64_t>(1) : integer_of(part.substr(star + 1));
    if (!value || !times || *times < 0 || *times > (1 << 24)) return {};
    all.insert(all.end(), std::size_t(*times), *value);
  }
  return all;
}

}  // namespace

/// Numbers, + - * / (rounded down), brackets, ceil(a/b) and names. Nothing where a name is not known.
class Expression {
 public:
  Expression(const Plan& plan, std::string_view text) : plan_(plan), text_(text) {}

  std::optional<std::int64_t> value() {
    const std::int64_t all = sum();
    if (at_ != text_.size()) known_ = false;
    return known_ ? std::optional(all) : std::nullopt;
  }

 private:
  bool take(char c) {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::int64_t limited(bool overflow, std::int64_t value) {
    if (overflow || value > kLargest || value < -kLargest) known_ = false;
    return known_ ? value : 0;
  }
  std::int64_t sum() {
    std::int64_t value = product();
    for (;;)
      if (take('+')) value = limited(false, value + product());
      else if (take('-')) value = limited(false, value - product());
      else return value;
  }
  std::int64_t product() {
    std::int64_t value = factor();
    for (;;)
      if (take('*')) {
        const bool overflow = __builtin_mul_overflow(value, factor(), &value);
        value = limited(overflow, value);
      } else if (take('/')) {
        const std::int64_t by = factor();
        if (by <= 0) known_ = false;
        else value = up_ ? (value + by - 1) / by : value / by;
      } else {
        return value;
      }
  }
  std::int64_t factor() {
    if (take('(')) return inside(false);
    if (at_ < text_.size() && is_digit(text_[at_])) {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
      at_ = std::size_t(end - text_.data());
      return limited(error != std::errc(), value);
    }
    std::size_t end = at_;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]) || (text_[end] == '.' && end > at_)))
      ++end;
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end;
    if (name == "ceil" && take('(')) return inside(true);
    if (name.empty() || !plan_.has_axis(name)) return known_ = false, 0;
    return plan_.axis(name);
  }
  std::int64_t inside(bool up) {
    const bool before = std::exchange(up_, up);
    const std::int64_t value = sum();
    up_ = before;
    if (!take(')')) known_ = false;
    return value;
  }

  const Plan& plan_;
  std::string_view text_;
  std::size_t at_ = 0;
  bool known_ = true, up_ = false;
};

std::optional<DType> dtype_named(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kShort[] = {
      {"u8", DType::u8},     {"i8", DType::i8},   {"i32", DType::i32}, {"i64", DType::i64},     {"f16", DType::f16},
      {"bf16", DType::bf16}, {"f32", DType::f32}, {"f64", DType::f64}, {"bool", DType::boolean}};
  for (const auto& [text, type] : kShort)
    if (text == name || name == name_of(type)) return type;
  return {};
}

Plan::Plan(const Operator& op, const Settings& settings) : op_(op) {
  for (const auto& [name, value] : settings) take(name, value, true);
  apply_forms();
  axes_of_shapes();
  if (data_ == 19) shift_width();
  for (const auto& [name, value] : values_)
    if (const Parameter* p = parameter(name)) attributes_[name] = attribute_of(*p, value);
  plan_tensors();
  check_all_used();
}

void Plan::refuse(std::string_view what, std::string_view got, std::string wanted, std::string why) const {
  throw Error(Status::invalid_argument, "golden", std::string(what), "",
              (got.starts_with('"') ? "is " : "") + std::string(got), std::move(wanted), std::move(why));
}

const Parameter* Plan::parameter(std::string_view name) const {
  for (const Parameter& p : op_.parameters)
    if (p.field.name == name && p.field.has_member() && p.field.role != Role::out) return &p;
  return nullptr;
}

void Plan::take(std::string_view name, std::string_view value, bool asked) {
  if (std::find(std::begin(kOptions), std::end(kOptions), name) != std::end(kOptions)) return take_option(name, value);
  const Parameter* p = parameter(name);
  if (p && p->field.role != Role::attribute) return take_tensor(*p, value, asked);
  if (!asked && asked_.contains(name)) return;
  if (asked) {
    bool known = p;
    std::vector<std::string_view> names(std::begin(kOptions), std::end(kOptions));
    for (const Parameter& other : op_.parameters)
      if (other.field.has_member() && other.field.role != Role::out) names.push_back(other.field.name);
    for (const Form& form : kForms)
      for (const std::string_view words : {form.words, form.when})
        if (fits(form.ops, op_.name))
          each_word(words, [&](std::string_view word, std::string_view) {
            if (word.starts_with('!')) word.remove_prefix(1);
            known |= word == name;
            if (!parameter(word)) names.push_back(word);
          });
    if (!known) {
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
      std::string all;
      for (const std::string_view n : names) all += (all.empty() ? "" : ", ") + std::string(n);
      throw Error(Status::invalid_argument, "golden", io::printable(name), "", "is unknown to " + std::string(op_.name),
                  all, "nearest: " + std::string(nearest(name, names)));
    }
    asked_.emplace(name);
  }
  (p ? values_ : axes_)[std::string(name)] = value;
}

void Plan::take_option(std::string_view name, std::string_view value) {
  const std::string shown = "\"" + io::printable(value) + "\"";
  if (name == "seed") {
    const auto seed = integer_of(value);
    if (!seed || *seed < 0) refuse(name, shown, "an integer of at least 0");
    seed_ = std::uint64_t(*seed);
  } else if (name == "data") {
    const auto data = value.starts_with('V') ? integer_of(value.substr(1)) : std::nullopt;
    if (!data || *data < 1 || *data > 19) refuse(name, shown, "V1..V19");
    data_ = int(*data);
  } else if (name == "pages") {
    if (value != "identity" && value != "mixed" && value != "reversed" && value != "shared")
      refuse(name, shown, "identity, mixed, reversed or shared");
    pages_ = value;
  } else if (name == "taps") {
    steps_.clear();
    for (const std::string_view step : split(value, '+')) steps_.emplace_back(step);
    if (steps_ == std::vector<std::string>{"none"}) steps_.clear();
    check_steps("golden", steps_);
  } else {
    char* end = nullptr;
    const std::string text(value);
    fill_ = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != 0 || !(fill_ >= 0 && fill_ <= 1)) refuse(name, shown, "0..1");
  }
}

void Plan::take_tensor(const Parameter& p, std::string_view value, bool asked) {
  Words& words = words_[p.field.name];
  const auto set = [&](std::string& to, std::string_view text) {
    // What a caller asked for stays.
    const char* part = &to == &words.dtype ? ".dtype" : &to == &words.shape ? ".shape" : "";
    const std::string key = std::string(p.field.name) + part;
    if (!asked && asked_tensors_.contains(key)) {
      if (&to == &words.shape) words.usual = text;
      return;
    }
    if (asked) asked_tensors_.insert(key);
    to = text;
    if (asked || !words.given) words.given = true;
  };
  const auto presence = [&](bool given) {
    const std::string key = std::string(p.field.name) + ".given";
    if (!asked && asked_tensors_.contains(key)) return;
    if (asked) asked_tensors_.insert(key);
    words.given = given;
  };
  if (value == "given" || value == "absent") return presence(value == "given");
  if (value.starts_with('@') && parameter(value.substr(1))) return set(words.alias, value.substr(1));
  const bool integers = p.field.kind == Kind::lengths || p.field.kind == Kind::index || p.field.kind == Kind::table;
  if (integers && !value.empty() && (is_digit(value[0]) || value[0] == '-') && integers_of(value))
    return set(words.values, value);
  if (value.ends_with(":nz")) words.format = Format::NZ, value.remove_suffix(3);
  for (const std::string_view how : {":packed", ":strided"})  // as lines of DSAKIT_VERBOSE say it
    if (value.ends_with(how)) value.remove_suffix(how.size());
  const std::size_t bracket = value.find('['), colon = value.find(':');
  const std::string_view dtype = value.substr(0, std::min(bracket, colon));
  if (!dtype.empty()) {
    if (!dtype_named(dtype))
      refuse(p.field.name, "\"" + io::printable(value) + "\"",
             "a dtype, given, absent, [axes]" + std::string(integers ? ", or integers such as 40+23*2" : ""));
    set(words.dtype, dtype);
  }
  if (bracket != value.npos) {
    if (!value.ends_with(']')) refuse(p.field.name, "\"" + io::printable(value) + "\"", "axes in brackets");
    set(words.shape, value.substr(bracket));
  } else if (colon != value.npos) {
    std::string shape(value.substr(colon + 1));
    std::replace(shape.begin(), shape.end(), 'x', ',');
    set(words.shape, "[" + shape + "]");
  }
}

bool Plan::is_given(const Parameter& p) const {
  const auto at = words_.find(p.field.name);
  if (at != words_.end() && at->second.given) return *at->second.given;
  return p.field.is_required();
}

bool Plan::holds(std::string_view when) const {
  bool all = true;
  each_word(when, [&](std::string_view name, std::string_view value) {
    const bool negated = name.starts_with('!');
    if (negated) name.remove_prefix(1);
    const Parameter* p = parameter(name);
    bool one = false;
    if (!p) one = value == "*" ? asked_.contains(name) : axes_.contains(name) && fits(value, axes_.find(name)->second);
    else if (p->field.role == Role::attribute) one = fits(value, text(name));
    else if (value == "given") one = is_given(*p);
    else one = is_given(*p) && name_of(dtype_of(*p)) == value;
    all = all && one != negated;
  });
  return all;
}

void Plan::apply_forms() {
  for (const Form& form : kForms)
    if (fits(form.ops, op_.name) && holds(form.when))
      each_word(form.words, [&](std::string_view name, std::string_view value) { take(name, value, false); });
}

/// Axes are what the shapes say that a caller asked for: the first ones of as many axes whose names are all known.
void Plan::axes_of_shapes() {
  for (const Parameter& p : op_.parameters) {
    const auto words = words_.find(p.field.name);
    if (words == words_.end() || !asked_tensors_.contains(std::string(p.field.name) + ".shape")) continue;
    const auto shape = shape_in_words(words->second.shape);
    const std::string usual = words->second.usual.empty() ? std::string(p.field.shape) : words->second.usual;
    for (std::size_t begin = usual.find('['); shape && begin != usual.npos; begin = usual.find('[', begin + 1)) {
      const std::size_t end = std::min(usual.find(']', begin), usual.size());
      const auto axes = split(std::string_view(usual).substr(begin + 1, end - begin - 1), ',');
      bool fits = axes.size() == shape->size();
      for (std::size_t a = 0; fits && a < axes.size(); ++a) {
        const std::string_view axis = trimmed(axes[a]);
        const auto number = integer_of(axis);
        fits = number ? *number == (*shape)[a] : Expression(*this, axis).value().has_value();
      }
      if (!fits) continue;
      for (std::size_t a = 0; a < axes.size(); ++a) {
        const auto axis = axes_.find(trimmed(axes[a]));
        if (axis != axes_.end() && !asked_.contains(axis->first)) axis->second = std::to_string((*shape)[a]);
      }
      break;
    }
  }
  // A table says how many keys there may be.
  for (const char* columns : {"columns", "max_blocks"})
    if (const auto at = axes_.find(columns); at != axes_.end() && integer_of(at->second) && !asked_.contains("Lk"))
      axes_["Lk"] = at->second + "*block_size";
}

/// V19: widths 1..257, by the seed. The width is the last axis of the first tensor.
void Plan::shift_width() {
  for (const Parameter& p : op_.parameters) {
    if (!p.field.has_member() || p.field.role == Role::attribute) continue;
    const auto words = words_.find(p.field.name);
    const std::string_view shape =
        words != words_.end() && !words->second.shape.empty() ? words->second.shape : p.field.shape;
    const std::size_t begin = shape.find('['), end = shape.find(']');
    if (begin == shape.npos || end == shape.npos) continue;
    const std::string name(trimmed(split(shape.substr(begin + 1, end - begin - 1), ',').back()));
    if (axes_.contains(name) && !asked_.contains(name)) axes_[name] = std::to_string(1 + (seed_ - 1) % 257);
    return;
  }
}

bool Plan::has_axis(std::string_view name) const {
  if (instead_.contains(name) || axes_.contains(name)) return true;
  if (name.ends_with(".bytes")) return parameter(name.substr(0, name.size() - 6)) != nullptr;
  const Parameter* p = parameter(name);
  return p && p->field.role == Role::attribute && p->field.dtypes == "int";
}

std::int64_t Plan::axis(std::string_view name) const {
  used_.emplace(name);
  if (const auto other = instead_.find(name); other != instead_.end()) return *integer_of(other->second);
  std::string text;
  if (name.ends_with(".bytes")) {
    return size_of(dtype_of(*parameter(name.substr(0, name.size() - 6))));
  } else if (const auto own = axes_.find(name); own != axes_.end()) {
    text = own->second;
  } else {
    text = this->text(name);
  }
  if (++depth_ > 32) refuse(name, "is defined by itself", "a number");
  const auto value = Expression(*this, text).value();
  --depth_;
  if (!value || *value < 0) refuse(name, "\"" + io::printable(text) + "\"", "a number of at least 0");
  return *value;
}

std::string Plan::text(std::string_view attribute) const {
  if (const auto own = values_.find(attribute); own != values_.end()) return own->second;
  const Parameter* p = parameter(attribute);
  if (!p) return "";
  return std::visit(
      []<class T>(const T& v) -> std::string {
        if constexpr (std::is_same_v<T, std::string_view>) return std::string(v);
        else if constexpr (std::is_same_v<T, bool>) return v ? "true" : "false";
        else if constexpr (std::is_same_v<T, std::int64_t>) return std::to_string(v);
        else if constexpr (std::is_same_v<T, double>) return io::json_number(v);
        else return "";
      },
      p->default_value);
}

std::int64_t Plan::integer(std::string_view attribute, std::int64_t otherwise) const {
  const auto at = attributes_.find(attribute);
  const auto* given = at == attributes_.end() ? nullptr : std::get_if<std::int64_t>(&at->second);
  if (given) return *given;
  return integer_of(text(attribute)).value_or(otherwise);
}

Attribute Plan::attribute_of(const Parameter& p, const std::string& value) const {
  const std::string_view type = p.field.dtypes;
  const std::string shown = "\"" + io::printable(value) + "\"";
  if (type == "bool") {
    if (value == "true" || value == "True" || value == "1") return true;
    if (value == "false" || value == "False" || value == "0") return false;
    refuse(p.field.name, shown, "true or false");
  }
  if (type == "int") {
    if (const auto number = integer_of(value)) return *number;
    if (const auto number = Expression(*this, value).value()) return *number;
    refuse(p.field.name, shown, "an integer");
  }
  if (type == "float") {
    if (value.starts_with("rsqrt(")) return 1 / std::sqrt(double(*Expression(*this, value.substr(5)).value()));
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (end == value.c_str() || *end != 0 || !std::isfinite(number)) refuse(p.field.name, shown, "a finite number");
    return number;
  }
  if (type == "list of int") {
    const auto all = integers_of(value);
    if (!all) refuse(p.field.name, shown, "integers such as 1+0+2");
    return *all;
  }
  return value;
}

DType Plan::dtype_of(const Parameter& p) const {
  const auto words = words_.find(p.field.name);
  if (words != words_.end() && !words->second.dtype.empty()) return *dtype_named(words->second.dtype);
  if (words != words_.end() && !words->second.alias.empty()) return dtype_of(*parameter(words->second.alias));
  std::string_view text = p.field.dtypes;
  if (text == "dtype of its scale") {
    std::string name(p.field.name);
    return dtype_of(*parameter(name.replace(name.find("offset"), 6, "scale")));
  }
  const std::size_t end = text.find_first_of(" ,;(");
  if (text.starts_with("dtype of ")) {
    text.remove_prefix(9);
    const Parameter* other = parameter(text.substr(0, text.find_first_of(" ,;(")));
    // "dtype of query (int8: bfloat16)"
    if (other && dtype_of(*other) == DType::i8 && text.find("(int8: bfloat16)") != text.npos) return DType::bf16;
    if (other) return dtype_of(*other);
  }
  return dtype_named(text.substr(0, end)).value_or(DType::other);
}

/// "[B, S1, N1, D]"
std::optional<Integers> Plan::shape_in_words(std::string_view text) const {
  Integers shape;
  text = text.substr(1, text.size() - 2);
  if (trimmed(text).empty()) return shape;
  for (const std::string_view axis : split(text, ',')) {
    const auto value = Expression(*this, trimmed(axis)).value();
    if (!value || *value < 0) return {};
    shape.push_back(*value);
  }
  return shape;
}

/// Of a description: the first axes that are all known, or those of another tensor with one in place of another.
std::optional<Integers> Plan::shape_of_text(std::string_view text) const {
  for (std::size_t begin = text.find('['); begin != text.npos; begin = text.find('[', begin + 1)) {
    const std::size_t end = text.find(']', begin);
    if (end == text.npos) break;
    if (auto shape = shape_in_words(text.substr(begin, end + 1 - begin))) return shape;
  }
  text = text.substr(0, text.find_first_of(";:,"));
  const auto after = [&](std::string_view word) { return trimmed(text.substr(text.find(word) + word.size())); };
  const auto has = [&](std::string_view word) { return text.find(word) != text.npos; };
  for (const std::string_view word : {"shape of ", "like "})
    if (text.starts_with(word)) {
      if (after(word) == "its scale") return {};
      if (const Parameter* other = parameter(after(word))) return shape_of(*other);
    }
  const Parameter* other = parameter(text.substr(0, text.find(' ')));
  if (!other) return {};
  std::optional<Integers> shape;
  if (has(" without its last axis")) {
    if ((shape = shape_of(*other)) && !shape->empty()) shape->pop_back();
  } else if (has(" as last axis") && has(" with ")) {
    const std::string_view with = after(" with ");
    const auto last = Expression(*this, with.substr(0, with.find(' '))).value();
    if (!last || !(shape = shape_of(*other)) || shape->empty()) return {};
    shape->back() = *last;
  } else if (has(" with ")) {
    const std::string_view with = after(" with ");
    const std::string_view before = has(" in place of ") ? after(" in place of ") : has(" for ") ? after(" for ") : "";
    const auto value = Expression(*this, with.substr(0, with.find(' '))).value();
    if (before.empty() || !value) return {};
    instead_[std::string(before)] = std::to_string(*value);
    if (before == "D") instead_["codes"] = "1";  // the rope part of int4 keys is no int4
    shape = shape_of(*other);
    instead_.clear();
  }
  return shape;
}

std::optional<Integers> Plan::shape_of(const Parameter& p) const {
  const auto words = words_.find(p.field.name);
  if (words != words_.end() && !words->second.shape.empty()) return shape_in_words(words->second.shape);
  if (words != words_.end() && !words->second.alias.empty()) return shape_of(*parameter(words->second.alias));
  if (p.field.shape == "shape of its scale") {
    std::string name(p.field.name);
    return shape_of(*parameter(name.replace(name.find("offset"), 6, "scale")));
  }
  if (words != words_.end() && !words->second.values.empty())
    return Integers{std::int64_t(integers_of(words->second.values)->size())};
  return shape_of_text(p.field.shape);
}

void Plan::plan_tensors() {
  for (std::size_t i = 0; i < op_.parameters.size(); ++i) {
    const Parameter& p = op_.parameters[i];
    if (!p.field.has_member() || p.field.role == Role::attribute || p.field.role == Role::out || !is_given(p)) continue;
    const auto words = words_.find(p.field.name);
    const auto shape = shape_of(p);
    if (!shape)
      refuse(p.field.name, "has axes that are not known", "its shape, such as " + std::string(p.field.name) + "=[2,64]",
             std::string(p.field.shape));
    Planned planned{
        .parameter = int(i), .element = -1, .dtype = dtype_of(p), .shape = *shape, .values = {}, .alias = {}};
    std::int64_t elements = 1;
    for (const std::int64_t n : *shape)
      if (__builtin_mul_overflow(elements, n, &elements) || elements > kLargest)
        refuse(p.field.name, "has more than 2^48 elements", "fewer");
    if (shape->size() > 8) refuse(p.field.name, "has more than 8 axes", "fewer");
    if (planned.dtype == DType::other)
      refuse(p.field.name, "has no dtype", "one, such as " + std::string(p.field.name) + "=bfloat16");
    if (words != words_.end()) {
      planned.format = words->second.format, planned.alias = words->second.alias;
      if (!words->second.values.empty()) planned.values = *integers_of(words->second.values);
      if (!planned.values.empty() && std::int64_t(planned.values.size()) != elements)
        refuse(p.field.name, "has " + std::to_string(planned.values.size()) + " values", std::to_string(elements));
    }
    for (std::int64_t e = 0; e < (p.list ? axis("shards") : 1); ++e) {
      planned.element = p.list ? int(e) : -1;
      tensors_.push_back(planned);
    }
  }
}

/// What the caller asked for and nothing looked at is a mistake.
void Plan::check_all_used() const {
  std::string all;
  for (const auto& [name, value] : axes_)
    if (used_.contains(name)) all += (all.empty() ? "" : ", ") + name + "=" + std::to_string(axis(name));
  for (const std::string& name : asked_)
    if (!used_.contains(name) && !parameter(name))
      throw Error(Status::invalid_argument, "golden", name, "", "is no axis of this call", all);
}

const Plan::Planned* Plan::tensor(std::string_view name) const {
  for (const Planned& t : tensors_)
    if (op_.parameters[std::size_t(t.parameter)].field.name == name) return &t;
  return nullptr;
}

}  // namespace dsakit::debug
