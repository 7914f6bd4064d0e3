// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dsakit {

enum class TargetFormat {
  bf16,  // every quantised weight as the number it stands for
  w8a8,  // msModelSlim's layout: int8 and a scale per row for q_a, q_b, kv_a, wq_b and MLPs, the rest as for bf16
  packed,  // every tensor as it is stored, but the experts of a layer in blocks as they lie in memory: one read each
};

struct ConvertOptions {
  // Folders; shards of the first may be in pieces, or absent where nothing of them is used.
  std::string checkpoint{}, out{};
  TargetFormat format = TargetFormat::bf16;
  std::string layers{};         // "0-3,7"; "": all, with embedding, final norm and head
  bool attention_only = false;  // what attention takes, and input_layernorm
  bool int8_mlp = true;         // w8a8: false leaves MLPs, experts included, as for bf16
  bool dequantise_static = false;
  std::uint64_t shard_bytes = 5'000'000'000;  // a shard is not larger, unless one tensor is
};

struct ConvertReport {
  std::int64_t shards = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> notes{};  // what was left out
};

/// Bytes written so far of all that there are to write.
using ConvertProgress = std::function<void(std::uint64_t done, std::uint64_t all)>;

/// Writes a checkpoint folder. Every file is there whole or not at all; the index comes behind the shards and
/// config.json last: a folder without it is no checkpoint. convert.json tells what has been done, and the same call
/// goes on where one ended, however it ended: the files are the same, byte for byte. Other options or another source
/// for a folder that has been begun, files that are not ours, or another process at work in it: CONFLICT. Everything
/// that can be known before, missing tensors and missing room on the disk, is refused before the first shard.
///
/// Memory: some buffers, and of packed experts one. MTP layers are left out.
///
/// `progress` is called after each step on disk; whatever it throws ends the work.
ConvertReport convert(const ConvertOptions& options, const ConvertProgress& progress = {});

}  // namespace dsakit
