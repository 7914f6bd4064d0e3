# SPDX-License-Identifier: Apache-2.0
"""Pictures of recorded calls and of benchmarks. docs/debugging.md, "Pictures"

dsakit.debug.plot("selection", "dump", output="selection.svg")
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

from ..errors import raise_error, shown
from . import KINDS, of_calls, of_times
from .case import Case
from .of_calls import Sources
from .picture import Drawn, Picture, style

_OF_CALLS: dict[str, Callable[[Sources], Drawn]] = {
    "selection": of_calls.selection,
    "profile": of_calls.profile,
    "mass": of_calls.mass,
    "recency": of_calls.recency,
    "heads": of_calls.heads,
    "ulp": of_calls.ulp,
    "codes": of_calls.codes,
}
_OF_TIMES: dict[str, Callable[[Sequence[Any]], Drawn]] = {
    "latency": of_times.latency,
    "roofline": of_times.roofline,
}


def plot(
    kind: str,
    *sources: str | os.PathLike[str] | Case,
    output: str | os.PathLike[str] | None = None,
    row: int | None = None,
    ref: str | os.PathLike[str] | Case | None = None,
    dark: bool = False,
) -> Picture:
    """A picture of KINDS, of cases and folders of them; latency and roofline of what `dsakit bench --json` printed.

    output   a file .svg or .png to write; the picture has `svg()`, `png()` and `alt`, too
    row      this query row alone
    ref      another recording of the call, whose results are wanted (ulp)
    dark     on dark paper; without it an SVG follows the reader's setting
    """
    if kind not in KINDS:
        raise_error("INVALID_ARGUMENT", "plot", "kind", "", f"is {shown(kind)}", ", ".join(KINDS))
    if not sources:
        raise_error(
            "INVALID_ARGUMENT", "plot", "sources", "", "are none", "case files, or times of latency and roofline"
        )
    with matplotlib.rc_context(style(dark)):
        if kind in _OF_TIMES:
            about, figure, alt = _OF_TIMES[kind](sources)
        else:
            about, figure, alt = _OF_CALLS[kind](Sources(kind, sources, row, ref))
        alt = re.sub(r"(\d)%", r"\1 %", alt)
        picture = Picture(kind, figure, f"dsakit plot {kind}: {about}", alt, dark)
    if output is not None:
        picture.save(output)
    return picture
