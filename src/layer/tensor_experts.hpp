// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "dsakit/context.hpp"
#include "layer/weights.hpp"

namespace dsakit {

/// MLPs of one width, of weights in memory: the routed experts of a layer, or one that every row goes through. Somebody else
/// chooses who goes where.
class TensorExperts {
 public:
  /// gate and up [E, wide, hidden], down [E, hidden, wide]; bf16, f16 or f32, kept as bf16.
  TensorExperts(const Tensor& gate, const Tensor& up, const Tensor& down);

  /// out f32 [T, hidden]: for each row of x, f32, the sum of weight * expert, ascending expert, fp32. expert i32
  /// [T, k], weight f32 [T, k]; experts beyond the last are nobody. x is rounded to bf16, as what comes between the
  /// products is. The bits of a row do not depend on the others. All without gaps.
  void forward(const Tensor& x, const Tensor& expert, const Tensor& weight, const Tensor& out, Context&) const;
  std::size_t bytes() const;

 private:
  struct Expert {
    Matrix gate, up, down;
  };
  void check(const Tensor& x, const Tensor& expert, const Tensor& weight, const Tensor& out) const;

  std::vector<Expert> experts_;
  std::int64_t hidden_, wide_;
};

}  // namespace dsakit
