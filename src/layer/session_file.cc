// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "io/durable.hpp"
#include "core/out_of_memory.hpp"
#include "io/json.hpp"
#include "layer/model_state.hpp"

// Sessions in a folder: cache.json names the shards, which are written under fresh names before it takes the place of the one
// before. Any number of ranks reads what any number has written.
namespace dsakit {
namespace {

constexpr char kIndexName[] = "cache.json", kVersion[] = "1";
constexpr std::size_t kBlock = std::size_t(4) << 20;  // bytes read or written at a time, about

/// FNV-1a over 8 bytes at a time, the last ones filled up with zeros.
class Checksum {
 public:
  void add(const std::byte* bytes, std::size_t count) {
    while (count > 0) {
      const std::size_t some = std::min(count, 8 - held_);
      std::memcpy(reinterpret_cast<std::byte*>(&word_) + held_, bytes, some);
      bytes += some, count -= some, held_ += some;
      if (held_ == 8) mix();
    }
  }
  std::string text() {
    if (held_ > 0) mix();
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_));
    return text;
  }

 private:
  void mix() {
    hash_ = (hash_ ^ word_) * 1099511628211u;
    hash_ ^= hash_ >> 29;
    word_ = 0, held_ = 0;
  }
  std::uint64_t hash_ = 14695981039346656037u, word_ = 0;
  std::size_t held_ = 0;
};

/// A file of rows: which shards it has; -1: not that kind.
struct ShardFile {
  std::string name, checksum;
  std::int64_t bytes = 0, latents = -1, index = -1;
};

struct SavedSession {
  std::string mode;
  std::int64_t length = 0, interleave = 1, kv = 1, index = 1, layers = 0;
  std::vector<ShardFile> files;
};

struct Owners {
  Ownership latents, index;
};
Owners owners_of(const Model::State& model) {
  return model.peers ? Owners{model.peers->latent_rows(), model.peers->index_rows()} : Owners{};
}

LayerCache::State& latents_of(Session::State& s, std::size_t layer) { return s.caches[layer].state(); }
LayerCache::State& index_keys_of(Session::State& s, std::size_t layer) {
  return s.index_caches.empty() ? s.caches[layer].state() : s.index_caches[layer].state();
}

/// f(name, pool, cache, whether it is one of the latent kinds) for every kind of rows of every layer, in the order of files.
template <class F>
void each_kind(Session::State& s, F f) {
  for (std::size_t l = 0; l < s.caches.size(); ++l) {
    const std::string prefix = "layers." + std::to_string(l) + ".";
    LayerCache::State &a = latents_of(s, l), &b = index_keys_of(s, l);
    f(prefix + "latent", a.latent, a, true);
    f(prefix + "rope", a.rope, a, true);
    f(prefix + "latent_scale", a.latent_scale, a, true);
    f(prefix + "index_key", b.index_key, b, false);
    f(prefix + "index_scale", b.index_scale, b, false);
  }
}

// ---- writing

ShardFile write_shard(Session::State& s, const std::string& folder, ShardFile file) {
  std::vector<io::TensorToWrite> tensors;
  const auto wanted = [&](const CachePool& pool, bool latents) {
    return pool.width > 0 && (latents ? file.latents : file.index) >= 0;
  };
  each_kind(s, [&](const std::string& name, CachePool& pool, LayerCache::State& cache, bool latents) {
    if (wanted(pool, latents))
      tensors.push_back({name, &io::file_dtype_of(pool.dtype), 2, {cache.length, pool.width}, nullptr});
  });
  io::DurableFile out(folder, file.name, "save");
  Checksum sum;
  const auto write = [&](const void* bytes, std::size_t count) {
    sum.add(static_cast<const std::byte*>(bytes), count);
    file.bytes += std::int64_t(count);
    out.write(bytes, count);
  };
  const std::string header = io::safetensors_header(tensors, {{"dsakit_cache", kVersion}});
  write(header.data(), header.size());
  each_kind(s, [&](const std::string&, CachePool& pool, LayerCache::State& cache, bool latents) {
    if (!wanted(pool, latents)) return;
    for (std::int64_t at = 0, n; at < cache.length; at += n) {  // a page at a time
      n = std::min(cache.page_size - at % cache.page_size, cache.length - at);
      write(pool.memory.data() + cache.slot(at) * pool.row_bytes(), std::size_t(n * pool.row_bytes()));
    }
  });
  out.commit();
  file.checksum = sum.text();
  return file;
}

