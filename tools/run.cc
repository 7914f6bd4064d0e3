// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <optional>
#include <span>
#include <nlohmann/json.hpp>

#include "checkpoint/ranks.hpp"
#include "commands.hpp"
#include "core/text.hpp"
#include "dsakit/error.hpp"
#include "dsakit/model.hpp"
#include "io/file.hpp"
#include "io/memory.hpp"
#include "io/tokens.hpp"
#include "launch.hpp"
#include "run/numa.hpp"

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

void print_scores(const std::vector<std::pair<std::string, Score>>& scores, bool tokens) {
  fmt::print("{:<20}", "mode");
  if (tokens) fmt::print("{:>15}", "bits per token");
  const bool bytes = scores[0].second.bits_per_byte > 0;
  if (bytes) fmt::print("{:>14}", "bits per byte");
  fmt::print("{:>14}{:>12}{:>14}\n", "tokens per s", "selected", "cache memory");
  for (const auto& [mode, s] : scores) {
    fmt::print("{:<20}", mode);
    if (tokens) fmt::print("{:>15.5f}", s.bits_per_token);
    if (bytes) fmt::print("{:>14.5f}", s.bits_per_byte);
    fmt::print("{:>14.0f}{:>10.1f} %{:>14}\n", s.tokens_per_second, 100 * s.costs.selected_share(),
               megabytes(double(s.cache_bytes)));
  }
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
  nlohmann::ordered_json j = {{"bits_per_token", s.bits_per_token},
                              {"tokens_per_second", s.tokens_per_second},
                              {"predictions", s.predictions},
                              {"seconds", s.seconds},
                              {"selected_share", s.costs.selected_share()},
                              {"cache_bytes", s.cache_bytes}};
  if (s.bits_per_byte > 0) j["bits_per_byte"] = s.bits_per_byte;
  for (const OperatorCost& c : s.costs.operators)
    j["operators"][std::string(c.name)] = {{"calls", c.calls}, {"seconds", c.seconds}, {"bytes", c.bytes}};
  return j;
}

/// What the experts of one token, or of a prompt, have cost.
nlohmann::ordered_json step_of(double seconds, const ExpertCosts& before, const ExpertCosts& after) {
  nlohmann::ordered_json step = {{"seconds", seconds}};
  if (after.all > 0)
    step.update({{"experts_asked", after.asked - before.asked},
                 {"experts_read", after.read - before.read},
                 {"bytes_read", after.bytes - before.bytes},
                 {"seconds_waited", after.waited - before.waited}});
  return step;
}

/// One line on a terminal while tokens come: what has been made, and what experts cost so far.
class TokensLine {
 public:
  explicit TokensLine(std::int64_t all) : all_(all), shown_(isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO)) {}
  ~TokensLine() {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }
  /// `seconds`: of the decode steps so far, one less than tokens.
  void at(std::int64_t token, double seconds, const ExpertCosts& e) const {
    if (!shown_) return;
    fmt::print(stderr, "\r\033[Ktoken {} of {}", token, all_);
    const double rate = double(token - 1) / seconds;
    if (token > 1) fmt::print(stderr, "  {:.2f} tokens/s", rate);
    if (e.all > 0)
      fmt::print(stderr, "  {} experts read ({:.1f} GB, {:.1f} s), {:.0f} % held", e.read, e.bytes / 1e9, e.waited,
                 100 * double(std::min(e.held, e.all)) / double(e.all));
    if (token > 1) fmt::print(stderr, "  {} left", duration_text(double(all_ - token) / rate));
    std::fflush(stderr);
  }

 private:
  std::int64_t all_;
  bool shown_;
};

