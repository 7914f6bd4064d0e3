// SPDX-License-Identifier: Apache-2.0
#include "io/shard_index.hpp"

#include <stdlib.h>

#include <memory>
#include <string_view>

#include "dsakit/error.hpp"
#include "io/file.hpp"
#include "io/json.hpp"

namespace dsakit::io {
namespace {

[[noreturn]] void refuse(Status status, const std::string& what, const std::string& got, const std::string& wanted) {
  throw Error(status, "load", what, "", got, wanted);
}

/// The path with links followed, empty if there is nothing.
std::string resolved(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
  return real ? real.get() : "";
}

/// INVALID_PATH unless the file of this name lies in the folder.
void check_shard_name(const std::string& folder, const std::string& index, const std::string& name) {
  const auto bad = [&](const std::string& got) {
    refuse(Status::invalid_path, index + ": " + printable(name), got, "the name of a file in the folder");
  };
  if (name.empty() || name == "." || name == "..") bad("is no file name");
  if (name.find('\0') != std::string::npos) bad("holds a NUL");
  if (name.find_first_of("/\\") != std::string::npos) bad("holds a separator");
  const std::string real = resolved(folder + "/" + name), inside = resolved(folder) + "/";
  if (!real.empty() && real.compare(0, inside.size(), inside) != 0) bad("is a link out of the folder");
}

ShardIndex read_index(const std::string& folder, const std::string& name) {
  const std::string text = read_json_object(folder + "/" + name, Status::invalid_file);
  ShardIndex index{name, {}, {}};
  std::map<std::string, std::size_t> numbers;
  bool mapped = false;
  Json(text).members([&](const std::string& key, const Json& value) {
    if (key != "weight_map") return;
    mapped = value.is_object();
    if (mapped)
      value.members([&](const std::string& tensor, const Json& shard) {
        if (!shard.is_string())
          refuse(Status::invalid_file, name + ": " + printable(tensor), "is " + printable(shard.text()),
                 "the name of a file");
        const auto [at, added] = numbers.emplace(shard.string(), index.shards.size());
        if (added) index.shards.push_back(at->first);
        index.shard_of[tensor] = at->second;
      });
  });
  if (!mapped) refuse(Status::invalid_file, name, "has no weight_map", "an object of tensor and file names");
  for (const std::string& shard : index.shards) check_shard_name(folder, name, shard);
  return index;
}

}  // namespace

ShardIndex read_shard_index(const std::string& folder) {
  const std::string plain = "model.safetensors", slim = "quant_model_weights.safetensors", suffix = ".index.json";
  const auto is_there = [&](const std::string& name) { return exists(folder + "/" + name); };
  if (is_there(plain + suffix) && is_there(slim + suffix))
    refuse(Status::conflict, slim + suffix, "is beside " + plain + suffix, "one of the two");
  for (const std::string& name : {plain, slim}) {
    if (is_there(name)) return {"", {name}, {}};
    if (is_there(name + suffix)) return read_index(folder, name + suffix);
  }
  return {"", {plain}, {}};
}

}  // namespace dsakit::io
