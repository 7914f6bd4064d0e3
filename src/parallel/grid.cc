// SPDX-License-Identifier: Apache-2.0
#include "parallel/grid.hpp"

#include <charconv>
#include <cmath>

#include "dsakit/error.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kMaxInterleave = 1 << 20;

[[noreturn]] void refuse(std::string_view op, const char* parameter, std::string_view got, const std::string& wanted,
                         const std::string& why = {}) {
  throw Error(Status::invalid_argument, std::string(op), parameter, "", "is " + std::string(got.substr(0, 120)), wanted,
              why);
}

/// A whole number of 1..2^31-1, else 0.
int positive(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

struct Word {
  std::string_view name;
  int value;
};

template <std::size_t n>
int value_of(const Word (&words)[n], const std::string& text, const char* parameter, std::string_view op) {
  std::string all;
  for (const Word& word : words) {
    if (word.name == text) return word.value;
    all += (all.empty() ? "" : &word == words + n - 1 ? " or " : ", ") + std::string(word.name);
  }
  refuse(op, parameter, text, all);
}

constexpr Word kExchanges[] = {{"rows", int(AttentionExchange::rows)}, {"partials", int(AttentionExchange::partials)}};
constexpr Word kIndexShards[] = {
    {"all", int(IndexShards::all)}, {"kv", int(IndexShards::kv)}, {"copy", int(IndexShards::copy)}};
constexpr Word kMerges[] = {
    {"auto", int(MergeSteps::automatic)}, {"one", int(MergeSteps::one)}, {"two", int(MergeSteps::two)}};
constexpr Word kPrologs[] = {{"split", int(Prolog::split)}, {"copy", int(Prolog::copy)}};

}  // namespace

std::string text_of(const Grid& g) {
  std::string text;
  const auto add = [&](const char* key, int size) {
    if (size > 1) text += (text.empty() ? "" : ",") + std::string(key) + "=" + std::to_string(size);
  };
  add("kv", g.kv);
  add("heads", g.heads);
  add("query", g.query);
  return text.empty() ? "kv=1" : text;
}

Grid grid_of(std::string_view text, int ranks, std::string_view op) {
  const std::string wanted = "kv=C,heads=H,query=Q with C*H*Q = " + std::to_string(ranks) + " ranks";
  Grid grid;
  bool given[3] = {};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string_view key = part.substr(0, equals);
    const int which = key == "kv" ? 0 : key == "heads" ? 1 : key == "query" ? 2 : -1;
    if (which < 0) refuse(op, "parallel", text, wanted, "not of a grid: " + std::string(key.substr(0, 40)));
    if (given[which]) refuse(op, "parallel", text, wanted, std::string(key) + " is there twice");
    given[which] = true;
    int& size = which == 0 ? grid.kv : which == 1 ? grid.heads : grid.query;
    size = positive(part.substr(std::min(equals + 1, part.size())));
    if (size == 0) refuse(op, "parallel", text, wanted, std::string(key) + " is a number of at least 1");
    begin = end + 1;
  }
  const std::int64_t replica = std::int64_t(grid.kv) * grid.heads;
  if (replica > ranks || replica * grid.query != ranks) refuse(op, "parallel", text, wanted);
  return grid;
}

std::vector<Grid> grids_of(int ranks) {
  std::vector<Grid> grids;
  for (int query = 1; query <= ranks; ++query)
    for (int kv = 1; kv <= ranks / query; ++kv)
      if (ranks % query == 0 && ranks / query % kv == 0) grids.push_back({kv, ranks / query / kv, query});
  return grids;
}

ParallelOptions parallel_options_of(const ParallelWords& words, int ranks, std::string_view op) {
  ParallelOptions options;
  if (!words.parallel.empty()) options.grid = grid_of(words.parallel, ranks, op);
  options.exchange = AttentionExchange(value_of(kExchanges, words.exchange, "exchange", op));
  options.index = IndexShards(value_of(kIndexShards, words.index, "index", op));
  options.merge = MergeSteps(value_of(kMerges, words.merge, "merge", op));
  options.prolog = Prolog(value_of(kPrologs, words.prolog, "prolog", op));
  options.interleave = words.interleave;
  if (options.interleave < 1 || options.interleave > kMaxInterleave)
    refuse(op, "interleave", std::to_string(options.interleave), "1.." + std::to_string(kMaxInterleave));
  options.timeout = words.timeout;
  if (!(options.timeout > 0) || std::isinf(options.timeout))
    refuse(op, "timeout", std::to_string(options.timeout), "seconds, finite and above 0");
  return options;
}

}  // namespace dsakit
