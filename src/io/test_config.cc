// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "io/config.hpp"
#include "io/test_folder.hpp"
#include "io/test_model.hpp"

namespace dsakit::io {
namespace {

ModelConfig read(const std::string& text) {
  const TestFolder folder;
  return read_config(folder.write("config.json", text));
}

void expect_invalid(const Members& changes, const char* part, Status status = Status::invalid_config) {
  SCOPED_TRACE(config_text(changes));
  expect_refusal(status, {"load: config.json", part}, [&] { read(config_text(changes)); });
}

std::string bits(const std::vector<bool>& v) {
  std::string s;
  for (const bool b : v) s += b ? '1' : '0';
  return s;
}

TEST(Config, PlainModel) {
  const ModelConfig c = read(config_text({}));
  EXPECT_EQ(c.model_type, "deepseek_v32");
  EXPECT_EQ(c.hidden_size, 96);
  EXPECT_EQ(c.qk_nope_head_dim, 16);
  EXPECT_EQ(c.index_topk, 4);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_FALSE(c.rope.yarn);
  EXPECT_TRUE(c.rope_interleave);
  EXPECT_FALSE(c.indexer_rope_interleave);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.quantization, Quantization::none);
  EXPECT_FALSE(c.has_experts());
  EXPECT_EQ(bits(c.full_indexer), "1111");
  EXPECT_EQ(bits(c.dense_mlp), "1111");
}

TEST(Config, DefaultsByModelType) {
  EXPECT_TRUE(read(config_text({{"model_type", "\"glm_moe_dsa\""}})).indexer_rope_interleave);
  EXPECT_FALSE(read(config_text({{"model_type", "\"glm_moe_dsa\""}, {"indexer_rope_interleave", "false"}}))
                   .indexer_rope_interleave);
  EXPECT_TRUE(read(config_text({{"indexer_rope_interleave", "true"}})).indexer_rope_interleave);
  EXPECT_FALSE(read(config_text({{"rope_interleave", "false"}})).rope_interleave);
}

TEST(Config, Rope) {
  // DeepSeek-V3.2 as published
  ModelConfig c =
      read(config_text({{"rope_scaling", R"({"beta_fast":32,"beta_slow":1,"factor":40,"mscale":1.0,"mscale_all_dim":1.0,
                                                       "original_max_position_embeddings":4096,"type":"yarn"})"}}));
  EXPECT_TRUE(c.rope.yarn);
  EXPECT_EQ(c.rope.factor, 40);
  EXPECT_EQ(c.rope.mscale_all_dim, 1);
  EXPECT_EQ(c.rope.original_max_position_embeddings, 4096);
  EXPECT_EQ(c.rope.theta, 10000);
  // as transformers writes it: theta inside, which wins
  c = read(
      config_text({{"rope_parameters", R"({"rope_theta":8000000.0,"rope_type":"yarn","type":"yarn","factor":4.0})"}}));
  EXPECT_EQ(c.rope.theta, 8e6);
  EXPECT_EQ(c.rope.original_max_position_embeddings, 512) << "max_position_embeddings";
  EXPECT_EQ(c.rope.beta_fast, 32);
  EXPECT_EQ(c.rope.mscale, 0);
  EXPECT_EQ(c.rope.attention_factor, 0);
  EXPECT_TRUE(c.rope.truncate);
  EXPECT_EQ(c.rope.mscale_all_dim, 0);
  c = read(config_text({{"rope_scaling", R"({"type":"yarn","factor":2,"attention_factor":1.5,"truncate":false})"}}));
  EXPECT_EQ(c.rope.attention_factor, 1.5);
  EXPECT_FALSE(c.rope.truncate);
  c = read(config_text({{"rope_theta", ""}, {"rope_parameters", R"({"rope_theta":5e5,"rope_type":"default"})"}}));
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_FALSE(c.rope.yarn);

  expect_invalid({{"rope_theta", ""}}, "rope_theta is missing");
  expect_invalid({{"rope_theta", "1e999"}}, "rope_theta is 1e999");
  expect_invalid({{"rope_scaling", R"({"type":"linear","factor":2})"}},
                 "rope_scaling.type is \"linear\", wanted default or yarn");
  expect_invalid({{"rope_parameters", R"({"rope_type":"llama3"})"}}, "rope_parameters.rope_type");
  expect_invalid({{"rope_scaling", R"({"type":"yarn"})"}}, "rope_scaling.factor is missing");
  expect_invalid({{"rope_scaling", R"({"type":"yarn","factor":0.5})"}}, "rope_scaling.factor is 0.5");
  expect_invalid({{"rope_scaling", R"({"type":"yarn","factor":2,"beta_fast":-1})"}}, "beta_fast");
  expect_invalid({{"rope_scaling", R"({"type":"yarn","factor":2,"attention_factor":0})"}}, "attention_factor");
  expect_invalid({{"rope_scaling", R"({"type":"yarn","factor":2,"truncate":0})"}}, "truncate");
  expect_invalid({{"rope_scaling", R"({"type":"default","partial_rotary_factor":0.5})"}}, "partial_rotary_factor");
  expect_invalid({{"rope_scaling", "[]"}}, "rope_scaling is [], wanted an object");
}

TEST(Config, LayersThatShareASelection) {
  const auto full = [](const Members& changes) { return bits(read(config_text(changes)).full_indexer); };
  EXPECT_EQ(full({{"index_topk_freq", "2"}}), "1101");
  EXPECT_EQ(full({{"index_topk_freq", "4"}, {"index_skip_topk_offset", "3"}}), "1110");
  EXPECT_EQ(full({{"index_topk_pattern", "\"FSSF\""}, {"index_topk_freq", "1"}}), "1001");
  EXPECT_EQ(full({{"index_topk_pattern", "[\"full\",\"shared\",\"full\",\"full\"]"}}), "1011");
  EXPECT_EQ(full({{"indexer_types", "[\"full\",\"full\",\"shared\",\"shared\"]"}, {"index_topk_pattern", "\"FSSF\""}}),
            "1100");
  EXPECT_EQ(full({{"index_topk", ""}, {"index_n_heads", ""}, {"index_head_dim", "null"}}), "0000");
  expect_invalid({{"indexer_types", "[\"full\",\"half\",\"full\",\"full\"]"}}, "indexer_types[1] is \"half\"");
  expect_invalid({{"indexer_types", "[\"full\"]"}}, "indexer_types has 1 entries, wanted 4");
  expect_invalid({{"indexer_types", "[\"shared\",\"full\",\"full\",\"full\"]"}},
                 "indexer_types gives layer 0 no indexer");
  expect_invalid({{"index_topk_pattern", "\"FS\""}}, "index_topk_pattern");
  expect_invalid({{"index_topk_pattern", "\"FSXF\""}}, "index_topk_pattern");
  expect_invalid({{"index_topk_freq", "0"}}, "index_topk_freq");
  expect_invalid({{"index_topk", ""}}, "index_topk is missing");
}

/// DeepSeek-V3.2's choice of experts in small, with changes.
Members moe(const Members& changes) {
  Members all{{"n_routed_experts", "8"},      {"num_experts_per_tok", "2"},      {"moe_intermediate_size", "24"},
              {"n_shared_experts", "1"},      {"n_group", "4"},                  {"topk_group", "2"},
              {"first_k_dense_replace", "1"}, {"routed_scaling_factor", "2.5"},  {"norm_topk_prob", "true"},
              {"scoring_func", "\"sigmoid\""}, {"topk_method", "\"noaux_tc\""}};
  for (const auto& [key, value] : changes) all[key] = value;
  return all;
}

TEST(Config, LayersWithExperts) {
  const auto dense = [](const Members& changes) { return bits(read(config_text(moe(changes))).dense_mlp); };
  EXPECT_EQ(dense({}), "1000");
  EXPECT_EQ(dense({{"moe_layer_freq", "2"}}), "1101");
  EXPECT_EQ(dense({{"first_k_dense_replace", "9"}}), "1111");
  EXPECT_EQ(dense({{"first_k_dense_replace", "4"}, {"mlp_layer_types", "[\"dense\",\"sparse\",\"dense\",\"dense\"]"}}),
            "1011");
  expect_invalid(moe({{"first_k_dense_replace", ""}}), "first_k_dense_replace is missing");
  expect_invalid({{"mlp_layer_types", "\"dense\""}}, "mlp_layer_types");
  expect_invalid({{"mlp_layer_types", "[\"dense\",\"sparse\",\"dense\",\"dense\"]"}}, "n_routed_experts is missing");
}

TEST(Config, Experts) {
  const auto read_moe = [](const Members& changes) { return read(config_text(moe(changes))).moe; };
  MoeConfig m = read_moe({});
  EXPECT_EQ(m.n_routed_experts, 8);
  EXPECT_EQ(m.num_experts_per_tok, 2);
  EXPECT_EQ(m.shared_size(), 24);
  EXPECT_EQ(m.topk_group, 2);
  EXPECT_EQ(m.routed_scaling_factor, 2.5);
  EXPECT_TRUE(m.norm_topk_prob);
  EXPECT_EQ(read_moe({{"n_shared_experts", "null"}}).shared_size(), 0);
  EXPECT_EQ(read_moe({{"scoring_func", ""}, {"topk_method", ""}}).n_group, 4);
  EXPECT_EQ(read_moe({{"num_experts_per_tok", "4"}}).num_experts_per_tok, 4);
  EXPECT_FALSE(read(config_text(moe({{"first_k_dense_replace", "9"}, {"n_group", "5"}}))).has_experts())
      << "nobody asks where every layer is dense";

  expect_invalid(moe({{"n_group", "7"}}), "n_group is 7, wanted a divisor of 8 (n_routed_experts)");
  expect_invalid(moe({{"n_group", "8"}}), "n_group is 8, wanted groups of at least 2 of 8 (n_routed_experts)");
  expect_invalid(moe({{"topk_group", "5"}}), "topk_group is 5, wanted an integer in 1..4");
  expect_invalid(moe({{"num_experts_per_tok", "5"}}), "num_experts_per_tok is 5, wanted an integer in 1..4");
  for (const char* key : {"n_group", "topk_group", "num_experts_per_tok", "moe_intermediate_size",
                          "routed_scaling_factor", "norm_topk_prob"})
    expect_invalid(moe({{key, ""}}), (std::string(key) + " is missing").c_str());
  for (const char* value : {"0", "-1", "1e999", "\"2\""})
    expect_invalid(moe({{"routed_scaling_factor", value}}), "routed_scaling_factor");
  expect_invalid(moe({{"scoring_func", "\"softmax\""}}), "scoring_func is \"softmax\", wanted sigmoid",
                 Status::unsupported);
  expect_invalid(moe({{"topk_method", "\"greedy\""}}), "topk_method", Status::unsupported);
}

TEST(Config, ModelsWithoutIndexer) {
  const Members none{{"index_topk", ""}, {"index_n_heads", ""}, {"index_head_dim", ""}};
  for (const char* type : {"\"deepseek_v3\"", "\"kimi_k2\""}) {
    Members changes = none;
    changes["model_type"] = type;
    EXPECT_EQ(read(config_text(changes)).index_topk, 0);
    expect_invalid({{"model_type", type}}, "there is an indexer");
  }
}

TEST(Config, SizesAreChecked) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                          "max_position_embeddings", "index_n_heads", "index_head_dim", "index_topk"})
    for (const char* value :
         {"", "0", "-1", "1e308", "64.0", "\"64\"", "true", "2147483648", "[64]", "99999999999999999999"})
      expect_invalid({{key, value}}, key);
  expect_invalid({{"vocab_size", "null"}}, "vocab_size is missing");
  for (const char* value : {"", "0", "1", "1e308", "-1e-6", "1e-999", "\"1e-6\"", "NaN"})
    expect_invalid({{"rms_norm_eps", value}}, "");
  EXPECT_EQ(read(config_text({{"vocab_size", "2147483647"}})).vocab_size, 2147483647);
  expect_invalid({{"qk_rope_head_dim", "7"}}, "qk_rope_head_dim is 7, wanted an even number");
  expect_invalid({{"index_head_dim", "4"}}, "index_head_dim is 4, wanted at least 8");
  expect_invalid({{"num_attention_heads", "2147483647"}}, "num_attention_heads");
  expect_invalid({{"index_n_heads", "2147483647"}}, "index_n_heads");
}

