// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/plan.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.hpp"
#include "ranks.hpp"

namespace dsakit::tools {
namespace {

/// What this machine has, or its control group may use.
double memory_here() {
  double memory = double(::sysconf(_SC_PHYS_PAGES)) * double(::sysconf(_SC_PAGESIZE));
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  if (double most; limit >> most) memory = std::min(memory, most);
  return memory;
}

/// "19.3 GB", "44.0 MB", "0.3 KB"
std::string bytes_text(double bytes) {
  if (bytes < 1e6) return fmt::format("{:.1f} KB", bytes / 1e3);
  if (bytes < 1e9) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.1f} GB", bytes / 1e9);
}

/// "671.9e9", "12.3e6"
std::string count_text(std::int64_t count) {
  const bool large = count >= 1'000'000'000;
  return fmt::format("{:.{}f}e{}", double(count) / (large ? 1e9 : 1e6), large ? 1 : 2, large ? 9 : 6);
}

std::string range_text(const ByteRange& range) { return fmt::format("{}..{}", range.begin, range.end - 1); }

void print_parts(const Plan& plan) {
  const io::ModelConfig& c = plan.config;
  fmt::print("{}: {} layers ({} with experts), hidden {}, {} heads, index top {}\n", c.model_type, c.num_hidden_layers,
             std::count(c.dense_mlp.begin(), c.dense_mlp.end(), false), c.hidden_size, c.num_attention_heads,
             c.index_topk);
  if (plan.shards == plan.known_shards && plan.shards > 0) fmt::print("as stored in {} shards\n\n", plan.shards);
  else if (plan.known_shards == 0) fmt::print("as config.json lets expect\n\n");
  else fmt::print("as stored in {} shards, and for {} as config.json lets expect\n\n", plan.known_shards,
                  plan.shards - plan.known_shards);
  fmt::print("{:<16}{:>10}{:>14}  {:<10}{:>12}\n", "part", "tensors", "parameters", "stored as", "bytes");
  double bytes = 0;
  for (const StoredPart& part : plan.parts) {
    bytes += double(part.bytes);
    fmt::print("{:<16}{:>10}{:>14}  {:<10}{:>12}\n", kPartNames[std::size_t(part.part)], part.tensors,
               count_text(part.parameters), part.format, bytes_text(double(part.bytes)));
  }
  fmt::print("{:<16}{:>10}{:>14}  {:<10}{:>12}\n\n", "together", "",
             count_text(plan.sizes.parameters + plan.sizes.mtp_parameters), "", bytes_text(bytes));
  const ModelSizes& s = plan.sizes;
  fmt::print("{} parameters without MTP, {} active for a token, {} in attention\n", count_text(s.parameters),
             count_text(s.active_parameters), count_text(s.attention_parameters));
  fmt::print("in memory: {} resident", bytes_text(s.resident_bytes));
  if (s.experts > 0)
    fmt::print("; {} experts of {}, {}; {} of them for a token", s.experts, bytes_text(s.expert_bytes),
               bytes_text(s.routed_bytes()), bytes_text(s.routed_bytes_per_token));
  fmt::print("\n");
}

void print_fits(const Plan& plan, double memory) {
  fmt::print("\nwith {}, {} of it kept free; the most tokens per second that {:.0f} GB/s of memory and a disk allow\n",
             bytes_text(memory), bytes_text(kKeptFree), kMemorySpeed / 1e9);
  fmt::print("{:<20}{:>16}{:>10}{:>9}{:>11}{:>9}{:>9}  {}\n", "mode", fmt::format("{} tokens", plan.context),
             "experts", "held", "3 GB/s", "7", "14", "one prefill pass");
  for (const ModeFit& f : plan.fits) {
    fmt::print("{:<20}{:>16}", f.mode, bytes_text(f.cache_bytes));
    if (!f.fits) {
      const std::int64_t least = plan.sizes.experts > 0 ? plan.config.moe.num_experts_per_tok + 1 : 0;
      fmt::print("  does not fit: {} more are needed\n",
                 bytes_text(double(least) * plan.sizes.expert_bytes - f.expert_memory));
      continue;
    }
    fmt::print("{:>10}{:>7.1f} %", bytes_text(std::min(f.expert_memory, plan.sizes.routed_bytes())), 100 * f.held);
    fmt::print("{:>11.2f} {:>8.2f} {:>8.2f}  ", f.tokens_per_second[0], f.tokens_per_second[1], f.tokens_per_second[2]);
    if (f.held == 1) fmt::print("reads nothing\n");
    else fmt::print("{:.0f} / {:.0f} / {:.0f} s\n", f.pass_seconds[0], f.pass_seconds[1], f.pass_seconds[2]);
  }
}

void print_selected(const Plan& plan) {
  fmt::print("\nselected: {}\n", bytes_text(double(plan.selected_bytes)));
  if (plan.shards == 0) fmt::print("no index is here: fetch model.safetensors.index.json first\n");
  for (const ShardPlan& shard : plan.selected) {
    using enum ShardPlan::State;
    fmt::print("{}  ", shard.name);
    if (shard.state == header_unknown || shard.state == length_known) {
      fmt::print("header unknown, fetch bytes {} first\n", range_text(shard.ranges[0]));
      continue;
    }
    fmt::print("{} tensors, ", shard.tensors);
    if (shard.ranges.empty()) fmt::print("all here");
    else fmt::print("{} bytes{}:", shard.bytes, shard.state == whole ? " here" : " to fetch");
    for (const ByteRange& range : shard.ranges) fmt::print(" {}", range_text(range));
    fmt::print("\n");
  }
}

nlohmann::ordered_json json_of(const Plan& plan, double memory, bool selection) {
  const ModelSizes& s = plan.sizes;
  nlohmann::ordered_json j = {{"model_type", plan.config.model_type},
                              {"shards", plan.shards},
                              {"shards_read", plan.known_shards},
                              {"parameters", s.parameters},
                              {"mtp_parameters", s.mtp_parameters},
                              {"active_parameters", s.active_parameters},
                              {"attention_parameters", s.attention_parameters},
                              {"experts", s.experts},
                              {"expert_bytes", s.expert_bytes},
                              {"resident_bytes", s.resident_bytes},
                              {"routed_bytes_per_token", s.routed_bytes_per_token},
                              {"memory", memory},
                              {"context", plan.context}};
  for (const StoredPart& part : plan.parts)
    j["parts"].push_back({{"part", kPartNames[std::size_t(part.part)]},
                          {"format", part.format},
                          {"tensors", part.tensors},
                          {"parameters", part.parameters},
                          {"bytes", part.bytes}});
  for (const ModeFit& f : plan.fits)
    j["modes"][std::string(f.mode)] = {{"cache_bytes", f.cache_bytes},
                                       {"fits", f.fits},
                                       {"expert_memory", f.expert_memory},
                                       {"held", f.held},
                                       {"disk_bytes_per_second", kDiskSpeeds},
                                       {"tokens_per_second", f.tokens_per_second},
                                       {"pass_seconds", f.pass_seconds}};
  if (!selection) return j;
  static constexpr const char* kStates[] = {"whole", "header known", "header unknown", "header unknown"};
  j["selected_bytes"] = plan.selected_bytes;
  j["selected"] = nlohmann::ordered_json::array();
  for (const ShardPlan& shard : plan.selected) {
    nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
    for (const ByteRange& range : shard.ranges) ranges.push_back({range.begin, range.end});
    j["selected"].push_back({{"file", shard.name},
                             {"state", kStates[int(shard.state)]},
                             {"tensors", shard.tensors},
                             {"bytes", shard.bytes},
                             {"ranges", ranges}});
  }
  return j;
}

}  // namespace

int plan(PlanOptions options) {
  const double memory = options.memory.empty() ? memory_here() : double(size_of_text(options.memory));
  const Plan plan = make_plan(options.path, options.layers, options.attention_only, memory);
  const bool selection = options.attention_only || !options.layers.empty();
  std::optional<RanksReport> ranks;
  if (options.context == 0) options.context = plan.context;
  if (options.ranks > 0) ranks.emplace(options, memory);
  if (options.json) {
    nlohmann::ordered_json report = json_of(plan, memory, selection);
    if (ranks) report["parallel"] = ranks->json();
    fmt::print("{}\n", report.dump(2));
    return 0;
  }
  print_parts(plan);
  if (selection) print_selected(plan);
  else print_fits(plan, memory);
  if (ranks) ranks->print();
  return 0;
}

}  // namespace dsakit::tools
