// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "ops/convert.hpp"
#include "ops/rms_norm/problem.hpp"

namespace dsakit::rms_norm_op {
namespace {

struct Weights {  // of all threads
  float *gamma, *beta;

  Weights(const Problem& p, Carver& memory)
      : gamma(memory.take<float>(p.row_width())), beta(memory.take<float>(p.beta.tensor.data ? p.row_width() : 0)) {}
};

std::int64_t row_bytes(const Problem& p) { return p.row_width() * size_of(p.x.tensor.dtype); }

/// Rows of one thread, where their pieces lie apart.
struct Scratch {
  std::byte *x, *x2, *sum, *y;

  Scratch(const Problem& p, Carver& memory) {
    const std::int64_t bytes = p.pieces == 1 ? 0 : row_bytes(p);
    x = memory.take<std::byte>(bytes), x2 = memory.take<std::byte>(bytes);
    sum = memory.take<std::byte>(bytes), y = memory.take<std::byte>(bytes);
  }
};

/// Rows of T.
template <class T>
class Norm {
 public:
  Norm(const Problem& p, const Kernels& kernels, const Weights& weights)
      : p_(p), kernels_(kernels), weights_(weights) {}

  void rows(std::int64_t begin, std::int64_t end, const Scratch& s) const {
    for (std::int64_t r = begin; r < end; ++r) row(r, s);
  }

 private:
  void row(std::int64_t r, const Scratch& s) const {
    const T* const x = read(p_.x, r, s.x);
    T* const y = place(p_.y, r, s.y);
    float& rstd = *p_.rstd.row<float>(r);
    if (p_.adds) {
      T* const sum = place(p_.sum, r, s.sum);
      rstd = kernels_.add_rms_norm(x, read(p_.x2, r, s.x2), weights_.gamma, p_.beta.tensor.data ? weights_.beta : nullptr,
                                   p_.row_width(), p_.epsilon, sum, y);
      write(p_.sum, r, sum);
    } else {
      rstd = kernels_.rms_norm(x, weights_.gamma, p_.row_width(), p_.epsilon, y);
    }
    write(p_.y, r, y);
  }

  bool together(const Rows& rows) const { return p_.pieces == 1 || rows.uniform_stride == p_.width; }
  T* piece(const Rows& rows, std::int64_t r, std::int64_t k) const { return rows.row<T>(r * p_.pieces + k); }

  const T* read(const Rows& rows, std::int64_t r, std::byte* scratch) const {
    if (together(rows)) return piece(rows, r, 0);
    T* const row = reinterpret_cast<T*>(scratch);
    for (std::int64_t k = 0; k < p_.pieces; ++k)
      std::memcpy(row + k * p_.width, piece(rows, r, k), std::size_t(p_.width) * sizeof(T));
    return row;
  }
  T* place(const Rows& rows, std::int64_t r, std::byte* scratch) const {
    return together(rows) ? piece(rows, r, 0) : reinterpret_cast<T*>(scratch);
  }
  void write(const Rows& rows, std::int64_t r, const T* row) const {
    if (together(rows)) return;
    for (std::int64_t k = 0; k < p_.pieces; ++k)
      std::memcpy(piece(rows, r, k), row + k * p_.width, std::size_t(p_.width) * sizeof(T));
  }

  const Problem& p_;
  const Kernels& kernels_;
  const Weights& weights_;
};

void widen_weight(const Problem& p, const Kernels& kernels, const Rows& weight, float* y) {
  for (std::int64_t k = 0; k < p.pieces; ++k) widen(kernels, weight.tensor, weight.offset(k), p.width, y + k * p.width);
}

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  return bytes_of<Weights>(p) + std::size_t(threads) * bytes_of<Scratch>(p);
}

void run(const Problem& p, Call& call) {
  if (p.rows == 0) return;
  Carver memory(call.memory());
  const Weights weights(p, memory);
  widen_weight(p, call.kernels(), p.gamma, weights.gamma);
  if (p.beta.tensor.data) widen_weight(p, call.kernels(), p.beta, weights.beta);
  const std::int64_t rows = std::max<std::int64_t>(16384 / p.row_width(), 1);  // per task
  const double bytes = (p.adds ? 4 : 2) * double(p.rows * p.row_width() * size_of(p.x.tensor.dtype));
  with_float(p.x.tensor.dtype, [&]<class T>() {
    const Norm<T> norm(p, call.kernels(), weights);
    call.parallel_for((p.rows + rows - 1) / rows, {.bytes = bytes}, [&](std::int64_t task, int thread) {
      Carver mine(call.memory() + memory.bytes() + std::size_t(thread) * bytes_of<Scratch>(p));
      const Scratch scratch(p, mine);
      norm.rows(task * rows, std::min((task + 1) * rows, p.rows), scratch);
    });
  });
}

}  // namespace dsakit::rms_norm_op
