// SPDX-License-Identifier: Apache-2.0
#include "debug/golden.hpp"

#include <gtest/gtest.h>

#include "debug/compare.hpp"
#include "debug/rule.hpp"
#include "dsakit/error.hpp"
#include "io/test_folder.hpp"
#include "ops/describe_text.hpp"

namespace dsakit::debug {
namespace {

std::string refusal_of(std::string_view op, const Settings& settings) {
  try {
    (void)golden(op, settings);
  } catch (const Error& e) {
    return e.what();
  }
  return "was made";
}

/// The fast path agrees with what the reference left, in every result.
void expect_agrees(const Case& c, const std::string& which) {
  const Outcome outcome = execute(c);
  ASSERT_FALSE(outcome.refusal) << which << ": " << outcome.refusal->what();
  const std::vector<Pair> pairs = pairs_of(c, "out", outcome);
  std::int64_t elements = 0;
  for (const Pair& pair : pairs) {
    EXPECT_EQ(pair.mismatch, "") << which << " " << pair.key;
    const Finding found = judge("dsakit", c.op(), pair);
    EXPECT_TRUE(found.passes) << which << " " << pair.key << ": " << found.sentence;
    elements += pair.recorded.elements();
  }
  EXPECT_GT(elements, 0) << which;
}

TEST(Golden, EveryOperatorAndKindOfDataIsMadeAndComputedAsTheReferenceDoes) {
  for (const Operator& op : operators()) {
    int made = 0;
    for (int v = 1; v <= 18; ++v) {
      const std::string data = "V" + std::to_string(v), which = std::string(op.name) + " " + data;
      try {
        const Case c = golden(op.name, {{"data", data}});
        // V5: products of subnormals and sums beyond float32 are nobody's promise.
        if (v != 5) expect_agrees(c, which);
        EXPECT_NE(c.metadata.at("recipe").find("dsakit golden " + std::string(op.name)), std::string::npos);
        ++made;
      } catch (const Error& e) {
        EXPECT_EQ(std::string(e.what()).rfind("golden: data is ", 0), 0u) << which << ": " << e.what();
      }
    }
    EXPECT_GE(made, 8) << op.name;
  }
}

/// NAME=VALUE, separated by spaces.
Settings settings_of(std::string_view text) {
  Settings all;
  while (!text.empty()) {
    const std::size_t equals = text.find('='), end = std::min(text.find(' '), text.size());
    all.emplace_back(text.substr(0, equals), text.substr(equals + 1, end - equals - 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

TEST(Golden, ModesBringAlongWhatTheyNeed) {
  for (const auto& [op, settings] : std::initializer_list<std::pair<const char*, const char*>>{
           {"mla_prolog_v3", "weight_quant_mode=1 query_norm_flag=true smooth_scales_cq=given"},
           {"mla_prolog_v3", "weight_quant_mode=2 kv_cache_quant_mode=1"},
           {"mla_prolog_v3", "weight_quant_mode=1 kv_cache_quant_mode=2"},
           {"mla_prolog_v3", "weight_quant_mode=2 kv_cache_quant_mode=3 cache_mode=TND"},
           {"mla_prolog_v3", "cache_mode=PA_NZ"},
           {"mla_prolog_v3", "cache_mode=PA_BLK_BSND"},
           {"mla_prolog_v3", "cache_mode=PA_BLK_NZ S=20"},
           {"mla_prolog_v3", "cache_mode=BSND"},
           {"mla_prolog_v3", "S=3"},
           {"mla_prolog_v2", "S=3"},
           {"mla_prolog_v2", "token_x=int8 kv_cache=int8"},
           {"mla_prolog_v2", "weight_uq_qr=int8 kv_cache=int8"},
           {"mla_prolog_quant", "w_uq_qr=bfloat16"},
           {"lightning_indexer", "layout_query=TND layout_key=PA_BSND data=V11"},
           {"lightning_indexer", "layout_query=TND layout_key=TND data=V13"},
           {"quant_lightning_indexer", "layout_query=TND layout_key=PA_BSND data=V15"},
           {"quant_lightning_indexer", "layout_key=PA_BSND pages=shared data=V14"},
           {"sparse_flash_attention", "layout_query=TND layout_kv=PA_BSND data=V10 Lk=700"},
           {"sparse_flash_attention", "layout_kv=PA_BSND actual_seq_lengths_kv=40+23 fill=0.5"},
           {"kv_quant_sparse_flash_attention", "layout_query=TND layout_kv=PA_BSND data=V9"},
           {"kv_quant_sparse_flash_attention", "layout_kv=PA_BSND data=V15"},
           {"kv_quant_sparse_flash_attention", "layout_kv=PA_BSND data=V14 K=5"},
           {"sparse_flash_attention", "layout_query=TND layout_kv=PA_BSND data=V14 K=5"},
           {"sparse_flash_attention_quant", "key_nope_2d=bfloat16 data=V12"},
           {"fused_infer_attention_score_v2", "input_layout=BSND block_table=given return_softmax_lse=true"},
           {"fused_infer_attention_score_v2", "input_layout=BNSD_BSND query_rope=given"},
           {"fused_infer_attention_score_v2", "input_layout=TND sparse_mode=3"},
           {"fused_infer_attention_score_v2", "input_layout=NTD block_table=given"},
           {"fused_infer_attention_score_v2", "input_layout=NSD"},
           {"fused_infer_attention_score_v2", "key=int8 key_quant_mode=3"},
           {"fused_infer_attention_score_v2", "key=int8 key_quant_mode=5 block_table=given data=V15"},
           {"fused_infer_attention_score_v2", "key=int32"},
           {"fused_infer_attention_score_v2", "key=int32 query_rope=given"},
           {"fused_infer_attention_score_v2", "query=int8 block_table=given input_layout=BSND"},
           {"fused_infer_attention_score_v2", "sparse_mode=4 pse_shift=given pre_tokens=3 next_tokens=2"},
           {"quant_matmul", "pertoken_scale=given bias=given"},
           {"quantize", "dtype=quint8"},
           {"quantize", "div_mode=false input=bfloat16"},
           {"dynamic_quant", "group_index=given"},
           {"scatter_pa_kv_cache", "cache_mode=Norm data=V15"},
           {"kv_rmsnorm_rope_cache", "cache_mode=PA_BLK_NZ k_cache=int8 ckv_cache=int8"},
           {"kv_rmsnorm_rope_cache_v2", "cache_mode=PA is_output_kv=true data=V15"},
           {"gather_pa_kv_cache", "is_seq_lens_cumsum=true seq_offset=given"},
           {"transpose_batchmatmul", "perm_x1=1+0+2 perm_x2=0+2+1"},
           {"rms_norm", "self=float16[2,3,128]"},
           {"swiglu", "data=V19 seed=130"}}) {
    const std::string which = std::string(op) + " " + settings;
    expect_agrees(golden(op, settings_of(settings)), which);
  }
}

TEST(Golden, PagesOfV15BeginBehindTwoToTheThirtySecondElements) {
  const Case c = golden("lightning_indexer", {{"layout_key", "PA_BSND"}, {"data", "V15"}});
  const Layout& key = c.layouts.at("in.key");
  ASSERT_FALSE(key.pages.empty());
  const Stored& pages = c.tensors.at(key.pages);
  const auto* page = reinterpret_cast<const std::int64_t*>(pages.bytes->data());
  const Integers& full = *key.full;
  EXPECT_GT(*std::max_element(page, page + pages.elements()) * full[1] * full[2] * full[3], std::int64_t{1} << 32);
}

TEST(Golden, TheSameSettingsAreTheSameFileAndAnotherSeedIsAnother) {
  const io::TestFolder folder;
  const auto written = [&](const char* name, const char* seed) {
    write_case(golden("quant_lightning_indexer", {{"layout_key", "PA_BSND"}, {"seed", seed}}), folder / name);
    return io::bytes_of(folder / name);
  };
  const std::string one = written("a", "7");
  EXPECT_EQ(one, written("b", "7"));
  EXPECT_NE(one, written("c", "8"));
  write_case(read_case(folder / "a"), folder / "d");
  EXPECT_EQ(one, io::bytes_of(folder / "d"));
}

TEST(Golden, ValuesInARowAreCasesOfTheirOwn) {
  const auto all = combinations({{"T", "1,8"}, {"self", "float16[2,3],bfloat16"}, {"seed", "3"}});
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[1], (Settings{{"T", "1"}, {"self", "bfloat16"}, {"seed", "3"}}));
  EXPECT_EQ(all[2], (Settings{{"T", "8"}, {"self", "float16[2,3]"}, {"seed", "3"}}));
}

TEST(Golden, WhatIsUnknownIsRefusedByName) {
  for (const auto& [op, name, value, says] : std::initializer_list<std::array<const char*, 4>>{
           {"rms_nrm", "T", "8", "golden: OPERATOR is \"rms_nrm\", wanted the name of an operator (nearest: rms_norm)"},
           {"rms_norm", "rwo", "8",
            "golden: rwo is unknown to rms_norm, wanted T, data, epsilon, fill, gamma, level, "
            "pages, row, seed, self, taps (nearest: row)"},
           {"rms_norm", "T", "a", "golden: T is \"a\", wanted a number of at least 0"},
           {"rms_norm", "taps", "2.cp",
            "golden: taps has \"2.cp\", wanted steps such as 3.query_norm, or all (nearest: 2.cq)"},
           {"rms_norm", "data", "V20", "golden: data is \"V20\", wanted V1..V19"},
           {"rms_norm", "data", "V11",
            "golden: data is V11, wanted another of V1..V19 for rms_norm (it has no scores)"},
           {"rms_norm", "epsilon", "small", "golden: epsilon is \"small\", wanted a finite number"},
           {"rms_norm", "epsilon", "-1", "rms_norm: epsilon is -1.000000, wanted finite and above 0"},
           {"rms_norm", "self", "int9", "golden: self is \"int9\", wanted a dtype, given, absent, [axes]"},
           {"lightning_indexer", "T1", "8", "golden: T1 is no axis of this call, wanted B=2, D=64, N1=8, S1=4, S2=64"},
           {"lightning_indexer", "sparse_count", "many", "golden: sparse_count is \"many\", wanted an integer"},
           {"lightning_indexer", "return_value", "maybe", "golden: return_value is \"maybe\", wanted true or false"},
           {"lightning_indexer", "pages", "sorted",
            "golden: pages is \"sorted\", wanted identity, mixed, reversed or shared"},
           {"mla_prolog_v3", "weight_quant_mode", "4", "mla_prolog_v3: weight_quant_mode"}})
    EXPECT_EQ(refusal_of(op, {{name, value}}).rfind(says, 0), 0u) << refusal_of(op, {{name, value}});
}

}  // namespace
}  // namespace dsakit::debug
