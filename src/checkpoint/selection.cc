// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/selection.hpp"

#include <algorithm>
#include <charconv>

#include "checkpoint/parts.hpp"
#include "dsakit/error.hpp"
#include "io/json.hpp"

namespace dsakit {
namespace {

/// What "3" or "0-3" of the list begins with, taken off it; -1 if that is no number.
std::int64_t take_number(std::string_view& text) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return -1;
  text.remove_prefix(std::size_t(end - text.data()));
  return number;
}

}  // namespace

bool Selection::holds(std::string_view name, const io::ModelConfig& config) const {
  auto [layer, rest] = layer_name(name);
  if (attention_only && (layer < 0 || !(rest.starts_with("self_attn.") || rest == "input_layernorm.weight")))
    return false;
  if (layer < 0) layer = part_of(name, config) == Part::embedding ? 0 : config.num_hidden_layers - 1;
  if (layer >= config.num_hidden_layers) return everything();
  return layers.empty() || layers[std::size_t(layer)];
}

std::vector<bool> layers_of(const std::string& text, std::int64_t count, const std::string& op) {
  if (text.empty()) return {};
  std::vector<bool> layers(std::size_t(count), false);
  std::string_view rest = text;
  do {
    const std::int64_t first = take_number(rest);
    std::int64_t last = first;
    if (rest.starts_with('-')) rest.remove_prefix(1), last = take_number(rest);
    const bool ends = rest.empty() || rest[0] == ',';
    if (first < 0 || last < first || last >= count || !ends)
      throw Error(Status::invalid_argument, op, "layers", "", "is " + io::printable(text),
                  "numbers and ranges within 0.." + std::to_string(count - 1) + ", such as 0-3,7");
    std::fill(layers.begin() + first, layers.begin() + last + 1, true);
    if (rest.empty()) return layers;
    rest.remove_prefix(1);
  } while (true);
}

}  // namespace dsakit
