# SPDX-License-Identifier: Apache-2.0
"""To see what a program computes: watch, dump, diff, first_nan, profile, check. Each is a context manager around calls of
kernels (diff compares two of their records); several may be on at once."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .checking import check
from .dtypes import floats
from .observing import VIEWS, WRITERS, Observer, observing, results_of, tensors_of
from .records import Difference, Operation, Record, diff, dump, load, save, ulps, watch
from .state import refuse, state
from .tensor import Tensor

# ---- first_nan


class _FirstNan(Observer):
    def __init__(self, inf: bool, ignore: Any) -> None:
        self.inf = inf
        self.ignore = [ignore] if isinstance(ignore, str) else list(ignore)

    def _bad(self, t: Tensor) -> Any:
        if t._box.a is None or t._dtype.kind != "f":
            return None
        x = floats(np.ascontiguousarray(t._box.a[t.region()]), t._dtype)
        bad = ~np.isfinite(x) if self.inf else np.isnan(x)
        return (bad, x) if bad.any() else None

    def after(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        if (
            name in VIEWS
            or name in WRITERS
            or any(fnmatch.fnmatchcase(w, p) for p in self.ignore for w in (state.label, f"{state.label}/{name}"))
        ):
            return
        for t in results_of(name, function, args, kwargs, result):
            found = self._bad(t)
            if found is None:
                continue
            if any(self._bad(s) is not None for s in tensors_of(args, kwargs)):
                continue
            bad, x = found
            at = tuple(np.argwhere(bad)[0])
            got = f"is {x[at]}, the first of {int(bad.sum())}, from finite inputs"
            refuse("INVALID_VALUE", name, "result", got, "finite values", "".join(f"[{i}]" for i in at))


@contextlib.contextmanager
def first_nan(inf: bool = True, ignore: Any = ()) -> Iterator[None]:
    """An error at the first operation that makes NaN (with `inf`: or Inf) of finite inputs. ignore: labels, or "label/op",
    where that is meant to happen (groups of zeros: ["Quant_*"])."""
    with observing(_FirstNan(inf, ignore)):
        yield


# ---- profile


@dataclasses.dataclass
class Row:
    count: int = 0
    elements: int = 0
    read: int = 0  # bytes
    written: int = 0  # bytes
    operations: int = 0
    seconds: float = 0.0


class Profile(Observer):
    """rows: (label, operation) -> Row."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = defaultdict(Row)
        self._began: list[float] = []

    def before(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._began.append(time.perf_counter())

    def after(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        took = time.perf_counter() - self._began.pop()
        row = self.rows[state.label, name]
        row.count += 1
        row.seconds += took
        made = results_of(name, function, args, kwargs, result)
        row.elements += sum(math.prod(t.shape) for t in made)
        if name in VIEWS:
            return
        inputs = made if name in WRITERS else [t for t in tensors_of(args, kwargs) if t._box.a is not None]
        row.read += sum(t._box.a.nbytes for t in inputs)
        row.written += sum(t._box.a.nbytes for t in made if t._box.a is not None)
        if name in ("matmul", "transposed_batchmatmul") and made:
            a = inputs[0].shape
            k = a[-2] if kwargs.get("a_trans") else a[-1]
            row.operations += 2 * math.prod(made[0].shape) * int(k)
        else:
            row.operations += max((math.prod(t.shape) for t in (*made, *inputs)), default=0)

    def __str__(self) -> str:
        head = f"{'label':<24} {'operation':<22} {'count':>6} {'elements':>11} {'MB read':>9} {'MB written':>10} {'Mop':>9} {'ms':>9}"
        lines = [head]
        for (label, name), r in sorted(self.rows.items(), key=lambda item: -item[1].seconds):
            lines.append(
                f"{label or '-':<24} {name:<22} {r.count:>6} {r.elements:>11} {r.read / 1e6:>9.2f} {r.written / 1e6:>10.2f} "
                f"{r.operations / 1e6:>9.2f} {r.seconds * 1e3:>9.3f}"
            )
        return "\n".join(lines)


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """Label by operation: count, elements, bytes read and written, operations, time."""
    with observing(Profile()) as found:
        yield found


__all__ = [
    "Difference",
    "Operation",
    "Profile",
    "Record",
    "check",
    "diff",
    "dump",
    "first_nan",
    "load",
    "profile",
    "save",
    "ulps",
    "watch",
]
