# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of gather_pa_kv_cache."""

from __future__ import annotations

from ... import _core
from .. import gather_pa_kv_cache as fast
from ...calling import (
    Array,
    Lengths,
    documented_by,
    operator,
)

__all__ = [
    "gather_pa_kv_cache",
    "npu_gather_pa_kv_cache",
]


@operator
@documented_by(fast.gather_pa_kv_cache)
def gather_pa_kv_cache(
    key_cache: Array,
    value_cache: Array,
    block_tables: Array,
    seq_lens: Lengths,
    key: Array,
    value: Array,
    *,
    seq_offset: Lengths | None = None,
    is_seq_lens_cumsum: bool = False,
    level: str = "portable",
) -> None:
    """The readable twin of dsakit.gather_pa_kv_cache."""
    values = (
        key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum, level,
    )  # fmt: skip
    _core.gather_pa_kv_cache_reference(values, "gather_pa_kv_cache")


@operator
@documented_by(fast.npu_gather_pa_kv_cache)
def npu_gather_pa_kv_cache(
    key_cache: Array,
    value_cache: Array,
    block_tables: Array,
    seq_lens: Lengths,
    key: Array,
    value: Array,
    *,
    seq_offset: Lengths | None = None,
    is_seq_lens_cumsum: bool = False,
    level: str = "portable",
) -> None:
    """The readable twin of dsakit.npu_gather_pa_kv_cache."""
    values = (
        key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum, level,
    )  # fmt: skip
    _core.gather_pa_kv_cache_reference(values, "npu_gather_pa_kv_cache")
