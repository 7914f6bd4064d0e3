// SPDX-License-Identifier: Apache-2.0
#include "layer/weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float16.hpp"
#include "layer/rope.hpp"

namespace dsakit {
namespace {

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(std::shared_ptr<const io::Checkpoint> checkpoint, int layer)
      : checkpoint_(std::move(checkpoint)), prefix_("model.layers." + std::to_string(layer) + ".self_attn.") {}
  bool has(const std::string& name) const override { return checkpoint_->has(prefix_ + name); }
  io::AlignedArray<bf16> matrix(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    return checkpoint_->load_matrix_bf16(prefix_ + name, rows, columns);
  }
  io::AlignedArray<bf16> vector_bf16(const std::string& name, std::int64_t size) const override {
    return checkpoint_->load_vector_bf16(prefix_ + name, size);
  }
  io::AlignedArray<float> vector_f32(const std::string& name, std::int64_t size) const override {
    return checkpoint_->load_vector_f32(prefix_ + name, size);
  }

 private:
  std::shared_ptr<const io::Checkpoint> checkpoint_;
  std::string prefix_;
};

/// [rows, columns] -> [columns, rows], in squares that stay in the first-level cache.
template <class T>
void transpose(const T* from, std::int64_t rows, std::int64_t columns, T* to) {
  constexpr std::int64_t kSquare = 32;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kSquare)
    for (std::int64_t c0 = 0; c0 < columns; c0 += kSquare)
      for (std::int64_t c = c0; c < std::min(c0 + kSquare, columns); ++c)
        for (std::int64_t r = r0; r < std::min(r0 + kSquare, rows); ++r) to[c * rows + r] = from[r * columns + c];
}

QuantisedMatrix quantised_matrix(const bf16* weight, std::int64_t out, std::int64_t in) {
  io::AlignedArray<std::int8_t> codes(out * in), turned(out * in);
  io::AlignedArray<float> scale(out);
  quantise_rows(weight, out, in, codes.data(), scale.data());
  transpose(codes.data(), out, in, turned.data());
  return {Matrix(tensor(turned.data(), {in, out})), std::move(scale)};
}

/// The operators rotate pairs (0, 1), (2, 3), ..; a model that pairs i with i + width/2 gets its rows rearranged to suit.
void pair_up_rope_rows(bf16* rows, std::int64_t width, std::int64_t columns) {
  std::vector<bf16> old(rows, rows + width * columns);
  for (std::int64_t i = 0; i < width; ++i)
    std::memcpy(rows + i * columns, old.data() + (i / 2 + i % 2 * (width / 2)) * columns, std::size_t(columns) * sizeof(bf16));
}

Matrix load(const WeightSource& source, const std::string& name, std::int64_t out, std::int64_t in) {
  return transposed_matrix(source.matrix(name, out, in).data(), out, in);
}

Matrix load_dkv_kr(const WeightSource& source, const io::ModelConfig& c) {
  const std::int64_t out = c.kv_lora_rank + c.qk_rope_head_dim;
  auto weight = source.matrix("kv_a_proj_with_mqa.weight", out, c.hidden_size);
  if (!c.rope_interleave)
    pair_up_rope_rows(weight.data() + c.kv_lora_rank * c.hidden_size, c.qk_rope_head_dim, c.hidden_size);
  return transposed_matrix(weight.data(), out, c.hidden_size);
}

/// W_UK [N, D, Hckv]: rows 0..D-1 of each head of kv_b_proj as they are. W_UV [N, Hckv, Dv]: the others, transposed.
struct KvB {
  Matrix uk, uv;
};
KvB load_kv_b(const WeightSource& source, const io::ModelConfig& c) {
  const std::int64_t n = c.num_attention_heads, d = c.qk_nope_head_dim, dv = c.v_head_dim, latent = c.kv_lora_rank;
  const auto weight = source.matrix("kv_b_proj.weight", n * (d + dv), latent);
  io::AlignedArray<bf16> value(n * dv * latent);
  for (std::int64_t h = 0; h < n; ++h)
    transpose(weight.data() + (h * (d + dv) + d) * latent, dv, latent, value.data() + h * dv * latent);
  Tensor key = tensor(weight.data(), {n, d, latent});
  key.stride[0] = (d + dv) * latent;
  return {Matrix(key), Matrix(tensor(value.data(), {n, latent, dv}))};
}

}  // namespace

std::unique_ptr<WeightSource> checkpoint_source(std::shared_ptr<const io::Checkpoint> checkpoint, int layer) {
  return std::make_unique<CheckpointSource>(std::move(checkpoint), layer);
}

Matrix::Matrix(const Tensor& weight) : packed(weight) {
  const Tensor& t = packed.tensor();
  view = check_weight(Check("load", Level::portable), t, "weight", t.dtype, t.rank == 3 ? t.shape[0] : 0,
                      t.shape[t.rank - 2], t.shape[t.rank - 1], "");
}

Matrix transposed_matrix(const bf16* weight, std::int64_t out, std::int64_t in) {
  io::AlignedArray<bf16> turned(out * in);
  transpose(weight, out, in, turned.data());
  return Matrix(tensor(turned.data(), {in, out}));
}

void quantise_rows(const bf16* weight, std::int64_t out, std::int64_t in, std::int8_t* codes, float* scale) {
  for (std::int64_t r = 0; r < out; ++r, weight += in, codes += in) {
    float largest = 0;
    for (std::int64_t i = 0; i < in; ++i) largest = std::max(largest, std::fabs(to_float(weight[i])));
    scale[r] = largest / 127;
    for (std::int64_t i = 0; i < in; ++i) {
      const float code = scale[r] > 0 ? std::nearbyint(to_float(weight[i]) / scale[r]) : 0;
      codes[i] = std::int8_t(std::clamp(code, -127.0f, 127.0f));
    }
  }
}

LayerWeights::LayerWeights(const io::ModelConfig& config, bool indexer, std::unique_ptr<WeightSource> source)
    : LayerWeights(config, indexer, std::move(source), load_kv_b(*source, config)) {}

LayerWeights::LayerWeights(const io::ModelConfig& c, bool indexer, std::unique_ptr<WeightSource> source, KvB kv_b)
    : dq(load(*source, "q_a_proj.weight", c.q_lora_rank, c.hidden_size)),
      dkv_kr(load_dkv_kr(*source, c)) {}

}  // namespace dsakit
