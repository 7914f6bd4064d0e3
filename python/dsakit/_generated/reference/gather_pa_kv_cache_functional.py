# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of gather_pa_kv_cache_functional."""

from __future__ import annotations

from ... import _core
from .. import gather_pa_kv_cache_functional as fast
from ...calling import (
    Array,
    Lengths,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "gather_pa_kv_cache_functional",
    "npu_gather_pa_kv_cache_functional",
]


@operator
@documented_by(fast.gather_pa_kv_cache_functional)
def gather_pa_kv_cache_functional(
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
    key_out: Array | None = None,
    value_out: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.gather_pa_kv_cache_functional."""
    values = (
        key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum, level, key_out,
        value_out,
    )  # fmt: skip
    return _core.gather_pa_kv_cache_functional_reference(values, "gather_pa_kv_cache_functional")


@operator
@documented_by(fast.npu_gather_pa_kv_cache_functional)
def npu_gather_pa_kv_cache_functional(
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
    key_out: Array | None = None,
    value_out: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.npu_gather_pa_kv_cache_functional."""
    values = (
        key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum, level, key_out,
        value_out,
    )  # fmt: skip
    return _core.gather_pa_kv_cache_functional_reference(values, "npu_gather_pa_kv_cache_functional")
