// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "core/float16.hpp"
#include "io/checkpoint.hpp"
#include "io/describe.hpp"
#include "io/test_folder.hpp"
#include "io/test_model.hpp"

namespace dsakit::io {
namespace {

Tensor fp8(const std::vector<std::uint8_t>& codes, std::int64_t rows, std::int64_t cols) {
  Tensor t = tensor(codes.data(), {rows, cols});
  t.dtype = DType::f8_e4m3;
  return t;
}

/// config.json and two shards: a, b in one, c in two.
class Sharded : public testing::Test {
 protected:
  void SetUp() override {
    folder.write("config.json", config_text({}));
    write_safetensors(folder / "one.safetensors",
                      {{"a", tensor(data.data(), {2, 3})}, {"b", tensor(data.data(), {4})}});
    write_safetensors(folder / "two.safetensors", {{"c", tensor(data.data() + 2, {4})}});
    index(R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors")");
  }
  void index(const std::string& map) {
    folder.write("model.safetensors.index.json", R"({"metadata":{"total_size":56},"weight_map":{)" + map + "}}");
  }
  void refused(Status status, std::initializer_list<const char*> parts) {
    expect_refusal(status, parts, [&] { Checkpoint{folder.path()}; });
  }

  TestFolder folder;
  std::vector<float> data{1, -2, 3.5f, 0.1f, 1e-40f, 70000};
};

TEST_F(Sharded, LoadsWithOneRounding) {
  const Checkpoint checkpoint(folder.path());
  EXPECT_EQ(checkpoint.config().hidden_size, 96);
  const auto a = checkpoint.load_matrix_bf16("a", 2, 3);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(a[i].bits, to_bf16(data[i]).bits) << i;
  const auto c = checkpoint.load_vector_f32("c", 4);
  EXPECT_EQ(std::memcmp(c.data(), data.data() + 2, 16), 0);
  EXPECT_EQ(checkpoint.load_vector_bf16("b", 4)[1].bits, 0xc000);
  EXPECT_TRUE(checkpoint.has("c"));
  EXPECT_FALSE(checkpoint.has("d"));
  const std::string text = describe(folder.path());
  EXPECT_NE(text.find("4 layers"), std::string::npos) << text;
  EXPECT_NE(text.find("a  F32  [2, 3]  24\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n3 tensors, 56 bytes\n"), std::string::npos) << text;
}

TEST_F(Sharded, MissingAndMisshapen) {
  const Checkpoint checkpoint(folder.path());
  expect_refusal(Status::missing_tensor, {"d is missing"}, [&] { checkpoint.load_vector_f32("d", 4); });
  expect_refusal(Status::invalid_shape, {"one.safetensors: a has shape [2, 3], wanted [3, 2]"},
                 [&] { checkpoint.load_matrix_bf16("a", 3, 2); });
  expect_refusal(Status::invalid_shape, {"[4]", "wanted [4, 1]"}, [&] { checkpoint.load_matrix_bf16("b", 4, 1); });
  expect_refusal(Status::invalid_shape, {"two.safetensors: c", "[5]"}, [&] { checkpoint.load_vector_f32("c", 5); });
}

TEST_F(Sharded, PathsOutOfTheFolder) {
  std::filesystem::create_directory(folder / "sub");
  std::filesystem::copy_file(folder / "two.safetensors", folder / "sub/two.safetensors");
  for (const char* name : {"../two.safetensors", "..", ".", "", "/etc/passwd", "sub/two.safetensors",
                           "a\\\\two.safetensors", "two.safetensors\\u0000x"}) {
    index("\"a\":\"one.safetensors\",\"c\":\"" + std::string(name) + "\"");
    refused(Status::invalid_path, {"model.safetensors.index.json"});
  }
  const TestFolder elsewhere;
  std::filesystem::copy_file(folder / "two.safetensors", elsewhere / "two.safetensors");
  std::filesystem::create_symlink(elsewhere / "two.safetensors", folder / "out.safetensors");
  index(R"("a":"one.safetensors","b":"one.safetensors","c":"out.safetensors")");
  refused(Status::invalid_path, {"out.safetensors is a link out of the folder"});
  std::filesystem::create_symlink("two.safetensors", folder / "in.safetensors");
  index(R"("a":"one.safetensors","b":"one.safetensors","c":"in.safetensors")");
  EXPECT_TRUE(Checkpoint(folder.path()).has("c"));
}

TEST_F(Sharded, ShardThatIsNotThereOrNoFile) {
  index(R"("a":"one.safetensors","b":"one.safetensors","c":"three.safetensors")");
  refused(Status::io_error, {"three.safetensors"});
  std::filesystem::create_directory(folder / "three.safetensors");
  refused(Status::io_error, {"is a directory"});
  std::filesystem::remove(folder / "three.safetensors");
  ASSERT_EQ(::mkfifo((folder / "three.safetensors").c_str(), 0600), 0);
  refused(Status::io_error, {"a regular file"});
}

TEST_F(Sharded, TensorsInOtherShardsThanNamed) {
  index(R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors","d":"two.safetensors")");
  refused(Status::missing_tensor, {"d is missing", "two.safetensors"});
  index(R"("a":"one.safetensors","b":"two.safetensors","c":"two.safetensors")");
  refused(Status::missing_tensor, {"b is missing", "two.safetensors"});
  index(R"("a":"one.safetensors","c":"two.safetensors")");
  refused(Status::conflict, {"b is also in one.safetensors"});
  write_safetensors(folder / "two.safetensors", {{"c", tensor(data.data(), {4})}, {"b", tensor(data.data(), {4})}});
  index(R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors")");
  refused(Status::conflict, {"b is also in two.safetensors, wanted only in one.safetensors"});
}

TEST_F(Sharded, IndexThatIsNoIndex) {
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})", R"({"weight_map":null})",
        R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"}) {
    folder.write("model.safetensors.index.json", text);
    refused(Status::invalid_file, {"model.safetensors.index.json"});
  }
  folder.write("model.safetensors.index.json", "{\"weight_map\":" + std::string(1'000'000, '['));
  refused(Status::invalid_file, {"nested"});
  std::filesystem::remove(folder / "model.safetensors.index.json");
  refused(Status::io_error, {"model.safetensors"});
}

