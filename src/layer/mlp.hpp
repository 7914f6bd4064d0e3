// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "io/checkpoint.hpp"
#include "layer/weights.hpp"
#include "run/call.hpp"

namespace dsakit {

/// down(silu(gate(x)) * up(x)): bf16 weights, fp32 everything else.
class GatedMlp {
 public:
  GatedMlp(const io::Checkpoint& checkpoint, int layer);

  /// residual [rows, He] += mlp(x [rows, He]); `hidden` is scratch [rows, intermediate_size].
  void add_to(Call& call, const float* x, std::int64_t rows, float* hidden, float* residual) const;
  std::size_t bytes() const { return gate_.bytes() + up_.bytes() + down_.bytes(); }

 private:
  Matrix gate_, up_, down_;
};

}  // namespace dsakit
