// SPDX-License-Identifier: Apache-2.0
#include "debug/verbose.hpp"

#include <gtest/gtest.h>

#include "debug/bind.hpp"
#include "debug/test_cases.hpp"
#include "dsakit/error.hpp"
#include "io/test_folder.hpp"

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

TEST(Verbose, OtherLinesAreNone) {
  for (const char* line : {"", "dsakit,1,fields,seq", "dsakit,1,exec,1,2", "dsakit,2,exec,1,2,3,4,5,6,7,8,9,10"})
    EXPECT_FALSE(parse_verbose(line)) << line;
}

}  // namespace
}  // namespace dsakit::debug
