// SPDX-License-Identifier: Apache-2.0
#include "ops/taps.hpp"

namespace dsakit {
namespace {

using List = std::vector<Tap>;

/// The numbers of mla_prolog.md, section "Mathematics"; PyPTO's own numbers and roundings where they differ.
List mla(bool pypto) {
  List all{{"1.c", "float32", "[T, Hcq]", "x weight_dq, rounded as the mode says"},
           {"2.cq", pypto ? "bfloat16" : "float32", "[T, Hcq]", "normalised low-rank query"},
           {"3.query_norm", "bfloat16", "[T, Hcq]", "the same as it is multiplied: bfloat16, or codes"},
           {"3.query_norm_scale", "float32", "[T, 1]", "what a code of it is worth"},
           {"4.q_nope", "bfloat16", "[T, N*D]", "query_norm weight_uq_qr, columns without position"},
           {"4.q_rope", "float32", "[T, N*Dr]", "the other columns, before they are rotated"},
           {"5.query", "bfloat16", "[T*N, Hckv]", "q_nope weight_uk, before any codes"},
           {"6.query_rope", "bfloat16", "[T*N, Dr]", "q_rope rotated, before it is scaled beside codes"},
           {"7.kv", "float32", "[T, Hckv+Dr]", "x weight_dkv_kr of tokens that are stored"}};
  if (pypto) all.push_back({"8.kr", "bfloat16", "[T, Dr]", "rotated key"});
  all.push_back({pypto ? "9.ckv" : "8.ckv", pypto ? "bfloat16" : "float32", "[T, Hckv]", "normalised latent"});
  if (!pypto) all.push_back({"9.kr", "bfloat16", "[T, Dr]", "rotated key"});
  return all;
}

List index() {
  return {{"Q2.q", "bfloat16", "[T, Ni*Di]", "q_norm w_qb"},
          {"Q3.q", "bfloat16", "[T, Ni*Di]", "with the first Dr of each head rotated"},
          {"Q4.q", "bfloat16", "[T, Ni*Di]", "times hadamard_q"},
          {"K1.k", "float32", "[T, Di]", "x wk of tokens that are stored"},
          {"K2.k", "bfloat16", "[T, Di]", "its layer norm"},
          {"K3.k", "bfloat16", "[T, Di]", "with the first Dr rotated"},
          {"K4.k", "bfloat16", "[T, Di]", "times hadamard_k"}};
}

List both() {
  List all = mla(true);
  for (const Tap& tap : index()) all.push_back(tap);
  return all;
}

const List kAttention{{"1.scores", "float32", "[rows*heads, keys]", "of each head of each query row; NaN: not visible"},
                      {"2.max", "float32", "[rows*heads, 1]", "the largest, sinks included; rows without a key: NaN"},
                      {"3.sum", "float32", "[rows*heads, 1]", "of exp(score - max)"}};

}  // namespace

const std::vector<Tap>& taps_of(std::string_view op) {
  static const List none, torch_npu = mla(false), pypto = mla(true), indexer = index(), fused = both();
  static const List scores{{"3.scores", "float32", "[rows, keys]", "of each query row; NaN: not visible"}};
  static const List quantised{{"4.scores", "float32", "[rows, keys]", "of each query row; NaN: not visible"}};
  if (op == "mla_prolog_v2" || op.starts_with("mla_prolog_v3")) return torch_npu;
  if (op == "mla_prolog_quant") return pypto;
  if (op == "lightning_indexer_prolog_quant") return indexer;
  if (op == "mla_indexer_prolog_quant") return fused;
  if (op == "lightning_indexer") return scores;
  if (op == "quant_lightning_indexer") return quantised;
  if (op.find("sparse_flash_attention") != op.npos || op == "fused_infer_attention_score_v2") return kAttention;
  return none;
}

}  // namespace dsakit
