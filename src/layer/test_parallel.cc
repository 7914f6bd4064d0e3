// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "dsakit/error.hpp"
#include "dsakit/group.hpp"
#include "dsakit/model.hpp"
#include "dsakit/ownership.hpp"
#include "io/config.hpp"
#include "io/test_folder.hpp"
#include "layer/exchange_sizes.hpp"
#include "parallel/exchanges.hpp"

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

TEST(ParallelModel, RanksThatAreThreadsMayShareAContext) {
  const std::vector<std::int32_t> text = tokens(230);
  const std::vector<float>& wanted = alone("sparse_w8a8", text);
  Context context({.threads = 2});
  for (int again = 0; again < 3; ++again)
    threads_as_ranks(8, [&](Group& group) {
      const Model model(kFolder, group, {.parallel = "kv=2,heads=2,query=2", .merge = "two"});
      EXPECT_TRUE(run(model, "sparse_w8a8", text, context) == wanted);
    }, 120);
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

/// What a token behind 200 others costs each rank: by name.
using Counts = std::map<std::string, std::pair<std::int64_t, std::uint64_t>>;
std::vector<Counts> counts_of_a_step(int ranks, const Parallel& options, std::string_view mode) {
  const std::vector<std::int32_t> text = tokens(201);
  std::vector<Counts> all(static_cast<std::size_t>(ranks));
  threads_as_ranks(ranks, [&](Group& group) {
    Context context({.threads = 1});
    const Model model(kFolder, group, options);
    Session session = model.start(mode);
    session.append(std::span(text).first(200), {}, context);
    session.clear_costs();
    std::vector<float> logits(256);
    session.append(std::span(text).last(1), logits, context);
    for (const Traffic& t : session.traffic()) all[std::size_t(group.rank())][t.name] = {t.messages, t.bytes};
  }, 60);
  return all;
}

TEST(ParallelModel, WhatTravelsIsWhatPlansSay) {
  const io::ModelConfig config = io::read_config(kFolder + "/config.json");
  const std::int64_t layers = config.num_hidden_layers, n = 201;
  for (const std::string_view mode : {"sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"})
    for (const auto& [ranks, text] : {std::pair{1, "kv=1"}, {2, "heads=2"}, {2, "kv=2"}, {3, "kv=3"}, {4, "kv=2,heads=2"},
                                      {6, "kv=3,heads=2"}, {8, "heads=4,query=2"}, {8, "kv=8"}}) {
      const Grid grid = grid_of(text, ranks, "test");
      const int replica = grid.replica_ranks();
      const ExchangeSizes sizes = exchange_sizes(config, mode_of(mode, config));
      std::vector<std::int64_t> visible, rows;
      for (int r = 0; r < replica; ++r) {
        visible.push_back(Ownership{replica, 0, 1}.below(n, r));
        rows.push_back(slice_of(1, r, replica).size());
      }
      const std::int64_t widths[] = {config.intermediate_size};
      const auto all = counts_of_a_step(ranks, {.parallel = text, .merge = "one"}, mode);
      const auto two = counts_of_a_step(ranks, {.parallel = text, .merge = "two"}, mode);
      std::uint64_t fetched = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const int j = grid.replica_rank(rank);
        Counts wanted;
        const auto add = [&](ExchangeKind kind, std::int64_t times, const Shares& shares) {
          if (shares.size() > 1)
            wanted[std::string(name_of(kind))] = {times, std::uint64_t(times) * received(shares, j)};
        };
        using enum ExchangeKind;
        add(first_products, layers, dsakit::first_products(sizes, replica, 1, true));
        add(index_queries, layers, dsakit::index_queries(sizes, replica, 1));
        add(candidates, layers, all_candidates(visible, sizes.topk));
        add(head_values, layers, dsakit::head_values(sizes, replica, 1));
        add(layer_output, layers, dsakit::layer_output(sizes, replica, 1));
        add(mlp_hidden, layers, dsakit::mlp_hidden(widths, replica, 1));
        add(mlp_output, layers, dsakit::layer_output(sizes, replica, 1));
        add(embedding, 1, dsakit::embedding(sizes, rows));
        add(logits, 1, dsakit::logits(sizes, replica, 1));
        Counts got = all[std::size_t(rank)];
        EXPECT_EQ(got["attention"].first, grid.kv > 1 ? layers : 0);
        fetched += got["attention"].second;
        got.erase("attention");
        EXPECT_EQ(got, wanted) << mode << " " << text << " rank " << rank;
        if (replica == 1) continue;
        const Counts& steps = two[std::size_t(rank)];
        EXPECT_EQ(steps.at("samples"),
                  (std::pair{layers, std::uint64_t(layers) * received(dsakit::samples(visible, sizes.topk), j)}));
        EXPECT_LE(steps.at("candidates").second, std::uint64_t(layers * 8 * most_candidates(visible, sizes.topk)));
      }
      // Who has the selected rows depends on the text; together they are K for all but their owner.
      EXPECT_EQ(fetched, std::uint64_t(layers * grid.heads * grid.query * (grid.kv - 1) * sizes.topk * sizes.latent_row_bytes));
    }
}

