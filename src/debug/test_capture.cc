// SPDX-License-Identifier: Apache-2.0
#include "dsakit/capture.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <sstream>
#include <thread>

#include "debug/compare.hpp"
#include "debug/record.hpp"
#include "debug/test_cases.hpp"
#include "debug/watch.hpp"
#include "dsakit/error.hpp"
#include "io/json.hpp"
#include "io/test_folder.hpp"

namespace dsakit::debug {
namespace {

/// The one case of a folder, which computes what it has recorded.
Case only_case(const io::TestFolder& folder) {
  const auto all = cases_in(folder.path());
  EXPECT_EQ(all.size(), 1u);
  return all.empty() ? Case() : read_case(all.front());
}

void expect_agrees(const Case& c) {
  const Outcome outcome = execute(c);
  ASSERT_FALSE(outcome.refusal) << outcome.refusal->what();
  const auto pairs = pairs_of(c, "out", outcome);
  EXPECT_FALSE(pairs.empty());
  for (const Pair& pair : pairs) {
    EXPECT_EQ(pair.mismatch, "") << pair.key;
    EXPECT_TRUE(compare_bits(pair, false).equal()) << pair.key;
  }
}

std::string summary_of(const io::TestFolder& folder) { return io::bytes_of(folder / "summary.json"); }

TEST(Capture, ACallIsRecordedWithTheSameBits) {
  const io::TestFolder folder;
  PagedIndexer call;
  const auto before = call.selected();
  {
    const Capture capture({.path = folder.path()});
    EXPECT_EQ(call.selected(), before);
    EXPECT_EQ(capture.written(), 1);
  }
  EXPECT_EQ(call.selected(), before);
  const Case c = only_case(folder);
  EXPECT_EQ(c.name, "000001-quant_lightning_indexer-r0-" + std::to_string(::getpid()) + ".safetensors");
  EXPECT_EQ(c.call, "dsakit.quant_lightning_indexer");
  EXPECT_EQ(std::get<std::int64_t>(c.attributes.at("sparse_count")), 8);
  // Touched pages only: 0, 2, 3, 5 and 7 of 9.
  EXPECT_EQ(c.tensors.at("in.key").shape, (Integers{5, 16, 1, 32}));
  EXPECT_EQ(*c.layouts.at("in.key").full, (Integers{9, 16, 1, 32}));
  expect_agrees(c);
  EXPECT_NE(io::bytes_of(folder / "index.jsonl").find("\"status\":\"OK\""), std::string::npos);
  EXPECT_NE(summary_of(folder).find("\"seen\": 1, \"written\": 1"), std::string::npos) << summary_of(folder);
}

TEST(Capture, TouchedIsAsGoodAsWholeAndNoneSaysWhatItLacks) {
  PagedIndexer call;
  for (const char* caches : {"touched", "whole", "none"}) {
    const io::TestFolder folder;
    {
      const Capture capture({.path = folder.path(), .caches = caches});
      call.selected();
    }
    const Case c = only_case(folder);
    EXPECT_EQ(c.tensors.at("in.key").shape[0], caches[0] == 't' ? 5 : caches[0] == 'w' ? 9 : 0);
    if (caches[0] != 'n') expect_agrees(c);
    else EXPECT_THROW(execute(c), Error);
  }
}

TEST(Capture, CachesAreRecordedBeforeAndAfterwards) {
  const io::TestFolder folder;
  std::vector<float> key{1, 2}, value{3, 4}, key_cache(40, 5), value_cache(40, 6);
  std::vector<std::int64_t> slot{6};
  {
    const Capture capture({.path = folder.path()});
    scatter_pa_kv_cache({.key = tensor(key.data(), {1, 1, 2}),
                         .value = tensor(value.data(), {1, 1, 2}),
                         .key_cache = tensor(key_cache.data(), {5, 4, 1, 2}),
                         .value_cache = tensor(value_cache.data(), {5, 4, 1, 2}),
                         .slot_mapping = tensor(slot.data(), {1}),
                         .cache_mode = "Norm"},
                        {});
  }
  const Case c = only_case(folder);
  EXPECT_EQ(c.tensors.at("in.key_cache").shape[0], 1);
  EXPECT_EQ(*reinterpret_cast<const std::int64_t*>(c.tensors.at("pages.key_cache").bytes->data()), 1);
  const auto* before = reinterpret_cast<const float*>(c.tensors.at("in.key_cache").bytes->data());
  const auto* after = reinterpret_cast<const float*>(c.tensors.at("after.key_cache").bytes->data());
  EXPECT_EQ(before[4], 5);
  EXPECT_EQ(after[4], 1);
  expect_agrees(c);
}

/// Whole and touched, of calls whose caches have no axis of pages, or places in place of slots.
template <class Call>
void expect_few_entries(Call call, const char* cache, std::int64_t touched) {
  for (const char* caches : {"touched", "whole"}) {
    const io::TestFolder folder;
    {
      const Capture capture({.path = folder.path(), .caches = caches});
      call();
    }
    const Case c = only_case(folder);
    const Layout& layout = c.layouts.contains(cache) ? c.layouts.at(cache) : Layout();
    EXPECT_EQ(layout.full.has_value(), caches[0] == 't');
    EXPECT_TRUE(caches[0] != 't' || c.tensors.at(cache).shape[0] == touched) << c.tensors.at(cache).shape[0];
    expect_agrees(c);
  }
}

TEST(Capture, RowsWithoutAnAxisOfPages) {
  constexpr std::int64_t sequences = 2, heads = 2, latent = 16, rope = 8, pages = 6, page = 4, list = 5;
  Random r(6);
  const auto query = random_bf16(r, sequences * heads * latent), query_rope = random_bf16(r, sequences * heads * rope),
             key = random_bf16(r, pages * page * latent), key_rope = random_bf16(r, pages * page * rope);
  const std::vector<std::int32_t> table{5, 1, 0, 2}, lengths{7, 6}, lists{0, 6, 1, 5, 2, 5, 4, 0, 1, 2};
  const auto attend = [&](std::vector<std::int32_t> positions) {
    std::vector<bf16> out(sequences * heads * latent);
    sparse_flash_attention_quant({.query_nope = tensor(query.data(), {sequences * heads, latent}),
                                  .query_rope = tensor(query_rope.data(), {sequences * heads, rope}),
                                  .key_nope_2d = tensor(key.data(), {pages * page, latent}),
                                  .key_rope_2d = tensor(key_rope.data(), {pages * page, rope}),
                                  .topk_indices = tensor(positions.data(), {sequences, list}),
                                  .block_table = tensor(table.data(), {sequences, 2}),
                                  .kv_act_seqs = tensor(lengths.data(), {sequences}),
                                  .b = sequences,
                                  .s1 = 1,
                                  .nq = heads,
                                  .softmax_scale = 0.3,
                                  .topk = list,
                                  .block_size = page},
                                 {.attention_out = tensor(out.data(), {sequences, 1, heads, latent})});
  };
  expect_few_entries([&] { attend(lists); }, "in.key_nope_2d", 4 * page);
  // One sequence looks at its first page alone.
  expect_few_entries([&] { attend({0, 1, 2, 3, 0, 5, 4, 0, 1, 2}); }, "in.key_rope_2d", 3 * page);
}

TEST(Capture, RunsOfSlotsAndPlaces) {
  std::vector<float> rows{1, 2, 3, 4, 5, 6}, cache(40, 7);
  const std::vector<std::int32_t> length{2, 1, 0}, row{0, 2, 0}, slot{9, 17, 0};
  const auto store = [&](std::initializer_list<std::int64_t> shape, std::int64_t block_size) {
    return [&, shape = std::vector<std::int64_t>(shape), block_size] {
      Tensor to = tensor(cache.data(), {20, 2});
      if (shape.size() == 3) to = tensor(cache.data(), {5, 4, 2});
      store_kv_block({.key_in = tensor(rows.data(), {3, 2}),
                      .key_cache_in = to,
                      .group_len = tensor(length.data(), {3}),
                      .group_key_idx = tensor(row.data(), {3}),
                      .group_key_cache_idx = tensor(slot.data(), {3}),
                      .block_size = block_size},
                     {});
    };
  };
  expect_few_entries(store({5, 4, 2}, 4), "in.key_cache_in", 2);  // pages 2 and 4
  expect_few_entries(store({20, 2}, 0), "in.key_cache_in", 3);    // slots 9, 10 and 17
  const std::vector<std::int32_t> places{3, 1, 0, 0, 3, 0};       // of [5, 4, 2]: rows (3, 1), (0, 0), (3, 0)
  const auto scatter = [&] {
    scatter_nd_update_({tensor(cache.data(), {5, 4, 2}), tensor(places.data(), {3, 2}), tensor(rows.data(), {3, 2})},
                       {});
  };
  expect_few_entries(scatter, "in.self", 2);
}

TEST(Capture, RefusedCallsAreRecordedToo) {
  const io::TestFolder folder;
  PagedIndexer call;
  call.table[1] = 11;
  std::string sentence;
  {
    const Capture capture({.path = folder.path()});
    try {
      call.selected();
    } catch (const Error& e) {
      sentence = e.what();
    }
  }
  const Case c = only_case(folder);
  EXPECT_FALSE(sentence.empty());
  EXPECT_EQ(*c.refusal(), sentence);
  EXPECT_TRUE(c.names("out").empty());
  EXPECT_STREQ(execute(c).refusal->what(), sentence.c_str());
}

TEST(Capture, AbsurdArgumentsAreRefusedAsEver) {
  const io::TestFolder folder;
  const Capture capture({.path = folder.path()});
  float x = 1;
  Tensor huge = tensor(&x, {1});
  huge.rank = 3, huge.shape = {INT64_MAX, INT64_MAX, -3}, huge.stride = {-1, 1, 1};
  Tensor nowhere = shaped(DType::f32, {4});
  for (const Tensor& t : {huge, nowhere, Tensor{}})
    EXPECT_THROW(rms_norm({.self = t, .gamma = nowhere}, {.y = t, .rstd = t}), Error);
  EXPECT_EQ(capture.written(), 3);
}

TEST(Capture, AliasesSurvive) {
  const io::TestFolder folder;
  std::vector<float> x{1, 2, 3, 4}, y(4), rstd(1);
  {
    const Capture capture({.path = folder.path()});
    rms_norm({.self = tensor(x.data(), {1, 4}), .gamma = tensor(x.data(), {4})},
             {.y = tensor(y.data(), {1, 4}), .rstd = tensor(rstd.data(), {1, 1})});
  }
  const Case c = only_case(folder);
  EXPECT_EQ(c.layouts.at("in.gamma").of, "in.self");
  EXPECT_FALSE(c.tensors.contains("in.gamma"));
  expect_agrees(c);
}

TEST(Capture, AWeightIsStoredOnceAndPackedOnesAsTheMatrixTheyWere) {
  const io::TestFolder folder;
  Random r(3);
  const std::int64_t k = 96, n = 80;
  const std::vector<std::int8_t> x = random_i8(r, 2 * k), w = random_i8(r, k * n);
  std::vector<float> scale(std::size_t(n), 0.5f);
  std::vector<bf16> y(std::size_t(2 * n));
  const PackedWeight packed(tensor(w.data(), {k, n}));
  {
    const Capture capture({.path = folder.path()});
    for (const Tensor& weight : {tensor(w.data(), {k, n}), packed.tensor()})
      quant_matmul({.x1 = tensor(x.data(), {2, k}),
                    .x2 = weight,
                    .scale = tensor(scale.data(), {n}),
                    .output_dtype = "bfloat16"},
                   {.y = tensor(y.data(), {2, n})});
  }
  const auto all = cases_in(folder.path());
  ASSERT_EQ(all.size(), 2u);
  std::set<std::string> files;
  for (const std::string& path : all) {
    const Case c = read_case(path);
    files.insert(c.layouts.at("in.x2").file);
    expect_agrees(c);
  }
  EXPECT_EQ(files.size(), 1u);
  // Other bytes under this name are not what was recorded.
  const std::string weight = folder / *files.begin();
  std::string bytes = io::bytes_of(weight);
  bytes.back() = char(bytes.back() + 1);
  folder.write(*files.begin(), bytes);
  EXPECT_THROW(read_case(all.front()), Error);
}

TEST(Capture, ALostIndexIsMadeAnew) {
  const io::TestFolder folder;
  PagedIndexer call;
  const auto record = [&] {
    const Capture capture({.path = folder.path()});
    call.selected();
    call.selected();
  };
  record();
  const std::string index = io::bytes_of(folder / "index.jsonl");
  std::filesystem::remove(folder / "index.jsonl");
  folder.write("000000-broken.safetensors", "no case");
  { const Capture capture({.path = folder.path()}); }
  EXPECT_EQ(io::bytes_of(folder / "index.jsonl"), index);
  { const Capture capture({.path = folder.path()}); }
  EXPECT_EQ(io::bytes_of(folder / "index.jsonl"), index);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Capture, ALineThatDoesNotFitLeavesNoHalf) {
  const io::TestFolder folder;
  PagedIndexer call;
  const std::string before = "{\"file\":\"" + std::string(1 << 20, '0') + "\"}\n";  // more than a case has
  folder.write("index.jsonl", before);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit most{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &most), 0);
  const rlimit less{before.size() + 20, most.rlim_max};
  const auto want = call.selected();
  {
    const Capture capture({.path = folder.path()});
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &less), 0);
    EXPECT_EQ(call.selected(), want);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &most), 0);
    EXPECT_EQ(io::bytes_of(folder / "index.jsonl"), before);
    EXPECT_EQ(call.selected(), want);
    EXPECT_EQ(capture.written(), 1) << "recording has ended";
  }
  {
    const Capture capture({.path = folder.path()});
    call.selected();
  }
  const auto lines = lines_of(io::bytes_of(folder / "index.jsonl"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_FALSE(io::find_json_fault(lines[1], 3));
}

TEST(Capture, NothingIsGluedToHalfALine) {
  const io::TestFolder folder;
  PagedIndexer call;
  const std::string half = "{\"file\":\"000001-qu";
  {
    const Capture capture({.path = folder.path()});
    call.selected();
    folder.write("index.jsonl", io::bytes_of(folder / "index.jsonl") + half);  // a process beside has died
    call.selected();
  }
  auto lines = lines_of(io::bytes_of(folder / "index.jsonl"));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1], half);
  lines.erase(lines.begin() + 1);
  // And one that is found when a recording begins: the index is made anew.
  folder.write("index.jsonl", half);
  { const Capture capture({.path = folder.path()}); }
  EXPECT_EQ(lines_of(io::bytes_of(folder / "index.jsonl")), lines);
}

