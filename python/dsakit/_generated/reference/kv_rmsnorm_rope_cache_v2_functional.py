# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of kv_rmsnorm_rope_cache_v2_functional."""

from __future__ import annotations

from ... import _core
from .. import kv_rmsnorm_rope_cache_v2_functional as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    only_none,
    operator,
)

__all__ = [
    "kv_rmsnorm_rope_cache_v2_functional",
    "npu_kv_rmsnorm_rope_cache_v2_functional",
]


@operator
@documented_by(fast.kv_rmsnorm_rope_cache_v2_functional)
def kv_rmsnorm_rope_cache_v2_functional(
    kv: Array,
    gamma: Array,
    cos: Array,
    sin: Array,
    index: Array,
    k_cache: Array,
    ckv_cache: Array,
    *,
    k_rope_scale: Array | None = None,
    c_kv_scale: Array | None = None,
    k_rope_offset: None = None,
    c_kv_offset: None = None,
    v: None = None,
    epsilon: float = 1e-05,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    k_cache_dtype: None = None,
    ckv_cache_dtype: None = None,
    level: str = "portable",
    k_cache_out: Array | None = None,
    ckv_cache_out: Array | None = None,
    k_rope: Array | None = None,
    c_kv: Array | None = None,
) -> tuple[Result, Result, Result, Result]:
    """The readable twin of dsakit.kv_rmsnorm_rope_cache_v2_functional."""
    if not (
        k_rope_offset is c_kv_offset is v is k_cache_dtype is ckv_cache_dtype is None
    ):  # fmt: skip
        only_none("kv_rmsnorm_rope_cache_v2_functional",
            k_rope_offset=k_rope_offset, c_kv_offset=c_kv_offset, v=v, k_cache_dtype=k_cache_dtype,
            ckv_cache_dtype=ckv_cache_dtype)
    values = (
        kv, gamma, cos, sin, index, k_cache, ckv_cache, k_rope_scale, c_kv_scale, epsilon, cache_mode, is_output_kv,
        level, k_cache_out, ckv_cache_out, k_rope, c_kv,
    )  # fmt: skip
    return _core.kv_rmsnorm_rope_cache_v2_functional_reference(values, "kv_rmsnorm_rope_cache_v2_functional")


@operator
@documented_by(fast.npu_kv_rmsnorm_rope_cache_v2_functional)
def npu_kv_rmsnorm_rope_cache_v2_functional(
    kv: Array,
    gamma: Array,
    cos: Array,
    sin: Array,
    index: Array,
    k_cache: Array,
    ckv_cache: Array,
    *,
    k_rope_scale: Array | None = None,
    c_kv_scale: Array | None = None,
    k_rope_offset: None = None,
    c_kv_offset: None = None,
    v: None = None,
    epsilon: float = 1e-05,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    k_cache_dtype: None = None,
    ckv_cache_dtype: None = None,
    level: str = "portable",
    k_cache_out: Array | None = None,
    ckv_cache_out: Array | None = None,
    k_rope: Array | None = None,
    c_kv: Array | None = None,
) -> tuple[Result, Result, Result, Result]:
    """The readable twin of dsakit.npu_kv_rmsnorm_rope_cache_v2_functional."""
    if not (
        k_rope_offset is c_kv_offset is v is k_cache_dtype is ckv_cache_dtype is None
    ):  # fmt: skip
        only_none("npu_kv_rmsnorm_rope_cache_v2_functional",
            k_rope_offset=k_rope_offset, c_kv_offset=c_kv_offset, v=v, k_cache_dtype=k_cache_dtype,
            ckv_cache_dtype=ckv_cache_dtype)
    values = (
        kv, gamma, cos, sin, index, k_cache, ckv_cache, k_rope_scale, c_kv_scale, epsilon, cache_mode, is_output_kv,
        level, k_cache_out, ckv_cache_out, k_rope, c_kv,
    )  # fmt: skip
    return _core.kv_rmsnorm_rope_cache_v2_functional_reference(values, "npu_kv_rmsnorm_rope_cache_v2_functional")
