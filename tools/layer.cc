// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "core/text.hpp"
#include "core/random.hpp"
#include "dsakit/error.hpp"
#include "dsakit/model.hpp"
#include "io/checkpoint.hpp"
#include "io/tokens.hpp"
#include "layer/compare.hpp"
#include "layer/layer.hpp"

namespace dsakit::tools {
namespace {

[[noreturn]] void refuse(Status status, const char* parameter, std::string got, std::string wanted,
                         std::string why = {}) {
  throw Error(status, "layer", parameter, "", std::move(got), std::move(wanted), std::move(why));
}

/// RMSNorm with the layer's input_layernorm, rounded to bf16, as a model does it.
std::vector<bf16> normalised(const std::vector<float>& rows, const io::AlignedArray<float>& gamma, double epsilon) {
  const std::size_t width = gamma.size();
  std::vector<bf16> out(rows.size());
  for (std::size_t first = 0; first < rows.size(); first += width) {
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += double(rows[first + i]) * double(rows[first + i]);
    const double root = std::sqrt(sum / double(width) + epsilon);
    for (std::size_t i = 0; i < width; ++i)
      out[first + i] = to_bf16(float(double(rows[first + i]) / root * double(gamma[i])));
  }
  return out;
}

std::vector<bf16> synthetic(std::int64_t rows, std::uint64_t seed, const io::AlignedArray<float>& gamma) {
  Random random(seed);
  std::vector<bf16> out;
  out.reserve(std::size_t(rows) * gamma.size());
  for (std::int64_t t = 0; t < rows; ++t)
    for (const float g : gamma) out.push_back(to_bf16(random.normal() * g));
  return out;
}

struct Input {
  std::vector<bf16> hidden;
  std::vector<std::int32_t> selection;
};

Input input_of(const LayerOptions& options, const std::shared_ptr<const io::Checkpoint>& checkpoint) {
  const io::ModelConfig& c = checkpoint->config();
  const int layer = int(options.layer);
  const auto gamma = checkpoint->load_vector_f32(fmt::format("model.layers.{}.input_layernorm.weight", layer),
                                                 c.hidden_size);
  if (options.synthetic > 0) return {synthetic(options.synthetic, options.seed, gamma), {}};
  if (!options.hidden.empty())
    return {normalised(io::read_hidden(options.hidden, c.hidden_size), gamma, c.rms_norm_eps), {}};
  const std::vector<std::int32_t> tokens = io::read_tokens(options.tokens, c.vocab_size);
  if (tokens.empty()) refuse(Status::invalid_value, "tokens", "are none", "at least one");
  Progress progress("loading the layers below");
  ModelOptions below{.weights = options.weights,
                     .static_activations = options.statics,
                     .progress = [&](double share) { progress.at(share); }};
  if (!options.mlp.empty()) below.mlp = options.mlp;
  if (!options.expert_memory.empty()) below.expert_memory = std::int64_t(size_of_text(options.expert_memory));
  if (options.pass > 0) below.pass = options.pass;
  Entering entering = entering_layer(checkpoint, layer, tokens, below);
  return {normalised(entering.residual, gamma, c.rms_norm_eps), std::move(entering.selection)};
}

std::vector<Mode> modes_of(const LayerOptions& options, const io::ModelConfig& config) {
  std::vector<Mode> modes;
  for (const std::string& name : options.modes) modes.push_back(mode_of(name, config));
  if (modes.empty())
    for (int i = 0; i < (config.index_topk > 0 ? int(std::size(kModes)) : 1); ++i)  // the first is dense_bf16
      modes.push_back(Mode(i));
  return modes;
}

void check(const LayerOptions& options, const io::ModelConfig& c) {
  const int given = !options.hidden.empty() + !options.tokens.empty() + (options.synthetic > 0);
  if (given != 1)
    refuse(Status::invalid_argument, "input", given == 0 ? "is missing" : "is given more than once",
           "one of --hidden FILE, --tokens FILE and --synthetic T");
  if (options.layer < 0 || options.layer >= c.num_hidden_layers)
    refuse(Status::invalid_argument, "N", "is " + std::to_string(options.layer),
           "0.." + std::to_string(c.num_hidden_layers - 1), "num_hidden_layers");
  if (options.weights != "as_stored" && options.weights != "bf16")
    refuse(Status::invalid_argument, "weights", "is " + printable(options.weights), "as_stored or bf16");
  if (options.statics != "refuse" && options.statics != "dequantise")
    refuse(Status::invalid_argument, "static", "is " + printable(options.statics), "refuse or dequantise");
  if (options.tokens.empty())
    for (const auto& [name, given] : {std::pair{"mlp", !options.mlp.empty()},
                                      {"expert_memory", !options.expert_memory.empty()},
                                      {"pass", options.pass > 0}})
      if (given)
        refuse(Status::invalid_argument, name, "is given", "--tokens FILE beside it",
               "it is about the layers below, which other rows do not go through");
  if (c.index_topk > 0 && !c.full_indexer[std::size_t(options.layer)] && options.tokens.empty())
    refuse(Status::unsupported, "N", fmt::format("is {}, a layer without an indexer", options.layer), "--tokens FILE",
           "it attends to the selection of a layer before it");
}

nlohmann::ordered_json json_of(const ModeFigures& f) {
  const auto distance = [](const Distance& d) {
    return nlohmann::ordered_json{{"rms", d.rms}, {"largest", d.largest}};
  };
  nlohmann::ordered_json j = {{"float64", distance(f.exact)}};
  if (f.sparse_bf16) j["sparse_bf16"] = distance(*f.sparse_bf16);
  if (f.equal_latent) j["equal_latent_codes"] = *f.equal_latent;
  if (f.equal_key) j["equal_index_codes"] = *f.equal_key;
  if (f.recall)
    j["recall"] = {{"mean", f.recall->mean}, {"worst", f.recall->worst}, {"worst_row", f.recall->worst_row}};
  j.update({{"seconds", f.seconds},
            {"bytes_read", f.bytes},
            {"weight_bytes", f.weight_bytes},
            {"cache_bytes", f.cache_bytes}});
  return j;
}

template <class T>
std::string or_dash(const std::optional<T>& value, auto&& text) {
  return value ? text(*value) : "-";
}

void print(const std::vector<ModeFigures>& all) {
  const auto errors = [](const Distance& d) { return fmt::format("{:.2e} {:.2e}", d.rms, d.largest); };
  const auto percent = [](double share) { return fmt::format("{:.2f} %", 100 * share); };
  fmt::print("{:<20}{:>19}{:>19}{:>21}{:>19}{:>10}{:>8}{:>10}{:>10}\n", "", "from float64", "from sparse_bf16",
             "equal int8 codes", "recall", "", "", "weights", "cache");
  fmt::print("{:<20}{:>19}{:>19}{:>21}{:>19}{:>10}{:>8}{:>10}{:>10}\n", "mode", "rms  largest", "rms  largest",
             "latent  index", "mean  worst row", "ms", "GB/s", "MB", "MB");
  for (const ModeFigures& f : all)
    fmt::print("{:<20}{:>19}{:>19}{:>21}{:>19}{:>10.2f}{:>8.1f}{:>10.1f}{:>10.1f}\n", name_of(f.mode),
               errors(f.exact), or_dash(f.sparse_bf16, errors),
               f.equal_latent ? percent(*f.equal_latent) + "  " + or_dash(f.equal_key, percent) : "-",
               or_dash(f.recall, [](const Recall& r) { return fmt::format("{:.4f}  {:.4f}", r.mean, r.worst); }),
               1e3 * f.seconds, f.bytes / f.seconds / 1e9, double(f.weight_bytes) / 1e6, double(f.cache_bytes) / 1e6);
  fmt::print("\nerrors: shares of the rms of what they are from\n");
}

}  // namespace

int layer(const LayerOptions& options) {
  const auto checkpoint = std::make_shared<const io::Checkpoint>(
      options.checkpoint, io::CheckpointOptions{.dequantise_static = options.statics == "dequantise"});
  const io::ModelConfig& c = checkpoint->config();
  check(options, c);
  const std::vector<Mode> modes = modes_of(options, c);
  const int number = int(options.layer);
  checkpoint->require_known_tensors(number, 1, "self_attn.");
  const Input input = input_of(options, checkpoint);
  const bool indexer = c.index_topk > 0 && c.full_indexer[std::size_t(number)];
  const std::int64_t rows = std::int64_t(input.hidden.size()) / c.hidden_size;
  io::ModelConfig config = c;
  config.index_topk = std::min(c.index_topk, rows);  // lists of more than there is would hold nothing else
  const std::vector<ModeFigures> figures = compare_modes(
      {.config = config,
       .layer = number,
       .source = [&] { return checkpoint_source(checkpoint, number, options.weights == "bf16"); },
       .hidden = input.hidden,
       .selection = indexer ? std::span<const std::int32_t>() : input.selection},
      modes);
  if (options.json) {
    nlohmann::ordered_json report = {{"checkpoint", options.checkpoint}, {"layer", number},
                                     {"tokens", rows},                   {"index_topk", c.index_topk},
                                     {"indexer", indexer},               {"threads", default_context().threads()},
                                     {"isa", default_context().isa()}};
    for (const ModeFigures& f : figures) report["modes"][std::string(name_of(f.mode))] = json_of(f);
    fmt::print("{}\n", report.dump(2));
    return 0;
  }
  fmt::print("attention of layer {}, {} tokens, index top {}{}, {} threads, {}\n\n", number, rows, c.index_topk,
             indexer || c.index_topk == 0 ? "" : " of a layer before", default_context().threads(),
             default_context().isa());
  print(figures);
  return 0;
}

}  // namespace dsakit::tools
