# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of lightning_indexer_prolog_quant."""

from __future__ import annotations

from typing import Any

from ... import _core, calling_forms
from .. import lightning_indexer_prolog_quant as fast
from ...calling import (
    Array,
    Result,
    Weight,
    documented_by,
    operator,
)

__all__ = [
    "lightning_indexer_prolog_quant",
    "lightning_indexer_prolog_quant_compute",
]


@operator
@documented_by(fast.lightning_indexer_prolog_quant)
def lightning_indexer_prolog_quant(
    x: Array,
    q_norm: Array,
    q_norm_scale: Array,
    w_qb: Weight,
    w_qb_scale: Array,
    wk: Weight,
    w_proj: Weight,
    ln_gamma_k: Array,
    ln_beta_k: Array,
    cos: Array,
    sin: Array,
    hadamard_q: Array | None,
    hadamard_k: Array | None,
    k_cache: Array,
    k_scale_cache: Array,
    k_cache_index: Array,
    *more: Any,
    layernorm_epsilon_k: float = 1e-06,
    rope_layout: str = "half",
    layout_query: str = "TND",
    layout_key: str = "PA_BSND",
    level: str = "portable",
    q_int8: Array | None = None,
    q_scale: Array | None = None,
    weights: Array | None = None,
    **other: Any,
) -> Result:
    """The readable twin of dsakit.lightning_indexer_prolog_quant."""
    values = (
        x, q_norm, q_norm_scale, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, cos, sin, hadamard_q,
        hadamard_k, k_cache, k_scale_cache, k_cache_index, layernorm_epsilon_k, rope_layout, layout_query,
        layout_key, level, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["lightning_indexer_prolog_quant"]
        return form(_core.lightning_indexer_prolog_quant_reference, values, "lightning_indexer_prolog_quant", more, other)
    return _core.lightning_indexer_prolog_quant_reference(values, "lightning_indexer_prolog_quant")


@operator
@documented_by(fast.lightning_indexer_prolog_quant_compute)
def lightning_indexer_prolog_quant_compute(
    x: Array,
    q_norm: Array,
    q_norm_scale: Array,
    w_qb: Weight,
    w_qb_scale: Array,
    wk: Weight,
    w_proj: Weight,
    ln_gamma_k: Array,
    ln_beta_k: Array,
    cos: Array,
    sin: Array,
    hadamard_q: Array | None,
    hadamard_k: Array | None,
    k_cache: Array,
    k_scale_cache: Array,
    k_cache_index: Array,
    *more: Any,
    layernorm_epsilon_k: float = 1e-06,
    rope_layout: str = "half",
    layout_query: str = "TND",
    layout_key: str = "PA_BSND",
    level: str = "portable",
    q_int8: Array | None = None,
    q_scale: Array | None = None,
    weights: Array | None = None,
    **other: Any,
) -> Result:
    """The readable twin of dsakit.lightning_indexer_prolog_quant_compute."""
    values = (
        x, q_norm, q_norm_scale, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, cos, sin, hadamard_q,
        hadamard_k, k_cache, k_scale_cache, k_cache_index, layernorm_epsilon_k, rope_layout, layout_query,
        layout_key, level, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["lightning_indexer_prolog_quant"]
        return form(_core.lightning_indexer_prolog_quant_reference, values, "lightning_indexer_prolog_quant_compute", more, other)
    return _core.lightning_indexer_prolog_quant_reference(values, "lightning_indexer_prolog_quant_compute")
