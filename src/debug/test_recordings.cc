// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "debug/compare.hpp"
#include "debug/golden.hpp"
#include "debug/spelling.hpp"
#include "debug/test_cases.hpp"
#include "dsakit/capture.hpp"
#include "dsakit/error.hpp"
#include "io/test_folder.hpp"
#include "kernels/kernels.hpp"

// Files and recordings of every operator.
namespace dsakit::debug {
namespace {

/// A call of each operator, and those over pages.
std::vector<std::pair<std::string, Settings>> calls() {
  std::vector<std::pair<std::string, Settings>> all;
  for (const Operator& op : operators()) all.push_back({std::string(op.name), {}});
  for (const char* op : {"lightning_indexer", "quant_lightning_indexer"})
    for (const char* pages : {"mixed", "shared"}) all.push_back({op, {{"layout_key", "PA_BSND"}, {"pages", pages}}});
  for (const char* op : {"sparse_flash_attention", "kv_quant_sparse_flash_attention"})
    all.push_back({op, {{"layout_kv", "PA_BSND"}, {"K", "5"}, {"data", "V13"}}});
  all.push_back({"fused_infer_attention_score_v2", {{"block_table", "given"}}});
  all.push_back({"kv_rmsnorm_rope_cache", {{"cache_mode", "PA_NZ"}}});
  all.push_back({"scatter_pa_kv_cache", {{"cache_mode", "Norm"}, {"data", "V13"}}});
  all.push_back({"mla_prolog_v3", {{"cache_mode", "PA_NZ"}, {"weight_quant_mode", "1"}, {"data", "V13"}}});
  all.push_back({"quant_matmul", {{"x2", "int8:64x32:nz"}}});
  return all;
}

std::string text_of(const std::pair<std::string, Settings>& call) {
  std::string text = call.first;
  for (const auto& [name, value] : call.second) text += " " + name + "=" + value;
  return text;
}

void expect_same_bits(const Case& c, Context& context, const std::string& which) {
  const Outcome outcome = execute(c, {.context = &context});
  ASSERT_FALSE(outcome.refusal) << which << ": " << outcome.refusal->what();
  const std::vector<Pair> pairs = pairs_of(c, "out", outcome);
  EXPECT_FALSE(pairs.empty()) << which;
  for (const Pair& pair : pairs) {
    EXPECT_EQ(pair.mismatch, "") << which << " " << pair.key;
    EXPECT_TRUE(compare_bits(pair, false).equal()) << which << " " << pair.key;
  }
}

/// The one case that a call leaves with these options.
Case recorded(const Case& made, Context& context, const CaptureOptions& options) {
  {
    const Capture capture(options);
    EXPECT_FALSE(execute(made, {.context = &context}).refusal);
  }
  const auto files = cases_in(options.path);
  EXPECT_FALSE(files.empty());
  return read_case(files.front());
}

TEST(Recordings, EveryOperatorBySpellingIsWrittenReadAndWrittenTheSame) {
  const io::TestFolder folder;
  for (const auto& [op, settings] : calls()) {
    Case c = golden(op, settings);
    for (const auto& [spelling, owner] : spellings()) {
      if (owner->name != op) continue;
      c.call = spelling;
      write_case(c, folder / "a");
      const Case read = read_case(folder / "a");
      write_case(read, folder / "b");
      EXPECT_EQ(io::bytes_of(folder / "a"), io::bytes_of(folder / "b")) << spelling;
      EXPECT_EQ(io::bytes_of(folder / "a").size(), bytes_of(c)) << spelling;
    }
  }
}

TEST(Recordings, WhatEveryRungRecordsHasItsBitsAgainAndTouchedPagesAreAsGoodAsAll) {
  for (const Kernels* k : supported_kernels()) {
    Context context({.threads = 2, .isa = k->isa});
    for (const auto& call : calls()) {
      const Case made = made_call(call.first, call.second);
      std::optional<Case> touched;
      for (const char* caches : {"touched", "whole"}) {
        const std::string which = text_of(call) + " on " + k->isa + ", " + caches;
        const io::TestFolder folder;
        Case c = recorded(made, context, {.path = folder.path(), .caches = caches});
        expect_same_bits(c, context, which);
        if (!touched) {
          touched = std::move(c);
          continue;
        }
        // What both have is the same.
        for (const Pair& pair : pairs_of(*touched, "out", c, "out")) {
          EXPECT_EQ(pair.mismatch, "") << which << " " << pair.key;
          EXPECT_TRUE(compare_bits(pair, false).equal()) << which << " " << pair.key;
        }
      }
    }
  }
}

TEST(Recordings, AFullDiskEndsItWithAWarningAndNoCallFails) {
  const io::TestFolder folder;
  const Case made = made_call("rms_norm", {{"T", "64"}});
  const pid_t child = ::fork();
  if (child == 0) {
    // Files of at most 20 KiB: the first write behind that fails, as on a full disk.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20 << 10, 20 << 10};
    Context context;
    const Outcome before = execute(made, {.context = &context});
    const Capture capture({.path = folder.path()});
    bool good = ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
    for (int i = 0; i < 2; ++i) {
      const Outcome outcome = execute(made, {.context = &context});
      good = good && !outcome.refusal &&
             Bits(compare_bits(
                      {"y", "y", before.results.at("out.y").tensor, outcome.results.at("out.y").tensor, {}, {}, ""},
                      false))
                 .equal();
    }
    const auto warnings = context.warnings();
    good =
        good && capture.written() == 0 && warnings.size() == 1 && warnings[0].find("has ended: ") != std::string::npos;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(cases_in(folder.path()).empty());
  // The folder can be recorded into again.
  Context context;
  (void)recorded(made, context, {.path = folder.path()});
}

TEST(Recordings, AKilledProgramLeavesWholeFiles) {
  const io::TestFolder folder;
  const Case made = made_call("quant_lightning_indexer", {{"layout_key", "PA_BSND"}});
  const pid_t child = ::fork();
  if (child == 0) {
    Context context({.threads = 1});
    const Capture capture({.path = folder.path(), .max_bytes = 1 << 20});
    for (;;) (void)execute(made, {.context = &context});
  }
  int status = 0;
  bool runs = true;
  while (runs && cases_in(folder.path()).size() < 5) {
    runs = ::waitpid(child, &status, WNOHANG) == 0;
    ::usleep(1000);
  }
  ASSERT_TRUE(runs) << status;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  Context context({.threads = 1});
  const auto files = cases_in(folder.path());
  EXPECT_GE(files.size(), 5u);
  for (const std::string& path : files) expect_same_bits(read_case(path), context, path);
  // What was being written has another name, and the next recording goes on beside it.
  (void)recorded(made, context, {.path = folder.path()});
}

}  // namespace
}  // namespace dsakit::debug
