// SPDX-License-Identifier: Apache-2.0
#include "debug/spelling.hpp"

#include <algorithm>

#include "core/nearest.hpp"

namespace dsakit::debug {
namespace {

/// Names beyond an operator's own and npu_<own>.
struct Alias {
  std::string_view name, op;
};
constexpr Alias kAliases[] = {
    {"npu_lightning_indexer_quant", "quant_lightning_indexer"},
    {"mla_prolog_quant_compute", "mla_prolog_quant"},
    {"mla_prolog_quant_d", "mla_prolog_quant"},
    {"mla_prolog_quant_p", "mla_prolog_quant"},
    {"lightning_indexer_prolog_quant_compute", "lightning_indexer_prolog_quant"},
    {"mla_indexer_prolog_quant_d", "mla_indexer_prolog_quant"},
    {"mla_indexer_prolog_quant_p", "mla_indexer_prolog_quant"},
    {"sparse_flash_attention_quant_d", "sparse_flash_attention_quant"},
    {"sparse_flash_attention_quant_p", "sparse_flash_attention_quant"},
    {"sparse_flash_attention_quant_d_950", "sparse_flash_attention_quant"},
    {"sparse_flash_attention_quant_compute", "sparse_flash_attention_quant"},
};

/// The first version, whose parameters the second one has under other names. Key and value may be lists of one.
constexpr std::string_view kFirstVersion = "npu_fused_infer_attention_score";
constexpr std::pair<std::string_view, std::string_view> kOfFirstVersion[] = {
    {"actual_seq_lengths", "actual_seq_qlen"},
    {"actual_seq_lengths_kv", "actual_seq_kvlen"},
    {"key_antiquant_scale", "dequant_scale_key"},
    {"key_antiquant_offset", "dequant_offset_key"},
    {"value_antiquant_scale", "dequant_scale_value"},
    {"value_antiquant_offset", "dequant_offset_value"},
    {"key_antiquant_mode", "key_quant_mode"},
    {"value_antiquant_mode", "value_quant_mode"},
    {"quant_scale2", "quant_scale_out"},
    {"quant_offset2", "quant_offset_out"},
    {"num_heads", "num_query_heads"},
    {"scale", "softmax_scale"},
    {"softmax_lse_flag", "return_softmax_lse"},
    {"key.0", "key"},
    {"value.0", "value"},
};

/// What engines find in torch.ops._C_ascend of operators that follow torch_npu.
constexpr std::string_view kInAscend[] = {"add_rms_norm_bias", "lightning_indexer", "quant_lightning_indexer",
                                          "sparse_flash_attention", "kv_quant_sparse_flash_attention"};

bool in_ascend(const Operator& op) {
  return op.description.family == Family::vllm_ascend ||
         std::find(std::begin(kInAscend), std::end(kInAscend), op.name) != std::end(kInAscend);
}

void add(std::vector<std::pair<std::string, const Operator*>>& all, const Operator& op, std::string_view name) {
  const std::string n(name);
  all.emplace_back("dsakit." + n, &op);
  const bool npu = name.starts_with("npu_");
  if (op.description.family == Family::torch_npu && npu)
    for (const char* space : {"torch_npu.", "torch.ops.npu."}) all.emplace_back(space + n, &op);
  // The newer library has an npu_quant_lightning_indexer of other operands.
  if (in_ascend(op) && npu == (op.description.family == Family::torch_npu) && name != "npu_quant_lightning_indexer")
    for (const char* space : {"torch.ops._C_ascend.", "_C_ascend."}) all.emplace_back(space + n, &op);
  if (op.name == "quant_lightning_indexer" && npu)
    for (const char* space : {"custom.", "torch.ops.custom."}) all.emplace_back(space + n, &op);
  if (op.description.family == Family::pypto) all.emplace_back("pypto." + n, &op);
}

}  // namespace

const std::vector<std::pair<std::string, const Operator*>>& spellings() {
  using Names = std::vector<std::pair<std::string, const Operator*>>;
  static const auto* all = new Names([] {
    Names names;
    for (const Operator& op : operators()) {
      add(names, op, op.name);
      if (op.description.family == Family::torch_npu) add(names, op, "npu_" + std::string(op.name));
      for (const Alias& alias : kAliases)
        if (alias.op == op.name) add(names, op, alias.name);
      if (op.name == "fused_infer_attention_score_v2")
        for (const char* space : {"torch_npu.", "torch.ops.npu."})
          names.emplace_back(space + std::string(kFirstVersion), &op);
    }
    return names;
  }());
  return *all;
}

const Operator* find_spelling(std::string_view spelling) {
  for (const auto& [name, op] : spellings())
    if (name == spelling) return op;
  return nullptr;
}

std::string nearest_spelling(std::string_view spelling) {
  std::vector<std::string_view> names;
  for (const auto& [name, op] : spellings()) names.push_back(name);
  return std::string(nearest(spelling, names));
}

std::string own_name(std::string_view spelling, std::string_view name) {
  if (spelling.ends_with(kFirstVersion))
    for (const auto& [first, second] : kOfFirstVersion)
      if (name == first) return std::string(second);
  return std::string(name);
}

std::vector<std::pair<std::string_view, Attribute>> defaults_of(std::string_view spelling) {
  using Values = std::vector<std::pair<std::string_view, Attribute>>;
  if (spelling.find("_C_ascend.") == spelling.npos) return {};
  if (spelling.ends_with(".npu_sparse_flash_attention")) return Values{{"attention_mode", std::int64_t{2}}};
  if (spelling.ends_with(".npu_kv_quant_sparse_flash_attention"))
    return Values{{"key_quant_mode", std::int64_t{1}}, {"value_quant_mode", std::int64_t{1}}};
  return {};
}

}  // namespace dsakit::debug