TEST(Config, WhatIsNotComputedIsNamed) {
  expect_invalid({{"model_type", "\"deepseek_v4\""}},
                 "model_type is \"deepseek_v4\", wanted deepseek_v32, glm_moe_dsa, deepseek_v3 or kimi_k2");
  expect_invalid({{"model_type", ""}}, "model_type is missing");
  expect_invalid({{"q_lora_rank", "null"}}, "q_lora_rank is null", Status::unsupported);
  expect_invalid({{"hidden_act", "\"gelu\""}}, "hidden_act is \"gelu\", wanted silu");
  expect_invalid({{"attention_bias", "true"}}, "attention_bias is true");
  expect_invalid({{"mlp_bias", "true"}}, "mlp_bias is true");
  expect_invalid({{"tie_word_embeddings", "1"}}, "tie_word_embeddings");
}

TEST(Config, Quantization) {
  const auto read_as = [](const std::string& text) {
    return read(config_text({{"quantization_config", text}})).quantization;
  };
  EXPECT_EQ(read_as(R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","scale_fmt":"ue8m0",
                        "weight_block_size":[128,128]})"),
            Quantization::fp8_blocks);
  EXPECT_EQ(read_as(R"({"quant_method":"fp8","weight_block_size":[128,128]})"), Quantization::fp8_blocks);
  EXPECT_EQ(read_as("null"), Quantization::none);
  expect_invalid({{"quantization_config", R"({"quant_method":"gptq"})"}},
                 "quantization_config.quant_method is \"gptq\"");
  expect_invalid({{"quantization_config", "{}"}}, "quantization_config.quant_method is missing");
  expect_invalid({{"quantization_config", R"({"quant_method":"fp8"})"}}, "weight_block_size is missing");
  expect_invalid({{"quantization_config", R"({"quant_method":"fp8","weight_block_size":[64,128]})"}},
                 "weight_block_size is [64,128]");
  expect_invalid({{"quantization_config", R"({"quant_method":"fp8","weight_block_size":[128,128],"fmt":"e5m2"})"}},
                 "fmt");
  expect_invalid(
      {{"quantization_config", R"({"quant_method":"fp8","weight_block_size":[128,128],"activation_scheme":"static"})"}},
      "activation_scheme");
}

