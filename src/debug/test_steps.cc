// SPDX-License-Identifier: Apache-2.0
#include "debug/steps.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "debug/compare.hpp"
#include "debug/edit.hpp"
#include "debug/golden.hpp"
#include "dsakit/capture.hpp"
#include "dsakit/error.hpp"
#include "io/test_folder.hpp"

namespace dsakit::debug {
namespace {

/// Calls of every operator with steps, in the modes in which they differ.
struct Call {
  const char* op;
  Settings settings;
};
std::vector<Call> calls() {
  return {{"mla_prolog_v3", {}},
          {"mla_prolog_v3", {{"weight_quant_mode", "1"}, {"smooth_scales_cq", "given"}, {"qc_qr_scale", "1.25"}}},
          {"mla_prolog_v3", {{"weight_quant_mode", "2"}, {"kv_cache_quant_mode", "1"}, {"kc_scale", "0.75"}}},
          {"mla_prolog_v3", {{"weight_quant_mode", "2"}, {"kv_cache_quant_mode", "3"}, {"data", "V13"}}},
          {"mla_prolog_v2", {{"weight_uq_qr", "int8"}}},
          {"mla_prolog_quant", {}},
          {"mla_prolog_quant", {{"w_uq_qr", "bfloat16"}}},
          {"lightning_indexer_prolog_quant", {{"data", "V13"}}},
          {"mla_indexer_prolog_quant", {}},
          {"lightning_indexer", {{"layout_key", "PA_BSND"}, {"Lk", "700"}}},
          {"quant_lightning_indexer", {{"layout_query", "TND"}, {"layout_key", "PA_BSND"}, {"Lk", "700"}}},
          {"sparse_flash_attention", {{"layout_kv", "PA_BSND"}, {"Lk", "700"}, {"K", "600"}, {"sinks", "given"}}},
          {"kv_quant_sparse_flash_attention", {{"sparse_mode", "0"}}},
          {"sparse_flash_attention_quant", {}},
          {"fused_infer_attention_score_v2", {{"S2", "700"}, {"input_layout", "BSND"}, {"return_softmax_lse", "true"}}},
          {"fused_infer_attention_score_v2", {{"input_layout", "TND"}, {"sparse_mode", "3"}, {"query_rope", "given"}}},
          {"fused_infer_attention_score_v2", {{"key", "int8"}, {"pse_shift", "absent"}, {"learnable_sink", "given"}}}};
}

std::string name_of(const Call& call) {
  std::string text = call.op;
  for (const auto& [name, value] : call.settings) text += " " + name + "=" + value;
  return text;
}

/// What the fast way leaves of a call, its steps too.
Case recorded(const Call& call, const std::function<void(Bound&)>& edit = {}) {
  Case c = made_call(call.op, call.settings);
  Steps steps(call.op);
  const Outcome outcome = execute(c, {.edit = edit, .taps = &steps});
  if (outcome.refusal) throw *outcome.refusal;
  for (const auto& [key, result] : outcome.results) c.tensors[key] = Stored(result.tensor);
  c.tensors.merge(steps.tensors());
  return c;
}

TEST(Steps, ReferencesShowAllOfThem) {
  for (const Call& call : calls()) {
    const Case c = golden(call.op, call.settings);
    const bool quantised = c.tensors.contains("tap.3.query_norm_scale");
    for (const Tap& tap : taps_of(call.op)) {
      if (tap.step == "3.query_norm_scale" && !quantised) continue;  // bfloat16 has none
      const auto at = c.tensors.find("tap." + std::string(tap.step));
      ASSERT_NE(at, c.tensors.end()) << name_of(call) << " " << tap.step;
      EXPECT_GT(at->second.elements(), 0) << name_of(call) << " " << tap.step;
      const bool codes = at->second.type->dtype == DType::i8;
      EXPECT_EQ(dsakit::name_of(at->second.type->dtype), codes ? "int8" : tap.dtype) << name_of(call);
    }
    EXPECT_EQ(first_departing_step(c), "") << name_of(call);
  }
  EXPECT_EQ(golden("mla_prolog_v3", {{"taps", "1.c+7.kv"}}).names("tap"), (std::vector<std::string>{"1.c", "7.kv"}));
  EXPECT_TRUE(golden("mla_prolog_v3", {{"taps", "none"}}).names("tap").empty());
}

TEST(Steps, TheFastWayHasTheSameBitsWhileSomebodyLooksAndItsStepsFollowFromEachOther) {
  for (const Call& call : calls()) {
    const Case c = recorded(call);
    const Outcome plain = execute(c);
    for (const Pair& pair : pairs_of(c, "out", plain))
      EXPECT_TRUE(compare_bits(pair, false).equal()) << name_of(call) << " " << pair.key;
    const auto findings = judge_steps(c);
    EXPECT_GE(
        findings.size(),
        call.op == std::string("lightning_indexer") || call.op == std::string("quant_lightning_indexer") ? 1u : 3u)
        << name_of(call);
    for (const StepFinding& f : findings) {
      EXPECT_FALSE(f.departs) << name_of(call) << " " << f.step << " row " << f.row << " column " << f.column << ": "
                              << f.recorded << ", " << f.computed << "; " << f.different << " of " << f.elements;
      EXPECT_GT(f.elements, 0) << name_of(call) << " " << f.step;
    }
  }
}

TEST(Steps, AMistakeIsFoundWhereItIsAndNowhereBehind) {
  const struct {
    Call call;
    const char *tensor, *step;
  } mistakes[] = {{{"mla_prolog_v3", {}}, "weight_dq", "1.c"},
                  {{"mla_prolog_v3", {}}, "rmsnorm_gamma_cq", "2.cq"},
                  {{"mla_prolog_v3", {{"weight_quant_mode", "1"}}}, "weight_uq_qr", "4.q_nope"},
                  {{"mla_prolog_v3", {}}, "weight_uk", "5.query"},
                  {{"mla_prolog_v3", {}}, "weight_dkv_kr", "7.kv"},
                  {{"mla_prolog_quant", {}}, "gamma_ckv", "9.ckv"},
                  {{"lightning_indexer_prolog_quant", {}}, "hadamard_q", "Q4.q"},
                  {{"lightning_indexer_prolog_quant", {}}, "ln_beta_k", "K2.k"},
                  {{"lightning_indexer", {}}, "weights", "3.scores"},
                  {{"sparse_flash_attention", {}}, "query_rope", "1.scores"}};
  for (const auto& [call, tensor, step] : mistakes) {
    // Another tensor than the case says was computed with: each number the one behind it.
    const Case c = recorded(call, [name = tensor](Bound& bound) {  // clang 14 captures no structured binding
      Edit edit(bound);
      const std::int64_t n = edit.tensor(name).elements();
      EXPECT_TRUE(edit.gather(name, [&](std::int64_t i) { return (i + 1) % n; }));
    });
    std::vector<std::string> departing;
    for (const StepFinding& f : judge_steps(c))
      if (f.departs) departing.push_back(f.step);
    ASSERT_FALSE(departing.empty()) << name_of(call) << " " << tensor;
    EXPECT_EQ(departing.front(), step) << name_of(call) << " " << tensor;
    // A weight of queries moves both of their parts; nothing else follows from more than one step.
    EXPECT_LE(departing.size(), std::string(tensor) == "weight_uq_qr" ? 2u : 1u) << name_of(call) << " " << tensor;
    std::string words(step);
    words[words.find('.')] = ' ';
    EXPECT_EQ(first_departing_step(c), "step " + words);
  }
}

TEST(Steps, ARecordingHasThoseThatWereAskedFor) {
  const Case made = made_call("mla_prolog_v3", {{"weight_quant_mode", "1"}});
  for (const auto& [taps, wanted] :
       {std::pair<std::vector<std::string>, std::size_t>{{"all"}, 11}, {{"3.query_norm", "7.kv"}, 2}, {{}, 0}}) {
    const io::TestFolder folder;
    const Capture capture({.path = folder.path(), .taps = taps});
    (void)execute(made);
    EXPECT_EQ(capture.written(), 1);
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      const std::string name = entry.path().filename();
      if (!name.ends_with(".safetensors") || name.starts_with("weight-")) continue;
      const Case c = read_case(entry.path());
      EXPECT_EQ(c.names("tap").size(), wanted);
      EXPECT_EQ(first_departing_step(c), "");
      if (wanted == 2) {
        EXPECT_EQ(c.tensors.at("tap.3.query_norm").shape, (Integers{8, 64}));
      }
    }
  }
  try {
    const io::TestFolder folder;
    const Capture capture({.path = folder.path(), .taps = {"3.query_nrom"}});
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "capture: taps has \"3.query_nrom\", wanted steps such as 3.query_norm, or all (nearest: "
                 "3.query_norm)");
  }
}

TEST(Steps, TwoWhoLookStopInAnyOrder) {
  const Case made = made_call("lightning_indexer", {});
  const io::TestFolder a, b;
  Capture first({.path = a.path(), .taps = {"all"}});
  const Capture second({.path = b.path(), .taps = {"all"}});
  (void)execute(made);
  EXPECT_EQ(taps, nullptr);
  first.end();
  (void)execute(made);
  EXPECT_EQ(taps, nullptr);
}

}  // namespace
}  // namespace dsakit::debug