TEST(Capture, FiltersSayWhatTheyLeaveOut) {
  const io::TestFolder folder;
  PagedIndexer call;
  {
    Capture capture({.path = folder.path(), .operators = {"quant_lightning_indexer"}, .every = 3});
    for (int i = 0; i < 7; ++i) call.selected();
    std::vector<float> x{1, 2}, y(2), rstd(1);
    rms_norm({.self = tensor(x.data(), {1, 2}), .gamma = tensor(x.data(), {2})},
             {.y = tensor(y.data(), {1, 2}), .rstd = tensor(rstd.data(), {1, 1})});
    mark({.step = 4, .layer = 2, .dummy = true});
    call.selected();
    mark({.dummy = false});
    call.selected(), call.selected(), call.selected();
    EXPECT_EQ(capture.seen(), 12);
    EXPECT_EQ(capture.written(), 4);
    capture.end();
    call.selected();
    EXPECT_EQ(capture.seen(), 12);
  }
  const std::string summary = summary_of(folder);
  for (const char* part : {"\"dummy\": 1", "\"every\": 6", "\"operators\": 1", "\"written\": 4"})
    EXPECT_NE(summary.find(part), std::string::npos) << summary;
  const Case last = read_case(cases_in(folder.path()).back());
  EXPECT_EQ(last.metadata.at("where"), R"({"sequence":12,"step":4,"layer":2,"rank":0})");
}

