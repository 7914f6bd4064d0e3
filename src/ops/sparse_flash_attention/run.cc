// SPDX-License-Identifier: Apache-2.0
#include "dsakit/sparse_flash_attention.hpp"
#include "ops/attention/sparse.hpp"
#include "ops/direct.hpp"
#include "ops/sparse_attention/problem.hpp"

namespace dsakit {

void direct::sparse_flash_attention(const SparseFlashAttentionArgs& args, const SparseFlashAttentionOuts& outs,
                                    Context& context) {
  SparseFlashAttentionOuts given = outs;
  attention::sparse::run("sparse_flash_attention", sparse_attention::check(args, given, false, context.check_values()),
                         context);
}

void infer(const SparseFlashAttentionArgs& args, SparseFlashAttentionOuts& outs) {
  sparse_attention::check(args, outs, true, false);
}

}  // namespace dsakit