TEST_F(Sharded, BadShardIsNamedWithItsReason) {
  std::filesystem::resize_file(folder / "two.safetensors", std::filesystem::file_size(folder / "two.safetensors") - 1);
  refused(Status::invalid_file, {"two.safetensors", "[TRUNCATED]"});
}

TEST_F(Sharded, MemoryLimit) {
  const Checkpoint checkpoint(folder.path());
  ::setenv("DSAKIT_MEM_LIMIT", "20", 1);
  EXPECT_EQ(checkpoint.load_matrix_bf16("a", 2, 3).size(), 6u);
  ::setenv("DSAKIT_MEM_LIMIT", "11", 1);
  expect_refusal(Status::out_of_memory, {"a needs 12 bytes, wanted at most 11"},
                 [&] { checkpoint.load_matrix_bf16("a", 2, 3); });
  ::unsetenv("DSAKIT_MEM_LIMIT");
}

TEST_F(Sharded, LayerNumbers) {
  write_safetensors(folder / "model.safetensors", {{"model.layers.4.mlp.down_proj.weight", tensor(data.data(), {4})}});
  refused(Status::invalid_shape, {"model.safetensors: model.layers.4.mlp", "wanted 0..3"});
  folder.write("config.json", config_text({{"num_nextn_predict_layers", "1"}}));
  EXPECT_NO_THROW(Checkpoint{folder.path()});
  write_safetensors(folder / "model.safetensors", {{"model.layers.99999999999999999999.x", tensor(data.data(), {4})}});
  refused(Status::invalid_shape, {"wanted 0..4"});
}

TEST_F(Sharded, StoredTypes) {
  std::vector<bf16> b{{0x3f80}, {0x7fc0}, {0x0001}};
  std::vector<f16> h{{0x3c01}, {0x0001}, {0xfbff}};
  std::vector<std::int8_t> i{1, 2, 3};
  write_safetensors(folder / "model.safetensors",
                    {{"b", tensor(b.data(), {3})}, {"h", tensor(h.data(), {3})}, {"i", tensor(i.data(), {3})}});
  const Checkpoint checkpoint(folder.path());
  for (int n = 0; n < 3; ++n) {
    EXPECT_EQ(checkpoint.load_vector_bf16("b", 3)[n].bits, b[n].bits);
    EXPECT_EQ(checkpoint.load_vector_bf16("h", 3)[n].bits, to_bf16(to_float(h[n])).bits);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(checkpoint.load_vector_f32("h", 3)[n]),
              std::bit_cast<std::uint32_t>(to_float(h[n])));
  }
  expect_refusal(Status::conflict, {"i is stored as I8, wanted a description of its scales (quantization_config)"},
                 [&] { checkpoint.load_vector_bf16("i", 3); });
}

