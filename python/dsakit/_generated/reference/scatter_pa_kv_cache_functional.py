# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of scatter_pa_kv_cache_functional."""

from __future__ import annotations

from ... import _core
from .. import scatter_pa_kv_cache_functional as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    only_none,
    operator,
)

__all__ = [
    "scatter_pa_kv_cache_functional",
    "npu_scatter_pa_kv_cache_functional",
]


@operator
@documented_by(fast.scatter_pa_kv_cache_functional)
def scatter_pa_kv_cache_functional(
    key: Array,
    value: Array,
    key_cache: Array,
    value_cache: Array,
    slot_mapping: Array,
    *,
    compress_lens: None = None,
    compress_seq_offsets: None = None,
    seq_lens: None = None,
    cache_mode: str | None = "PA_NZ",
    level: str = "portable",
    key_cache_out: Array | None = None,
    value_cache_out: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.scatter_pa_kv_cache_functional."""
    cache_mode = "Norm" if cache_mode is None else cache_mode
    if not (
        compress_lens is compress_seq_offsets is seq_lens is None
    ):  # fmt: skip
        only_none("scatter_pa_kv_cache_functional",
            compress_lens=compress_lens, compress_seq_offsets=compress_seq_offsets, seq_lens=seq_lens)
    values = (
        key, value, key_cache, value_cache, slot_mapping, cache_mode, level, key_cache_out, value_cache_out,
    )  # fmt: skip
    return _core.scatter_pa_kv_cache_functional_reference(values, "scatter_pa_kv_cache_functional")


@operator
@documented_by(fast.npu_scatter_pa_kv_cache_functional)
def npu_scatter_pa_kv_cache_functional(
    key: Array,
    value: Array,
    key_cache: Array,
    value_cache: Array,
    slot_mapping: Array,
    *,
    compress_lens: None = None,
    compress_seq_offsets: None = None,
    seq_lens: None = None,
    cache_mode: str | None = "PA_NZ",
    level: str = "portable",
    key_cache_out: Array | None = None,
    value_cache_out: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.npu_scatter_pa_kv_cache_functional."""
    cache_mode = "Norm" if cache_mode is None else cache_mode
    if not (
        compress_lens is compress_seq_offsets is seq_lens is None
    ):  # fmt: skip
        only_none("npu_scatter_pa_kv_cache_functional",
            compress_lens=compress_lens, compress_seq_offsets=compress_seq_offsets, seq_lens=seq_lens)
    values = (
        key, value, key_cache, value_cache, slot_mapping, cache_mode, level, key_cache_out, value_cache_out,
    )  # fmt: skip
    return _core.scatter_pa_kv_cache_functional_reference(values, "npu_scatter_pa_kv_cache_functional")
