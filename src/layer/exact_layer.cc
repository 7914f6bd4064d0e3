// SPDX-License-Identifier: Apache-2.0
#include "layer/exact_layer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/float16.hpp"
#include "layer/rope.hpp"
#include "run/call.hpp"

namespace dsakit {
namespace {

/// Eight sums beside each other: the compiler makes vectors of them.
double dot(const double* a, const double* b, std::int64_t n) {
  double sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return std::accumulate(sums, sums + 8, 0.0);
}

double number(float x) { return x; }
double number(bf16 x) { return to_float(x); }

/// Part of a row-major [out, in] weight.
template <class T>
struct Slab {
  const T* data;
  std::int64_t out, in, stride = in;
};

/// y[t] += x[t] W^T, a few tokens at a time that stay in the cache.
template <class T>
void multiply(Call& call, const double* x, std::int64_t rows, const Slab<T>& w, double* y) {
  constexpr std::int64_t kTokens = 16;
  const Work work{.elements = double(rows) * double(w.out) * double(w.in)};
  call.parallel_for((rows + kTokens - 1) / kTokens, work, [&](std::int64_t block, int) {
    std::vector<double> row(static_cast<std::size_t>(w.in));
    for (std::int64_t o = 0; o < w.out; ++o) {
      std::transform(w.data + o * w.stride, w.data + o * w.stride + w.in, row.begin(), [](T v) { return number(v); });
      for (std::int64_t t = block * kTokens; t < std::min(rows, (block + 1) * kTokens); ++t)
        y[t * w.out + o] += dot(x + t * w.in, row.data(), w.in);
    }
  });
}
template <class T>
std::vector<double> product(Call& call, const std::vector<double>& x, std::int64_t rows, const Slab<T>& w) {
  std::vector<double> y(static_cast<std::size_t>(rows * w.out));
  multiply(call, x.data(), rows, w, y.data());
  return y;
}

void rms_norm(double* v, const io::AlignedArray<bf16>& gamma, double epsilon) {
  const std::int64_t n = std::int64_t(gamma.size());
  const double root = std::sqrt(dot(v, v, n) / double(n) + epsilon);
  for (std::int64_t i = 0; i < n; ++i) v[i] *= number(gamma[i]) / root;
}

void layer_norm(double* v, const io::AlignedArray<float>& gamma, const io::AlignedArray<float>& beta) {
  constexpr double kEpsilon = 1e-6;
  const std::int64_t n = std::int64_t(gamma.size());
  const double mean = std::accumulate(v, v + n, 0.0) / double(n);
  for (std::int64_t i = 0; i < n; ++i) v[i] -= mean;
  const double root = std::sqrt(dot(v, v, n) / double(n) + kEpsilon);
  for (std::int64_t i = 0; i < n; ++i) v[i] = v[i] / root * number(gamma[i]) + number(beta[i]);
}

}  // namespace

ExactLayer::ExactLayer(const io::ModelConfig& c, bool indexer, const WeightSource& source,
                       std::span<const bf16> hidden, Context& context)
    : config_(c), source_(source), rows_(std::int64_t(hidden.size()) / c.hidden_size) {
  const std::int64_t dr = c.qk_rope_head_dim, ni = c.index_n_heads, di = c.index_head_dim;
  const std::vector<float> frequencies = rope_frequencies(c.rope, dr);
  for (std::int64_t t = 0; t < rows_; ++t)
    for (const float f : frequencies) {
      cos_.push_back(std::cos(double(t) * number(f)) * rope_amplitude(c.rope));
      sin_.push_back(std::sin(double(t) * number(f)) * rope_amplitude(c.rope));
    }
  Call call(context, "layer", 0);
  const auto times = [&](const std::vector<double>& x, const char* name, std::int64_t out, std::int64_t in) {
    const auto weight = source.matrix(name, out, in);
    return product(call, x, rows_, Slab<bf16>{weight.data(), out, in});
  };
  std::vector<double> x(hidden.size());
  std::transform(hidden.begin(), hidden.end(), x.begin(), [](bf16 v) { return number(v); });

  c_q_ = times(x, "q_a_proj.weight", c.q_lora_rank, c.hidden_size);
  const std::vector<double> kv = times(x, "kv_a_proj_with_mqa.weight", c.kv_lora_rank + dr, c.hidden_size);
  const auto gamma_q = source.vector_bf16("q_a_layernorm.weight", c.q_lora_rank),
             gamma_kv = source.vector_bf16("kv_a_layernorm.weight", c.kv_lora_rank);
  for (std::int64_t t = 0; t < rows_; ++t) {
    const double* row = kv.data() + t * (c.kv_lora_rank + dr);
    latent_.insert(latent_.end(), row, row + c.kv_lora_rank);
    rope_key_.insert(rope_key_.end(), row + c.kv_lora_rank, row + c.kv_lora_rank + dr);
    rms_norm(c_q_.data() + t * c.q_lora_rank, gamma_q, c.rms_norm_eps);
    rms_norm(latent_.data() + t * c.kv_lora_rank, gamma_kv, c.rms_norm_eps);
    rotate(rope_key_.data() + t * dr, t, c.rope_interleave);
  }
  if (!indexer) return;

  index_query_ = times(c_q_, "indexer.wq_b.weight", ni * di, c.q_lora_rank);
  index_key_ = times(x, "indexer.wk.weight", di, c.hidden_size);
  const auto w_proj = source.matrix_f32("indexer.weights_proj.weight", ni, c.hidden_size);
  head_weight_ = product(call, x, rows_, Slab<float>{w_proj.data(), ni, c.hidden_size});
  const auto gamma_k = source.vector_f32("indexer.k_norm.weight", di),
             beta_k = source.vector_f32("indexer.k_norm.bias", di);
  for (std::int64_t t = 0; t < rows_; ++t) {
    layer_norm(index_key_.data() + t * di, gamma_k, beta_k);
    rotate(index_key_.data() + t * di, t, c.indexer_rope_interleave);
    for (std::int64_t h = 0; h < ni; ++h)
      rotate(index_query_.data() + (t * ni + h) * di, t, c.indexer_rope_interleave);
  }
  call.finish();
}

void ExactLayer::rotate(double* v, std::int64_t row, bool interleaved) const {
  const std::int64_t half = config_.qk_rope_head_dim / 2;
  for (std::int64_t j = 0; j < half; ++j) {
    double &a = v[interleaved ? 2 * j : j], &b = v[interleaved ? 2 * j + 1 : j + half];
    const double c = cos_[row * half + j], s = sin_[row * half + j], x = a * c - b * s, y = b * c + a * s;
    a = x, b = y;
  }
}

std::vector<double> ExactLayer::scores(std::int64_t row) const {
  const std::int64_t ni = config_.index_n_heads, di = config_.index_head_dim;
  std::vector<double> sums(static_cast<std::size_t>(row + 1));
  for (std::int64_t h = 0; h < ni; ++h)
    for (std::int64_t s = 0; s <= row; ++s)
      sums[s] += head_weight_[row * ni + h] *
                 std::max(dot(index_query_.data() + (row * ni + h) * di, index_key_.data() + s * di, di), 0.0);
  return sums;
}

std::vector<std::int32_t> ExactLayer::selection(Context& context) const {
  const std::int64_t k = config_.index_topk;
  std::vector<std::int32_t> lists(static_cast<std::size_t>(rows_ * k), -1);
  Call call(context, "layer", 0);
  const Work work{.elements = double(rows_ * rows_) / 2 * double(config_.index_n_heads * config_.index_head_dim)};
  call.parallel_for(rows_, work, [&](std::int64_t t, int) {
    const std::vector<double> all = scores(t);
    std::vector<std::int32_t> order(all.size());
    std::iota(order.begin(), order.end(), 0);
    const std::int64_t count = std::min(k, t + 1);
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](std::int32_t a, std::int32_t b) {
      return all[a] != all[b] ? all[a] > all[b] : a < b;
    });
    std::copy_n(order.begin(), count, lists.begin() + t * k);
  });
  call.finish();
  return lists;
}

