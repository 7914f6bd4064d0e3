// SPDX-License-Identifier: Apache-2.0
#include "io/describe.hpp"

#include <sys/stat.h>

#include <algorithm>

#include "io/checkpoint.hpp"
#include "io/json.hpp"

namespace dsakit::io {
namespace {

struct Table {
  std::string text;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;

  void add(const SafetensorsFile& file) {
    std::size_t widest = 0;
    for (const FileTensor& t : file.tensors()) widest = std::max(widest, printable(t.name).size());
    for (const FileTensor& t : file.tensors()) {
      std::string line = printable(t.name);
      line.resize(widest, ' ');
      text += line + "  " + t.type->name + "  " + shape_text(t.shape.data(), t.rank) + "  " +
              std::to_string(t.bytes()) + "\n";
    }
    tensors += file.tensors().size();
    bytes += file.data_bytes();
  }
  std::string finish() { return text + std::to_string(tensors) + " tensors, " + std::to_string(bytes) + " bytes\n"; }
};

}  // namespace

std::string describe(const std::string& path) {
  struct stat status;
  Table table;
  if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    table.add(SafetensorsFile(path));
    return table.finish();
  }
  const Checkpoint checkpoint(path);
  const ModelConfig& c = checkpoint.config();
  const auto count = [](const std::vector<bool>& bits) {
    return std::to_string(std::count(bits.begin(), bits.end(), true));
  };
  table.text = c.model_type + ": " + std::to_string(c.num_hidden_layers) + " layers (" + count(c.full_indexer) +
               " with an indexer, " + count(c.dense_mlp) + " with a dense MLP), hidden " +
               std::to_string(c.hidden_size) + ", " + std::to_string(c.num_attention_heads) + " heads, index top " +
               std::to_string(c.index_topk) + "\n";
  for (const SafetensorsFile& file : checkpoint.files()) {
    table.text += file.file().name() + "\n";
    table.add(file);
  }
  return table.finish();
}

}  // namespace dsakit::io