TEST_F(Sharded, Fp8Blocks) {
  constexpr std::int64_t kRows = 130, kCols = 2500, kScaleCols = 20;  // ragged blocks, more than one piece of a read
  std::mt19937 random(1);
  std::vector<std::uint8_t> codes(kRows * kCols);
  for (auto& c : codes) do
      c = std::uint8_t(random());
    while ((c & 127) == 127);
  std::vector<float> scales(2 * kScaleCols);
  for (float& s : scales) s = float(random() % 1000 + 1) / 700.0f;
  const auto write = [&](std::vector<std::pair<std::string, Tensor>> tensors) {
    write_safetensors(folder / "model.safetensors", tensors);
    return Checkpoint(folder.path());
  };
  const Tensor weight = fp8(codes, kRows, kCols), scale = tensor(scales.data(), {2, kScaleCols});
  const auto loaded = write({{"w", weight}, {"w_scale_inv", scale}}).load_matrix_bf16("w", kRows, kCols);
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t col = 0; col < kCols; ++col) {
      const int code = codes[row * kCols + col], exponent = code >> 3 & 15;
      const double value = (code & 128 ? -1 : 1) * (exponent ? std::pow(2.0, exponent - 7) * (1 + (code & 7) / 8.0)
                                                             : std::pow(2.0, -6) * (code & 7) / 8.0);
      ASSERT_EQ(loaded[row * kCols + col].bits, to_bf16(float(value) * scales[row / 128 * kScaleCols + col / 128]).bits)
          << row << " " << col;
    }
  const auto load = [&](const Checkpoint& c) { c.load_matrix_bf16("w", kRows, kCols); };
  expect_refusal(Status::missing_tensor, {"w_scale_inv is missing"}, [&] { load(write({{"w", weight}})); });
  expect_refusal(Status::invalid_shape, {"w_scale_inv has shape [1, 40], wanted [2, 20] (blocks of 128 x 128)"}, [&] {
    load(write({{"w", weight}, {"w_scale_inv", tensor(scales.data(), {1, 2 * kScaleCols})}}));
  });
  std::vector<std::int32_t> integers(2 * kScaleCols);
  expect_refusal(Status::unsupported, {"w_scale_inv is stored as I32"}, [&] {
    load(write({{"w", weight}, {"w_scale_inv", tensor(integers.data(), {2, kScaleCols})}}));
  });
  std::vector<bf16> half(2 * kScaleCols, to_bf16(0.3f));
  const Checkpoint narrow = write({{"w", weight}, {"w_scale_inv", tensor(half.data(), {2, kScaleCols})}});
  EXPECT_EQ(load_codes(narrow.matrix("w", kRows, kCols)).scales[3], to_float(to_bf16(0.3f)));
  std::vector<float> floats(kRows * kCols);
  expect_refusal(Status::conflict, {"w_scale_inv", "F32"}, [&] {
    load(write({{"w", tensor(floats.data(), {kRows, kCols})}, {"w_scale_inv", scale}}));
  });
  codes[129 * kCols + 2] = 0xff;
  expect_refusal(Status::invalid_file, {"w[129][2] is NaN", "[NAN]"}, [&] {
    load(write({{"w", weight}, {"w_scale_inv", scale}}));
  });
}

