// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "dsakit/error.hpp"
#include "dsakit/group.hpp"
#include "dsakit/model.hpp"

// A model that threads of this process share as ranks, beside the model of one process.
namespace dsakit {
namespace {

const std::string kFolder = DSAKIT_SOURCE_DIR "/models/tiny-dsa";

std::vector<std::int32_t> tokens(std::size_t count) {
  std::ifstream file(kFolder + "/heldout.txt", std::ios::binary);
  std::vector<std::uint8_t> text{std::istreambuf_iterator<char>(file), {}};
  return {text.begin(), text.begin() + std::ptrdiff_t(count)};
}

struct Shared {
  std::string grid;
  Parallel options{};
};

/// A prompt in two pieces, then tokens one by one: all logits.
std::vector<float> run(const Model& model, std::string_view mode, std::span<const std::int32_t> text, Context& context,
                       std::vector<std::size_t> pieces = {150, 37, 1, 1, 1}) {
  const std::size_t vocab = std::size_t(model.vocab_size());
  Session session = model.start(mode, 32);
  std::vector<float> logits(text.size() * vocab);
  std::size_t at = 0;
  for (const std::size_t n : pieces) {
    session.append(text.subspan(at, n), std::span(logits).subspan(at * vocab, n * vocab), context);
    at += n;
  }
  session.append(text.subspan(at), std::span(logits).subspan(at * vocab), context);
  return logits;
}

/// The logits of every rank.
std::vector<std::vector<float>> run_shared(int ranks, const Parallel& options, std::string_view mode,
                                           std::span<const std::int32_t> text) {
  std::vector<std::vector<float>> all(static_cast<std::size_t>(ranks));
  threads_as_ranks(ranks, [&](Group& group) {
    Context context({.threads = 1});
    const Model model(kFolder, group, options);
    all[std::size_t(group.rank())] = run(model, mode, text, context);
  }, 120);
  return all;
}

const std::vector<float>& alone(std::string_view mode, std::span<const std::int32_t> text) {
  static std::map<std::string, std::vector<float>, std::less<>> known;
  auto at = known.find(mode);
  if (at != known.end()) return at->second;
  static const Model model(kFolder);
  Context context({.threads = 1});
  return known.emplace(std::string(mode), run(model, mode, text, context)).first->second;
}

void expect_bits_of_one_process(int ranks, const Parallel& options, std::string_view mode) {
  const std::vector<std::int32_t> text = tokens(230);  // index_topk is 128
  const auto all = run_shared(ranks, options, mode, text);
  for (const auto& logits : all)
    EXPECT_EQ(logits, alone(mode, text)) << mode << " " << options.parallel << " " << options.index << " " << options.merge;
}

TEST(ParallelModel, HasTheBitsOfOneProcessOnEveryGrid) {
  const std::pair<int, const char*> grids[] = {
      {1, "kv=1"},       {2, "heads=2"},        {2, "kv=2"},          {2, "query=2"},           {3, "heads=3"},
      {3, "kv=3"},       {4, "kv=2,heads=2"},   {4, "kv=2,query=2"},  {5, "heads=5"},           {7, "kv=7"},
      {8, "heads=8"},    {8, "kv=2,heads=2,query=2"}};
  for (const std::string_view mode : {"sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"})
    for (const auto& [ranks, grid] : grids) expect_bits_of_one_process(ranks, {.parallel = grid}, mode);
  for (const auto& [ranks, grid] : {std::pair{2, "heads=2"}, {2, "query=2"}, {5, "heads=5"}, {6, "heads=3,query=2"}})
    expect_bits_of_one_process(ranks, {.parallel = grid}, "dense_bf16");
}

TEST(ParallelModel, WhoHasWhichIndexKeysDoesNotShow) {
  for (const std::string_view mode : {"sparse_bf16", "sparse_w8a8"})
    for (const char* index : {"all", "kv", "copy"})
      for (const char* merge : {"one", "two", "auto"})
        for (const std::int64_t interleave : {1, 16, 128})
          expect_bits_of_one_process(4, {.parallel = "kv=2,heads=2", .index = index, .merge = merge, .interleave = interleave}, mode);
}

TEST(ParallelModel, FirstProductsOfEveryRankAreTheSame) {
  for (const std::string_view mode : {"sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"})
    expect_bits_of_one_process(4, {.parallel = "kv=2,heads=2", .prolog = "copy"}, mode);
  expect_bits_of_one_process(3, {.parallel = "heads=3", .prolog = "copy"}, "dense_bf16");
}

TEST(ParallelModel, MergedPartsAreClose) {
  const std::vector<std::int32_t> text = tokens(230);
  for (const std::string_view mode : {"dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"})
    for (const auto& [ranks, grid] : {std::pair{2, "kv=2"}, {6, "kv=3,heads=2"}}) {
      const auto all = run_shared(ranks, {.parallel = grid, .exchange = "partials"}, mode, text);
      double sum = 0, largest = 0;
      for (std::size_t i = 0; i < all[0].size(); ++i) {
        const double d = all[0][i] - alone(mode, text)[i];
        sum += d * d, largest = std::max(largest, std::fabs(d));
      }
      EXPECT_LT(std::sqrt(sum / double(all[0].size())), mode == "dense_bf16" || mode == "sparse_bf16" ? 0.02 : 0.1) << mode << " " << grid;
      for (const auto& logits : all) EXPECT_EQ(logits, all[0]);
      EXPECT_EQ(run_shared(ranks, {.parallel = grid, .exchange = "partials"}, mode, text)[0], all[0]);
    }
}

std::string message_of(int ranks, const Parallel& options, const std::function<void(Model&, Group&)>& f) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  threads_as_ranks(ranks, [&](Group& group) {
    Model model(kFolder, group, options);
    try {
      f(model, group);
    } catch (const Error& e) {
      said[std::size_t(group.rank())] = e.what();
    }
  }, 60);
  for (const std::string& s : said) EXPECT_EQ(s, said[0]);
  return said[0];
}

TEST(ParallelModel, AllRanksRefuseAlikeAndGoOn) {
  const std::vector<std::int32_t> text = tokens(40);
  const auto append = [](Session& session, std::span<const std::int32_t> some) { session.append(some, {}); };
  // One rank's tokens are none.
  const std::string wrong = message_of(3, {.parallel = "kv=3"}, [&](Model& model, Group& group) {
    Session session = model.start("sparse_w8a8");
    append(session, text);
    std::vector<std::int32_t> mine(text);
    if (group.rank() == 1) mine[3] = 256;
    try {
      append(session, mine);
    } catch (const Error&) {
      EXPECT_EQ(session.length(), 40);
      std::vector<float> logits(256), wanted(40 * 256);
      session.append(std::span(text).first(1), logits);  // goes on
      EXPECT_EQ(session.length(), 41);
      throw;
    }
  });
  EXPECT_EQ(wrong, "model: tokens[3] is 256, wanted 0..255 (vocab_size)");
  // Other tokens, other lengths, another mode.
  EXPECT_NE(message_of(2, {.parallel = "heads=2"}, [&](Model& model, Group& group) {
              Session session = model.start("sparse_w8a8");
              append(session, std::span(text).subspan(std::size_t(group.rank()), 10));
            }).find("token ids"), std::string::npos);
  EXPECT_EQ(message_of(2, {.parallel = "heads=2"}, [&](Model& model, Group& group) {
              Session session = model.start("sparse_w8a8");
              append(session, std::span(text).first(10 + std::size_t(group.rank())));
            }), "parallel: tokens is 10 on rank 0 and 11 on rank 1, wanted the same on all ranks");
  EXPECT_EQ(message_of(2, {.parallel = "heads=2"}, [&](Model& model, Group& group) {
              model.start(group.rank() == 0 ? "sparse_w8a8" : "dense_bf16");
            }), "parallel: mode is sparse_w8a8 on rank 0 and dense_bf16 on rank 1, wanted the same on all ranks");
}

TEST(ParallelModel, InterruptedOnOneRankIsInterruptedOnAll) {
  const std::vector<std::int32_t> text = tokens(200);
  std::vector<Status> statuses(4);
  threads_as_ranks(4, [&](Group& group) {
    Context context({.threads = 1});
    const Model model(kFolder, group, {.parallel = "kv=2,heads=2"});
    Session session = model.start("sparse_w8a8");
    session.append(std::span(text).first(150), {}, context);
    if (group.rank() == 2) context.set_interrupt([](void*) { return true; }, nullptr);
    try {
      session.append(std::span(text).subspan(150), {}, context);
    } catch (const Error& e) {
      statuses[std::size_t(group.rank())] = e.status;
    }
    context.set_interrupt(nullptr, nullptr);
    EXPECT_TRUE(session.length() == 150 || statuses[std::size_t(group.rank())] == Status::ok);
  }, 60);
  for (const Status s : statuses) EXPECT_EQ(s, statuses[0]);  // a call may be over before it is asked
}

TEST(ParallelModel, WordsAreRefusedOnAllRanks) {
  for (int rank = 0; rank < 2; ++rank) {
    try {
      threads_as_ranks(2, [&](Group& group) { Model(kFolder, group, {.parallel = "kv=3"}); }, 60);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.parameter, "parallel");
    }
  }
}

}  // namespace
}  // namespace dsakit
