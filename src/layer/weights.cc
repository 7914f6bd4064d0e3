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
  CheckpointSource(std::shared_ptr<const io::Checkpoint> checkpoint, int layer, bool widen_fp8)
      : checkpoint_(std::move(checkpoint)),
        prefix_("model.layers." + std::to_string(layer) + ".self_attn."),
        widen_fp8_(widen_fp8) {}
  bool has(const std::string& name) const override { return checkpoint_->has(prefix_ + name); }
  io::AlignedArray<bf16> matrix(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    return checkpoint_->load_matrix_bf16(prefix_ + name, rows, columns);
  }
  io::AlignedArray<bf16> matrix_rows(const std::string& name, std::int64_t rows, std::int64_t columns,
                                     Slice part) const override {
    return io::load_bf16(checkpoint_->matrix(prefix_ + name, rows, columns).part(part.begin, part.size()));
  }
  io::QuantisedWeight codes(const std::string& name, std::int64_t rows, std::int64_t columns, Slice part,
                            io::WeightFormat wanted) const override {
    const bool fp8 = wanted == io::WeightFormat::fp8_blocks;
    if (fp8 && (widen_fp8_ || part.begin % kPanel != 0)) return {};  // a panel has one row of scales
    const io::StoredMatrix m = checkpoint_->matrix(prefix_ + name, rows, columns);
    return m.format == wanted ? io::load_codes(m.part(part.begin, part.size())) : io::QuantisedWeight{};
  }
  io::AlignedArray<float> matrix_f32(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    return checkpoint_->load_matrix_f32(prefix_ + name, rows, columns);
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
  bool widen_fp8_;
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

/// The operators rotate pairs (0, 1), (2, 3), ..; a model that pairs i with i + width/2 gets its rows rearranged to
/// suit.
template <class T>
void pair_up_rope_rows(T* rows, std::int64_t width, std::int64_t columns) {
  std::vector<T> old(rows, rows + width * columns);
  for (std::int64_t i = 0; i < width; ++i)
    std::memcpy(rows + i * columns, old.data() + (i / 2 + i % 2 * (width / 2)) * columns,
                std::size_t(columns) * sizeof(T));
}

/// A projection [out, in] of a layer, and which of its rows are rotated: `rope` of them at the end of every `head` rows.
struct Projection {
  const char* name;
  std::int64_t out, in;
  std::int64_t head = 0, rope = 0;  // 0: nothing to rearrange

  /// With what those of a rank are rearranged: no rope is cut.
  Slice whole(Slice part) const {
    if (rope == 0) return part;
    const std::int64_t begin = head - rope, first = part.begin % head, last = part.end % head;
    return {part.begin - std::max<std::int64_t>(first - begin, 0), last > begin ? part.end - last + head : part.end};
  }
  template <class T>
  void pair_up(T* rows, Slice part, std::int64_t columns) const {
    if (rope == 0) return;
    for (std::int64_t end = part.begin / head * head + head; end <= part.end; end += head)
      pair_up_rope_rows(rows + (end - rope - part.begin) * columns, rope, columns);
  }
};

/// Rows `part` of a projection. As 8-bit floats where the source has them.
Matrix load(const WeightSource& source, const Projection& p, Slice part) {
  if (part.size() == 0) return {};
  if (p.rope == 0) {
    const io::QuantisedWeight fp8 = source.codes(p.name, p.out, p.in, part, io::WeightFormat::fp8_blocks);
    if (fp8.codes.size() > 0) {
      Tensor codes = tensor(fp8.fp8(), {part.size(), p.in});
      codes.dtype = DType::f8_e4m3;
      const std::int64_t before = part.begin % io::kScaleBlock;
      const Tensor scales =
          tensor(fp8.scales.data(), {io::scale_blocks(before + part.size()), io::scale_blocks(p.in)});
      return Matrix(PackedWeight(codes, scales, before));
    }
  }
  const Slice whole = p.whole(part);
  auto weight = source.matrix_rows(p.name, p.out, p.in, whole);
  p.pair_up(weight.data(), whole, p.in);
  return transposed_matrix(weight.data() + (part.begin - whole.begin) * p.in, part.size(), p.in);
}

/// Codes as they are stored; else made from the bf16 numbers.
QuantisedMatrix load_i8(const WeightSource& source, const Projection& p, Slice part) {
  if (part.size() == 0) return {};
  const Slice whole = p.whole(part);
  const std::int64_t out = whole.size(), skipped = part.begin - whole.begin, kept = part.size();
  io::QuantisedWeight stored = source.codes(p.name, p.out, p.in, whole, io::WeightFormat::int8);
  io::AlignedArray<std::int8_t> codes(std::size_t(out * p.in)), turned(std::size_t(kept * p.in));
  io::AlignedArray<float> all = std::move(stored.scales), scale{std::size_t(kept)};
  if (stored.codes.size() > 0) {
    std::memcpy(codes.data(), stored.codes.data(), codes.size());
    p.pair_up(codes.data(), whole, p.in);
    p.pair_up(all.data(), whole, 1);
  } else {
    auto weight = source.matrix_rows(p.name, p.out, p.in, whole);
    p.pair_up(weight.data(), whole, p.in);
    all = io::AlignedArray<float>(std::size_t(out));
    quantise_rows(weight.data(), out, p.in, codes.data(), all.data());
  }
  transpose(codes.data() + skipped * p.in, kept, p.in, turned.data());
  std::copy_n(all.data() + skipped, kept, scale.data());
  return {Matrix(tensor(turned.data(), {p.in, kept})), std::move(scale)};
}

// The projections by name.
Projection q_a(const io::ModelConfig& c) { return {"q_a_proj.weight", c.q_lora_rank, c.hidden_size}; }
Projection q_b(const io::ModelConfig& c) {
  const std::int64_t head = c.qk_nope_head_dim + c.qk_rope_head_dim;
  return {"q_b_proj.weight", c.num_attention_heads * head, c.q_lora_rank, head,
          c.rope_interleave ? 0 : c.qk_rope_head_dim};
}
Projection kv_a(const io::ModelConfig& c) {
  const std::int64_t out = c.kv_lora_rank + c.qk_rope_head_dim;
  return {"kv_a_proj_with_mqa.weight", out, c.hidden_size, out, c.rope_interleave ? 0 : c.qk_rope_head_dim};
}
Projection wq_b(const io::ModelConfig& c) {
  return {"indexer.wq_b.weight", c.index_n_heads * c.index_head_dim, c.q_lora_rank};
}

/// The second half of a weight that needs more than bf16: bf16(w - bf16(w)). Empty if all of it is zero.
Matrix load_rest(const WeightSource& source, const std::string& name, std::int64_t out, std::int64_t in, Slice part,
                 bool& any) {
  const auto weight = source.matrix_f32(name, out, in);
  io::AlignedArray<bf16> rest(out * in);
  any = false;
  for (std::int64_t i = 0; i < out * in; ++i) {
    rest[i] = to_bf16(weight[i] - to_float(to_bf16(weight[i])));
    any |= to_float(rest[i]) != 0;
  }
  return any && part.size() > 0 ? transposed_matrix(rest.data() + part.begin * in, part.size(), in) : Matrix();
}

}  // namespace

