// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dsakit::io {

/// Which file of a checkpoint folder holds which tensor. The files need not be there.
struct ShardIndex {
  std::string name;                 // of the index; empty where a single file tells for itself
  std::vector<std::string> shards;  // names in the folder
  std::map<std::string, std::size_t, std::less<>> shard_of;  // places in `shards`; empty for a single file
};

/// model.safetensors or model.safetensors.index.json, in this order, or as msModelSlim names them,
/// quant_model_weights.*: two kinds of index are CONFLICT. A name that leaves the folder is INVALID_PATH.
ShardIndex read_shard_index(const std::string& folder);

}  // namespace dsakit::io