std::string text_of(const SavedSession& s) {
  std::string text = "{\"dsakit_cache\": " + io::json_quoted(kVersion) + ", \"mode\": " + io::json_quoted(s.mode);
  for (const auto& [key, value] : {std::pair{"length", s.length}, {"interleave", s.interleave}, {"kv", s.kv},
                                   {"index", s.index}, {"layers", s.layers}})
    text += std::string(", \"") + key + "\": " + std::to_string(value);
  text += ", \"hadamard\": true, \"files\": [";
  for (std::size_t i = 0; i < s.files.size(); ++i) {
    const ShardFile& f = s.files[i];
    text += std::string(i > 0 ? ",\n" : "\n") + "{\"name\": " + io::json_quoted(f.name) +
            ", \"bytes\": " + std::to_string(f.bytes) + ", \"checksum\": " + io::json_quoted(f.checksum);
    if (f.latents >= 0) text += ", \"latents\": " + std::to_string(f.latents);
    if (f.index >= 0) text += ", \"index_keys\": " + std::to_string(f.index);
    text += "}";
  }
  return text + "]}\n";
}

// ---- reading

[[noreturn]] void refuse(const std::string& what, const std::string& got, const std::string& wanted) {
  throw Error(Status::invalid_file, "load", what, "", got, wanted);
}

SavedSession read_saved(const std::string& folder) {
  const std::string text = io::read_json_object(folder + "/" + kIndexName, Status::invalid_file);
  SavedSession s;
  std::string version;
  const auto number = [](const io::Json& value, const std::string& key) {
    const auto n = value.plain_integer();
    if (!n) refuse(kIndexName + (": " + key), "is " + std::string(value.text().substr(0, 40)), "a number of at least 0");
    return *n;
  };
  const auto string = [](const io::Json& value, const std::string& key) {
    if (!value.is_string()) refuse(kIndexName + (": " + key), "is " + std::string(value.text().substr(0, 40)), "a string");
    return value.string();
  };
  const auto read_file = [&](const io::Json& value) {
    ShardFile f;
    if (!value.is_object()) refuse(std::string(kIndexName) + ": files", "has another entry", "objects");
    value.members([&](const std::string& key, const io::Json& v) {
      if (key == "name") f.name = string(v, key);
      else if (key == "checksum") f.checksum = string(v, key);
      else if (key == "bytes") f.bytes = number(v, key);
      else if (key == "latents") f.latents = number(v, key);
      else if (key == "index_keys") f.index = number(v, key);
    });
    if (f.name.empty() || f.name.find('/') != f.name.npos || f.name[0] == '.')
      refuse(std::string(kIndexName) + ": name", "is " + io::printable(f.name), "the name of a file in this folder");
    s.files.push_back(f);
  };
  io::Json(text).members([&](const std::string& key, const io::Json& value) {
    if (key == "dsakit_cache") version = string(value, key);
    else if (key == "mode") s.mode = string(value, key);
    else if (key == "length") s.length = number(value, key);
    else if (key == "interleave") s.interleave = number(value, key);
    else if (key == "kv") s.kv = number(value, key);
    else if (key == "index") s.index = number(value, key);
    else if (key == "layers") s.layers = number(value, key);
    else if (key == "files" && value.is_array())
      value.items(read_file);
  });
  if (version != kVersion) refuse(kIndexName, "is of version '" + io::printable(version) + "'", kVersion);
  if (s.interleave < 1 || s.kv < 1 || s.index < 1 || s.kv > (1 << 16) || s.index > (1 << 16))
    refuse(kIndexName, "has no shards", "interleave, kv and index of at least 1");
  return s;
}

void check_checksum(const io::SafetensorsFile& file, const ShardFile& f) {
  const io::File& bytes = file.file();
  if (std::int64_t(bytes.size()) != f.bytes)
    refuse(f.name, "has " + std::to_string(bytes.size()) + " bytes", std::to_string(f.bytes));
  Checksum sum;
  std::vector<std::byte> block(kBlock);
  for (std::uint64_t at = 0; at < bytes.size(); at += block.size()) {
    const std::size_t n = std::size_t(std::min<std::uint64_t>(block.size(), bytes.size() - at));
    bytes.read(at, block.data(), n);
    sum.add(block.data(), n);
  }
  if (const std::string got = sum.text(); got != f.checksum) refuse(f.name, "has checksum " + got, f.checksum);
}