TEST_F(Sharded, RowsOfEachType) {
  std::vector<bf16> b;
  std::vector<f16> h;
  for (const float x : data) b.push_back(to_bf16(x)), h.push_back(round_to<f16>(x));
  std::vector<std::int8_t> codes(6);
  const std::vector<float> ones(2, 1.f);
  write_safetensors(folder / "model.safetensors", {{"b.weight", tensor(b.data(), {2, 3})},
                                                   {"h.weight", tensor(h.data(), {2, 3})},
                                                   {"f.weight", tensor(data.data(), {2, 3})},
                                                   {"m.weight", tensor(codes.data(), {2, 3})},
                                                   {"m.weight_scale", tensor(ones.data(), {2, 1})}});
  folder.write("quant_model_description.json", R"({"b.weight":"FLOAT","h.weight":"FLOAT","f.weight":"FLOAT",
                                                    "m.weight":"W8A8_DYNAMIC","m.weight_scale":"W8A8_DYNAMIC"})");
  const Checkpoint checkpoint(folder.path());
  const auto same = [&](const char* name, const auto& stored) {
    const StoredMatrix m = checkpoint.matrix(name, 2, 3);
    const auto bytes = [&](std::int64_t row) { return reinterpret_cast<const std::byte*>(stored.data() + row * 3); };
    for (std::int64_t row = 0; row < 2; ++row) {
      bf16 loaded[3], read[3], of_part[3];
      load_row(m, row, loaded);
      load_row(m.part(row, 1), 0, of_part);
      EXPECT_EQ(scales_of(m).size(), 0u);
      read_row(m, {}, bytes(row), row, read);
      for (std::int64_t i = 0; i < 3; ++i) {
        const std::uint16_t want = to_bf16(to_float(stored[std::size_t(row * 3 + i)])).bits;
        EXPECT_EQ(loaded[i].bits, want) << name << row << i;
        EXPECT_EQ(of_part[i].bits, want) << name << row << i;
        EXPECT_EQ(read[i].bits, want) << name << row << i;
      }
    }
  };
  same("b.weight", b), same("h.weight", h), same("f.weight", data);
  bf16 row[3];
  expect_refusal(Status::unsupported, {"m.weight is stored as I8, wanted BF16, F16 or F32"},
                 [&] { load_row(checkpoint.matrix("m.weight", 2, 3), 0, row); });
}

TEST_F(Sharded, ScalesThatArePowersOfTwo) {
  constexpr std::int64_t kRows = 300, kCols = 200, kScaleRows = 3, kScaleCols = 2;
  const FileDType exponents_of_scales{"F8_E8M0", 8, DType::other};
  std::vector<std::uint8_t> codes(kRows * kCols), exponents{127, 120, 0, 254, 130, 127};
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = std::uint8_t(i % 127);
  const auto load = [&] {
    const std::vector<TensorToWrite> tensors{
        {"w", &file_dtype_of(DType::f8_e4m3), 2, {kRows, kCols}, codes.data()},
        {"w_scale_inv", &exponents_of_scales, 2, {kScaleRows, kScaleCols}, exponents.data()}};
    folder.write("model.safetensors", safetensors_header(tensors, {}) + std::string(codes.begin(), codes.end()) +
                                          std::string(exponents.begin(), exponents.end()));
    return Checkpoint(folder.path());
  };
  const Checkpoint checkpoint = load();
  const StoredMatrix m = checkpoint.matrix("w", kRows, kCols);
  const AlignedArray<float> scales = scales_of(m), wide = load_f32(m);
  const AlignedArray<bf16> narrow = load_bf16(m);
  ASSERT_EQ(scales.size(), exponents.size());
  for (std::size_t i = 0; i < exponents.size(); ++i) EXPECT_EQ(scales[i], std::ldexp(1.f, exponents[i] - 127)) << i;
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    const float value = e4m3_values()[codes[i]] * scales[(i / kCols / 128) * kScaleCols + i % kCols / 128];
    ASSERT_EQ(narrow[i].bits, to_bf16(value).bits) << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(to_float(narrow[i]))) << i;
  }
  for (const std::int64_t first : {0, 100, 127, 128, 255, 299})  // parts have the scales of the blocks that they touch
    for (const std::int64_t rows : {0, 1, 29, 129}) {
      if (first + rows > kRows) continue;
      const StoredMatrix part = m.part(first, rows);
      EXPECT_EQ(std::int64_t(scales_of(part).size()),
                rows == 0 ? 0 : ((first + rows - 1) / 128 - first / 128 + 1) * kScaleCols);
      const AlignedArray<bf16> some = load_bf16(part);
      ASSERT_EQ(std::int64_t(some.size()), rows * kCols);
      for (std::int64_t i = 0; i < rows * kCols; ++i)
        ASSERT_EQ(some[i].bits, narrow[first * kCols + i].bits) << first << " " << rows << " " << i;
    }
  exponents[4] = 255;
  expect_refusal(Status::invalid_file, {"w_scale_inv[4] is NaN, wanted a number", "[NAN]"},
                 [&] { scales_of(load().matrix("w", kRows, kCols)); });
}