TEST(Config, CompressedTensors) {
  const auto text = [](std::string format, std::string weights, std::string activations) {
    return Members{{"quantization_config", R"({"quant_method":"compressed-tensors","format":")" + format +
                                               R"(","ignore":["lm_head"],"config_groups":{"group_0":{"targets":["Linear"],"weights":{)" +
                                               weights + R"(},"input_activations":{)" + activations + "}}}}"}};
  };
  const char *weights = R"("num_bits":8,"type":"int","symmetric":true,"strategy":"channel","dynamic":false)",
             *tokens = R"("num_bits":8,"type":"int","symmetric":true,"strategy":"token","dynamic":true)";
  EXPECT_EQ(read(config_text(text("int-quantized", weights, tokens))).quantization, Quantization::int8_channels);
  const auto refused = [&](const Members& changes, const char* part) {
    expect_invalid(changes, part, Status::unsupported);
  };
  refused(text("pack-quantized", weights, tokens),
          "quantization_config.format is \"pack-quantized\", wanted \"int-quantized\"");
  refused(text("int-quantized", R"("num_bits":4,"strategy":"channel")", tokens), "weights.num_bits is 4, wanted 8");
  refused(text("int-quantized", R"("num_bits":8,"strategy":"group")", tokens), "weights.strategy is \"group\"");
  refused(text("int-quantized", R"("num_bits":8,"strategy":"channel","symmetric":false)", tokens), "symmetric");
  refused(text("int-quantized", weights, R"("num_bits":8,"strategy":"token","dynamic":false)"),
          "input_activations.dynamic is false, wanted true");
  refused({{"quantization_config", R"({"quant_method":"compressed-tensors","format":"int-quantized","config_groups":
                                       {"group_0":{"weights":{"num_bits":8,"strategy":"channel"}}}})"}},
          "group_0.input_activations is missing");
}

TEST(Config, TextIsChecked) {
  const auto refused = [](const std::string& text, const char* part) {
    expect_refusal(Status::invalid_config, {"config.json", part}, [&] { read(text); });
  };
  refused("", "not JSON");
  refused("[]", "wanted one JSON object");
  refused(config_text({}) + "x", "not JSON");
  refused(R"({"a":1,"a":2})", "has the key \"a\" twice");
  refused(R"({"b":{"a":1,"a":2}})", "has the key \"a\" twice");
  refused("{\"a\":" + std::string(10'000'000, '['), "nested");
  refused("{\"a\":\"\xff\"}", "UTF-8");
  refused("{\"hidden_size\":NaN}", "not JSON");
  refused(std::string((64 << 20) + 1, ' '), "wanted at most 67108864");
  std::string crowd = "{";
  for (int i = 0; i < 20000; ++i) crowd += "\"k" + std::to_string(i) + "\":0,";
  refused(crowd + "\"z\":0}", "too many members");
  expect_refusal(Status::io_error, {"cannot be opened"}, [] { read_config("/nonexistent/config.json"); });
}

}  // namespace
}  // namespace dsakit::io
