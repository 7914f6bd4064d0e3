# SPDX-License-Identifier: Apache-2.0
"""Arrays flush against unmapped pages, and every call of an operator made again with its tensors there."""

import collections
import ctypes
import mmap
import os

import numpy as np

import dsakit
from dsakit import _core

PAGE = mmap.PAGESIZE
MOST = 32 << 20  # bytes of a tensor that is copied: larger ones are caches in sparse mappings
DESCRIPTION = _core.describe()
NAMES = {  # of what the library is given, in its order
    op: [f["name"] for f in d["fields"] if f["role"] not in ("reserved", "hint", "tolerated")]
    for op, d in DESCRIPTION.items()
}
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def at_the_edge(raw, end):
    """These bytes as an array that ends (begins) exactly where an unmapped page begins (ends)."""
    inside = -(-max(len(raw), 1) // PAGE) * PAGE
    memory = mmap.mmap(-1, inside + 2 * PAGE)
    whole = np.frombuffer(memory, np.uint8)
    for page in (0, PAGE + inside):
        assert _mprotect(whole.ctypes.data + page, PAGE, 0) == 0  # PROT_NONE
    first = PAGE + (inside - len(raw) if end else 0)
    view = whole[first : first + len(raw)]
    view[...] = np.frombuffer(raw, np.uint8)
    return view


def span(array):
    """The address of its first byte and of that behind its last one."""
    first = array.__array_interface__["data"][0]
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides)]
    return first + sum(s for s in steps if s < 0), first + sum(s for s in steps if s > 0) + array.itemsize


class Pieces:
    """The memory of some arrays: spans that overlap are one piece, whose views keep their strides and what they share."""

    def __init__(self, arrays):
        self.spans, self.of = [], {}
        for low, high, name in sorted((*span(a), name) for name, a in arrays.items()):
            if self.spans and low < self.spans[-1][1]:
                self.spans[-1][1] = max(high, self.spans[-1][1])
            else:
                self.spans.append([low, high])
            self.of[name] = len(self.spans) - 1
        self.arrays = arrays

    def bytes(self):
        return [ctypes.string_at(low, high - low) for low, high in self.spans]

    def views(self, pieces):
        """The same arrays in other memory."""
        return {
            name: np.ndarray(
                a.shape, a.dtype, pieces[self.of[name]],
                a.__array_interface__["data"][0] - self.spans[self.of[name]][0], a.strides,
            )
            for name, a in self.arrays.items()
        }  # fmt: skip


def _parts(name, value):
    """(name, array) of a value: one, several of a list, the storage of a tiled weight, or none."""
    if isinstance(value, np.ndarray):
        return [(name, value)]
    if isinstance(value, dsakit.FractalNZ):
        return _parts(name, value.storage)
    if isinstance(value, (list, tuple)):
        return [part for i, v in enumerate(value) for part in _parts(f"{name}[{i}]", v)]
    return []


def _with(name, value, views):
    """The value with its arrays replaced."""
    if name in views:
        return dsakit.FractalNZ(views[name], value.shape) if isinstance(value, dsakit.FractalNZ) else views[name]
    if isinstance(value, (list, tuple)):
        return type(value)(_with(f"{name}[{i}]", v, views) for i, v in enumerate(value))
    return value


class Guard:
    """While it is in use, every call of an operator with arrays is made twice more, with each tensor flush against an
    unmapped page at its end, then at its beginning: the same bits, in results and in all memory that arguments span.

    only    the one tensor that goes there, by name; None: all of them
    last    a file in which the call under way stands, for when it ends the process
    """

    def __init__(self, only=None, last=os.devnull):
        self.only, self.last = only, os.open(last, os.O_WRONLY | os.O_CREAT)
        self.calls, self.tensors = collections.Counter(), collections.Counter()

    def __enter__(self):
        self.real = {op: getattr(_core, op) for op in DESCRIPTION}
        for op, real in self.real.items():
            setattr(_core, op, lambda values, spelling, op=op, real=real: self.call(op, real, values, spelling))
        return self

    def __exit__(self, *_):
        for op, real in self.real.items():
            setattr(_core, op, real)

    def note(self, text):
        os.pwrite(self.last, f"{text:4096}".encode(), 0)

    def call(self, op, real, values, spelling):
        names = NAMES[op]
        given = {n: a for name, v in zip(names, values) for n, a in _parts(name, v) if a.size and not a.dtype.hasobject}
        memory = Pieces(given)
        if any(high - low > MOST for low, high in memory.spans):
            return real(values, spelling)
        before = memory.bytes()
        returned = real(values, spelling)
        results = returned if isinstance(returned, tuple) else (returned,)
        if not all(isinstance(r, np.ndarray) for r in results if r is not None):
            return returned  # of another kind of tensor
        after = memory.bytes()
        written = {n: r for n, r in zip(DESCRIPTION[op]["results"], results) if r is not None and r.size}
        if "softmax_lse" in written and written["softmax_lse"].shape == (1,):
            del written["softmax_lse"]  # nobody asked for it, and nothing writes it
        new = {name: r for name, r in written.items() if not any(np.may_share_memory(r, a) for a in given.values())}
        for end in (True, False):
            pieces = [at_the_edge(raw, end) for raw in before]
            views = memory.views(pieces)
            outs = {n: at_the_edge(b"\x55" * r.nbytes, end).view(r.dtype).reshape(r.shape) for n, r in new.items()}
            if self.only is not None:
                views = {n: v if n == self.only else given[n].copy() for n, v in views.items()}
                outs = {n: v for n, v in outs.items() if n == self.only}
            self.note(f"{op}|{'end' if end else 'begin'}|{','.join((*views, *outs))}")
            got = real(tuple(outs.get(n, _with(n, v, views)) for n, v in zip(names, values)), spelling)
            self.note("")
            if self.only is not None:
                continue
            got = dict(zip(DESCRIPTION[op]["results"], got if isinstance(got, tuple) else (got,)))
            for name, r in written.items():
                assert r.tobytes() == got[name].tobytes(), f"{op}: {name} has other bits beside an unmapped page"
            for (low, _), piece, want in zip(memory.spans, pieces, after):
                whose = [n for n in given if memory.spans[memory.of[n]][0] == low]
                assert piece.tobytes() == want, f"{op}: {' and '.join(whose)}: other bytes beside an unmapped page"
            self.calls[op] += 1
            self.tensors[op] += len(views) + len(outs)
        return returned