TEST(E4m3, ANanIsFoundWhereverItStands) {
  for (std::size_t count = 0; count < 20; ++count) {
    std::vector<std::uint8_t> codes(count, 0xfe);  // the largest there are: nothing is carried on
    EXPECT_FALSE(holds_nan(codes.data(), count)) << count;
    for (std::size_t i = 0; i < count; ++i)
      for (const std::uint8_t nan : {0x7f, 0xff}) {
        codes[i] = nan;
        EXPECT_TRUE(holds_nan(codes.data(), count)) << count << " " << i;
        codes[i] = 0x7e;
      }
  }
}

/// Codes of 8 bits with a scale per row, as two programs write them.
class Int8 : public Sharded {
 protected:
  static constexpr std::int64_t kRows = 3, kCols = 4;

  using Tensors = std::vector<std::pair<std::string, Tensor>>;
  Checkpoint write(Tensors tensors, const CheckpointOptions& options = {}) {
    std::filesystem::remove(folder / "model.safetensors.index.json");
    write_safetensors(folder / "model.safetensors", tensors);
    return Checkpoint(folder.path(), options);
  }
  void describe_as(const std::string& text) { folder.write("quant_model_description.json", text); }
  StoredMatrix matrix(const Checkpoint& c) const { return c.matrix("m.weight", kRows, kCols); }

  const Tensor weight() const { return tensor(codes.data(), {kRows, kCols}); }
  const Tensor scale() const { return tensor(scales.data(), {kRows, 1}); }

  std::vector<std::int8_t> codes{1, -2, 3, 127, 0, 0, 0, 0, -127, 5, 6, 7};
  std::vector<float> scales{0.5f, 2, 0.1f}, zeros = std::vector<float>(3);
};

