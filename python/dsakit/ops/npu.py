# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""What engines find in torch.ops.npu."""

from __future__ import annotations

from ..operators import (
    npu_add_rms_norm,
    npu_add_rms_norm_bias,
    npu_attention_update,
    npu_dynamic_block_quant,
    npu_dynamic_quant,
    npu_fused_infer_attention_score_v2,
    npu_gather_pa_kv_cache,
    npu_gather_pa_kv_cache_functional,
    npu_interleave_rope,
    npu_kv_quant_sparse_flash_attention,
    npu_kv_rmsnorm_rope_cache,
    npu_kv_rmsnorm_rope_cache_v2,
    npu_kv_rmsnorm_rope_cache_v2_functional,
    npu_lightning_indexer,
    npu_mla_prolog_v2,
    npu_mla_prolog_v3,
    npu_mla_prolog_v3_functional,
    npu_quant_lightning_indexer,
    npu_lightning_indexer_quant,
    npu_quant_matmul,
    npu_quantize,
    npu_rms_norm,
    npu_rotary_mul,
    npu_scatter_nd_update,
    npu_scatter_nd_update_,
    npu_scatter_pa_kv_cache,
    npu_scatter_pa_kv_cache_functional,
    npu_sparse_flash_attention,
    npu_swiglu,
    npu_transpose_batchmatmul,
    npu_dynamic_mx_quant,
)
from ..calling import (
    Array,
    Lengths,
    Result,
    operator,
    run,
)

__all__ = [
    "npu_add_rms_norm",
    "npu_add_rms_norm_bias",
    "npu_attention_update",
    "npu_dynamic_block_quant",
    "npu_dynamic_quant",
    "npu_fused_infer_attention_score_v2",
    "npu_gather_pa_kv_cache",
    "npu_gather_pa_kv_cache_functional",
    "npu_interleave_rope",
    "npu_kv_quant_sparse_flash_attention",
    "npu_kv_rmsnorm_rope_cache",
    "npu_kv_rmsnorm_rope_cache_v2",
    "npu_kv_rmsnorm_rope_cache_v2_functional",
    "npu_lightning_indexer",
    "npu_mla_prolog_v2",
    "npu_mla_prolog_v3",
    "npu_mla_prolog_v3_functional",
    "npu_quant_lightning_indexer",
    "npu_lightning_indexer_quant",
    "npu_quant_matmul",
    "npu_quantize",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_scatter_nd_update",
    "npu_scatter_nd_update_",
    "npu_scatter_pa_kv_cache",
    "npu_scatter_pa_kv_cache_functional",
    "npu_sparse_flash_attention",
    "npu_swiglu",
    "npu_transpose_batchmatmul",
    "npu_dynamic_mx_quant",
    "lightning_indexer",
]


@operator
def lightning_indexer(
    query: Array,
    key: Array,
    weights: Array,
    *,
    actual_seq_lengths_query: Lengths | None = None,
    actual_seq_lengths_key: Lengths | None = None,
    block_table: Array | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    numerics: str = "fp32",
    level: str = "portable",
    sparse_indices: Array | None = None,
    sparse_values: Array | None = None,
) -> Result:
    """For every query token the positions of the sparse_count keys that score highest, from bfloat16
    or float16. The form of older kernel packages: returns sparse_indices alone.

        score[s] = sum_h weights[h] * relu(dot(query[h], key[s]))

    Parameters:
        query                     [B, S1, N1, D] or [T1, N1, D] (bfloat16, float16): index queries
        key                       [B, S2, 1, D], [T2, 1, D] or pages [block_num, block_size, 1, D]
                                  (dtype of query): index keys, one head
        weights                   [B, S1, N1] or [T1, N1] (dtype of query, or float32): weight of
                                  each head, may be negative
        actual_seq_lengths_query  [B] (int32), optional: lengths of the sequences of query: counts
                                  (BSND, may be absent), running totals (TND)
        actual_seq_lengths_key    [B] (int32), optional: lengths of the sequences of key: counts
                                  (BSND, may be absent; PA_BSND), running totals (TND)
        block_table               [B, pages per sequence] (int32), optional: pages of each sequence,
                                  with PA_BSND only
        layout_query              str, default "BSND" (BSND, TND): axes of query
        layout_key                str, default "BSND" (BSND, TND, PA_BSND): axes of key: as query,
                                  or pages
        sparse_count              int, default 2048 (>= 1; strict: <= 2048, or a multiple of 1024 up
                                  to 8192): keys to select
        sparse_mode               int, default 3 (0, 3): 0: all keys are visible; 3: causal, aligned
                                  at the bottom right
        numerics                  str, default "fp32" (fp32, fast): fast: 16-bit dot products of the
                                  machine, same bits only on one machine
        level                     str, default "portable" (portable, strict): strict also refuses
                                  what Atlas A2/A3 refuses

    Results, or by keyword the memory for them:
        sparse_indices            [B, S1, 1, sparse_count] or [T1, 1, sparse_count] (int32):
                                  positions, best first, then -1
        sparse_values             shape of sparse_indices; without return_value [0] (dtype of
                                  query): their scores, then -inf

    Errors:
        INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given,
            an attribute is unknown
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: float8 operands; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table
        INVALID_BLOCK: a block_table entry in use names no page of key
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_lightning_indexer. More: docs/operators/lightning_indexer.md
    """
    values = (
        query, key, weights, actual_seq_lengths_query, actual_seq_lengths_key, block_table, layout_query,
        layout_key, sparse_count, sparse_mode, 9223372036854775807, 9223372036854775807, False, numerics, level,
        sparse_indices, sparse_values,
    )  # fmt: skip
    result = run("lightning_indexer", values, "lightning_indexer")
    return result[0]
