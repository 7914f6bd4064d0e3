# SPDX-License-Identifier: Apache-2.0
"""Recording the calls of operators as case files. docs/debugging.md"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType

from . import _core
from .errors import raise_error


class capture:  # noqa: N801
    """While the block runs, every call of an operator becomes a case file of the folder `path`, refused calls too.

        with dsakit.capture("dump", operators=["quant_lightning_indexer"], every=10):
            model.generate(...)

    operators   only these (default: all)
    every       of each operator the first call and every n-th after it
    max_bytes   of all files; beyond it keep="last" drops the oldest, keep="first" ends the recording
    caches      "touched": pages that a call looks at; "whole"; "none"
    weights     "once": a file for each beside the cases; "each": in every case
    taps        steps inside of the operators, such as "3.query_norm", or "all" (dsakit describe lists them)

    Results have the same bits, and no call fails because of it. At the end summary.json says what was seen, written and
    left out.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        operators: Sequence[str] | None = None,
        every: int = 1,
        max_bytes: int = 4 << 30,
        keep: str = "last",
        caches: str = "touched",
        weights: str = "once",
        taps: Sequence[str] = (),
    ):
        names = [operators] if isinstance(operators, str) else list(operators or [])
        if not 0 < max_bytes < 1 << 63:
            raise_error("INVALID_ARGUMENT", "capture", "max_bytes", "", f"is {max_bytes}", "1..2^63-1")
        names = [n.removeprefix("npu_") for n in names]
        steps = [taps] if isinstance(taps, str) else list(taps)
        self._options = (os.fspath(path), names, every, max_bytes, keep, caches, weights, steps)
        self._core: _core.Capture | None = None

    def start(self) -> capture:
        """For programs without a block; `end` ends it."""
        self._core = _core.Capture(*self._options)
        return self

    def end(self) -> None:
        if self._core is not None:
            self._core.end()

    def __enter__(self) -> capture:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def seen(self) -> int:
        return self._core.seen if self._core is not None else 0

    @property
    def written(self) -> int:
        return self._core.written if self._core is not None else 0


def mark(step: int | None = None, layer: int | None = None, dummy: bool | None = None) -> None:
    """Labels of the recorded calls to come; what is None stays. `dummy`: of a warm-up, not recorded."""
    _core.mark(step, layer, dummy)