TEST(ParallelModel, SessionsAreSavedByAnyNumberOfRanksForAnyOther) {
  const std::vector<std::int32_t> text = tokens(180);
  for (const std::string_view mode : {"dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"}) {
    std::vector<float> wanted(256);
    {
      const Model model(kFolder);
      Session session = model.start(mode);
      session.append(text, wanted);
    }
    io::TestFolder folder;
    const auto finish = [&](const Model& model) {
      Context context({.threads = 1});
      Session session = model.load_session(folder.path(), 48);
      EXPECT_EQ(session.length(), 170);
      EXPECT_EQ(session.mode(), mode);
      std::vector<float> logits(256);
      session.append(std::span(text).last(10), logits, context);
      EXPECT_EQ(logits, wanted) << mode;
    };
    const bool dense = mode == "dense_bf16";
    const std::pair<int, Parallel> writers[] = {
        {1, {}},
        {4, {.parallel = dense ? "heads=4" : "kv=2,heads=2", .interleave = 16}},
        {3, {.parallel = dense ? "heads=3" : "kv=3", .index = "kv"}},
        {2, {.parallel = "heads=2", .index = "copy"}}};
    for (const auto& [ranks, parallel] : writers) {
      threads_as_ranks(ranks, [&, parallel = parallel](Group& group) {
        Context context({.threads = 1});
        const Model model(kFolder, group, parallel);
        Session session = model.start(mode);
        session.append(std::span(text).first(170), {}, context);
        session.save(folder.path());
      }, 60);
      finish(Model(kFolder));
      for (const auto& [others, grid] : {std::pair{3, dense ? "heads=3" : "kv=3"}, {8, dense ? "heads=8" : "kv=4,heads=2"}})
        threads_as_ranks(others, [&, grid = grid](Group& group) { finish(Model(kFolder, group, {.parallel = grid})); }, 60);
    }
    // One process, and each save takes away the shards of the one before.
    Session session = Model(kFolder).start(mode);
    session.append(text);
    session.save(folder.path());
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
    // A shard that is not whole.
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry.path(), entry.file_size() - 1);
    EXPECT_THROW((void)Model(kFolder).load_session(folder.path()), Error);
    threads_as_ranks(2, [&](Group& group) {
      const Model model(kFolder, group, {.parallel = "heads=2"});
      EXPECT_THROW((void)model.load_session(folder.path()), Error);
      EXPECT_EQ(model.start(mode).length(), 0);  // goes on
    }, 60);
  }
}

