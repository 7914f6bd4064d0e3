// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "ops/rms_norm/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit::rms_norm_op {
namespace {

struct Weights {  // of all threads
  float *gamma, *beta;

  Weights(const Problem& p, Carver& memory)
      : gamma(memory.take<float>(p.row_width())), beta(memory.take<float>(p.beta.tensor.data ? p.row_width() : 0)) {}
};

struct Scratch {  // of one thread
  float *x, *y;

  Scratch(const Problem& p, Carver& memory)
      : x(memory.take<float>(p.row_width())), y(memory.take<float>(p.row_width())) {}
};

void add(float* __restrict x, const float* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] + y[i];
}
void multiply(float* __restrict x, const float* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] * y[i];
}

class Norm {
 public:
  Norm(const Problem& p, const Kernels& kernels, const Weights& weights)
      : p_(p), kernels_(kernels), weights_(weights), n_(p.row_width()), each_(1.0f / float(n_)) {}

  void row(std::int64_t r, const Scratch& s) const {
    load(p_.x, r, s.x);
    if (p_.adds) {
      load(p_.x2, r, s.y);
      add(s.x, s.y, n_);
      round(p_.sum, r, s.x);
    }
    const float rstd = 1.0f / std::sqrt(kernels_.sum_squares(s.x, n_, 1) * each_ + p_.epsilon);
    *p_.rstd.row<float>(r) = rstd;
    if (!p_.adds) {
      for (std::int64_t i = 0; i < n_; ++i) s.x[i] = s.x[i] * rstd * weights_.gamma[i];
      return store(p_.y, r, s.x);
    }
    for (std::int64_t i = 0; i < n_; ++i) s.x[i] = s.x[i] * rstd;
    round(p_.y, r, s.x);
    multiply(s.x, weights_.gamma, n_);
    if (p_.beta.tensor.data) {
      if (p_.y.tensor.dtype == DType::f16) round(p_.y, r, s.x);
      add(s.x, weights_.beta, n_);
    }
    store(p_.y, r, s.x);
  }

  void load(const Rows& rows, std::int64_t r, float* x) const {
    for (std::int64_t k = 0; k < p_.pieces; ++k)
      widen(kernels_, rows.tensor, rows.offset(r * p_.pieces + k), p_.width, x + k * p_.width);
  }

 private:
  void store(const Rows& rows, std::int64_t r, const float* x) const {
    for (std::int64_t k = 0; k < p_.pieces; ++k)
      narrow(kernels_, x + k * p_.width, p_.width, rows.tensor, rows.offset(r * p_.pieces + k));
  }
  /// To the tensor's dtype, by way of its memory, which is wanted there or overwritten later.
  void round(const Rows& rows, std::int64_t r, float* x) const {
    store(rows, r, x);
    if (rows.tensor.dtype != DType::f32) load(rows, r, x);
  }

  const Problem& p_;
  const Kernels& kernels_;
  const Weights& weights_;
  std::int64_t n_;
  float each_;
};

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  return bytes_of<Weights>(p) + std::size_t(threads) * bytes_of<Scratch>(p);
}

void run(const Problem& p, Call& call) {
  if (p.rows == 0) return;
  Carver memory(call.memory());
  const Weights weights(p, memory);
  const Norm norm(p, call.kernels(), weights);
  norm.load(p.gamma, 0, weights.gamma);
  if (p.beta.tensor.data) norm.load(p.beta, 0, weights.beta);
  const std::int64_t rows = std::max<std::int64_t>(16384 / p.row_width(), 1);  // per task
  const double passes = p.adds ? 3 : 1;
  call.parallel_for((p.rows + rows - 1) / rows, {.elements = passes * double(p.rows) * double(p.row_width())},
                    [&](std::int64_t task, int thread) {
                      Carver mine(call.memory() + memory.bytes() + std::size_t(thread) * bytes_of<Scratch>(p));
                      const Scratch scratch(p, mine);
                      for (std::int64_t r = task * rows, end = std::min(r + rows, p.rows); r < end; ++r)
                        norm.row(r, scratch);
                    });
}

}  // namespace dsakit::rms_norm_op