TEST(Capture, AnEmptyRecordingNamesItsFilter) {
  const io::TestFolder folder;
  {
    const Capture capture({.path = folder.path(), .operators = {"quantize"}});
    PagedIndexer().selected();
  }
  EXPECT_NE(summary_of(folder).find("nothing was recorded: 1 calls left out by operators"), std::string::npos);
}

TEST(Capture, TheLimitDropsTheOldestOrEnds) {
  PagedIndexer call;
  std::uint64_t bytes = 0;
  {
    const io::TestFolder folder;
    {
      const Capture capture({.path = folder.path()});
      call.selected();
    }
    bytes = std::filesystem::file_size(cases_in(folder.path()).front());
  }
  for (const char* keep : {"last", "first"}) {
    const io::TestFolder folder;
    {
      const Capture capture({.path = folder.path(), .max_bytes = 3 * bytes + 100, .keep = keep});
      for (int i = 0; i < 5; ++i) call.selected();
    }
    const auto all = cases_in(folder.path());
    ASSERT_EQ(all.size(), 3u) << keep;
    const std::string first = std::filesystem::path(all.front()).filename();
    EXPECT_EQ(first.substr(0, 6), keep[0] == 'l' ? "000003" : "000001");
    for (const std::string& path : all) expect_agrees(read_case(path));
  }
}

