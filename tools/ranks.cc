// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "io/file.hpp"

namespace dsakit::tools {
namespace {

[[noreturn]] void refuse_machine(const std::string& got) {
  throw Error(Status::invalid_file, "plan", "machine", "", got, "what `dsakit bench limits --json` prints");
}

/// The last entry of the list: all threads.
MachineSpeed machine_of(const std::string& path) {
  if (path.empty()) return {};
  const auto list = nlohmann::json::parse(io::text_of(path), nullptr, false);
  if (!list.is_array() || list.empty() || !list.back().is_object()) refuse_machine("is no list of limits");
  const auto number = [&](const char* key) {
    const auto at = list.back().find(key);
    if (at == list.back().end() || !at->is_number() || !(at->get<double>() > 0))
      refuse_machine("has no " + std::string(key) + " above 0");
    return at->get<double>();
  };
  return {number("bytes_per_second"), number("i8_ops_per_second"), number("bf16_flops_per_second")};
}

}  // namespace

RanksReport::RanksReport(const PlanOptions& o, double memory)
    : ranks(o.ranks),
      memory(memory),
      machine(machine_of(o.machine)),
      network{rate_of_text(o.net), seconds_of_text(o.latency)},
      step{o.rows, o.context},
      work(work_of(o.path, o.mode)) {
  if (o.attention_only) work = attention_of(std::move(work));
  grids = plan_grids(work, ranks, parallel_options_of(o.words, ranks, "plan"), step, memory, machine, network);
}

void RanksReport::print() const {
  fmt::print("\n{} process{}{}, {}, rows {}, context {}: ", ranks, ranks == 1 ? "" : "es",
             work.head.empty() ? ", attention alone" : "", work.mode, step.rows, step.visible);
  fmt::print("ms of a step, MB that a process receives, GB that it holds\n");
  fmt::print("each {:.1f} GB, {:.0f} GB/s, int8 {:.1f} TOP/s, bf16 {:.1f} TFLOP/s; network {:.1f} GB/s, {:.1f} us\n\n",
             memory / 1e9, machine.bytes / 1e9, machine.i8_ops / 1e12, machine.bf16_flops / 1e12,
             network.bytes_per_second / 1e9, network.latency * 1e6);
  fmt::print("{:<24}{:>8}", "parallel", "ms");
  for (const std::string_view name : kTermNames) fmt::print("{:>10}", name);
  fmt::print("{:>10}{:>10}{:>10}{:>8}  {}\n", "disk", "messages", "MB", "GB", "experts held");
  for (const GridPlan& g : grids) {
    fmt::print("{:<24}{:>8.1f}", text_of(g.grid), 1e3 * g.seconds());
    for (const double seconds : g.cost.seconds) fmt::print("{:>10.2f}", 1e3 * seconds);
    fmt::print("{:>10.2f}{:>10}{:>10.2f}{:>8.1f}", 1e3 * g.disk_seconds, g.cost.all_messages(),
               g.cost.all_received() / 1e6, g.memory / 1e9);
    if (!g.fits()) fmt::print("  does not fit: {:.1f} GB more are needed", g.missing / 1e9);
    else if (work.experts > 0 && !work.head.empty()) fmt::print("  {:.1f} %", 100 * g.held);
    fmt::print("\n");
  }
  if (const auto best = best_of(grids)) fmt::print("\nbest: --parallel {}\n", text_of(*best));
  else fmt::print("\nno grid fits\n");
}

nlohmann::ordered_json RanksReport::json() const {
  nlohmann::ordered_json j = {{"ranks", ranks},
                              {"mode", work.mode},
                              {"attention_only", work.head.empty()},
                              {"rows", step.rows},
                              {"context", step.visible},
                              {"memory", memory},
                              {"machine",
                               {{"bytes_per_second", machine.bytes},
                                {"i8_ops_per_second", machine.i8_ops},
                                {"bf16_flops_per_second", machine.bf16_flops}}},
                              {"network",
                               {{"bytes_per_second", network.bytes_per_second},
                                {"latency", network.latency}}},
                              {"grids", nlohmann::ordered_json::array()}};
  for (const GridPlan& g : grids) {
    nlohmann::ordered_json terms, exchanges = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < kTermNames.size(); ++i) terms[std::string(kTermNames[i])] = g.cost.seconds[i];
    terms["disk"] = g.disk_seconds;
    for (std::size_t i = 0; i < kExchangeNames.size(); ++i)
      if (g.cost.messages[i] > 0)
        exchanges[std::string(kExchangeNames[i])] = {{"messages", g.cost.messages[i]},
                                                     {"received_bytes", g.cost.received[i]}};
    j["grids"].push_back({{"parallel", text_of(g.grid)},
                          {"kv", g.grid.kv},
                          {"heads", g.grid.heads},
                          {"query", g.grid.query},
                          {"seconds", g.seconds()},
                          {"terms", terms},
                          {"messages", g.cost.all_messages()},
                          {"received_bytes", g.cost.all_received()},
                          {"exchanges", exchanges},
                          {"memory", g.memory},
                          {"weight_bytes", g.cost.weight_bytes},
                          {"cache_bytes", g.cost.cache_bytes},
                          {"held", g.held},
                          {"fits", g.fits()},
                          {"missing", g.missing}});
  }
  const auto best = best_of(grids);
  j["best"] = best ? nlohmann::ordered_json(text_of(*best)) : nlohmann::ordered_json();
  return j;
}

}  // namespace dsakit::tools
