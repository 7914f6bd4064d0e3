// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "debug/attended.hpp"
#include "debug/change.hpp"
#include "debug/names.hpp"
#include "debug/orders.hpp"

// The same formula with other roundings.
namespace dsakit::debug {
namespace {

using Index = std::int64_t;
using reference::Deviation;
using std::string;

// ---- N1: what operators have as `numerics`, and what attention does besides

/// Products of an attention call whose lists are full.
double attention_work(const Arguments& a) {
  const Names n(*a.op);
  double keys = 0;
  if (!n.list.empty()) keys = a.tensor(n.list) ? double(last_axis(a.tensor(n.list))) : 0;
  else if (const Tensor& lengths = a.tensor(n.lengths_key); lengths && lengths.elements() > 0)
    for (const Index count : counts_of(a, n.lengths_key, false)) keys = std::max(keys, double(count));
  else if (a.tensor(n.key))
    keys = double(a.tensor(n.key).elements()) / double(std::max<Index>(last_axis(a.tensor(n.key)), 1));
  return 2 * keys * double(a.tensor(n.query).elements());
}

bool attend_otherwise(const Restated& r, const AttentionRounding& how) {
  for (Pair& pair : r.pairs) {
    if (pair.parameter != "attention_out" || !pair.mismatch.empty()) continue;
    const Stored& out = r.memory.emplace_back(pair.computed);
    Arguments call = r.call;
    call.at("attention_out") = out.tensor();
    const auto attended = Attended::of(call);
    if (how.keys && !attended->codes) return false;
    attend(*attended, how);
    pair.computed = out.tensor();
    return true;
  }
  return false;
}

void attention(const Arguments& a, Changes& all) {
  using Probability = AttentionRounding::Probability;
  if (!is_attention(*a.op)) return;
  const auto add = [&](const char* text, AttentionRounding how) {
    all.push_back({.id = "N1",
                   .text = text,
                   .restate = [=](const Restated& r) { return attend_otherwise(r, how); },
                   .work = attention_work(a)});
  };
  if (a.op->name == "fused_infer_attention_score_v2")
    add("probabilities are rounded once normalised", {.probability = Probability::normalised});
  add("probabilities are rounded in tiles of 512 keys", {.probability = Probability::tiled});
  add("probabilities are int8", {.probability = Probability::int8});
  add("dequantised keys and values are rounded to 16 bits", {.keys = true});
}

// ---- N2: codes

void codes(const Arguments& a, Changes& all) {
  if (!is_prolog(*a.op) && !is_quantiser(*a.op)) return;
  const bool has_codes =
      is_quantiser(*a.op) || std::any_of(a.values.begin(), a.values.end(), [](const Argument& value) {
        const auto* t = std::get_if<Tensor>(&value);
        return t && t->dtype == DType::i8;
      });
  const auto add = [&](const char* id, const char* text, Deviation d) {
    all.push_back({.id = id, .text = text, .deviation = d, .work = reference_work(a)});
  };
  const bool dynamic = a.op->name != "quantize";  // scales come of the largest magnitude
  if (is_prolog(*a.op) && parameter_of(*a.op, {"q_norm"}).empty())
    add("N2", "norms round as those of the other family", {.other_family = true});
  if (!has_codes) return;
  add("N2", "ties go away from zero", {.away = true});
  if (!dynamic) {
    add("N2", "codes are of x / scale, or of x times 1 / scale", {.divides = true});
    return;
  }
  add("Q1", "codes have 128 steps, not 127", {.more_steps = true});
  add("N2", "codes are of x / scale", {.divides = true});
  add("N2", "scales are a / 127", {.scale = Deviation::Scale::quotient});
  add("N2", "scales are 1 / (127 / a)", {.scale = Deviation::Scale::inverse});
  add("N2", "scales are a times 1/127", {.scale = Deviation::Scale::product});
  add("N2", "the largest magnitude is at least 1e-12", {.floor = 1e-12f});
  add("N2", "the largest magnitude is at least 1e-8", {.floor = 1e-8f});
  add("N2", "the largest magnitude is at least 1e-4", {.floor = 1e-4f});
}

}  // namespace

double reference_work(const Arguments& a) {
  double weights = 0, tokens = 1;
  for (const Parameter& p : a.op->parameters)
    if (p.field.kind == Kind::weight) weights += double(a.tensor(p.field.name).elements());
  if (const std::string_view x = parameter_of(*a.op, {"token_x", "x", "input"}); !x.empty() && weights > 0)
    tokens = double(a.tensor(x).elements()) / double(std::max<Index>(last_axis(a.tensor(x)), 1));
  else if (!x.empty()) return double(a.tensor(x).elements());
  return weights * tokens;
}

void add_numeric_changes(const Arguments& a, Changes& all) {
  for (const char* other : {"device", "golden", "fast"})
    if (!parameter_of(*a.op, {"numerics"}).empty())
      all.push_back(
          {"N1", string("numerics is \"") + other + "\"", [=](Edit& e) { return e.set("numerics", string(other)); }});
  attention(a, all);
  codes(a, all);
}

std::vector<Change> changes_of(const Arguments& a) {
  Changes all;
  add_layout_changes(a, all);
  add_quantisation_changes(a, all);
  add_argument_changes(a, all);
  add_numeric_changes(a, all);
  return all;
}

std::vector<std::string> impossible_changes(const Operator& op) {
  std::vector<std::string> all;
  if (is_prolog(op) && !Names(op).uk.empty()) all.push_back("W_UK as W_UV, which is no argument (L5)");
  return all;
}

}  // namespace dsakit::debug