TEST_F(Int8, CompressedTensors) {
  folder.write("config.json",
               config_text({{"quantization_config", R"({"quant_method":"compressed-tensors","format":"int-quantized",
      "config_groups":{"group_0":{"weights":{"num_bits":8,"strategy":"channel"},
                                  "input_activations":{"num_bits":8,"strategy":"token","dynamic":true}}}})"}}));
  const Checkpoint whole = write({{"m.weight", weight()}, {"m.weight_scale", scale()}});
  EXPECT_EQ(matrix(whole).format, WeightFormat::int8);
  const QuantisedWeight loaded = load_codes(matrix(whole));
  EXPECT_EQ(std::memcmp(loaded.codes.data(), codes.data(), 12), 0);
  EXPECT_EQ(std::memcmp(loaded.scales.data(), scales.data(), 12), 0);
  EXPECT_EQ(load_bf16(matrix(whole))[8].bits, to_bf16(-127 * 0.1f).bits);
  const Checkpoint flat = write({{"m.weight", weight()}, {"m.weight_scale", tensor(scales.data(), {kRows})}});
  EXPECT_EQ(load_codes(matrix(flat)).scales[1], 2);

  expect_refusal(Status::missing_tensor, {"m.weight_scale is missing"}, [&] { matrix(write({{"m.weight", weight()}})); });
  expect_refusal(Status::invalid_shape, {"m.weight_scale has shape [1, 3], wanted [3, 1]"}, [&] {
    matrix(write({{"m.weight", weight()}, {"m.weight_scale", tensor(scales.data(), {1, kRows})}}));
  });
  const std::vector<float> floats(12);
  expect_refusal(Status::conflict, {"m.weight_scale scales a weight stored as F32, wanted I8"}, [&] {
    matrix(write({{"m.weight", tensor(floats.data(), {kRows, kCols})}, {"m.weight_scale", scale()}}));
  });
}

TEST_F(Int8, WithoutADescription) {
  expect_refusal(Status::conflict, {"m.weight is stored as I8, wanted a description of its scales (quantization_config)"},
                 [&] { matrix(write({{"m.weight", weight()}, {"m.weight_scale", scale()}})); });
}

TEST_F(Int8, DynamicOfMsModelSlim) {
  describe_as(R"({"model_quant_type":"W8A8_DYNAMIC","version":"1.0.0","m.weight":"W8A8_DYNAMIC",
                  "m.weight_scale":"W8A8_DYNAMIC","m.weight_offset":"W8A8_DYNAMIC","f.weight":"FLOAT"})");
  const Tensors tensors{
      {"m.weight", weight()}, {"m.weight_scale", scale()}, {"m.weight_offset", tensor(zeros.data(), {kRows, 1})}};
  EXPECT_EQ(load_codes(matrix(write(tensors))).scales[2], 0.1f);
  zeros[2] = 1;
  expect_refusal(Status::unsupported, {"m.weight_offset[2] is 1", "wanted 0"}, [&] { load_codes(matrix(write(tensors))); });
  expect_refusal(Status::conflict, {"is stored as F32, wanted I8"}, [&] {
    matrix(write({{"m.weight", tensor(scales.data(), {kRows, 1})}}));
  });
  describe_as(R"({"m.weight":"W4A8_DYNAMIC"})");
  expect_refusal(Status::unsupported, {"load: m.weight is W4A8_DYNAMIC, wanted FLOAT or W8A8_DYNAMIC"},
                 [&] { matrix(write(tensors)); });
  describe_as(R"({"m.weight":"FLOAT"})");
  expect_refusal(Status::conflict, {"m.weight is stored as I8, wanted floats"}, [&] { matrix(write(tensors)); });
  describe_as("{}");
  expect_refusal(Status::conflict, {"wanted an entry in quant_model_description.json"}, [&] { matrix(write(tensors)); });
  describe_as(R"({"surprise":1})");
  expect_refusal(Status::unsupported, {"quant_model_description.json: surprise"}, [&] { write(tensors); });
}

TEST_F(Int8, StaticOfMsModelSlim) {
  describe_as(R"({"m.weight":"W8A8","m.quant_bias":"W8A8"})");
  const std::vector<float> input{0.25f}, offset{3};
  std::vector<std::int32_t> bias{-3 * 129, 0, -3 * (-127 + 18)};
  const Tensors tensors{{"m.weight", weight()},
                        {"m.deq_scale", tensor(scales.data(), {kRows})},
                        {"m.input_scale", tensor(input.data(), {1})},
                        {"m.input_offset", tensor(offset.data(), {1})},
                        {"m.quant_bias", tensor(bias.data(), {kRows})}};
  expect_refusal(Status::unsupported,
                 {"load: m is W8A8 with static activations, wanted W8A8_DYNAMIC or FLOAT (static=\"dequantise\" reads its "
                  "weights)"},
                 [&] { matrix(write(tensors)); });
  const CheckpointOptions dequantise{.dequantise_static = true};
  EXPECT_EQ(load_bf16(matrix(write(tensors, dequantise)))[8].bits, to_bf16(-127 * (0.1f / 0.25f)).bits);
  std::vector<std::int64_t> patterns;
  for (const float s : scales) patterns.push_back(std::bit_cast<std::int32_t>(s));
  Tensors fp16 = tensors;
  fp16[1].second = tensor(patterns.data(), {kRows});
  EXPECT_EQ(load_bf16(matrix(write(fp16, dequantise)))[0].bits, to_bf16(0.5f / 0.25f).bits);
  bias[1] = 2;
  expect_refusal(Status::unsupported, {"m.quant_bias[1] hides a bias"},
                 [&] { load_bf16(matrix(write(tensors, dequantise))); });
}

TEST_F(Int8, NamesOfMsModelSlim) {
  describe_as(R"({"m.weight":"FLOAT"})");
  std::filesystem::rename(folder / "model.safetensors.index.json", folder / "quant_model_weights.safetensors.index.json");
  EXPECT_TRUE(Checkpoint(folder.path()).has("c"));
  index(R"("c":"two.safetensors")");
  refused(Status::conflict, {"quant_model_weights.safetensors.index.json is beside model.safetensors.index.json"});
}

/// Four layers, the last three with eight experts.
class Layers : public Sharded {
 protected:
  void SetUp() override {
    Sharded::SetUp();
    folder.write("config.json",
                 config_text({{"n_routed_experts", "8"}, {"num_experts_per_tok", "2"}, {"moe_intermediate_size", "24"},
                              {"n_group", "4"}, {"topk_group", "2"}, {"first_k_dense_replace", "1"},
                              {"routed_scaling_factor", "2.5"}, {"norm_topk_prob", "true"},
                              {"num_nextn_predict_layers", "1"}}));
  }
  Checkpoint with(const std::string& name) {
    write_safetensors(folder / "model.safetensors", {{name, tensor(data.data(), {4})}});
    return Checkpoint(folder.path());
  }
};

TEST_F(Layers, TensorsThatNoRuleUses) {
  for (const char* name : {"self_attn.q_a_proj.weight", "self_attn.q_a_proj.deq_scale", "input_layernorm.weight",
                           "self_attn.indexer.k_norm.bias", "self_attn.rotary_emb.inv_freq"})
    for (const int layer : {0, 1}) {
      const Checkpoint c = with("model.layers." + std::to_string(layer) + "." + name);
      EXPECT_NO_THROW(c.require_known_tensors(layer, 1, "")) << name;
    }
  EXPECT_NO_THROW(with("model.layers.0.mlp.up_proj.weight_scale").require_known_tensors(0, 1, ""));
  for (const char* name : {"mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.experts.7.up_proj.weight",
                           "mlp.experts.7.up_proj.weight_scale_inv", "mlp.experts.gate_up_proj",
                           "mlp.shared_experts.down_proj.weight"})
    EXPECT_NO_THROW(with(std::string("model.layers.1.") + name).require_known_tensors(1, 1, "")) << name;

  for (const char* name : {"mlp.gate.weight", "mlp.experts.1.up_proj.weight", "self_attn.q_proj.weight",
                           "self_attn.div.mul_scale", "input_layernorm.bias", "self_attn.o_proj.scale"}) {
    const Checkpoint c = with(std::string("model.layers.0.") + name);
    expect_refusal(Status::unsupported, {name, "is not used by any rule"}, [&] { c.require_known_tensors(0, 1, ""); });
    EXPECT_NO_THROW(c.require_known_tensors(1, 1, "")) << "another layer";
  }
  EXPECT_NO_THROW(with("model.layers.0.input_layernorm.bias").require_known_tensors(0, 1, "self_attn.")) << "another part";
  data.assign(6, 0);
  EXPECT_NO_THROW(with("model.layers.0.input_layernorm.bias").require_known_tensors(0, 1, "")) << "it is zero";
}

TEST_F(Layers, ExpertsThatAreNotThere) {
  EXPECT_NO_THROW(with("model.layers.1.mlp.experts.7.up_proj.weight"));
  expect_refusal(
      Status::invalid_shape,
      {"model.safetensors: model.layers.1.mlp.experts.8.up_proj.weight is of an expert that is not there, wanted 0..7"},
      [&] { with("model.layers.1.mlp.experts.8.up_proj.weight"); });
}

TEST_F(Layers, LayersBehindTheLastAreNoted) {
  EXPECT_TRUE(with("model.norm.weight").notes().empty());
  const std::vector<std::string> notes = with("model.layers.4.eh_proj.weight").notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("num_nextn_predict_layers), 16 bytes: they are not loaded"), std::string::npos) << notes[0];
}