io::AlignedArray<float> WeightSource::matrix_f32(const std::string& name, std::int64_t rows,
                                                 std::int64_t columns) const {
  const auto rounded = matrix(name, rows, columns);
  io::AlignedArray<float> weight(rows * columns);
  std::transform(rounded.begin(), rounded.end(), weight.begin(), [](bf16 x) { return to_float(x); });
  return weight;
}

io::AlignedArray<bf16> WeightSource::matrix_rows(const std::string& name, std::int64_t rows, std::int64_t columns,
                                                 Slice part) const {
  const auto all = matrix(name, rows, columns);
  io::AlignedArray<bf16> some(std::size_t(part.size() * columns));
  std::copy_n(all.data() + part.begin * columns, part.size() * columns, some.data());
  return some;
}

std::unique_ptr<WeightSource> checkpoint_source(std::shared_ptr<const io::Checkpoint> checkpoint, int layer,
                                                bool widen_fp8) {
  return std::make_unique<CheckpointSource>(std::move(checkpoint), layer, widen_fp8);
}

Matrix::Matrix(PackedWeight packed) : packed_(std::move(packed)) {
  const Tensor& t = packed_->tensor();
  view_ = check_weight(Check("load", Level::portable), t, "weight", t.dtype, t.rank == 3 ? t.shape[0] : 0,
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

LayerWeights::LayerWeights(const io::ModelConfig& c, bool indexer, std::unique_ptr<WeightSource> source,
                           const LayerShare& share)
    : config_(c), indexer_(indexer), share_(share), source_(std::move(source)) {
  const std::int64_t n = c.num_attention_heads, d = c.qk_nope_head_dim, dv = c.v_head_dim, latent = c.kv_lora_rank;
  gamma_cq = source_->vector_bf16("q_a_layernorm.weight", c.q_lora_rank);
  gamma_ckv = source_->vector_bf16("kv_a_layernorm.weight", latent);
  const Slice heads = share_.heads(c);
  if (heads.size() > 0) {  // per head D rows that are W_UK as they lie, then Dv rows that are W_UV transposed
    const auto weight =
        source_->matrix_rows("kv_b_proj.weight", n * (d + dv), latent, {heads.begin * (d + dv), heads.end * (d + dv)});
    Tensor key = tensor(weight.data(), {heads.size(), d, latent});
    key.stride[0] = (d + dv) * latent;
    w_uk = Matrix(key);
    io::AlignedArray<bf16> value(heads.size() * dv * latent);
    for (std::int64_t h = 0; h < heads.size(); ++h)
      transpose(weight.data() + (h * (d + dv) + d) * latent, dv, latent, value.data() + h * dv * latent);
    w_uv = Matrix(tensor(value.data(), {heads.size(), latent, dv}));
  }
  w_o = load(*source_, {"o_proj.weight", c.hidden_size, n * dv}, share_.columns(c.hidden_size));

  const auto expect = [&](const char* name, std::int64_t out, std::int64_t in) {
    if (!source_->has(name)) source_->matrix(name, out, in);  // says what is missing
  };
  expect("q_a_proj.weight", c.q_lora_rank, c.hidden_size);
  expect("kv_a_proj_with_mqa.weight", latent + c.qk_rope_head_dim, c.hidden_size);
  expect("q_b_proj.weight", n * (d + c.qk_rope_head_dim), c.q_lora_rank);
  if (!indexer_) return;
  expect("indexer.wq_b.weight", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
  expect("indexer.wk.weight", c.index_head_dim, c.hidden_size);
  expect("indexer.weights_proj.weight", c.index_n_heads, c.hidden_size);
  ln_gamma_k = source_->vector_f32("indexer.k_norm.weight", c.index_head_dim);
  ln_beta_k = source_->vector_f32("indexer.k_norm.bias", c.index_head_dim);
}

/// What is still empty, a rank's share of it being empty included, is made.
void LayerWeights::prepare(Mode mode) {
  std::lock_guard lock(mutex_);
  const io::ModelConfig& c = config_;
  const auto columns = [&](const Projection& p) { return share_.prolog_columns(p.out); };
  const auto of_heads = [](Slice heads, std::int64_t width) { return Slice{heads.begin * width, heads.end * width}; };
  if (is_packed(mode)) {
    if (!w_dq_i8.codes) w_dq_i8 = load_i8(*source_, q_a(c), columns(q_a(c)));
    if (!w_dkv_kr_i8.codes) w_dkv_kr_i8 = load_i8(*source_, kv_a(c), columns(kv_a(c)));
  } else {
    if (!w_dq) w_dq = load(*source_, q_a(c), columns(q_a(c)));
    if (!w_dkv_kr) w_dkv_kr = load(*source_, kv_a(c), columns(kv_a(c)));
  }
  const Slice queries = of_heads(share_.heads(c), c.qk_nope_head_dim + c.qk_rope_head_dim);
  if (is_quantised(mode) && !w_uq_qr_i8.codes) w_uq_qr_i8 = load_i8(*source_, q_b(c), queries);
  if (!is_quantised(mode) && !w_uq_qr) w_uq_qr = load(*source_, q_b(c), queries);
  if (!is_sparse(mode) || !indexer_) return;
  const Projection key{"indexer.wk.weight", c.index_head_dim, c.hidden_size},
      weights{"indexer.weights_proj.weight", c.index_n_heads, c.hidden_size};
  if (!wk) wk = load(*source_, key, columns(key));
  if (!w_proj) w_proj = load(*source_, weights, columns(weights));
  const Slice index_queries = of_heads(share_.index_heads(c), c.index_head_dim);
  if (mode == Mode::sparse_bf16) {
    if (w_qb) return;
    w_qb = load(*source_, wq_b(c), index_queries);
    w_proj_rest = load_rest(*source_, weights.name, weights.out, weights.in, columns(weights), has_rest);
  } else if (!w_qb_i8.codes) {
    w_qb_i8 = load_i8(*source_, wq_b(c), index_queries);
    hadamard = dsakit::hadamard(c.index_head_dim);
  }
}

std::size_t LayerWeights::bytes() const {
  std::lock_guard lock(mutex_);
  std::size_t sum = (gamma_cq.size() + gamma_ckv.size() + hadamard.size()) * sizeof(bf16);
  for (const Matrix* m :
       {&w_uk, &w_uv, &w_o, &w_dq, &w_dkv_kr, &w_dq_i8.codes, &w_dkv_kr_i8.codes, &w_uq_qr, &w_uq_qr_i8.codes, &wk,
        &w_proj, &w_proj_rest, &w_qb, &w_qb_i8.codes})
    sum += m->bytes();
  for (const auto* f :
       {&w_dq_i8.scale, &w_dkv_kr_i8.scale, &w_uq_qr_i8.scale, &w_qb_i8.scale, &ln_gamma_k, &ln_beta_k}) sum += f->size() * sizeof(float);
  return sum;
}

}  // namespace dsakit
