# SPDX-License-Identifier: Apache-2.0
"""B06: caches and strides beyond 2^31 and 2^32 elements, in mappings that take no memory where nothing is written: the bits
are those of the same call in small memory."""

import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

import dsakit
from dsakit import _core
from oracle.calls import CALLS
from oracle.refusals import FIELDS

as_strided = np.lib.stride_tricks.as_strided
beyond = pytest.mark.parametrize("limit", [2**31, 2**32], ids=["2^31", "2^32"])
# Without a tensor that holds rows of a cache, by the descriptions.
NO_CACHE = set(
    "add_rms_norm add_rms_norm_bias attention_update batch_matmul_transpose dynamic_block_quant dynamic_quant interleave_rope "
    "quant_matmul quantize rms_norm rotary_mul store_kv_block_metadata swiglu transpose_batchmatmul".split()
)
SLOTS = ("cache_index", "k_cache_index", "index", "slot_mapping", "group_key_cache_idx", "indices")
# Caches that are pages or rows of the call itself, without numbers that say where, or whose whole is copied.
IN_PLACE = {"li dense", "qli dense", "fia", "v3 batched", "v3 TND", "kv cache functional", "pack", "unpack"}
COPIED = {"v3 functional", "scatter functional", "scatter pages functional"}


def mapped(count, dtype):
    """Zeros that take no memory until they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, count * np.dtype(dtype).itemsize, flags=flags), dtype)


def bits(arrays):
    return {name: np.ascontiguousarray(a).tobytes() for name, a in arrays.items()}


def computed(name, args):
    """What the call leaves in its tensors."""
    getattr(dsakit, CALLS[name].operator)(**args)
    return bits({w: args[w] for w in CALLS[name].written})


def caches(name, args):
    fields = FIELDS[CALLS[name].operator]
    return [n for n, v in args.items() if fields[n]["kind"] == "cache" and isinstance(v, np.ndarray) and v.ndim > 1]


def apart(value, axis, limit):
    """The same array, its last rows along an axis beyond the limit."""
    step, strides = -(-limit // (value.shape[axis] - 1)), list(value.strides)
    strides[axis] = step * value.itemsize
    memory = mapped(step * (value.shape[axis] - 1) + value.size, value.dtype)
    view = as_strided(memory, value.shape, strides)
    view[...] = value
    return view


@beyond
@pytest.mark.parametrize("name", CALLS)
def test_rows_apart(name, limit):
    """Each tensor of each operator in turn, along each axis but the last; blocks of NZ are contiguous."""
    call, want = CALLS[name], computed(name, CALLS[name].make())
    for tensor, shape in [(t, call.make()[t].shape) for t in call.tensors()]:
        tiled = call.make().get("cache_mode") == "PA_NZ" and tensor in caches(name, call.make())
        for axis in range(1 if tiled else len(shape) - 1):
            if shape[axis] > 1:
                args = call.make()
                args[tensor] = apart(args[tensor], axis, limit)
                if tensor == "key" and "scale_value" in args:
                    args["value"] = args["key"]  # a clone is compared byte by byte
                assert computed(name, args) == want, (tensor, axis)


def moved(name, limit):
    """The call with its pages behind so many others that every cache of it is beyond the limit, and where they begin."""
    args = CALLS[name].make()
    fields = FIELDS[CALLS[name].operator]
    names = caches(name, args)
    size = args.get("block_size") or args[names[0]].shape[1]  # rows of a page
    if CALLS[name].operator.startswith("scatter_nd"):
        size = 1
    in_rows = (
        CALLS[name].operator == "sparse_flash_attention_quant"
    )  # pages one after the other, without an axis of theirs
    page = {n: args[n][0].size * (size if in_rows else 1) for n in names}
    count = len(args[names[0]]) // (size if in_rows else 1)
    shift = -(-limit // min(page.values()))
    for n, value in args.items():
        if n in SLOTS or fields[n]["kind"] == "table":
            pages = fields[n]["kind"] == "table" or "BLK" in str(args.get("cache_mode"))
            unit = 1 if pages else size
            used = (value >= 0) & (value < count * unit)
            args[n] = value + (used * shift * unit).astype(value.dtype)
    for n in names:
        old = args[n]
        memory = mapped((shift + count) * page[n], old.dtype)
        args[n] = memory.reshape(-1, *old.shape[1:])
        args[n][len(args[n]) - len(old) :] = old
    if "value" in names and "scale_value" in args:
        args["value"] = args["key"]
    return args, {n: shift * page[n] for n in names}


@beyond
@pytest.mark.parametrize("name", [n for n in CALLS if CALLS[n].operator not in NO_CACHE and n not in IN_PLACE | COPIED])
def test_pages_far_away(name, limit):
    small = CALLS[name].make()
    want = computed(name, small)
    args, first = moved(name, limit)
    assert all(at >= limit for at in first.values())
    getattr(dsakit, CALLS[name].operator)(**args)
    flat = {n: args[n].reshape(-1) for n in first}
    got = {w: flat[w][first[w] :] if w in first else args[w] for w in CALLS[name].written}
    assert bits(got) == want
    for n, at in first.items():
        for lost in (2**31, 2**32):  # where addresses of 32 bits lead
            if at >= lost:
                assert not flat[n][at - lost :][: small[n].size].view(np.uint8).any(), n


@pytest.mark.parametrize("isa", dsakit.info()["isas"][:-1])
def test_other_instruction_sets(isa):
    words = [
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "test_rows_apart or test_pages_far_away",
    ]
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | {"DSAKIT_ISA": isa}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_no_operator_is_forgotten():
    with_cache = {op for op, d in _core.describe().items() if any(f["kind"] == "cache" for f in d["fields"])}
    assert set(FIELDS) - with_cache == NO_CACHE
    assert {CALLS[n].operator for n in CALLS} == set(FIELDS)
