// SPDX-License-Identifier: Apache-2.0
#include "debug/operations.hpp"

#include <algorithm>
#include <string>

#include "debug/addressing.hpp"
#include "debug/names.hpp"

namespace dsakit::debug {
namespace {

std::int64_t last_axis(const Tensor& t) { return t.rank > 0 ? t.shape[t.rank - 1] : 1; }

std::int64_t integer(const Arguments& a, std::string_view name, std::int64_t otherwise) {
  const auto* value = parameter_of(*a.op, {name}).empty() ? nullptr : std::get_if<std::int64_t>(&a.at(name));
  return value ? *value : otherwise;
}
std::string text(const Arguments& a, std::string_view name) {
  const auto* value = parameter_of(*a.op, {name}).empty() ? nullptr : std::get_if<std::string>(&a.at(name));
  return value ? *value : "";
}

/// Every row of the hidden states meets every weight once; heads are rotated by the Hadamard matrices.
double of_prolog(const Arguments& a) {
  double products = 0, rows = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    const Field& field = a.op->parameters[i].field;
    const auto* t = std::get_if<Tensor>(&a.values[i]);
    if (!t || !*t) continue;
    if (rows == 0) rows = double(t->elements()) / double(std::max<std::int64_t>(last_axis(*t), 1));
    const std::string_view name = field.name;
    if (field.kind == Kind::weight) products += double(t->elements());
    if (name == "hadamard_k") products += double(t->elements());
    if (name == "hadamard_q")
      products += double(t->elements()) * double(last_axis(a.tensor("w_qb"))) /
                  double(std::max<std::int64_t>(last_axis(*t), 1));
  }
  return 2 * rows * products;
}

/// Pairs of a query row and a key that it sees, over all sequences.
double visible_pairs(const Arguments& a, std::int64_t folded_query, std::int64_t folded_key, std::int64_t batch,
                     std::int64_t rows, std::int64_t keys) {
  const Names names(*a.op);
  const auto counts = [&](std::string_view lengths, bool totals, std::int64_t all) {
    Integers n = lengths.empty() || !a.tensor(lengths) ? Integers() : counts_of(a, lengths, totals);
    if (n.size() == 1) n.assign(std::size_t(batch), n[0]);
    if (n.empty()) n.assign(std::size_t(batch), all);
    return n;
  };
  const Integers q = counts(names.lengths_query, folded_query != 0, rows);
  const Integers k = counts(names.lengths_key, folded_key != 0, keys);
  const bool causal = integer(a, "sparse_mode", 0) == 3 || integer(a, "sparse_mode", 0) == 2;
  double pairs = 0;
  for (std::size_t b = 0; b < std::min(q.size(), k.size()); ++b) {
    const double n = double(q[b]), m = double(k[b]), seen = causal ? std::max(m - n, 0.0) : m;  // by the first row
    const double rows_below = causal ? std::min(n, m) : 0;
    pairs += n * seen + rows_below * (rows_below + 1) / 2;
  }
  return pairs;
}

double of_indexer(const Arguments& a) {
  const Tensor &q = a.tensor("query"), &k = a.tensor("key");
  const bool folded = text(a, "layout_query") == "TND", folded_key = text(a, "layout_key") == "TND";
  const Tensor& lengths = a.tensor("actual_seq_lengths_query");
  const std::int64_t batch = folded ? lengths.elements() : q.shape[0];
  const std::int64_t heads = q.rank > 1 ? q.shape[q.rank - 2] : 1;
  return 2 * double(heads * last_axis(q)) *
         visible_pairs(a, folded, folded_key, batch, folded ? 0 : q.shape[1], k.rank > 1 ? k.shape[1] : 0);
}

/// Every listed position, for all heads: a score and a value.
double of_sparse(const Arguments& a) {
  const Names names(*a.op);
  const Tensor &lists = a.tensor(names.list), &out = a.tensor("attention_out"), &q = a.tensor(names.query);
  double listed = 0;
  for (std::int64_t i = 0, n = lists.elements(); i < n; ++i) listed += integer_at(lists, i) >= 0;
  listed *= double(integer(a, "sparse_block_size", 1));
  const std::int64_t heads = integer(a, "nq", q.rank > 1 ? q.shape[q.rank - 2] : 1), value = last_axis(out);
  const Tensor& rope = a.tensor(names.query_rope.empty() ? names.query : names.query_rope);
  const std::int64_t width = names.query_rope.empty() ? last_axis(q) : last_axis(q) + last_axis(rope);
  return 2 * double(heads * (width + value)) * listed;
}

double of_dense(const Arguments& a) {
  const Tensor &q = a.tensor("query"), &k = a.tensor("key"), &v = a.tensor("value"), &rope = a.tensor("query_rope");
  const std::string layout = text(a, "input_layout"), in = layout.substr(0, layout.find('_'));
  const std::int64_t heads = integer(a, "num_query_heads", 1), given = integer(a, "num_key_value_heads", 0);
  const std::int64_t kv_heads = std::max<std::int64_t>(given ? given : heads, 1);
  const bool folded = in == "TND" || in == "NTD", paged = bool(a.tensor("block_table"));
  const bool merged = in == "BSH";
  const std::int64_t width = merged ? last_axis(q) / std::max<std::int64_t>(heads, 1) : last_axis(q);
  const std::int64_t key_width = merged || (paged && k.rank == 3) ? last_axis(k) / kv_heads : last_axis(k);
  const std::int64_t value = merged || (paged && v.rank == 3) ? last_axis(v) / kv_heads : last_axis(v);
  const std::int64_t value_width = key_width > 0 ? width * value / key_width : 0;  // int4: eight to an element
  const std::int64_t rope_width = !rope    ? 0
                                  : merged ? last_axis(rope) / std::max<std::int64_t>(heads, 1)
                                           : last_axis(rope);
  const Tensor& lengths = a.tensor("actual_seq_qlen");
  const std::int64_t batch = folded ? lengths.elements() : in == "NSD" ? 1 : q.shape[0];
  const int rows_axis = in == "BNSD" ? 2 : 1;
  const std::int64_t keys = paged ? a.tensor("block_table").shape[1] * integer(a, "block_size", 0) : k.shape[rows_axis];
  return 2 * double(heads * (width + rope_width + value_width)) *
         visible_pairs(a, folded, folded && !paged, batch, folded ? 0 : q.shape[rows_axis], keys);
}

/// As many products for each result as the inner axis has.
double of_matmul(const Arguments& a) {
  const bool batched = a.op->name == "batch_matmul_transpose", quantised = a.op->name == "quant_matmul";
  const Tensor& y = a.tensor(batched ? "tensor_c" : "y");
  const Tensor& x = a.tensor(batched ? "tensor_a" : quantised ? "x1" : "input");
  return 2 * double(y.elements()) * double(last_axis(x));
}

}  // namespace

double operations_of(const Arguments& a) {
  if (is_prolog(*a.op)) return of_prolog(a);
  if (is_indexer(*a.op)) return of_indexer(a);
  if (a.op->name == "fused_infer_attention_score_v2") return of_dense(a);
  if (is_attention(*a.op)) return of_sparse(a);
  if (a.op->name.find("matmul") != a.op->name.npos) return of_matmul(a);
  return 0;
}

}  // namespace dsakit::debug
