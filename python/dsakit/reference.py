# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The operators written to be read: same names, arguments, results and in-place caches, far slower, float64 where
the documents leave the arithmetic free."""

from __future__ import annotations

from ._generated.reference.add_rms_norm import (
    add_rms_norm,
    npu_add_rms_norm,
)
from ._generated.reference.add_rms_norm_bias import (
    add_rms_norm_bias,
    npu_add_rms_norm_bias,
)
from ._generated.reference.attention_update import (
    attention_update,
    npu_attention_update,
)
from ._generated.reference.batch_matmul_transpose import (
    batch_matmul_transpose,
)
from ._generated.reference.dynamic_block_quant import (
    dynamic_block_quant,
    npu_dynamic_block_quant,
)
from ._generated.reference.dynamic_quant import (
    dynamic_quant,
    npu_dynamic_quant,
)
from ._generated.reference.fused_infer_attention_score_v2 import (
    fused_infer_attention_score_v2,
    npu_fused_infer_attention_score_v2,
)
from ._generated.reference.gather_pa_kv_cache import (
    gather_pa_kv_cache,
    npu_gather_pa_kv_cache,
)
from ._generated.reference.gather_pa_kv_cache_functional import (
    gather_pa_kv_cache_functional,
    npu_gather_pa_kv_cache_functional,
)
from ._generated.reference.interleave_rope import (
    interleave_rope,
    npu_interleave_rope,
)
from ._generated.reference.kv_quant_sparse_flash_attention import (
    kv_quant_sparse_flash_attention,
    npu_kv_quant_sparse_flash_attention,
)
from ._generated.reference.kv_rmsnorm_rope_cache import (
    kv_rmsnorm_rope_cache,
    npu_kv_rmsnorm_rope_cache,
)
from ._generated.reference.kv_rmsnorm_rope_cache_v2 import (
    kv_rmsnorm_rope_cache_v2,
    npu_kv_rmsnorm_rope_cache_v2,
)
from ._generated.reference.kv_rmsnorm_rope_cache_v2_functional import (
    kv_rmsnorm_rope_cache_v2_functional,
    npu_kv_rmsnorm_rope_cache_v2_functional,
)
from ._generated.reference.lightning_indexer import (
    lightning_indexer,
    npu_lightning_indexer,
)
from ._generated.reference.lightning_indexer_prolog_quant import (
    lightning_indexer_prolog_quant,
    lightning_indexer_prolog_quant_compute,
)
from ._generated.reference.mla_indexer_prolog_quant import (
    mla_indexer_prolog_quant,
    mla_indexer_prolog_quant_d,
    mla_indexer_prolog_quant_p,
)
from ._generated.reference.mla_prolog_quant import (
    mla_prolog_quant,
    mla_prolog_quant_compute,
    mla_prolog_quant_d,
    mla_prolog_quant_p,
)
from ._generated.reference.mla_prolog_v2 import (
    mla_prolog_v2,
    npu_mla_prolog_v2,
)
from ._generated.reference.mla_prolog_v3 import (
    mla_prolog_v3,
    npu_mla_prolog_v3,
)
from ._generated.reference.mla_prolog_v3_functional import (
    mla_prolog_v3_functional,
    npu_mla_prolog_v3_functional,
)
from ._generated.reference.pack_kv_rows import (
    pack_kv_rows,
)
from ._generated.reference.quant_lightning_indexer import (
    quant_lightning_indexer,
    npu_quant_lightning_indexer,
    npu_lightning_indexer_quant,
)
from ._generated.reference.quant_matmul import (
    quant_matmul,
    npu_quant_matmul,
)
from ._generated.reference.quantize import (
    quantize,
    npu_quantize,
)
from ._generated.reference.rms_norm import (
    rms_norm,
    npu_rms_norm,
)
from ._generated.reference.rotary_mul import (
    rotary_mul,
    npu_rotary_mul,
)
from ._generated.reference.scatter_nd_update import (
    scatter_nd_update,
    npu_scatter_nd_update,
)
from ._generated.reference.scatter_nd_update_ import (
    scatter_nd_update_,
    npu_scatter_nd_update_,
)
from ._generated.reference.scatter_pa_kv_cache import (
    scatter_pa_kv_cache,
    npu_scatter_pa_kv_cache,
)
from ._generated.reference.scatter_pa_kv_cache_functional import (
    scatter_pa_kv_cache_functional,
    npu_scatter_pa_kv_cache_functional,
)
from ._generated.reference.sparse_flash_attention import (
    sparse_flash_attention,
    npu_sparse_flash_attention,
)
from ._generated.reference.sparse_flash_attention_quant import (
    sparse_flash_attention_quant,
    sparse_flash_attention_quant_d,
    sparse_flash_attention_quant_p,
    sparse_flash_attention_quant_d_950,
    sparse_flash_attention_quant_compute,
)
from ._generated.reference.store_kv_block import (
    store_kv_block,
)
from ._generated.reference.store_kv_block_metadata import (
    store_kv_block_metadata,
)
from ._generated.reference.swiglu import (
    swiglu,
    npu_swiglu,
)
from ._generated.reference.transpose_batchmatmul import (
    transpose_batchmatmul,
    npu_transpose_batchmatmul,
)
from ._generated.reference.unpack_kv_rows import (
    unpack_kv_rows,
)
from .mxfp8 import dynamic_mx_quant, npu_dynamic_mx_quant

__all__ = [
    "add_rms_norm",
    "npu_add_rms_norm",
    "add_rms_norm_bias",
    "npu_add_rms_norm_bias",
    "attention_update",
    "npu_attention_update",
    "batch_matmul_transpose",
    "dynamic_block_quant",
    "npu_dynamic_block_quant",
    "dynamic_quant",
    "npu_dynamic_quant",
    "fused_infer_attention_score_v2",
    "npu_fused_infer_attention_score_v2",
    "gather_pa_kv_cache",
    "npu_gather_pa_kv_cache",
    "gather_pa_kv_cache_functional",
    "npu_gather_pa_kv_cache_functional",
    "interleave_rope",
    "npu_interleave_rope",
    "kv_quant_sparse_flash_attention",
    "npu_kv_quant_sparse_flash_attention",
    "kv_rmsnorm_rope_cache",
    "npu_kv_rmsnorm_rope_cache",
    "kv_rmsnorm_rope_cache_v2",
    "npu_kv_rmsnorm_rope_cache_v2",
    "kv_rmsnorm_rope_cache_v2_functional",
    "npu_kv_rmsnorm_rope_cache_v2_functional",
    "lightning_indexer",
    "npu_lightning_indexer",
    "lightning_indexer_prolog_quant",
    "lightning_indexer_prolog_quant_compute",
    "mla_indexer_prolog_quant",
    "mla_indexer_prolog_quant_d",
    "mla_indexer_prolog_quant_p",
    "mla_prolog_quant",
    "mla_prolog_quant_compute",
    "mla_prolog_quant_d",
    "mla_prolog_quant_p",
    "mla_prolog_v2",
    "npu_mla_prolog_v2",
    "mla_prolog_v3",
    "npu_mla_prolog_v3",
    "mla_prolog_v3_functional",
    "npu_mla_prolog_v3_functional",
    "pack_kv_rows",
    "quant_lightning_indexer",
    "npu_quant_lightning_indexer",
    "npu_lightning_indexer_quant",
    "quant_matmul",
    "npu_quant_matmul",
    "quantize",
    "npu_quantize",
    "rms_norm",
    "npu_rms_norm",
    "rotary_mul",
    "npu_rotary_mul",
    "scatter_nd_update",
    "npu_scatter_nd_update",
    "scatter_nd_update_",
    "npu_scatter_nd_update_",
    "scatter_pa_kv_cache",
    "npu_scatter_pa_kv_cache",
    "scatter_pa_kv_cache_functional",
    "npu_scatter_pa_kv_cache_functional",
    "sparse_flash_attention",
    "npu_sparse_flash_attention",
    "sparse_flash_attention_quant",
    "sparse_flash_attention_quant_d",
    "sparse_flash_attention_quant_p",
    "sparse_flash_attention_quant_d_950",
    "sparse_flash_attention_quant_compute",
    "store_kv_block",
    "store_kv_block_metadata",
    "swiglu",
    "npu_swiglu",
    "transpose_batchmatmul",
    "npu_transpose_batchmatmul",
    "unpack_kv_rows",
    "dynamic_mx_quant",
    "npu_dynamic_mx_quant",
]