TEST_F(Layers, Int8WeightsThatAreWidenedAreNoted) {
  const std::vector<std::int8_t> codes(4);
  write_safetensors(folder / "model.safetensors",
                    {{"model.layers.0.self_attn.o_proj.weight", tensor(codes.data(), {2, 2})},
                     {"model.layers.0.self_attn.q_b_proj.weight", tensor(codes.data(), {2, 2})}});
  const std::vector<std::string> notes = Checkpoint(folder.path()).notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("has 1 int8 weights of o_proj and kv_b_proj: they are widened"), std::string::npos);
}

TEST_F(Sharded, MatricesOfAStack) {
  std::vector<float> stack(2 * 4 * 3);
  for (std::size_t i = 0; i < stack.size(); ++i) stack[i] = float(i);
  write_safetensors(folder / "model.safetensors", {{"s", tensor(stack.data(), {2, 4, 3})}});
  const Checkpoint checkpoint(folder.path());
  const auto rows = load_bf16(checkpoint.matrix_of_stack("s", 2, 4, 1, 2, 2, 3));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(rows[i].bits, to_bf16(float(12 + 6 + i)).bits);
  expect_refusal(Status::invalid_shape, {"s has shape [2, 4, 3], wanted [3, 4, 3]"},
                 [&] { checkpoint.matrix_of_stack("s", 3, 4, 1, 2, 2, 3); });
}

}  // namespace
}  // namespace dsakit::io
