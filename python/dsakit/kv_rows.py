# SPDX-License-Identifier: Apache-2.0
"""Memory for packed cache rows; pack_kv_rows and unpack_kv_rows are operators."""

from __future__ import annotations

import numbers

import numpy as np

from .calling import Array, Result
from .errors import raise_error, shown
from .weights import is_tensor


def empty_kv_rows(
    *axes: int, kv_lora_rank: int = 512, rope_head_dim: int = 64, tile_size: int = 128, like: Array | None = None
) -> Result:
    """A zeroed int8 array [*axes, kv_lora_rank + 2 * rope_head_dim + 4 * kv_lora_rank / tile_size] for packed rows:
    the kv_cache of mla_prolog_v3 with kv_cache_quant_mode 3 and the key of kv_quant_sparse_flash_attention.

    Pages: empty_kv_rows(block_num, block_size, 1); BSND: (B, S, 1); TND: (T, 1). `like`: an array or a tensor whose
    kind the result shall have; numpy without.
    """
    sizes = dict(kv_lora_rank=kv_lora_rank, rope_head_dim=rope_head_dim, tile_size=tile_size)
    sizes |= {f"axes[{i}]": n for i, n in enumerate(axes)}
    for name, value in sizes.items():
        lowest = 1 if name in ("kv_lora_rank", "tile_size") else 0
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < lowest:
            raise_error("INVALID_ARGUMENT", "empty_kv_rows", name, "", f"is {shown(value)}", f"an integer >= {lowest}")
    if kv_lora_rank % tile_size:
        got, wanted = f"is {tile_size}", f"a divisor of {kv_lora_rank} (kv_lora_rank)"
        raise_error("INVALID_ARGUMENT", "empty_kv_rows", "tile_size", "", got, wanted)
    shape = (*axes, kv_lora_rank + 2 * rope_head_dim + 4 * (kv_lora_rank // tile_size))
    if like is None or isinstance(like, np.ndarray):
        return np.zeros(shape, np.int8)
    if not is_tensor(like):
        got = f"is {type(like).__name__!r:.120}"
        raise_error("INVALID_DTYPE", "empty_kv_rows", "like", "", got, "a numpy array or a torch tensor")
    import torch  # like is one of its tensors

    return torch.zeros(shape, dtype=torch.int8)
