# SPDX-License-Identifier: Apache-2.0
"""What vllm-ascend's own operators are called and return, release by release."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from typing import Any

import dsakit

from ..errors import raise_error, shown
from .levels import current, level
from .packet import Documented

ROWS = ("0.11", "0.13", "0.18", "0.20", "0.21", "0.22", "0.23", "main")


def release(asked: str | None) -> str:
    """A row: of the release given, of the one installed, or the newest."""
    if asked is None:
        try:
            asked = importlib.metadata.version("vllm_ascend")
        except importlib.metadata.PackageNotFoundError:
            return "main"
    if asked == "main":
        return "main"
    numbers = re.match(r"v?(\d+)\.(\d+)", asked) if isinstance(asked, str) else None
    if not numbers:
        raise_error("INVALID_ARGUMENT", "dsakit.npu", "vllm_ascend", "", f"is {shown(asked)}", '"0.11" .. "main"')
    minor = int(numbers[2]) + 1000 * int(numbers[1])
    older = [r for r in ROWS[:-1] if int(r.split(".")[1]) <= minor]
    return older[-1] if older else ROWS[0]


def attention(results: int) -> Any:
    """npu_sparse_flash_attention of an engine: attention_mode is 2 unless it is said; a sixth positional argument is the block
    size of the form with one result."""
    upstream = Documented(dsakit.ops._C_ascend.npu_sparse_flash_attention, "sparse_flash_attention", {"attention_mode": 2})

    def npu_sparse_flash_attention(*args: Any, **kwargs: Any) -> Any:
        single = results == 1 or len(args) > 5
        if len(args) > 5:
            kwargs["sparse_block_size"], args = args[5], args[:5]
        if not (kwargs.get("return_softmax_lse") and kwargs.get("layout_kv") == "PA_BSND" and current() == "strict"):
            found = upstream(*args, **kwargs)
        else:  # softmax_max and softmax_sum of pages: strict refuses them under torch_npu's name only
            upstream(*args, **kwargs | {"return_softmax_lse": False})
            with level("portable"):
                found = upstream(*args, **kwargs)
        return found[0] if single else found

    return npu_sparse_flash_attention, upstream


def indexer(results: int) -> Any:
    upstream = Documented(dsakit.npu_lightning_indexer, "lightning_indexer")

    def npu_lightning_indexer(*args: Any, **kwargs: Any) -> Any:
        found = upstream(*args, **kwargs)
        return found[0] if results == 1 else found

    return npu_lightning_indexer, upstream


def forms(row: str) -> Iterator[Any]:
    from .forms import CUSTOM, C, Form

    at = ROWS.index(row)
    several = at >= ROWS.index("0.21")
    suffix = "_custom" if row == "0.13" else ""
    spaces = (CUSTOM,) if row == "0.11" else (C, CUSTOM)
    for make, name, returns, page in (
        (attention, "npu_sparse_flash_attention", "(Tensor, Tensor, Tensor)", "sparse_flash_attention"),
        (indexer, "npu_lightning_indexer", "(Tensor, Tensor)", "lightning_indexer"),
    ):
        function, upstream = make(3 if several else 1)
        new = name + suffix
        yield Form(spaces, new, upstream.schema(new, returns if several else "Tensor"), function, page)
    if row in ("0.21", "0.22"):

        def store_kv_block_pre(slot_mapping_npu: Any, slot_mapping_list: Any = (), block_size: int = 0) -> Any:
            """The three arrays of store_kv_block_metadata."""
            arrays = [slot_mapping_npu.new_empty(slot_mapping_npu.shape) for _ in range(3)]
            dsakit.store_kv_block_metadata(slot_mapping_npu, *arrays, block_size)
            return tuple(arrays)

        name = "store_kv_block_pre"
        schema = f"{name}(Tensor slot_mapping_npu, int[] slot_mapping_list=[], int block_size=0) -> (Tensor, Tensor, Tensor)"
        yield Form((C,), name, schema, store_kv_block_pre, "store_kv_block")
