// SPDX-License-Identifier: Apache-2.0
#include "debug/verbose.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "debug/bind.hpp"
#include "debug/execute.hpp"
#include "debug/operations.hpp"
#include "debug/test_cases.hpp"
#include "dsakit/error.hpp"
#include "io/test_folder.hpp"
#include "run/stages.hpp"

namespace dsakit::debug {
namespace {

TEST(Verbose, ALineForEachCall) {
  const io::TestFolder folder;
  const auto watcher = verbose_watcher(folder / "log");
  add_watcher(watcher);
  PagedIndexer call;
  call.selected();
  call.table[0] = 11;
  EXPECT_THROW(call.selected(), Error);
  remove_watcher(watcher.get());
  call.table[0] = 7;
  call.selected();

  std::vector<std::vector<std::string>> calls;
  std::string text = io::bytes_of(folder / "log");
  EXPECT_EQ(text.substr(0, text.find('\n')), verbose_header());
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    if (const auto fields = parse_verbose(std::string_view(text).substr(at, text.find('\n', at) - at)))
      calls.push_back(*fields);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0][0], "1");
  EXPECT_EQ(calls[0][1], "dsakit.quant_lightning_indexer");
  EXPECT_EQ(calls[0][2],
            "query:i8:4x4x32 key:i8:9x16x1x32 weights:f16:4x4 query_dequant_scale:f16:4x4 key_dequant_scale:f16:9x16x1 "
            "actual_seq_lengths_query:i32:2 actual_seq_lengths_key:i32:2 block_table:i32:2x3 sparse_indices:i32:4x1x8");
  EXPECT_EQ(calls[0][3], "actual_seq_lengths_query=2+4 actual_seq_lengths_key=40+23 pages=mixed");
  EXPECT_EQ(calls[0][4], "layout_query=TND layout_key=PA_BSND sparse_count=8");
  EXPECT_EQ(calls[0][5], default_context().isa());
  EXPECT_EQ(calls[0].back(), "OK");
  EXPECT_EQ(calls[1].back(), "INVALID_BLOCK");
}

TEST(Verbose, TheWorkThatShapesDoNotSay) {
  std::vector<std::int32_t> table{0, 1, 2, 3}, lengths{64, 64};
  PagedIndexer call;
  Bound bound = bind(call.as_case());
  Arguments& a = bound.arguments;
  const auto work = [&] { return work_of(a); };
  a.at("block_table") = tensor(table.data(), {2, 2}), a.at("actual_seq_lengths_key") = tensor(lengths.data(), {2});
  EXPECT_EQ(work(), "actual_seq_lengths_query=2+4 actual_seq_lengths_key=64*2 pages=identity");
  table = {0, 1, 1, 3};
  EXPECT_NE(work().find("pages=shared"), std::string::npos);
  table = {3, 1, 0, 2};
  EXPECT_NE(work().find("pages=mixed"), std::string::npos);
  std::vector<std::int64_t> slots{4, -1, 2, -7};
  Arguments scatter = default_arguments(*find_operator("scatter_pa_kv_cache"));
  scatter.at("slot_mapping") = tensor(slots.data(), {4});
  EXPECT_EQ(work_of(scatter), "slot_mapping.skipped=2");
}

/// The columns of the line that a case writes when it is computed.
std::vector<std::string> line_of(const Case& c, const std::string& file) {
  const auto watcher = verbose_watcher(file);
  add_watcher(watcher);
  const Outcome outcome = execute(c);
  remove_watcher(watcher.get());
  EXPECT_FALSE(outcome.refusal) << outcome.refusal->what();
  std::string text = io::bytes_of(file);
  text.resize(text.size() - 1);
  const auto columns = parse_verbose(std::string_view(text).substr(text.rfind('\n') + 1));
  EXPECT_TRUE(columns) << text;
  return columns.value_or(std::vector<std::string>(kVerboseFields.size()));
}

TEST(Verbose, ALineIsACallOfTheSameSizesAndModes) {
  const io::TestFolder folder;
  std::vector<std::pair<std::string, Settings>> calls;
  for (const Operator& op : operators()) calls.push_back({std::string(op.name), {}});
  calls.push_back({"quant_lightning_indexer",
                   {{"layout_query", "TND"},
                    {"layout_key", "PA_BSND"},
                    {"B", "3"},
                    {"T1", "9"},
                    {"Lk", "100"},
                    {"actual_seq_lengths_key", "100+23*2"},
                    {"pages", "identity"},
                    {"N1", "4"},
                    {"sparse_count", "7"}}});
  calls.push_back({"lightning_indexer", {{"layout_query", "TND"}, {"layout_key", "TND"}, {"B", "3"}, {"T2", "99"}}});
  calls.push_back(
      {"sparse_flash_attention", {{"layout_kv", "PA_BSND"}, {"B", "3"}, {"fill", "0.5"}, {"pages", "shared"}}});
  calls.push_back({"kv_quant_sparse_flash_attention", {{"S1", "3"}, {"S2", "200"}, {"tile_size", "32"}}});
  calls.push_back({"sparse_flash_attention_quant", {{"b", "3"}, {"s1", "2"}, {"topk", "8"}, {"K", "9"}}});
  calls.push_back({"fused_infer_attention_score_v2",
                   {{"input_layout", "BNSD_BSND"}, {"Nq", "8"}, {"block_table", "given"}, {"B", "3"}, {"D", "32"}}});
  calls.push_back({"fused_infer_attention_score_v2", {{"input_layout", "TND"}, {"T1", "7"}, {"sparse_mode", "3"}}});
  calls.push_back({"mla_prolog_v3", {{"S", "3"}, {"B", "4"}, {"weight_quant_mode", "2"}, {"He", "96"}}});
  calls.push_back({"mla_prolog_v3", {{"cache_mode", "PA_BLK_NZ"}, {"T", "40"}, {"weight_quant_mode", "1"}}});
  calls.push_back({"mla_prolog_v2", {{"weight_uq_qr", "int8"}, {"T", "5"}}});
  calls.push_back({"attention_update", {{"shards", "3"}, {"M", "5"}}});
  calls.push_back({"transpose_batchmatmul", {{"perm_x1", "1+0+2"}, {"m", "3"}}});
  calls.push_back({"gather_pa_kv_cache", {{"is_seq_lens_cumsum", "true"}, {"B", "3"}, {"seq_offset", "given"}}});
  for (const auto& [op, settings] : calls) {
    const auto first = line_of(made_call(op, settings), folder / "log");
    const CallOfLine call = call_of(first);
    EXPECT_EQ(call.op, op);
    const auto second = line_of(made_call(call.op, call.settings), folder / "log");
    for (std::size_t column : {1, 2, 3, 4})
      EXPECT_EQ(first[column], second[column]) << op << " " << kVerboseFields[column];
  }
}