/// Continues the prompt: bytes are written as they are, other tokens as numbers.
int continue_tokens(const Model& model, const RunOptions& options, const std::vector<std::string>& modes,
                    const std::vector<std::int32_t>& prompt) {
  const bool bytes = options.tokens.empty();
  using clock = std::chrono::steady_clock;
  nlohmann::ordered_json report;
  for (const std::string& mode : modes) {
    if (!options.json && modes.size() > 1) fmt::print("--- {}\n", mode);
    std::string text;
    std::vector<std::int32_t> tokens;
    std::vector<clock::time_point> at = {clock::now()};
    std::vector<ExpertCosts> costs = {model.expert_costs()};
    nlohmann::ordered_json steps = nlohmann::ordered_json::array();
    const TokensLine line(options.generate);
    const auto seconds = [&](std::size_t from, std::size_t to) {
      return std::chrono::duration<double>(at[to] - at[from]).count();
    };
    model.generate(prompt, options.generate, mode, options.temperature, options.seed, default_context(), [&](std::int32_t t) {
      at.push_back(clock::now());
      costs.push_back(model.expert_costs());
      const std::size_t n = at.size() - 1;
      steps.push_back(step_of(seconds(n - 1, n), costs[n - 1], costs[n]));
      line.at(std::int64_t(n), seconds(1, n), costs[n]);
      if (bytes) text += char(t);
      tokens.push_back(t);
      if (options.json) return;
      if (bytes) std::putchar(t);
      else fmt::print("{} ", t);
      std::fflush(stdout);
    });
    if (!options.json) std::putchar('\n');
    // The first token is the prompt's, each later one that of a decode step.
    report["modes"][mode] = {{"tokens", tokens},
                             {"prefill_seconds", seconds(0, 1)},
                             {"decode_steps", at.size() - 2},
                             {"decode_seconds", seconds(1, at.size() - 1)},
                             {"steps", steps}};
    if (bytes) report["modes"][mode]["text"] = text;
  }
  if (options.json) fmt::print("{}\n", report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

/// What rank 0 has of `read`, on all ranks; what it throws, all throw.
template <class T, class F>
std::vector<T> from_first_rank(Group* group, F read) {
  if (!group) return read();
  std::vector<T> values;
  std::int64_t word[2] = {0, 0};  // status, size
  std::optional<Error> error;
  if (group->rank() == 0) {
    try {
      values = read();
      word[1] = std::int64_t(values.size());
    } catch (const Error& e) {
      error = e;
      word[0] = std::int64_t(e.status);
    }
  }
  group->broadcast(std::as_writable_bytes(std::span(word)), 0)->wait();
  if (error) throw *error;
  if (word[0] != 0)
    throw Error(Status(word[0]), "run", "input", "", "could not be read by rank 0", "what its sentence says");
  values.resize(std::size_t(word[1]));
  group->broadcast(std::as_writable_bytes(std::span(values)), 0)->wait();
  return values;
}

/// As the user says it, or the best that rank 0 foretells.
std::string grid_of(Group* group, const std::string& folder, const RunOptions& options) {
  if (!group || !options.parallel.empty()) return options.parallel;
  const std::vector<char> text = from_first_rank<char>(group, [&] {
    const std::string best = text_of(best_grid(folder, group->size(), double(io::available_memory()) / group->size()));
    return std::vector<char>(best.begin(), best.end());
  });
  return {text.begin(), text.end()};
}

Model loaded(const std::string& folder, const RunOptions& options, Group* group, const std::string& grid) {
  Progress progress("loading");
  const std::int64_t experts = options.expert_memory.empty() ? -1 : std::int64_t(size_of_text(options.expert_memory));
  const ModelOptions how{.mlp = options.mlp,
                         .weights = options.weights,
                         .static_activations = options.statics,
                         .expert_memory = experts,
                         .pass = options.pass,
                         .progress = [&](double share) { progress.at(share); }};
  if (!group) return Model(folder, how);
  const std::string trace = options.trace.empty() ? "" : options.trace + "." + std::to_string(group->rank());
  return Model(folder, *group,
               {.parallel = grid,
                .exchange = options.exchange,
                .index = options.index,
                .merge = options.merge,
                .prolog = options.prolog,
                .interleave = options.interleave,
                .trace = trace},
               how);
}

}  // namespace

int run(const RunOptions& options) {
  const std::string folder = options.model.empty() ? small_model() : options.model;
  Group* const group = launched_group(options.timeout);
  if (!group && !(options.parallel + options.trace).empty())
    throw Error(Status::invalid_argument, "run", options.parallel.empty() ? "trace" : "parallel", "",
                "is " + printable(options.parallel.empty() ? options.trace : options.parallel),
                "processes that mpirun or the like has started", "mpirun -n N dsakit run ..");
  const bool speaks = !group || group->rank() == 0;
  if (!speaks && !std::freopen("/dev/null", "w", stdout))
    throw Error(Status::io_error, "run", "/dev/null", "", "cannot be written", "a sink for what rank 0 prints");
  const std::string grid = grid_of(group, folder, options);
  const Model model = loaded(folder, options, group, grid);
  if (const std::size_t nodes = numa_nodes().size(); !group && nodes > 1 && model.weight_bytes() > (std::size_t{1} << 30))
    fmt::print(stderr, "this machine has {} NUMA nodes: {}\n", nodes, rank_per_node(int(nodes)));
  if (speaks)
    for (const std::string& note : model.notes()) fmt::print(stderr, "{}\n", note);
  const bool tokens = !options.tokens.empty();
  if (!tokens && model.vocab_size() != 256)
    throw Error(Status::unsupported, "run", "MODEL", "", "has " + std::to_string(model.vocab_size()) + " tokens",
                "--tokens FILE, as python -m dsakit.text makes it", "a text is bytes, and tokens are bytes where there are 256");
  std::vector<std::uint8_t> text;
  if (!tokens || !options.text.empty())
    text = from_first_rank<std::uint8_t>(group, [&] { return read_text(options.text, folder); });
  const std::vector<std::int32_t> ids =
      tokens ? from_first_rank<std::int32_t>(group, [&] { return io::read_tokens(options.tokens, model.vocab_size()); })
             : std::vector<std::int32_t>(text.begin(), text.end());
  std::vector<std::string> modes = options.modes;
  if (modes.empty())
    for (std::string_view m : model.modes()) modes.emplace_back(m);
  for (const std::string& mode : modes) (void)model.start(mode);  // refuses an unknown mode before any work
  if (options.generate > 0) return continue_tokens(model, options, modes, ids);

  std::vector<std::pair<std::string, Score>> scores;
  for (const std::string& mode : modes) {
    Progress progress(mode);
    const auto at = [&](std::int64_t done, std::int64_t all) { progress.at(double(done) / double(all)); };
    Score score = tokens ? model.score(ids, options.context, mode, default_context(), at)
                         : model.score(text, options.context, mode, default_context(), at);
    // The text that the tokens are of may be longer than what they predict: the first is given.
    if (tokens && !text.empty())
      score.bits_per_byte = score.bits_per_token * double(score.predictions) / double(text.size());
    scores.emplace_back(mode, std::move(score));
  }
  if (options.json) {
    nlohmann::ordered_json report = {{"model", folder}, {"context", options.context}, {"tokens", ids.size()}, {"bytes", text.size()},
                                     {"threads", default_context().threads()}, {"isa", default_context().isa()}};
    if (group) report["ranks"] = group->size(), report["parallel"] = grid;
    for (const auto& [mode, s] : scores) report["modes"][mode] = json_of(s);
    if (const ExpertCosts e = model.expert_costs(); e.all > 0)
      report["experts"] = {{"held", e.held}, {"all", e.all}, {"read", e.read}, {"bytes_read", e.bytes}, {"seconds_waited", e.waited}};
    fmt::print("{}\n", report.dump(2));
  } else {
    fmt::print("{} {} in windows of {}, {} threads, {}", ids.size(), tokens ? "tokens" : "bytes", options.context,
               default_context().threads(), default_context().isa());
    if (group) fmt::print(", {} ranks: {}", group->size(), grid);
    fmt::print("\n\n");
    print_scores(scores, tokens);
    if (const ExpertCosts e = model.expert_costs(); e.all > 0)
      fmt::print("\nexperts: {} of {} held, {} read ({:.2f} GB, {:.1f} s waited)\n", std::min(e.held, e.all), e.all, e.read,
                 e.bytes / 1e9, e.waited);
  }
  return 0;
}

}  // namespace dsakit::tools
