// SPDX-License-Identifier: Apache-2.0
// A checkpoint folder (io/checkpoint.hpp) of two small shards. An input is config.json, the index and msModelSlim's
// description, with a NUL between them; an empty one is not there.
#include <array>
#include <set>

#include "dsakit/float16.hpp"
#include "fuzz.hpp"
#include "io/checkpoint.hpp"
#include "io/describe.hpp"

namespace dsakit::fuzz {
namespace {

/// Vectors and matrices of the small config of the seeds, in every type that weights are stored in.
void write_shards(const Folder& folder) {
  static std::array<std::byte, 96 * 48 * 4> zeros{};
  const auto zero = [](DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor t = shaped(dtype, shape);
    t.data = zeros.data();
    return t;
  };
  const std::string layer = "model.layers.0.";
  io::write_safetensors(folder / "a.safetensors",
                        {{"model.embed_tokens.weight", zero(DType::bf16, {64, 96})},
                         {"model.norm.weight", zero(DType::f32, {96})},
                         {layer + "input_layernorm.weight", zero(DType::f16, {96})},
                         {layer + "self_attn.q_a_proj.weight", zero(DType::f8_e4m3, {24, 96})},
                         {layer + "self_attn.q_a_proj.weight_scale_inv", zero(DType::f32, {1, 1})},
                         {layer + "mlp.gate_proj.bias", zero(DType::bf16, {48})}});
  io::write_safetensors(folder / "b.safetensors", {{layer + "mlp.gate_proj.weight", zero(DType::i8, {48, 96})},
                                                   {layer + "mlp.gate_proj.weight_scale", zero(DType::f32, {48, 1})},
                                                   {layer + "self_attn.indexer.k_norm.bias", zero(DType::f32, {32})}});
}

/// Whatever a reader may ask for.
void ask(const io::Checkpoint& checkpoint) {
  const io::ModelConfig& c = checkpoint.config();
  require(c.hidden_size >= 1 && c.num_hidden_layers >= 1 && c.vocab_size >= 1, "a size is not in its range");
  require(c.full_indexer.size() == std::size_t(c.num_hidden_layers), "the layers have no bits of their indexers");
  for (const std::string& note : checkpoint.notes()) require_sentence("note, wanted " + note);
  require(!checkpoint.fingerprint().empty(), "no fingerprint");
  answer([&] { (void)checkpoint.bytes_in_use(c.num_hidden_layers); });
  answer([&] { checkpoint.require_known_tensors(0, std::min<std::int64_t>(c.num_hidden_layers, 3), ""); });
  const std::string layer = "model.layers.0.";
  const std::int64_t rows = std::min<std::int64_t>(c.q_lora_rank, 1 << 12),
                     cols = std::min<std::int64_t>(c.hidden_size, 1 << 12);
  answer([&] { (void)checkpoint.load_matrix_bf16(layer + "self_attn.q_a_proj", rows, cols); });
  answer([&] { (void)checkpoint.load_matrix_f32(layer + "mlp.gate_proj", c.intermediate_size, cols); });
  answer([&] { (void)checkpoint.load_vector_f32(layer + "input_layernorm.weight", cols); });
  answer([&] { (void)checkpoint.load_vector_bf16("model.norm.weight", cols); });
}

}  // namespace
}  // namespace dsakit::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit;
  using namespace dsakit::fuzz;
  static const Folder folder;
  [[maybe_unused]] static const bool written = (write_shards(folder), true);
  Input input(data, size);
  for (const char* name : {"config.json", "model.safetensors.index.json", "quant_model_description.json"}) {
    const std::string_view text = input.until('\0');
    if (text.empty()) std::filesystem::remove(folder / name);
    else folder.write(name, text);
  }
  static const std::set statuses{Status::invalid_file, Status::invalid_config, Status::invalid_path,
                                 Status::conflict,     Status::missing_tensor, Status::unsupported,
                                 Status::io_error,     Status::out_of_memory};
  for (const bool absent : {false, true}) {
    const auto open = [&] {
      ask(io::Checkpoint(folder.path(), {.dequantise_static = absent, .shards_may_be_absent = absent}));
    };
    const auto refused = refusal(open);
    require(!refused || statuses.contains(refused->status), refused ? refused->what() : "");
    require(answer(open) == (refused ? refused->what() : ""), "the second answer is another");
  }
  answer([&] { (void)io::describe(folder.path()); });
  return 0;
}
