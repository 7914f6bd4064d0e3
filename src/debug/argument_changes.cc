// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "debug/addressing.hpp"
#include "debug/change.hpp"
#include "debug/names.hpp"
#include "debug/orders.hpp"
#include "debug/rule.hpp"
#include "io/safetensors.hpp"

// Masks, lengths, factors and terms that are used otherwise than the call says.
namespace dsakit::debug {
namespace {

using Index = std::int64_t;
using std::string;

constexpr Index kNoLimit = 2147483647;  // of pre_tokens and next_tokens

string spelled(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

/// Layouts with running totals in place of counts.
bool has_totals(const Arguments& a, std::initializer_list<std::string_view> layouts) {
  const std::string_view name = parameter_of(*a.op, layouts);
  const auto* text = name.empty() ? nullptr : std::get_if<string>(&a.at(name));
  return text && text->starts_with("TND");
}
bool query_totals(const Arguments& a) { return has_totals(a, {"layout_query", "input_layout"}); }
bool key_totals(const Arguments& a) {
  return has_totals(a, {"layout_key", "layout_kv"}) ||
         (a.op->name == "fused_infer_attention_score_v2" && query_totals(a));
}

// ---- A1, A2: who sees what

/// Lists may name keys that are not seen any more: a device passes over them.
bool with_lists_masked(Edit& e, bool changed) {
  if (changed && e.has_parameter("index_check")) e.set("index_check", string("mask"));
  return changed;
}

/// Lengths of sequences; where the call gives none of rows [B, S, ..], those of `rows`.
bool have_lengths(Edit& e, std::string_view lengths, std::string_view rows) {
  if (e.has(lengths)) return true;
  const string layout(parameter_of(e.op(), {"layout_query", "input_layout"}));
  if (!e.has_parameter(lengths) || !e.has(rows) || layout.empty()) return false;
  const string named = std::get<string>(e.arguments().at(layout));
  if ((named != "BSND" && named != "BSH") || e.has(Names(e.op()).table)) return false;
  const Tensor& t = e.tensor(rows);
  Stored given(io::file_dtype_of(DType::i32), {t.shape[0]});
  for (Index b = 0; b < t.shape[0]; ++b) set_number(given, b, double(t.shape[1]));
  e.give(lengths, given);
  return true;
}

void mask(const Arguments& a, Changes& all) {
  const Names n(*a.op);
  if (!parameter_of(*a.op, {"sparse_mode"}).empty())
    for (const Index mode : {Index{0}, Index{3}})
      all.push_back({"A1", mode == 0 ? "the mask is not causal (sparse_mode 0)" : "the mask is causal (sparse_mode 3)",
                     [=](Edit& e) { return e.set("sparse_mode", mode); }});
  if (!parameter_of(*a.op, {"atten_mask"}).empty())
    all.push_back({"A1", "the mask is causal from the top left on (sparse_mode 2)",
                   [](Edit& e) { return e.set("sparse_mode", Index{2}); }});
  const string keys(n.lengths_key), queries(n.lengths_query);
  if (keys.empty()) return;
  if (!queries.empty())
    all.push_back({"A1", "the mask is aligned at the top left", [=](Edit& e) {
                     if (!have_lengths(e, keys, n.key) || !have_lengths(e, queries, n.query)) return false;
                     const Arguments& now = e.arguments();
                     if (key_totals(now)) return false;
                     const Integers counts = counts_of(now, queries, query_totals(now));
                     return counts.size() == std::size_t(e.tensor(keys).elements()) &&
                            with_lists_masked(
                                e, e.map(keys, [&](Index b, double) { return double(counts[std::size_t(b)]); }));
                   }});
  for (const int more : {1, -1})
    all.push_back({"A1",
                   more > 0 ? "every row sees one key more" : "every row sees one key less (the newest is absent)",
                   [=](Edit& e) {
                     return !key_totals(e.arguments()) && have_lengths(e, keys, n.key) &&
                            with_lists_masked(e, e.map(keys, [=](Index, double x) { return x <= 0 ? x : x + more; }));
                   }});
}

void lengths(const Arguments& a, Changes& all) {
  const Names n(*a.op);
  for (const auto& [name, totals] :
       {std::pair{string(n.lengths_query), query_totals(a)}, {string(n.lengths_key), key_totals(a)}}) {
    if (name.empty() || !a.tensor(name) || a.tensor(name).elements() < 2) continue;
    const string text = totals ? " are counts, not running totals" : " are running totals, not counts";
    all.push_back({"A2", name + text, [=, name = name, totals = totals](Edit& e) {
                     const Tensor t = e.tensor(name);
                     Index sum = 0;
                     return e.map(name, [&](Index b, double x) {
                       return totals ? double(sum += Index(x)) : b > 0 ? x - double(integer_at(t, b - 1)) : x;
                     });
                   }});
    if (!totals)
      all.push_back({"A2", name + " of the next sequence are used", [=, name = name](Edit& e) {
                       const Index sequences = e.tensor(name).elements();
                       return with_lists_masked(e, e.gather(name, [=](Index b) { return (b + 1) % sequences; }));
                     }});
  }
}

void list(const Arguments& a, Changes& all) {
  const Names n(*a.op);
  if (n.list.empty() || !is_attention(*a.op)) return;
  const Index width = a.tensor(n.list) ? last_axis(a.tensor(n.list)) : 0;
  for (const Index kept : list_cuts(width))
    all.push_back({"A2", "only the first " + std::to_string(kept) + " entries of a list are used", [=](Edit& e) {
                     if (e.has_parameter("topk"))
                       return e.set("topk", std::min(kept, std::get<Index>(e.arguments().at("topk"))));
                     return e.map(n.list, [=](Index i, double x) { return i % width < kept ? x : -1.0; });
                   }});
  all.push_back({"A2", "-1 does not end a list: entries behind it are used", [=](Edit& e) {
                   if (!e.has(n.list)) return false;
                   const Tensor t = e.tensor(n.list);
                   Stored after(t);
                   bool changed = false;
                   for (Index row = 0; row < t.elements(); row += width) {
                     Index to = row;
                     for (Index i = row; i < row + width; ++i)
                       if (const Index entry = integer_at(t, i); entry >= 0) {
                         changed |= to != i;
                         set_number(after, to++, double(entry));
                       }
                     for (; to < row + width; ++to) set_number(after, to, -1);
                   }
                   if (changed) e.set(n.list, after);
                   return changed;
                 }});
}

/// Masks and bands that a call gives itself.
void given_masks(const Arguments& a, Changes& all) {
  if (parameter_of(*a.op, {"atten_mask"}).empty()) return;
  all.push_back({"A2", "atten_mask hides what is 0",
                 [](Edit& e) { return e.map("atten_mask", [](Index, double x) { return x == 0 ? 1.0 : 0.0; }); }});
  const auto band = [&](const string& text, auto f) {
    all.push_back({"A2", text, [=](Edit& e) {
                     return f(e, std::get<Index>(e.arguments().at("pre_tokens")),
                              std::get<Index>(e.arguments().at("next_tokens")));
                   }});
  };
  band("pre_tokens and next_tokens are swapped", [](Edit& e, Index pre, Index next) {
    const bool changed = e.set("pre_tokens", next);
    return e.set("next_tokens", pre) || changed;
  });
  band("pre_tokens is without a limit", [](Edit& e, Index, Index) { return e.set("pre_tokens", kNoLimit); });
  band("next_tokens is without a limit", [](Edit& e, Index, Index) { return e.set("next_tokens", kNoLimit); });
  band("next_tokens is 0", [](Edit& e, Index, Index) { return e.set("next_tokens", Index{0}); });
  for (const int by : {1, -1}) {
    const char* text = by > 0 ? " is one more" : " is one less";
    band(string("pre_tokens") + text,
         [=](Edit& e, Index pre, Index) { return std::abs(pre) < kNoLimit && e.set("pre_tokens", pre + by); });
    band(string("next_tokens") + text,
         [=](Edit& e, Index, Index next) { return std::abs(next) < kNoLimit && e.set("next_tokens", next + by); });
  }
}

// ---- A5: heads of grouped attention

/// A tensor with `kv_heads` heads of keys gets one for each of `heads` queries: head h is head h % kv_heads. They are
/// an axis, or (-1) parts of the last one.
bool repeat_heads(Edit& e, std::string_view name, int axis, Index kv_heads, Index heads) {
  const Stored before(e.tensor(name));
  auto shape = before.shape;
  Index inner = 1;
  if (axis < 0) {
    inner = shape.back() / kv_heads, shape.back() = inner * heads;
  } else {
    if (before.shape[std::size_t(axis)] != kv_heads) return false;
    for (std::size_t i = std::size_t(axis) + 1; i < shape.size(); ++i) inner *= shape[i];
    shape[std::size_t(axis)] = heads;
  }
  Stored after(*before.type, shape);
  const std::size_t bytes = before.bytes->size() / std::size_t(before.elements()) * std::size_t(inner);
  for (Index i = 0, n = after.elements() / inner; i < n; ++i)
    std::copy_n(before.bytes->data() + std::size_t(i / heads * kv_heads + i % heads % kv_heads) * bytes, bytes,
                after.bytes->data() + std::size_t(i) * bytes);
  e.set(name, after);
  return true;
}

/// Query head h reads key head h % Nk, not h / (Nq / Nk).
bool heads_in_turn(Edit& e) {
  const Arguments& a = e.arguments();
  const Index heads = std::get<Index>(a.at("num_query_heads")), given = std::get<Index>(a.at("num_key_value_heads"));
  if (given < 2 || given == heads || e.is_partly_stored()) return false;
  const string layout = std::get<string>(a.at("input_layout"));
  const string in = layout.substr(0, layout.find('_'));
  const bool paged = e.has("block_table");
  const void* value = e.has("value") ? e.tensor("value").data : nullptr;
  const bool shared = value == e.tensor("key").data;
  for (const char* name : {"key", "value", "key_rope"}) {
    if (!e.has(name) || (shared && name == string("value"))) continue;
    const int rank = e.tensor(name).rank;
    const int axis = paged                         ? (rank == 3 ? -1 : 1)
                     : in == "BSH"                 ? -1
                     : in == "BSND"                ? 2
                     : in == "BNSD" || in == "TND" ? 1
                                                   : 0;
    if (!repeat_heads(e, name, axis, given, heads)) return false;
  }
  for (const auto& [names, mode] : {std::pair{std::pair{"dequant_scale_key", "dequant_offset_key"}, "key_quant_mode"},
                                    {std::pair{"dequant_scale_value", "dequant_offset_value"}, "value_quant_mode"}})
    for (const char* name : {names.first, names.second}) {
      const Index per = std::get<Index>(a.at(mode));
      if (!e.has(name) || per == 1 || per == 4 || e.tensor(name).elements() == 1) continue;
      const Tensor& t = e.tensor(name);
      int axis = per == 2 ? 0 : per == 3 || per == 5 ? 1 : -1;
      for (int i = 0; per == 0 && t.rank > 1 && i + 1 < t.rank; ++i)
        if (t.shape[i] == given) axis = i;
      if (!repeat_heads(e, name, axis, given, heads)) return false;
    }
  return e.set("num_key_value_heads", heads);
}

// ---- A3, A5: scores

void softmax(const Arguments& a, Changes& all) {
  const string name(Names(*a.op).softmax_scale);
  if (name.empty()) return;
  const auto* given = std::get_if<double>(&a.at(name));
  if (!given) return;
  const double mscale = 0.1 * std::log(40.0) + 1;  // YaRN of factor 40, as DeepSeek-V3 has it
  const auto add = [&](const string& text, double scale) {
    all.push_back({"A3", name + " is " + text, [=](Edit& e) { return e.set(name, scale); }});
  };
  add("1", 1);
  add("squared", *given * *given);
  add("its square root", std::sqrt(std::abs(*given)));
  const Names n(*a.op);
  Integers widths{128, 192};  // of a head before it is absorbed: plain, with its rope part
  for (const std::string_view q : {n.query, n.query_rope})
    if (!q.empty() && a.tensor(q) && a.tensor(q).rank > 0) widths.push_back(a.tensor(q).shape[a.tensor(q).rank - 1]);
  if (widths.size() == 4) widths.push_back(widths[2] + widths[3]);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (std::find(widths.begin(), widths.begin() + Index(i), widths[i]) != widths.begin() + Index(i)) continue;
    const double scale = 1 / std::sqrt(double(widths[i]));
    const string root = "1/sqrt(" + std::to_string(widths[i]) + ")";
    add(root, scale);
    add(root + " mscale^2", scale * mscale * mscale);
  }
  add(spelled(*given) + " mscale^2", *given * mscale * mscale);
  add(spelled(*given) + " without mscale^2", *given / (mscale * mscale));
}

void terms(const Arguments& a, Changes& all) {
  const Names n(*a.op);
  if (!is_attention(*a.op)) return;
  if (!n.query_rope.empty())
    all.push_back({"A5", "the rope term is dropped",
                   [=](Edit& e) { return e.map(n.query_rope, [](Index, double) { return 0.0; }); }});
  if (a.op->name == "kv_quant_sparse_flash_attention") {
    const auto rope = [](const Edit& e) { return std::get<Index>(e.arguments().at("rope_head_dim")); };
    const auto width = [](const Edit& e) { return e.tensor("query").shape[e.tensor("query").rank - 1]; };
    all.push_back({"A5", "the rope term is dropped", [=](Edit& e) {
                     const Index w = width(e), plain = w - rope(e);
                     return e.map("query", [=](Index i, double x) { return i % w < plain ? x : 0; });
                   }});
    all.push_back({"A5", "rows of query have the rope part first", [=](Edit& e) {
                     const Index w = width(e), r = rope(e), plain = w - r;
                     return e.gather("query",
                                     [=](Index i) { return i - i % w + (i % w < plain ? i % w + r : i % w - plain); });
                   }});
  }
  if (!parameter_of(*a.op, {"num_key_value_heads"}).empty()) {
    all.push_back({"A5", "query head h reads key head h mod num_key_value_heads", heads_in_turn});
    for (const char* name : {"query", "key"})
      all.push_back({"A5", string("rows of ") + name + " have the rope part first", [=](Edit& e) {
                       // Without a rope tensor of its own: what keys have beyond values. One key head, or an axis of
                       // them.
                       if (!e.has(name) || !e.has("value") || e.has("query_rope")) return false;
                       const Index w = last_axis(e.tensor(name)), plain = last_axis(e.tensor("value")), r = w - plain;
                       return r > 0 && plain > 0 && e.gather(name, [=](Index i) {
                         return i - i % w + (i % w < plain ? i % w + r : i % w - plain);
                       });
                     }});
  }
  if (!n.sink.empty())
    all.push_back({"A5", string(n.sink) + " is dropped", [=](Edit& e) {
                     if (!e.has(n.sink)) return false;
                     return e.set(n.sink, Argument(Tensor{}));
                   }});
  if (!parameter_of(*a.op, {"softmax_lse"}).empty())
    all.push_back({"A5", "softmax_lse is to the base of 2", {}, [](const Reread& r) {
                     if (r.pair.parameter != "softmax_lse") return false;
                     Stored after(r.pair.recorded);
                     for (Index i = 0; i < after.elements(); ++i)
                       set_number(after, i, number_at(after.tensor(), i) * std::numbers::ln2);
                     r.memory.push_back(after);
                     r.pair.recorded = after.tensor();
                     return true;
                   }});
}

// ---- A4: norms

void norms(const Arguments& a, Changes& all) {
  for (const Parameter& p : a.op->parameters)
    if (string(p.field.name).find("epsilon") != string::npos)
      for (const double epsilon : {1e-5, 1e-6, 1e-8})
        all.push_back({"A4", string(p.field.name) + " is " + spelled(epsilon),
                       [name = p.field.name, epsilon](Edit& e) { return e.set(name, epsilon); }});
  const auto gammas = inputs_of(a, [](const Parameter& p, const Tensor& t) {
    return string(p.field.name).find("gamma") != string::npos && is_float(t.dtype);
  });
  for (const string& gamma : gammas) {
    all.push_back(
        {"A4", gamma + " is dropped", [=](Edit& e) { return e.map(gamma, [](Index, double) { return 1.0; }); }});
    all.push_back({"A4", gamma + " is used as 1 + gamma",
                   [=](Edit& e) { return e.map(gamma, [](Index, double x) { return x + 1; }); }});
  }
  if (gammas.size() >= 2)
    all.push_back({"A4", gammas[0] + " and " + gammas[1] + " are swapped",
                   [=](Edit& e) { return e.swap(gammas[0], gammas[1]); }});
  // Of other widths: as much of the wider one as there are columns.
  for (const string& gamma : gammas)
    for (const string& other : gammas)
      if (a.tensor(gamma).elements() < a.tensor(other).elements())
        all.push_back({"A4", gamma + " is the beginning of " + other, [=](Edit& e) {
                         if (!e.has(gamma) || !e.has(other)) return false;
                         const Tensor from = e.tensor(other);
                         return e.map(gamma, [&](Index i, double) { return number_at(from, offset_of(from, i)); });
                       }});
  if (!parameter_of(*a.op, {"ln_gamma_k"}).empty())
    all.push_back({.id = "A4",
                   .text = "the layer norm is an RMS norm",
                   .deviation = reference::Deviation{.keeps_mean = true},
                   .work = reference_work(a)});
  for (const string& beta : inputs_of(
           a, [](const Parameter& p, const Tensor&) { return string(p.field.name).find("beta") != string::npos; }))
    all.push_back(
        {"A4", beta + " is dropped", [=](Edit& e) { return e.map(beta, [](Index, double) { return 0.0; }); }});
}

// ---- A6: heads of an indexer

/// Without ReLU: relu(x) - relu(-x) = x, as twice as many heads.
bool without_relu(Edit& e) {
  const Tensor query = e.tensor("query");
  if (!e.has("query") || !e.has("weights") || query.rank < 3) return false;
  const Index heads = query.shape[query.rank - 2];
  const auto doubled = [&](const char* name, int axis_from_end, Index width, bool negated) {
    const Stored before(e.tensor(name));
    auto shape = before.shape;
    shape[shape.size() - std::size_t(axis_from_end)] *= 2;
    Stored after(*before.type, shape);
    for (Index i = 0, n = after.elements(); i < n; ++i) {
      const Index token = i / (2 * heads * width), head = i / width % (2 * heads);
      const double x = number_at(before.tensor(), (token * heads + head % heads) * width + i % width);
      set_number(after, i, negated && head >= heads ? -x : x);
    }
    return after;
  };
  const Stored q = doubled("query", 2, query.shape[query.rank - 1], true), w = doubled("weights", 1, 1, true);
  if (e.has("query_dequant_scale")) {
    const Stored s = doubled("query_dequant_scale", 1, 1, false);
    e.set("query_dequant_scale", s);
  }
  e.set("query", q);
  e.set("weights", w);
  return true;
}

void heads(const Arguments& a, Changes& all) {
  if (!is_indexer(*a.op)) return;
  all.push_back({"A6", "ReLU is dropped, or comes after the sum over heads", without_relu});
  const auto weights = [&](const char* text, auto f) {
    all.push_back({"A6", text, [=](Edit& e) { return e.map("weights", [=](Index, double x) { return f(x); }); }});
  };
  weights("weights are dropped", [](double) { return 1.0; });
  weights("weights are used without their sign", [](double x) { return std::abs(x); });
  if (!parameter_of(*a.op, {"query_dequant_scale"}).empty())
    all.push_back({"A6", "query_dequant_scale is used twice",
                   [](Edit& e) { return e.map("query_dequant_scale", [](Index, double x) { return x * x; }); }});
}

}  // namespace

void add_argument_changes(const Arguments& a, Changes& all) {
  mask(a, all);
  lengths(a, all);
  list(a, all);
  given_masks(a, all);
  softmax(a, all);
  norms(a, all);
  terms(a, all);
  heads(a, all);
}

}  // namespace dsakit::debug
