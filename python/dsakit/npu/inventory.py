# SPDX-License-Identifier: Apache-2.0
"""Which names of torch_npu and of the engines' own libraries are computed here, and what stands nearest to the others."""

from __future__ import annotations

import difflib
import fnmatch
from typing import NamedTuple, NoReturn

from ..errors import Error

# Computed as the operator of the package under the same name: (names, page of docs/operators).
SAME = (
    ("npu_mla_prolog_v3 npu_mla_prolog_v3_functional npu_mla_prolog_v2", "mla_prolog"),
    ("npu_lightning_indexer npu_quant_lightning_indexer", "lightning_indexer"),
    ("npu_sparse_flash_attention npu_kv_quant_sparse_flash_attention", "sparse_flash_attention"),
    ("npu_attention_update", "attention_update"),
    ("npu_dynamic_quant", "dynamic_quant"),
    ("npu_dynamic_block_quant", "dynamic_block_quant"),
    ("npu_quantize", "quantize"),
    ("npu_interleave_rope npu_rotary_mul", "rope"),
    ("npu_quant_matmul", "quant_matmul"),
    ("npu_rms_norm npu_add_rms_norm", "rms_norm"),
    ("npu_swiglu", "swiglu"),
    (
        "npu_kv_rmsnorm_rope_cache npu_kv_rmsnorm_rope_cache_v2 npu_kv_rmsnorm_rope_cache_v2_functional",
        "kv_rmsnorm_rope_cache",
    ),
    ("npu_scatter_nd_update_ npu_scatter_nd_update", "scatter_nd_update"),
    ("npu_scatter_pa_kv_cache npu_scatter_pa_kv_cache_functional", "scatter_pa_kv_cache"),
    ("npu_gather_pa_kv_cache npu_gather_pa_kv_cache_functional", "gather_pa_kv_cache"),
    ("npu_transpose_batchmatmul", "transpose_batchmatmul"),
)
# The same for torch.ops._C_ascend: (name there, name in the package, page).
SAME_C = (
    ("npu_add_rms_norm_bias", "npu_add_rms_norm_bias", "rms_norm"),
    ("store_kv_block", "store_kv_block", "store_kv_block"),
    ("store_kv_block_metadata", "store_kv_block_metadata", "store_kv_block"),
    ("batch_matmul_transpose", "batch_matmul_transpose", "transpose_batchmatmul"),
)

# Known there and not computed here: (patterns, what stands nearest).
REFUSED = (
    ("mla_preprocess npu_mla_preprocess", "npu_mla_prolog_v3"),
    (
        "npu_fusion_attention* npu_prompt_flash_attention* npu_incre_flash_attention* _npu_flash_attention* "
        "_npu_paged_attention* npu_multi_head_latent_attention* npu_ring_mla",
        "npu_fused_infer_attention_score_v2 (dense attention)",
    ),
    ("_npu_reshape_and_cache*", "npu_scatter_pa_kv_cache"),
    ("npu_paged_cache_load", "npu_gather_pa_kv_cache"),
    ("npu_gather_selection_kv_cache dsa_plan dsa_serve dsa_install", "attention on whole caches"),
    (
        "*_mx_quant* npu_dynamic_quant_asymmetric npu_*fp8*quant*",
        "npu_dynamic_quant",
    ),
    (
        "*_norm_quant* *_norm_dynamic_quant* npu_gemma_rms_norm npu_add_rms_norm_v2 npu_add_rms_norm_cast",
        "npu_rms_norm, then npu_dynamic_quant",
    ),
    ("npu_apply_rotary_pos_emb npu_mrope inplace_partial_rotary_mul", "npu_rotary_mul"),
    (
        "npu_grouped_matmul* *moe_* npu_dequant_swiglu_quant dispatch_ffn_combine npu_weight_quant_batchmatmul "
        "npu_convert_weight_to_int4pack",
        "npu_quant_matmul, npu_swiglu",
    ),
    (
        "*mm_all_reduce* *mm_reduce_scatter* npu_all_gather_*mm* *alltoall*mm* *mm_alltoall* *matmul_all_reduce* "
        "*matmul_allreduce*",
        "torch.distributed + npu_quant_matmul",
    ),
    (
        "*sharedkv* compressor* *_epilog* npu_vllm_quant_lightning_indexer* npu_scatter_nd_update_v2 "
        "torch.ops._C_ascend.npu_quant_lightning_indexer",
        "the V3.2 operators",
    ),
    ("*_grad *_backward *_kl_loss", "none: inference only"),
    ("bgmv_expand sgmv_expand", "none"),
)


class Name(NamedTuple):
    name: str  # with its namespace, such as "torch_npu.npu_quantize"
    state: str  # "computed" or "refused"; patterns are refused
    page: str  # of docs/operators
    nearest: str


class Missing(Error, NotImplementedError, AttributeError):
    """A name that is not offered: hasattr is False, and a call never gets through."""


# What each namespace offers, filled while the face is installed: "torch_npu" -> {name: page}
offered: dict[str, dict[str, str]] = {}


def all_names() -> list[Name]:
    """Every computed name, and those known and refused."""
    rows = [Name(f"{space}.{n}", "computed", page, "") for space, names in offered.items() for n, page in names.items()]
    for patterns, nearest in REFUSED:
        rows += [Name(p, "refused", "", nearest) for p in patterns.split()]
    return rows


def refuse(space: str, name: str) -> NoReturn:
    """A name that `space` does not have: what its sentence points to."""
    error = None
    for patterns, nearest in REFUSED:
        if any(fnmatch.fnmatchcase(n, p) for n in (name, f"{space}.{name}") for p in patterns.split()):
            error = Missing(f"{space}: {name} is not computed, wanted {nearest}")
            error.wanted, error.got = nearest, "is not computed"
            break
    if error is None:
        near = difflib.get_close_matches(name, list(offered.get(space, ())), 1, 0.5)
        wanted = f"{near[0]} (nearest name)" if near else "a name of dsakit.npu.names()"
        error = Missing(f"{space}: {name} is unknown, wanted {wanted}")
        error.wanted, error.got = wanted, "is unknown"
    error.status, error.operator, error.parameter, error.name = "UNSUPPORTED", space, name, name
    raise error
