# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of scatter_pa_kv_cache."""

from __future__ import annotations

from ... import _core
from .. import scatter_pa_kv_cache as fast
from ...calling import (
    Array,
    documented_by,
    only_none,
    operator,
)

__all__ = [
    "scatter_pa_kv_cache",
    "npu_scatter_pa_kv_cache",
]


@operator
@documented_by(fast.scatter_pa_kv_cache)
def scatter_pa_kv_cache(
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
) -> None:
    """The readable twin of dsakit.scatter_pa_kv_cache."""
    cache_mode = "Norm" if cache_mode is None else cache_mode
    if not (
        compress_lens is compress_seq_offsets is seq_lens is None
    ):  # fmt: skip
        only_none("scatter_pa_kv_cache",
            compress_lens=compress_lens, compress_seq_offsets=compress_seq_offsets, seq_lens=seq_lens)
    values = (
        key, value, key_cache, value_cache, slot_mapping, cache_mode, level,
    )  # fmt: skip
    _core.scatter_pa_kv_cache_reference(values, "scatter_pa_kv_cache")


@operator
@documented_by(fast.npu_scatter_pa_kv_cache)
def npu_scatter_pa_kv_cache(
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
) -> None:
    """The readable twin of dsakit.npu_scatter_pa_kv_cache."""
    cache_mode = "Norm" if cache_mode is None else cache_mode
    if not (
        compress_lens is compress_seq_offsets is seq_lens is None
    ):  # fmt: skip
        only_none("npu_scatter_pa_kv_cache",
            compress_lens=compress_lens, compress_seq_offsets=compress_seq_offsets, seq_lens=seq_lens)
    values = (
        key, value, key_cache, value_cache, slot_mapping, cache_mode, level,
    )  # fmt: skip
    _core.scatter_pa_kv_cache_reference(values, "npu_scatter_pa_kv_cache")
