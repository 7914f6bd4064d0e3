// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "dsakit/error.hpp"
#include "dsakit/model.hpp"
#include "io/file.hpp"

namespace dsakit::tools {
namespace {

std::vector<std::uint8_t> read_text(const std::string& path, const std::string& model) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  const io::File file(path.empty() ? model + "/heldout.txt" : path);
  std::vector<std::uint8_t> text(file.size());
  file.read(0, text.data(), text.size());
  return text;
}

std::string megabytes(double bytes) { return fmt::format("{:.1f} MB", bytes / 1e6); }

void print_scores(const std::vector<std::pair<std::string, Score>>& scores) {
  fmt::print("{:<20}{:>14}{:>14}{:>12}{:>14}\n", "mode", "bits per byte", "tokens per s", "selected", "cache memory");
  for (const auto& [mode, s] : scores)
    fmt::print("{:<20}{:>14.5f}{:>14.0f}{:>10.1f} %{:>14}\n", mode, s.bits_per_byte, s.tokens_per_second,
               100 * s.costs.selected_share(), megabytes(double(s.cache_bytes)));
  fmt::print("\nwhere the time went          ");
  for (const auto& [mode, s] : scores) fmt::print("{:>24}", mode);
  std::vector<std::string_view> operators;
  for (const auto& [mode, s] : scores)
    for (const OperatorCost& c : s.costs.operators)
      if (std::ranges::find(operators, c.name) == operators.end()) operators.push_back(c.name);
  for (std::string_view op : operators) {
    fmt::print("\n  {:<32}", op);
    for (const auto& [mode, s] : scores) {
      const auto it = std::ranges::find(s.costs.operators, op, &OperatorCost::name);
      if (it == s.costs.operators.end()) fmt::print("{:>24}", "-");
      else fmt::print("{:>11.3f} s {:>8.2f} GB", it->seconds, it->bytes / 1e9);
    }
  }
  fmt::print("\n");
}

nlohmann::ordered_json json_of(const Score& s) {
  nlohmann::ordered_json j = {{"bits_per_byte", s.bits_per_byte},
                              {"tokens_per_second", s.tokens_per_second},
                              {"predictions", s.predictions},
                              {"seconds", s.seconds},
                              {"selected_share", s.costs.selected_share()},
                              {"cache_bytes", s.cache_bytes}};
  for (const OperatorCost& c : s.costs.operators)
    j["operators"][std::string(c.name)] = {{"calls", c.calls}, {"seconds", c.seconds}, {"bytes", c.bytes}};
  return j;
}

int continue_text(const Model& model, const RunOptions& options, const std::vector<std::string>& modes,
                  const std::vector<std::uint8_t>& text) {
  if (model.vocab_size() != 256)
    throw Error(Status::unsupported, "run", "MODEL", "", "has " + std::to_string(model.vocab_size()) + " tokens",
                "a model whose tokens are bytes", "there is no tokenizer here");
  using clock = std::chrono::steady_clock;
  std::vector<std::int32_t> prompt(text.begin(), text.end());
  nlohmann::ordered_json report;
  for (const std::string& mode : modes) {
    if (!options.json && modes.size() > 1) fmt::print("--- {}\n", mode);
    std::string out;
    std::vector<clock::time_point> at = {clock::now()};
    model.generate(prompt, options.generate, mode, options.temperature, options.seed, default_context(), [&](std::int32_t t) {
      at.push_back(clock::now());
      out += char(t);
      if (!options.json) std::putchar(t), std::fflush(stdout);
    });
    if (!options.json) std::putchar('\n');
    // The first token is the prompt's, each later one that of a decode step.
    report["modes"][mode] = {{"text", out},
                             {"prefill_seconds", std::chrono::duration<double>(at[1] - at[0]).count()},
                             {"decode_steps", at.size() - 2},
                             {"decode_seconds", std::chrono::duration<double>(at.back() - at[1]).count()}};
  }
  if (options.json) fmt::print("{}\n", report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

}  // namespace

int run(const RunOptions& options) {
  const std::string folder = options.model.empty() ? small_model() : options.model;
  const Model model(folder);
  const std::vector<std::uint8_t> text = read_text(options.text, folder);
  std::vector<std::string> modes = options.modes;
  if (modes.empty())
    for (std::string_view m : model.modes()) modes.emplace_back(m);
  for (const std::string& mode : modes) (void)model.start(mode);  // refuses an unknown mode before any work
  if (options.generate > 0) return continue_text(model, options, modes, text);

  std::vector<std::pair<std::string, Score>> scores;
  for (const std::string& mode : modes) {
    Progress progress(mode);
    scores.emplace_back(mode, model.score(text, options.context, mode, default_context(),
                                          [&](std::int64_t done, std::int64_t all) { progress.at(double(done) / double(all)); }));
  }
  if (options.json) {
    nlohmann::ordered_json report = {{"model", folder}, {"context", options.context}, {"bytes", text.size()},
                                     {"threads", default_context().threads()}, {"isa", default_context().isa()}};
    for (const auto& [mode, s] : scores) report["modes"][mode] = json_of(s);
    fmt::print("{}\n", report.dump(2));
  } else {
    fmt::print("{} bytes in windows of {}, {} threads, {}\n\n", text.size(), options.context, default_context().threads(),
               default_context().isa());
    print_scores(scores);
  }
  return 0;
}

}  // namespace dsakit::tools
