// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "debug/attribute.hpp"
#include "ops/describe.hpp"

// The names under which a case may call an operator.
namespace dsakit::debug {

/// The operator that "torch_npu.npu_lightning_indexer", "pypto.mla_prolog_quant_d", .. calls, or null.
const Operator* find_spelling(std::string_view spelling);

/// One near `spelling`, for a refusal.
std::string nearest_spelling(std::string_view spelling);

/// Defaults that a spelling has of its own.
std::vector<std::pair<std::string_view, Attribute>> defaults_of(std::string_view spelling);

/// All of them, in the order of ops.inc.
const std::vector<std::pair<std::string, const Operator*>>& spellings();

/// The operator's own name of what a spelling calls `name`: the first version of fused_infer_attention_score has
/// others.
std::string own_name(std::string_view spelling, std::string_view name);

}  // namespace dsakit::debug
