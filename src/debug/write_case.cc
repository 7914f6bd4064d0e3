// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "debug/case.hpp"
#include "core/out_of_memory.hpp"
#include "debug/case_json.hpp"
#include "io/durable.hpp"
#include "io/json.hpp"

namespace dsakit::debug {
namespace {

/// What JSON has no number for is a string, which the parameter tells from others.
std::string number_text(double v) {
  if (std::isfinite(v)) return io::json_number(v);
  return std::string(std::signbit(v) ? "\"-" : "\"") + (std::isnan(v) ? "NaN\"" : "Infinity\"");
}

std::string text_of(const std::vector<std::int64_t>& list) {
  std::string text = "[";
  for (const std::int64_t n : list) text += (text.size() > 1 ? "," : "") + std::to_string(n);
  return text + "]";
}

std::string text_of(const Attribute& value) { return json_of(value); }

std::string text_of(const Layout& l) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    text += (text.empty() ? "" : ",") + io::json_quoted(name) + ":" + value;
  };
  const auto add_text = [&](const char* name, const std::string& value) {
    if (!value.empty()) add(name, io::json_quoted(value));
  };
  add_text("format", l.format);
  if (l.npu_format.index() != 0) add("npu_format", text_of(l.npu_format));
  add_text("of", l.of);
  if (l.shape) add("shape", text_of(*l.shape));
  if (l.stride) add("stride", text_of(*l.stride));
  if (l.offset) add("offset", std::to_string(*l.offset));
  add_text("pages", l.pages);
  if (l.full) add("full", text_of(*l.full));
  add_text("file", l.file);
  add_text("dtype", l.dtype);
  return "{" + text + "}";
}

template <class T>
std::string text_of(const ByName<T>& map) {
  std::string text = "{";
  for (const auto& [name, value] : map)
    text += (text.size() > 1 ? "," : "") + io::json_quoted(name) + ":" + text_of(value);
  return text + "}";
}

std::vector<io::TensorToWrite> tensors_of(const Case& c) {
  std::vector<io::TensorToWrite> all;
  for (const auto& [key, stored] : c.tensors) {
    const auto layout = c.layouts.find(key);
    if (layout != c.layouts.end() && !layout->second.file.empty()) continue;  // lies beside
    io::TensorToWrite t{key, stored.type, int(stored.shape.size()), {}, stored.bytes->data()};
    std::copy(stored.shape.begin(), stored.shape.end(), t.shape.begin());
    all.push_back(t);
  }
  return all;
}

std::string header_of(const Case& c, const std::vector<io::TensorToWrite>& tensors) {
  std::map<std::string, std::string> metadata = c.metadata;
  metadata["dsakit.case"] = "1";
  metadata["call"] = c.call;
  metadata["attributes"] = text_of(c.attributes);
  if (!c.layouts.empty()) metadata["layouts"] = text_of(c.layouts);
  return io::safetensors_header(tensors, metadata);
}

}  // namespace

std::string json_of(const Attribute& value) {
  return std::visit(
      []<class T>(const T& v) -> std::string {
        if constexpr (std::is_same_v<T, std::monostate>) return "null";
        else if constexpr (std::is_same_v<T, bool>) return v ? "true" : "false";
        else if constexpr (std::is_same_v<T, std::int64_t>) return std::to_string(v);
        else if constexpr (std::is_same_v<T, double>) return number_text(v);
        else if constexpr (std::is_same_v<T, std::string>) return io::json_quoted(v);
        else return text_of(v);
      },
      value);
}

void write_case(const Case& c, const std::string& path) try {
  const std::size_t slash = path.rfind('/');
  const std::vector<io::TensorToWrite> tensors = tensors_of(c);
  io::DurableFile file(slash == path.npos ? "." : path.substr(0, slash + 1),
                       slash == path.npos ? path : path.substr(slash + 1), "case");
  file.write(header_of(c, tensors));
  for (const io::TensorToWrite& t : tensors) file.write(t.data, t.bytes());
  file.commit(io::DurableFile::Sync::no);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::uint64_t bytes_of(const Case& c) {
  const std::vector<io::TensorToWrite> tensors = tensors_of(c);
  std::uint64_t bytes = header_of(c, tensors).size();
  for (const io::TensorToWrite& t : tensors) bytes += t.bytes();
  return bytes;
}

}  // namespace dsakit::debug