/// Head by head: the keys and values of one are all that is expanded at a time.
std::vector<double> ExactLayer::attend(std::span<const std::int32_t> selection, Context& context) const {
  const io::ModelConfig& c = config_;
  const std::int64_t n = c.num_attention_heads, d = c.qk_nope_head_dim, dr = c.qk_rope_head_dim, dv = c.v_head_dim,
                     he = c.hidden_size;
  const double scale = softmax_scale(c);
  const auto q_b = source_.matrix("q_b_proj.weight", n * (d + dr), c.q_lora_rank),
             kv_b = source_.matrix("kv_b_proj.weight", n * (d + dv), c.kv_lora_rank),
             o = source_.matrix("o_proj.weight", he, n * dv);
  std::vector<double> out(static_cast<std::size_t>(rows_ * he)), attended(static_cast<std::size_t>(rows_ * dv));
  Call call(context, "layer", 0);
  for (std::int64_t h = 0; h < n; ++h) {
    const auto part = [&](const auto& w, const std::vector<double>& x, std::int64_t first, std::int64_t count,
                          std::int64_t in) {
      return product(call, x, rows_, Slab<bf16>{w.data() + first * in, count, in});
    };
    std::vector<double> query = part(q_b, c_q_, h * (d + dr), d + dr, c.q_lora_rank);
    const std::vector<double> key = part(kv_b, latent_, h * (d + dv), d, c.kv_lora_rank),
                              value = part(kv_b, latent_, h * (d + dv) + d, dv, c.kv_lora_rank);
    const double pairs = double(rows_) * double(selection.empty() ? rows_ : c.index_topk);
    call.parallel_for(rows_, {.elements = pairs * double(d + dr + dv)}, [&](std::int64_t t, int) {
      double* q = query.data() + t * (d + dr);
      rotate(q + d, t, c.rope_interleave);
      const std::int64_t count = selection.empty() ? t + 1 : std::min(c.index_topk, t + 1);
      const auto position = [&](std::int64_t i) { return selection.empty() ? i : selection[t * c.index_topk + i]; };
      std::vector<double> p(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i)
        p[i] = scale * (dot(q, key.data() + position(i) * d, d) + dot(q + d, rope_key_.data() + position(i) * dr, dr));
      const double most = *std::max_element(p.begin(), p.end());
      for (double& v : p) v = std::exp(v - most);
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      double* to = attended.data() + t * dv;
      std::fill_n(to, dv, 0.0);
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t j = 0; j < dv; ++j) to[j] += p[i] / sum * value[position(i) * dv + j];
    });
    multiply(call, attended.data(), rows_, Slab<bf16>{o.data() + h * dv, he, dv, n * dv}, out.data());
  }
  call.finish();
  return out;
}

}  // namespace dsakit
