// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>

#include "core/check.hpp"
#include "core/out_of_memory.hpp"
#include "debug/case.hpp"
#include "debug/case_json.hpp"
#include "debug/check_layout.hpp"
#include "debug/hash.hpp"
#include "debug/spelling.hpp"
#include "dsakit/error.hpp"

namespace dsakit::debug {
namespace {

constexpr std::string_view kGroups[] = {"in", "out", "after", "ref", "tap", "float", "pages"};
constexpr int kDepth = 8;  // of JSON in metadata

std::string printable(std::string_view text) { return io::printable(text); }

/// The value of a piece of metadata as checked JSON, or null where it is absent.
std::optional<io::Json> json_at(const Case& c, const std::map<std::string, std::string>& metadata, const char* key) {
  const auto at = metadata.find(key);
  if (at == metadata.end()) return {};
  if (const auto fault = io::find_json_fault(at->second, kDepth))
    refuse_case(c, key, fault->got, fault->wanted, "CASE_JSON");
  return io::Json(at->second);
}

io::Json object_at(const Case& c, const std::map<std::string, std::string>& metadata, const char* key) {
  const auto json = json_at(c, metadata, key);
  if (!json) refuse_case(c, key, "is missing", "a JSON object", "CASE_JSON");
  if (!json->is_object()) refuse_case(c, key, "is " + printable(json->text()), "a JSON object", "CASE_JSON");
  return *json;
}

void read_attributes(Case& c, const std::map<std::string, std::string>& metadata) {
  object_at(c, metadata, "attributes").members([&](const std::string& name, const io::Json& value) {
    const auto attribute = attribute_of(value);
    if (!attribute)
      refuse_case(c, "attribute " + printable(name), "is " + printable(value.text()),
                  "a number, a string, true, false, null or a list of integers", "CASE_VALUE");
    c.attributes[name] = number_where_due(c, name, *attribute);
  });
}

Layout layout_of(const Case& c, const std::string& key, const io::Json& text) {
  Layout layout;
  const auto fail = [&](const std::string& field, const io::Json& value, const char* wanted) {
    refuse_case(c, "layout of " + printable(key) + ": " + printable(field), "is " + printable(value.text()), wanted,
                "CASE_LAYOUT");
  };
  if (!text.is_object()) fail("all of it", text, "an object");
  text.members([&](const std::string& field, const io::Json& value) {
    const auto as = attribute_of(value);
    const auto integers = [&](std::optional<std::vector<std::int64_t>>& to) {
      const auto* list = as ? std::get_if<std::vector<std::int64_t>>(&*as) : nullptr;
      if (!list || list->size() > 8 || std::any_of(list->begin(), list->end(), [](auto n) { return n < 0; }))
        fail(field, value, "at most 8 integers, none below 0");
      to = *list;
    };
    const auto name = [&](std::string& to) {
      const auto* word = as ? std::get_if<std::string>(&*as) : nullptr;
      if (!word || word->empty()) fail(field, value, "a string");
      to = *word;
    };
    if (field == "format") name(layout.format);
    else if (field == "of") name(layout.of);
    else if (field == "pages") name(layout.pages);
    else if (field == "file") name(layout.file);
    else if (field == "dtype") name(layout.dtype);
    else if (field == "shape") integers(layout.shape);
    else if (field == "stride") integers(layout.stride);
    else if (field == "full") integers(layout.full);
    else if (field == "npu_format" && as && (as->index() == 1 || as->index() == 4)) layout.npu_format = *as;
    else if (field == "offset" && as && std::holds_alternative<std::int64_t>(*as) && std::get<std::int64_t>(*as) >= 0)
      layout.offset = std::get<std::int64_t>(*as);
    else
      fail(field, value,
           "format, npu_format, of, shape, stride, offset, pages, full, file or dtype, as they are meant");
  });
  return layout;
}

Stored stored_of(const io::SafetensorsFile& file, const io::FileTensor& t) {
  Stored stored;
  stored.type = t.type;
  stored.shape.assign(t.shape.begin(), t.shape.begin() + t.rank);
  stored.bytes = std::make_shared<io::AlignedArray<std::byte>>(file.read(t));
  return stored;
}

/// A tensor that lies in a file beside: the only one in there. A name weight-HASH says what it was.
void read_sibling(Case& c, const std::string& key, const Layout& layout) {
  const std::string& name = layout.file;
  const std::string what = printable(key) + " lies in " + printable(name) + ", which";
  if (name.find('/') != name.npos || name.find('\0') != name.npos || name == "." || name == "..")
    refuse_case(c, what, "is no plain name", "a file beside the case", "CASE_FILE");
  if (!io::file_exists(c.folder + "/" + name))
    refuse_case(c, what, "is missing", "a file beside the case", "CASE_FILE");
  const io::SafetensorsFile file(c.folder + "/" + name);
  if (file.tensors().size() != 1)
    refuse_case(c, what, "has " + std::to_string(file.tensors().size()) + " tensors", "1", "CASE_FILE");
  Stored stored = stored_of(file, file.tensors().front());
  if (name.starts_with("weight-") && name != sibling_name(stored))
    refuse_case(c, what, "has changed: it is now " + sibling_name(stored), "the bytes that were recorded", "CASE_FILE");
  c.tensors[key] = std::move(stored);
}

std::string known_names(const Operator& op, std::string_view group) {
  std::string names;
  for (const Parameter& p : op.parameters)
    if (place_of(op, group, std::string(p.field.name) + (p.list && group != "attributes" ? ".0" : "")))
      names += (names.empty() ? "" : ", ") + std::string(p.field.name) + (p.list ? ".0" : "");
  return names.empty() ? "none" : names;
}

/// Every key has a known group and name, and no argument comes twice.
void check_names(const Case& c, const Operator& op) {
  std::set<std::string> keys;
  for (const auto& [key, stored] : c.tensors) keys.insert(key);
  for (const auto& [key, layout] : c.layouts) keys.insert(key);
  std::map<std::tuple<std::string, int, int>, std::string> seen;
  const auto once = [&](const std::string& group, Place place, const std::string& key) {
    const auto [at, first] = seen.emplace(std::tuple(group, place.parameter, place.element), key);
    if (!first)
      refuse_case(c, printable(key), "is also " + printable(at->second), "each once, by name or by position",
                  "CASE_TWICE");
  };
  for (const std::string& key : keys) {
    const std::size_t dot = key.find('.');
    const std::string group = key.substr(0, dot), name = dot == key.npos ? "" : key.substr(dot + 1);
    if (std::find(std::begin(kGroups), std::end(kGroups), group) == std::end(kGroups) || name.empty())
      refuse_case(c, printable(key), "is in no known group",
                  "in, out, after, ref, tap, float or pages, a dot and a name", "CASE_NAME");
    if (group == "tap") continue;
    const auto place = c.place(group, name);
    if (!place)
      refuse_case(c, printable(key), "is no tensor of " + std::string(op.name), known_names(op, group), "CASE_NAME");
    once(group, *place, key);
  }
  for (const auto& [name, value] : c.attributes) {
    auto place = c.place("attributes", name);
    if (!place) place = c.place("in", name);  // lengths as a list, and None for a tensor
    if (!place)
      refuse_case(c, "attribute " + printable(name), "is no parameter of " + std::string(op.name),
                  known_names(op, "attributes"), "CASE_NAME");
    if (value.index() != 0) once("in", *place, "attribute " + name);
  }
}

/// What is wanted of an attribute, or "" if this will do.
std::string wanted_of(const Parameter& p, const Attribute& value) {
  const auto is = [&]<class T>(T*) { return std::holds_alternative<T>(value); };
  const bool integer = is((std::int64_t*)nullptr), list = is((std::vector<std::int64_t>*)nullptr);
  const Field& f = p.field;
  if (value.index() == 0 || f.role == Role::hint || f.role == Role::reserved || f.role == Role::tolerated) return "";
  if (f.kind == Kind::lengths) return list ? "" : "a list of integers, or a tensor";
  if (f.role != Role::attribute) return "a tensor, or null";
  if (f.kind == Kind::axes) return list ? "" : "a list of integers";
  if (f.kind == Kind::dtype && f.dtypes == "dtype") return is((std::string*)nullptr) ? "" : "a string";
  if (f.dtypes.starts_with("int")) return integer ? "" : "an integer";
  if (f.dtypes.starts_with("float")) return integer || is((double*)nullptr) ? "" : "a number";
  if (f.dtypes.starts_with("bool")) return is((bool*)nullptr) ? "" : "true or false";
  return is((std::string*)nullptr) ? "" : "a string";
}

void check_values(const Case& c, const Operator& op) {
  for (const auto& [name, value] : c.attributes) {
    auto place = c.place("attributes", name);
    if (!place) place = c.place("in", name);
    const Parameter& p = op.parameters[std::size_t(place->parameter)];
    if (const std::string wanted = wanted_of(p, value); !wanted.empty())
      refuse_case(c, "attribute " + printable(name), "is " + printable(json_of(value)), wanted, "CASE_VALUE",
                  std::string(p.field.name) + " of " + std::string(op.name));
  }
}

void check_missing(const Case& c, const Operator& op) {
  if (c.refusal()) return;  // it may have been refused for this
  std::set<int> given;
  for (const std::string& name : c.names("in")) given.insert(c.place("in", name)->parameter);
  for (const auto& [name, value] : c.attributes) {
    if (value.index() == 0) continue;
    const auto place = c.place("attributes", name);
    given.insert((place ? place : c.place("in", name))->parameter);
  }
  for (std::size_t i = 0; i < op.parameters.size(); ++i) {
    const Parameter& p = op.parameters[i];
    const bool needed =
        p.field.is_required() || (p.field.role == Role::attribute && p.required && p.field.kind != Kind::dtype);
    if (needed && !given.contains(int(i)))
      refuse_case(c, (p.field.role == Role::attribute ? "attribute " : "in.") + std::string(p.field.name), "is missing",
                  "a value", "CASE_MISSING", "required by " + std::string(op.name));
  }
}

}  // namespace

std::optional<Attribute> attribute_of(const io::Json& value) {
  if (value.is_null()) return Attribute{};
  if (const auto flag = value.boolean()) return Attribute(*flag);
  if (value.is_string()) return Attribute(value.string());
  if (value.text() != "-0")
    if (const auto integer = value.integer()) return Attribute(*integer);
  if (value.is_array()) {
    std::vector<std::int64_t> list;
    bool integers = true;
    value.items([&](const io::Json& item) {
      const auto integer = item.integer();
      integers &= integer.has_value();
      list.push_back(integer.value_or(0));
    });
    return integers ? std::optional<Attribute>(std::move(list)) : std::nullopt;
  }
  if (const auto number = value.number()) return Attribute(*number);
  return {};
}

Attribute number_where_due(const Case& c, std::string_view attribute, const Attribute& value) {
  const auto* text = std::get_if<std::string>(&value);
  const auto place = c.place("attributes", attribute);
  if (!text || !place || !c.op().parameters[std::size_t(place->parameter)].field.dtypes.starts_with("float")) return value;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& [name, number] :
       {std::pair{"NaN", kNan}, {"-NaN", -kNan}, {"Infinity", kInfinity}, {"-Infinity", -kInfinity}})
    if (*text == name) return number;
  return value;
}