TEST(Verbose, LevelTwoHasTheLoopsAndChoicesOfACall) {
  const Case made = made_call("lightning_indexer", {{"Lk", "700"}, {"layout_key", "PA_BSND"}});
  const Outcome plain = execute(made);
  ::testing::internal::CaptureStderr();
  const auto watcher = verbose_watcher("2");
  add_watcher(watcher);
  const Outcome outcome = execute(made);
  remove_watcher(watcher.get());
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(stages, nullptr);
  for (const char* line : {"\ndsakit,1,stage,1,1,", "\ndsakit,1,choice,1,keys of a block,",
                           "\ndsakit,1,choice,1,same products,0", "\ndsakit,1,exec,1,dsakit.lightning_indexer,"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_LT(text.find("stage,1,1,"), text.find("exec,1,"));
  const Tensor &a = plain.results.at("out.sparse_indices").tensor, &b = outcome.results.at("out.sparse_indices").tensor;
  EXPECT_EQ(std::memcmp(a.data, b.data, std::size_t(a.elements()) * 4), 0);
}

TEST(Verbose, OperationsAreThoseOfTheFormulas) {
  const auto operations = [](std::string_view op, const Settings& settings) {
    const Case c = made_call(op, settings);
    const Outcome outcome = execute(c);
    EXPECT_FALSE(outcome.refusal);
    return operations_of(outcome.bound.arguments);
  };
  // Two sequences of 4 rows that see 61..64 keys each, 8 heads of 64.
  EXPECT_EQ(operations("lightning_indexer", {}), 2.0 * 8 * 64 * 2 * (61 + 62 + 63 + 64));
  EXPECT_EQ(operations("lightning_indexer", {{"sparse_mode", "0"}}), 2.0 * 8 * 64 * 2 * 4 * 64);
  // 32 positions for each of 8 rows and 4 heads: a score of 64 + 16 and a value of 64.
  EXPECT_EQ(operations("sparse_flash_attention", {}), 2.0 * 4 * (64 + 16 + 64) * 8 * 32);
  EXPECT_EQ(operations("kv_quant_sparse_flash_attention", {}), 2.0 * 4 * (64 + 16 + 64) * 8 * 32);
  EXPECT_EQ(operations("sparse_flash_attention_quant", {}), 2.0 * 4 * (64 + 16 + 64) * 2 * 32);
  EXPECT_EQ(operations("fused_infer_attention_score_v2", {}), 2.0 * 4 * (64 + 64) * 2 * 4 * 64);
  EXPECT_EQ(operations("fused_infer_attention_score_v2", {{"key", "int32"}, {"query_rope", "given"}}),
            2.0 * 4 * (64 + 32 + 64) * 2 * 4 * 64);
  EXPECT_EQ(operations("mla_prolog_v3", {}), 2.0 * 8 * (128 * 64 + 64 * 4 * 48 + 4 * 32 * 64 + 128 * 80));
  EXPECT_EQ(operations("lightning_indexer_prolog_quant", {}),
            2.0 * 8 * (64 * 128 + 128 * 32 + 128 * 4 + 4 * 32 * 32 + 32 * 32));
  EXPECT_EQ(operations("quant_matmul", {}), 2.0 * 8 * 64 * 32);
  EXPECT_EQ(operations("transpose_batchmatmul", {}), 2.0 * 4 * 8 * 64 * 32);
  EXPECT_EQ(operations("batch_matmul_transpose", {}), 2.0 * 8 * 4 * 64 * 32);
  EXPECT_EQ(operations("rms_norm", {}), 0);
}

TEST(Verbose, OtherLinesAreNone) {
  for (const char* line : {"", "dsakit,1,fields,seq", "dsakit,1,exec,1,2", "dsakit,2,exec,1,2,3,4,5,6,7,8,9,10,11"})
    EXPECT_FALSE(parse_verbose(line)) << line;
}

}  // namespace
}  // namespace dsakit::debug