/// Ranks of the plainest and the best instruction set of this machine in turn.
std::vector<std::string> run_on_two_isas(const Parallel& options, bool same_products, std::vector<std::vector<float>>& logits) {
  const std::vector<std::int32_t> text = tokens(200);
  std::vector<std::string> said(4);
  logits.assign(4, {});
  threads_as_ranks(4, [&](Group& group) {
    const std::size_t rank = std::size_t(group.rank());
    Context context({.threads = 1, .isa = std::string(rank % 2 ? supported_isas().back() : "generic"), .same_products = same_products});
    const Model model(kFolder, group, options);
    try {
      logits[rank] = run(model, "sparse_w8a8", text, context, {150, 37, 1});
    } catch (const Error& e) {
      said[rank] = e.what();
    }
  }, 120);
  return said;
}

TEST(ParallelModel, InstructionSetsMayDifferWhereEveryNumberHasOneOwner) {
  if (supported_isas().size() < 2) GTEST_SKIP() << "one instruction set";
  std::vector<std::vector<float>> logits;
  EXPECT_EQ(run_on_two_isas({.parallel = "kv=2,heads=2"}, false, logits), std::vector<std::string>(4));
  for (const auto& of_rank : logits) EXPECT_EQ(of_rank, logits[0]);
  for (const Parallel& options : {Parallel{.parallel = "kv=2,heads=2", .prolog = "copy"}, {.parallel = "kv=4", .exchange = "partials"}}) {
    for (const std::string& said : run_on_two_isas(options, false, logits))
      EXPECT_EQ(said.substr(0, 38), "parallel: isa is generic on rank 0 and") << options.prolog;
    // The same products everywhere: whatever the ranks are.
    EXPECT_EQ(run_on_two_isas(options, true, logits), std::vector<std::string>(4));
    for (const auto& of_rank : logits) EXPECT_EQ(of_rank, logits[0]);
  }
}

TEST(ParallelModel, MemoryThatOneRankLacksIsLackingOnAll) {
  const std::vector<std::int32_t> text = tokens(200);
  const std::vector<float>& wanted = alone("sparse_w8a8", tokens(230));
  const std::string said = message_of(4, {.parallel = "kv=2,heads=2"}, [&](Model& model, Group& group) {
    Context context({.threads = 1}), little({.threads = 1, .memory_limit = 1});
    Session session = model.start("sparse_w8a8");
    session.append(std::span(text).first(150), {}, context);
    try {
      session.append(std::span(text).subspan(150), {}, group.rank() == 2 ? little : context);
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::out_of_memory);
      EXPECT_EQ(e.rank, 2);
      EXPECT_EQ(session.length(), 150);
      std::vector<float> logits(256);
      session.append(std::span(text).subspan(150, 1), logits, context);  // goes on, with the bits of one process
      EXPECT_TRUE(std::equal(logits.begin(), logits.end(), wanted.begin() + 150 * 256));
      throw;
    }
  });
  EXPECT_NE(said.find("wanted at most 1 "), std::string::npos) << said;
}

TEST(ParallelModel, AnotherCheckpointOnOneRankIsRefusedByAll) {
  const io::TestFolder broken, other;
  for (const io::TestFolder* folder : {&broken, &other})
    std::filesystem::copy(kFolder, folder->path(), std::filesystem::copy_options::recursive);
  std::filesystem::resize_file(broken / "model.safetensors", std::filesystem::file_size(broken / "model.safetensors") - 1);
  const std::string config = io::bytes_of(other / "config.json");
  other.write("config.json", config + "\n");
  for (const auto& [folder, status, parameter] :
       {std::tuple{&broken, Status::invalid_file, ""}, {&other, Status::invalid_argument, "checkpoint"}}) {
    std::vector<std::string> said(3);
    threads_as_ranks(3, [&, folder = folder, status = status, parameter = parameter](Group& group) {
      try {
        Model(group.rank() == 1 ? folder->path() : kFolder, group, {.parallel = "heads=3"});
      } catch (const Error& e) {
        EXPECT_EQ(e.status, status);
        EXPECT_TRUE(!*parameter || e.parameter == parameter);
        said[std::size_t(group.rank())] = e.what();
      }
    }, 60);
    EXPECT_NE(said[0], "");
    EXPECT_EQ(said, std::vector<std::string>(3, said[0]));
  }
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
