// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/kernels.hpp"

// Norms of a row. Every operation is one fp32 rounding, in the order written.
namespace dsakit {

/// Where the two families of the documents round an RMSNorm differently (docs/operators/mla_prolog.md, "Numerics").
enum class NormOrder {
  pypto,      // mean of squares: every term times 1/n, then the sum; g * (x * (1/r))
  torch_npu,  // the sum times 1/n; (x / r) * g
};

/// y = RMSNorm of x; y may be x.
inline void rms_norm(const Kernels& kernels, NormOrder order, const float* x, std::int64_t n, const float* gamma,
                     float epsilon, float* y) {
  if (order == NormOrder::torch_npu) {
    kernels.rms_norm_divided(x, gamma, n, epsilon, y);
    return;
  }
  const float inverse = 1.0f / std::sqrt(kernels.sum_squares(x, n, 1.0f / float(n)) + epsilon);
  for (std::int64_t i = 0; i < n; ++i) y[i] = gamma[i] * (x[i] * inverse);
}

/// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta; y may be x.
inline void layer_norm(const Kernels& kernels, const float* x, std::int64_t n, const float* gamma, const float* beta,
                       float epsilon, float* y) {
  const float each = 1.0f / float(n), mean = kernels.sum(x, n, each);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - mean;
  const float root = std::sqrt(kernels.sum_squares(y, n, each) + epsilon);
  for (std::int64_t i = 0; i < n; ++i) y[i] = y[i] / root * gamma[i] + beta[i];
}

}  // namespace dsakit
