// SPDX-License-Identifier: Apache-2.0
#include "dsakit/kv_quant_sparse_flash_attention.hpp"
#include "ops/attention/sparse.hpp"
#include "ops/direct.hpp"
#include "ops/sparse_attention/problem.hpp"

namespace dsakit {

void direct::kv_quant_sparse_flash_attention(const KvQuantSparseFlashAttentionArgs& args,
                                             const KvQuantSparseFlashAttentionOuts& outs, Context& context) {
  KvQuantSparseFlashAttentionOuts given = outs;
  attention::sparse::run("kv_quant_sparse_flash_attention",
                         sparse_attention::check(args, given, false, context.check_values()), context);
}

void infer(const KvQuantSparseFlashAttentionArgs& args, KvQuantSparseFlashAttentionOuts& outs) {
  sparse_attention::check(args, outs, true, false);
}

}  // namespace dsakit
