// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <vector>

#include "checkpoint/convert.hpp"
#include "checkpoint/parts.hpp"
#include "core/random.hpp"
#include "io/safetensors.hpp"
#include "io/stored_matrix.hpp"
#include "io/test_folder.hpp"
#include "io/test_model.hpp"

namespace dsakit {
namespace {

namespace fs = std::filesystem;

/// A small model with an indexer and experts in fp8, in one file, and what becomes of it without interruption.
class Convert : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(folder / "source");
    folder.write("source/config.json",
                 io::config_text({{"num_hidden_layers", "2"},
                                  {"n_routed_experts", "4"},
                                  {"num_experts_per_tok", "2"},
                                  {"moe_intermediate_size", "24"},
                                  {"n_shared_experts", "1"},
                                  {"n_group", "1"},
                                  {"topk_group", "1"},
                                  {"routed_scaling_factor", "2.5"},
                                  {"norm_topk_prob", "true"},
                                  {"first_k_dense_replace", "1"},
                                  {"quantization_config",
                                   R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"}}));
    write_source();
    options.checkpoint = folder / "source";
    options.shard_bytes = 30'000;
    for (const TargetFormat format : kFormats) {
      options.format = format;
      options.out = folder / name_of(format);
      steps[name_of(format)] = 0;
      convert(options, [&](std::uint64_t, std::uint64_t) { ++steps[name_of(format)]; });
    }
  }

  void write_source() {
    const io::ModelConfig config = io::read_config(folder / "source/config.json");
    std::vector<std::pair<std::string, Tensor>> tensors;
    Random random(7);
    for_each_tensor(config, [&](const ModelTensor& t) {
      const std::int64_t count = t.parameters();
      if (!t.quantised) {
        auto& values = floats.emplace_back(count);
        for (float& v : values) v = random.uniform(-1, 1);
        tensors.emplace_back(t.name, shaped(values.data(), t.shape));
        return;
      }
      auto& weight = codes.emplace_back(count);
      for (std::uint8_t& code : weight) code = std::uint8_t(random.uniform(0, 126));
      tensors.emplace_back(t.name, shaped(weight.data(), t.shape));
      tensors.back().second.dtype = DType::f8_e4m3;
      const std::int64_t rows = io::scale_blocks(t.shape[0]), cols = io::scale_blocks(t.shape[1]);
      tensors.emplace_back(t.name + "_scale_inv", shaped(floats.emplace_back(rows * cols, 0.3f).data(), {rows, cols}));
    });
    io::write_safetensors(folder / "source/model.safetensors", tensors);
  }

  static Tensor shaped(const auto* data, const std::vector<std::int64_t>& shape) {
    return shape.size() == 1 ? tensor(data, {shape[0]}) : tensor(data, {shape[0], shape[1]});
  }
  static std::string name_of(TargetFormat format) {
    return format == TargetFormat::bf16 ? "bf16" : format == TargetFormat::w8a8 ? "w8a8" : "packed";
  }
  static constexpr TargetFormat kFormats[] = {TargetFormat::bf16, TargetFormat::w8a8, TargetFormat::packed};

  static std::map<std::string, std::string> contents(const std::string& path) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(path))
      files[entry.path().filename()] = io::bytes_of(entry.path());
    return files;
  }

  /// A process that is killed at its n-th step on disk.
  void killed_at(int n) {
    const pid_t child = ::fork();
    if (child == 0) {
      int step = 0;
      convert(options, [&](std::uint64_t, std::uint64_t) {
        if (++step == n) ::raise(SIGKILL);
      });
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "at step " << n << ": " << status;
  }

  io::TestFolder folder;
  ConvertOptions options;
  std::map<std::string, int> steps;
  std::deque<std::vector<float>> floats;
  std::deque<std::vector<std::uint8_t>> codes;
};

TEST_F(Convert, KilledAnywhereAndResumedWritesTheSameBytes) {
  for (const TargetFormat format : kFormats) {
    options.format = format;
    const int all = steps[name_of(format)];
    ASSERT_GT(all, 40);
    const auto wanted = contents(folder / name_of(format));
    for (int point = 0; point < 20; ++point) {
      options.out = folder / (name_of(format) + std::to_string(point));
      const int n = 1 + point * (all - 1) / 19;
      killed_at(n);
      EXPECT_EQ(fs::exists(options.out + "/config.json"), n == all);
      if (point % 4 == 1) killed_at(3);  // .. and once more
      convert(options);
      EXPECT_EQ(contents(options.out), wanted) << "killed at step " << n << " of " << all;
    }
  }
}

TEST_F(Convert, FinishedShardsAreNotWrittenAgain) {
  const std::string out = folder / "bf16";
  options.format = TargetFormat::bf16, options.out = out;
  const auto wanted = contents(out);
  int again = 0;
  convert(options, [&](std::uint64_t done, std::uint64_t all) { again += done == all; });
  EXPECT_LT(again, 6);
  EXPECT_EQ(contents(out), wanted);
  const auto second = std::next(wanted.find("convert.json"), 2)->first;
  fs::resize_file(out + "/" + second, 100);  // not what the record says
  std::uint64_t first = 0;
  convert(options, [&](std::uint64_t done, std::uint64_t) { first = first ? first : done; });
  EXPECT_GT(first, 0u);
  EXPECT_EQ(contents(out), wanted);
}

TEST_F(Convert, WhatTheCallerThrowsEndsItAndLeavesNoPartialFile) {
  options.out = folder / "stopped";
  int step = 0;
  const auto stop = [&](std::uint64_t, std::uint64_t) {
    if (++step == 10) throw std::runtime_error("enough");
  };
  EXPECT_THROW(convert(options, stop), std::runtime_error);
  for (const auto& [name, bytes] : contents(options.out)) EXPECT_FALSE(name.starts_with('.')) << name;
  convert(options);
  EXPECT_EQ(contents(options.out), contents(folder / name_of(options.format)));
}

}  // namespace
}  // namespace dsakit
