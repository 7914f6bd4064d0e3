// SPDX-License-Identifier: Apache-2.0
#include "debug/names.hpp"

#include <algorithm>

#include "debug/addressing.hpp"
#include "debug/bind.hpp"

namespace dsakit::debug {

std::string_view parameter_of(const Operator& op, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    for (const Parameter& p : op.parameters)
      if (p.field.name == name && p.field.has_member()) return p.field.name;
  return "";
}

Names::Names(const Operator& op) {
  const auto first = [&](std::initializer_list<std::string_view> names) { return parameter_of(op, names); };
  query = first({"query", "query_nope"});
  query_rope = first({"query_rope"});
  key = first({"key", "key_nope_2d"});
  list = first({"topk_indices", "sparse_indices"});
  table = first({"block_table"});
  lengths_query = first({"actual_seq_lengths_query", "actual_seq_qlen"});
  lengths_key = first({"actual_seq_lengths_key", "actual_seq_lengths_kv", "actual_seq_kvlen", "kv_act_seqs"});
  softmax_scale = first({"scale_value", "softmax_scale"});
  sink = first({"sinks", "learnable_sink"});
  sin = first({"rope_sin", "sin", "r2"});
  cos = first({"rope_cos", "cos", "r1"});
  slots = first({"cache_index", "k_cache_index", "slot_mapping"});
  uq_qr = first({"weight_uq_qr", "w_uq_qr"});
  uq_qr_scale = first({"dequant_scale_w_uq_qr", "dequant_scale"});
  dkv_kr = first({"weight_dkv_kr", "w_dkv_kr"});
  dkv_kr_scale = first({"dequant_scale_w_dkv_kr"});
  uk = first({"weight_uk", "w_uk"});
}

bool is_prolog(const Operator& op) { return op.name.find("prolog") != op.name.npos; }
bool is_indexer(const Operator& op) { return op.name.ends_with("lightning_indexer"); }
bool is_attention(const Operator& op) {
  return op.name.find("flash_attention") != op.name.npos || op.name == "fused_infer_attention_score_v2";
}
bool is_float(DType t) { return t == DType::f16 || t == DType::bf16 || t == DType::f32 || t == DType::f64; }

bool is_quantiser(const Operator& op) {
  return op.name == "dynamic_quant" || op.name == "dynamic_block_quant" || op.name == "quantize";
}

bool is_move(const Operator& op) {
  return op.name.starts_with("scatter_") || op.name.starts_with("gather_pa") || op.name.starts_with("store_kv");
}

Integers list_cuts(std::int64_t width) {
  Integers cuts;
  for (const std::int64_t kept : {width / 2, std::int64_t{512}, std::int64_t{1024}})
    if (kept > 0 && kept < width && std::find(cuts.begin(), cuts.end(), kept) == cuts.end()) cuts.push_back(kept);
  return cuts;
}

std::vector<std::string> scales_of(const Arguments& a) {
  return inputs_of(a, [&](const Parameter& p, const Tensor& t) {
    return std::string_view(p.field.name).find("scale") != std::string_view::npos && is_float(t.dtype) &&
           !is_updated(*a.op, p);
  });
}

std::vector<Coded> codes_of(const Operator& op) {
  constexpr Coded known[] = {
      {"query", "query_dequant_scale", false},
      {"key", "key_dequant_scale", false},
      {"q_norm", "q_norm_scale", false},
      {"token_x", "dequant_scale_x", false},
      {"key_nope_2d", "k_nope_scales", false},
      {"q_norm_out", "q_norm_scale_out", true},
      {"query_norm", "dequant_scale_q_norm", true},
      {"q_int8", "q_scale", true},
      {"y", "scale", true},
  };
  std::vector<Coded> all;
  for (const Coded& c : known)
    if (!parameter_of(op, {c.codes}).empty() && !parameter_of(op, {c.scales}).empty()) all.push_back(c);
  return all;
}

Integers counts_of(const Arguments& a, std::string_view lengths, bool totals) {
  const Tensor& t = a.tensor(lengths);
  Integers counts;
  for (std::int64_t b = 0; b < t.elements(); ++b)
    counts.push_back(integer_at(t, b) - (totals && b > 0 ? integer_at(t, b - 1) : 0));
  return counts;
}

}  // namespace dsakit::debug
