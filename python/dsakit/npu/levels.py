# SPDX-License-Identifier: Apache-2.0
"""The level of validation that calls of the face run at: one for the process, and of a thread inside `level(..)`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ..errors import raise_error, shown

_installed = "portable"


class _Thread(threading.local):
    level: str | None = None


_thread = _Thread()


def check(level: object) -> str:
    if level not in ("portable", "strict"):
        raise_error("INVALID_ARGUMENT", "dsakit.npu", "level", "", f"is {shown(level)}", '"portable" or "strict"')
    return str(level)


def set_installed(level: str) -> None:
    global _installed
    _installed = check(level)


def current() -> str:
    return _thread.level or _installed


@contextlib.contextmanager
def level(level: str) -> Iterator[None]:
    """Calls of this thread run at `level`, "portable" or "strict"."""
    before = _thread.level
    _thread.level = check(level)
    try:
        yield
    finally:
        _thread.level = before