/// The rows of one kind that are this rank's, of those of shard `from`.
void read_rows(const io::SafetensorsFile& file, const std::string& name, const Ownership& from, const Ownership& to,
               std::int64_t length, CachePool& pool, LayerCache::State& cache) {
  const io::FileTensor* t = file.find(name);
  const std::int64_t rows = from.below(length);
  if (!t) throw Error(Status::missing_tensor, "load", file.file().name() + ": " + name, "", "is missing", "a shard's rows");
  if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != pool.width || t->type->dtype != pool.dtype)
    refuse(file.file().name() + ": " + name, std::string("is ") + t->type->name + " " + io::shape_text(t->shape.data(), t->rank),
           io::file_dtype_of(pool.dtype).name + std::string(" [") + std::to_string(rows) + ", " +
               std::to_string(pool.width) + "]");
  const std::int64_t bytes = pool.row_bytes(), some = std::max<std::int64_t>(std::int64_t(kBlock) / bytes, 1);
  std::vector<std::byte> block(std::size_t(std::min(some, rows) * bytes));
  for (std::int64_t first = 0; first < rows; first += some) {
    const std::int64_t n = std::min(some, rows - first);
    file.read(*t, std::uint64_t(first * bytes), block.data(), std::size_t(n * bytes));
    for (std::int64_t j = 0; j < n; ++j)
      if (const std::int64_t x = from.global(first + j); to.owns(x))
        std::memcpy(pool.memory.data() + cache.slot(to.local(x)) * bytes, block.data() + j * bytes, std::size_t(bytes));
  }
}

void read_session(Session::State& s, const SavedSession& saved, const std::string& folder) {
  const Owners owners = owners_of(*s.model);
  if (saved.layers != std::int64_t(s.caches.size()))
    refuse(kIndexName, "has " + std::to_string(saved.layers) + " layers", std::to_string(s.caches.size()));
  std::vector<bool> latents(std::size_t(saved.kv)), index(std::size_t(saved.index));
  s.reserve(saved.length);
  for (const ShardFile& f : saved.files) {
    const io::SafetensorsFile file(folder + "/" + f.name);
    check_checksum(file, f);
    each_kind(s, [&](const std::string& name, CachePool& pool, LayerCache::State& cache, bool latent) {
      const std::int64_t shard = latent ? f.latents : f.index, shards = latent ? saved.kv : saved.index;
      if (pool.width == 0 || shard < 0) return;
      if (shard >= shards) refuse(kIndexName, "names shard " + std::to_string(shard), "below " + std::to_string(shards));
      (latent ? latents : index)[std::size_t(shard)] = true;
      read_rows(file, name, {shards, shard, saved.interleave}, latent ? owners.latents : owners.index, saved.length, pool, cache);
    });
  }
  const auto missing = [&](const std::vector<bool>& there) { return std::find(there.begin(), there.end(), false) != there.end(); };
  bool has_index = false;
  each_kind(s, [&](const std::string&, CachePool& pool, LayerCache::State&, bool latent) {
    has_index |= !latent && pool.width > 0;
  });
  if (missing(latents) || (has_index && missing(index))) refuse(kIndexName, "lacks a shard", "files for all of them");
  s.keep(saved.length);
}

/// A name that no file of the folder has: of rank 0's clock and process.
std::uint64_t fresh_number() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()) * 1000003u +
         std::uint64_t(::getpid());
}

std::vector<std::string> shards_before(const std::string& folder) {
  std::vector<std::string> names;
  if (!io::exists(folder + "/" + kIndexName)) return names;
  try {
    for (const ShardFile& f : read_saved(folder).files) names.push_back(f.name);
  } catch (const Error&) {  // not ours: left alone
  }
  return names;
}

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

/// What this rank writes: shards that no other one does.
ShardFile shard_of(const Model::State& model, std::uint64_t number) {
  ShardFile file{.name = "cache-" + hex(number) + "-0.safetensors", .checksum = {}, .latents = 0, .index = 0};
  if (!model.peers) return file;
  const Peers& p = *model.peers;
  file.name = "cache-" + hex(number) + "-" + std::to_string(p.rank) + ".safetensors";
  const bool first = p.q == 0 && p.h == 0;
  file.latents = first ? p.c : -1;
  switch (p.options.index) {
    case IndexShards::all:
      file.index = p.q == 0 ? p.replica->rank() : -1;
      break;
    case IndexShards::kv:
      file.index = first ? p.c : -1;
      break;
    case IndexShards::copy:
      file.index = p.rank == 0 ? 0 : -1;
  }
  return file;
}