void check_case(const Case& c) {
  const Operator& op = c.op();
  check_names(c, op);
  check_values(c, op);
  check_missing(c, op);
  check_layouts(c);
}

Case read_case(const std::string& path) try {
  const io::SafetensorsFile file(path);
  Case c;
  c.name = file.file().name();
  const std::size_t slash = path.rfind('/');
  c.folder = slash == path.npos ? "." : path.substr(0, slash + 1);
  auto metadata = file.metadata();
  const auto version = metadata.find("dsakit.case");
  if (version == metadata.end())
    refuse_case(c, "", "is no case", "metadata dsakit.case, call and attributes", "NO_CASE");
  if (version->second != "1")
    refuse_case(c, "dsakit.case", "is \"" + printable(version->second) + "\"", "\"1\"", "CASE_VERSION");
  if (!metadata.contains("call")) refuse_case(c, "call", "is missing", "the name of an operator", "CASE_CALL");
  c.call = metadata["call"];
  (void)c.op();
  read_attributes(c, metadata);
  if (metadata.contains("layouts"))
    object_at(c, metadata, "layouts").members([&](const std::string& key, const io::Json& value) {
      c.layouts[key] = layout_of(c, key, value);
    });
  for (const char* key : {"undefined", "where", "status", "recipe"}) (void)json_at(c, metadata, key);
  for (const char* key : {"dsakit.case", "call", "attributes", "layouts"}) metadata.erase(key);
  c.metadata = std::move(metadata);
  file.require_memory_for_all();
  for (const io::FileTensor& t : file.tensors()) c.tensors[t.name] = stored_of(file, t);
  for (const auto& [key, layout] : c.layouts)
    if (!layout.file.empty()) read_sibling(c, key, layout);
  check_case(c);
  return c;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit::debug
