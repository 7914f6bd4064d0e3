// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "debug/arguments.hpp"

// What operators call the same thing.
namespace dsakit::debug {

/// The first of these that the operator has, or "".
std::string_view parameter_of(const Operator&, std::initializer_list<std::string_view> names);

struct Names {
  explicit Names(const Operator& op);
  std::string_view query, query_rope, key, list, table, lengths_query, lengths_key;  // of indexers and attention
  std::string_view softmax_scale, sink;
  std::string_view sin, cos, slots, uq_qr, uq_qr_scale, dkv_kr, dkv_kr_scale, uk;  // of prologs
};

bool is_prolog(const Operator&);
bool is_indexer(const Operator&);  // selects
bool is_attention(const Operator&);
bool is_float(DType);
/// Codes and scales of rows that are given: they are equal everywhere.
bool is_quantiser(const Operator&);
/// Rows that are moved as they are.
bool is_move(const Operator&);

/// Lengths at which a list of so many entries is cut by mistake.
Integers list_cuts(std::int64_t width);

/// Tensors that a call reads and leaves alone, with elements, for which `f(parameter, tensor)` holds.
template <class F>
std::vector<std::string> inputs_of(const Arguments& a, F f);

/// Scales that are arguments and no part of a cache that is written.
std::vector<std::string> scales_of(const Arguments&);

/// Tensors of codes with a scale for each group of neighbours: arguments, or results.
struct Coded {
  std::string_view codes, scales;
  bool result;
};
std::vector<Coded> codes_of(const Operator&);

/// Totals as counts, or counts as they are.
Integers counts_of(const Arguments&, std::string_view lengths, bool totals);

template <class F>
std::vector<std::string> inputs_of(const Arguments& a, F f) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < a.op->parameters.size(); ++i) {
    const Parameter& p = a.op->parameters[i];
    const auto* t = std::get_if<Tensor>(&a.values[i]);
    if ((p.field.role == Role::in || p.field.role == Role::in_opt) && t && *t && t->elements() > 0 && f(p, *t))
      all.emplace_back(p.field.name);
  }
  return all;
}

}  // namespace dsakit::debug