TEST(Capture, AFolderThatCannotBeWrittenEndsItAndNoCallFails) {
  const io::TestFolder folder;
  PagedIndexer call;
  const auto wanted = call.selected();
  Context context;
  Capture capture({.path = folder / "gone"});
  std::filesystem::remove_all(folder / "gone");
  std::vector<std::int32_t> out(32);
  for (int i = 0; i < 2; ++i) {
    quant_lightning_indexer(call.args(), {.sparse_indices = tensor(out.data(), {4, 1, 8})}, context);
    EXPECT_EQ(out, wanted);
  }
  EXPECT_EQ(capture.written(), 0);
  ASSERT_EQ(context.warnings().size(), 1u);
  EXPECT_NE(context.warnings()[0].find("has ended: "), std::string::npos) << context.warnings()[0];
}

TEST(Capture, AChildOfForkRecordsUnderItsOwnName) {
  const io::TestFolder folder;
  PagedIndexer call;
  {
    const Capture capture({.path = folder.path()});
    call.selected();
    const pid_t child = ::fork();
    if (child == 0) {
      call.selected();
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    call.selected();
  }
  const auto all = cases_in(folder.path());
  EXPECT_EQ(all.size(), 3u);
  for (const std::string& path : all) expect_agrees(read_case(path));
}

TEST(Capture, ThreadsRecordTogether) {
  const io::TestFolder folder;
  {
    const Capture capture({.path = folder.path()});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        PagedIndexer call;
        Context context({.threads = 1});
        std::vector<std::int32_t> out(32);
        for (int i = 0; i < 5; ++i)
          quant_lightning_indexer(call.args(), {.sparse_indices = tensor(out.data(), {4, 1, 8})}, context);
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(capture.written(), 20);
  }
  EXPECT_EQ(cases_in(folder.path()).size(), 20u);
}

TEST(Capture, OptionsAreAskedAtOnce) {
  ASSERT_FALSE(is_watched());
  const io::TestFolder folder;
  const auto refused = [](CaptureOptions options, const char* parameter) {
    try {
      const Capture capture(options);
      ADD_FAILURE() << parameter << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_EQ(e.status, Status::invalid_argument);
    }
  };
  refused({.path = ""}, "path");
  refused({.path = folder.path(), .operators = {"quantise"}}, "operators");
  refused({.path = folder.path(), .every = 0}, "every");
  refused({.path = folder.path(), .max_bytes = 0}, "max_bytes");
  refused({.path = folder.path(), .keep = "newest"}, "keep");
  refused({.path = folder.path(), .caches = "all"}, "caches");
  refused({.path = folder.path(), .weights = "never"}, "weights");
  EXPECT_THROW(Capture({.path = folder.write("file", "") + "/below"}), Error);
  EXPECT_EQ(watched.load(), 0) << "nobody watches any more";
}

}  // namespace
}  // namespace dsakit::debug