void finish(const SavedSession& saved, const std::string& folder, const std::vector<std::string>& before) {
  io::write_durably(folder, kIndexName, text_of(saved), "save");
  for (const std::string& name : before) ::unlink((folder + "/" + name).c_str());
}

/// As fixed bytes, to be exchanged.
struct ShardRecord {
  std::int64_t bytes, latents, index;
  char name[64], checksum[24];
};

ShardRecord record_of(const ShardFile& f) {
  ShardRecord r{f.bytes, f.latents, f.index, {}, {}};
  std::snprintf(r.name, sizeof r.name, "%s", f.name.c_str());
  std::snprintf(r.checksum, sizeof r.checksum, "%s", f.checksum.c_str());
  return r;
}

void save_parallel(Session::State& s, const std::string& folder) {
  Peers& p = *s.model->peers;
  const std::lock_guard turn(p.turn);
  const std::size_t ranks = std::size_t(p.world.size());
  std::vector<std::string> before;
  p.talk.begin({{{"operation", "save"}, {"length", std::to_string(s.length())}, {"mode", std::string(name_of(s.mode))}}},
               [&] { before = shards_before(folder); });
  std::vector<std::uint64_t> numbers(ranks);
  const std::uint64_t mine = fresh_number();
  p.talk.all_gather(p.world, "save", std::as_bytes(std::span(&mine, 1)), std::vector<std::size_t>(ranks, sizeof mine),
                    reinterpret_cast<std::byte*>(numbers.data()));
  ShardFile file = shard_of(*s.model, numbers[0]);
  p.talk.work([&] {
    if (file.latents >= 0 || file.index >= 0) file = write_shard(s, folder, file);
  });
  const ShardRecord record = record_of(file);
  std::vector<ShardRecord> records(ranks);
  p.talk.all_gather(p.world, "save", std::as_bytes(std::span(&record, 1)), std::vector<std::size_t>(ranks, sizeof record),
                    reinterpret_cast<std::byte*>(records.data()));
  if (p.talk.failed()) ::unlink((folder + "/" + file.name).c_str());
  p.talk.work([&] {
    if (p.rank != 0) return;
    SavedSession saved{std::string(name_of(s.mode)), s.length(), p.options.interleave, p.options.grid.kv,
                       p.index_rows().ranks, std::int64_t(s.caches.size()), {}};
    for (const ShardRecord& r : records)
      if (r.latents >= 0 || r.index >= 0) saved.files.push_back({r.name, r.checksum, r.bytes, r.latents, r.index});
    finish(saved, folder, before);
  });
  p.talk.end();
}

}  // namespace

void Session::save(const std::string& folder) try {
  State& s = *state_;
  if (s.model->peers) return save_parallel(s, folder);
  const std::vector<std::string> before = shards_before(folder);
  const ShardFile file = write_shard(s, folder, shard_of(*s.model, fresh_number()));
  finish({std::string(name_of(s.mode)), s.length(), 1, 1, 1, std::int64_t(s.caches.size()), {file}}, folder, before);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Session Model::load_session(const std::string& folder, std::int64_t page_size) const try {
  SavedSession saved;
  const auto read_index = [&] {
    saved = read_saved(folder);
    (void)mode_of(saved.mode, state_->config);
  };
  if (!state_->peers) {
    read_index();
    Session session = start(saved.mode, page_size);
    read_session(session.state(), saved, folder);
    return session;
  }
  Conversation& talk = state_->peers->talk;
  {
    const std::lock_guard turn(state_->peers->turn);
    talk.begin({{{"operation", "load session"}}}, read_index);
    talk.end();
  }
  Session session = start(saved.mode, page_size);
  const std::lock_guard turn(state_->peers->turn);
  talk.begin({{{"operation", "load session"}, {"length", std::to_string(saved.length)}}}, [] {});
  talk.work([&] { read_session(session.state(), saved, folder); });
  talk.end();
  return session;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
