# SPDX-License-Identifier: Apache-2.0
"""How pictures look: colours that anybody can tell apart, text that stays text, the same bytes every time.

Lines have colours of Okabe and Ito, dashes and markers; shares are cividis. An SVG follows the reader's light or dark
setting; what knows no style sheets shows the light one.
"""

from __future__ import annotations

import html
import io
import os
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..errors import printable, raise_error
from ..whole_files import write_whole

# Of each colour its twin on dark paper.
INK, MUTED, GRID, PAPER = "#1a1a1e", "#5c5f66", "#dcdee2", "#ffffff"
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#b8558f", "#e69f00", "#56b4e9"
DARK = {
    INK: "#ececf0",
    MUTED: "#a6a9b2",
    GRID: "#3a3c43",
    PAPER: "#18191d",
    BLUE: "#4aa8e0",
    VERMILION: "#f0803c",
    GREEN: "#2cc096",
    PURPLE: "#dc8fc0",
    ORANGE: "#f2b632",
    SKY: "#8fd0f7",
}
LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (10, 3)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")
FONT = "'DejaVu Sans', Verdana, Geneva, sans-serif"  # of the same widths

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dsakit",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.9,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "axes.titlelocation": "left",
    "figure.dpi": 100,
    "savefig.dpi": 160,
}


def style(dark: bool) -> Any:
    """rcParams while a picture is drawn."""
    as_drawn = DARK if dark else {}

    def of(colour: str) -> str:
        return as_drawn.get(colour, colour)

    return _STYLE | {
        "figure.facecolor": of(PAPER),
        "savefig.facecolor": of(PAPER),
        "axes.facecolor": "none",
        "text.color": of(INK),
        "axes.labelcolor": of(INK),
        "axes.titlecolor": of(INK),
        "axes.edgecolor": of(MUTED),
        "xtick.color": of(MUTED),
        "ytick.color": of(MUTED),
        "xtick.labelcolor": of(INK),
        "ytick.labelcolor": of(INK),
        "grid.color": of(GRID),
        "legend.labelcolor": of(INK),
    }


def as_drawn(colour: str) -> str:
    """A colour, or its twin on dark paper, of the picture that is being drawn."""
    return colour if matplotlib.rcParams["figure.facecolor"] == PAPER else DARK[colour]


@dataclass(frozen=True)
class Line:
    """How the n-th line looks."""

    color: str
    linestyle: Any
    marker: str

    @classmethod
    def of(cls, n: int) -> Line:
        return cls(as_drawn(LINES[n % len(LINES)]), DASHES[n % len(DASHES)], MARKERS[n % len(MARKERS)])


_TWINS = "\n".join(
    f'  [style*="{what}: {light}"] {{ {what}: {dark} !important }}'
    for light, dark in DARK.items()
    for what in ("fill", "stroke")
)
FOLLOWS = f"@media (prefers-color-scheme: dark) {{\n{_TWINS}\n}}"


class Picture:
    """A drawn picture. `alt` says in words what it shows."""

    def __init__(self, kind: str, figure: Figure, title: str, alt: str, dark: bool):
        self.kind, self.figure, self.title, self.alt, self._dark = kind, figure, title, alt, dark
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once: a second time it would move by hairs

    def svg(self) -> str:
        """With text as text, a title and a description."""
        out = io.StringIO()
        with matplotlib.rc_context(style(self._dark)):
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            self.figure.savefig(out, format="svg", metadata=nothing)
        text = out.getvalue()
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
        text = text.replace("font-family: 'DejaVu Sans'", f"font-family: {FONT}")
        text = text[text.index("<svg") :]
        words = f"<title>{html.escape(self.title)}</title>\n<desc>{html.escape(self.alt)}</desc>\n"
        follows = "" if self._dark else f"<style>{FOLLOWS}</style>\n"
        head, rest = text.split(">", 1)
        return f'{head} role="img">\n{words}{follows}{rest.lstrip()}'

    def png(self) -> bytes:
        out = io.BytesIO()
        with matplotlib.rc_context(style(self._dark)):
            about = {"Software": None, "Title": self.title, "Description": self.alt}
            self.figure.savefig(out, format="png", metadata=about)
        return out.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """As .svg or .png."""
        path = pathlib.Path(path)
        if path.suffix == ".svg":
            write_whole(path, lambda file: file.write(self.svg().encode()), "plot")
        elif path.suffix == ".png":
            write_whole(path, lambda file: file.write(self.png()), "plot")
        else:
            raise_error("INVALID_ARGUMENT", "plot", "output", "", f"is {printable(path.name)}", "a file *.svg or *.png")


Drawn = tuple[str, Figure, str]  # what it is made of, the figure, what it shows


def new_figure(
    title: str, about: Sequence[str], size: tuple[float, float] = (7.4, 4.4), below: int = 0
) -> tuple[Figure, Any]:
    """A figure with one axis; above it what it is, and smaller what it is made of. It is higher by a legend of `below`
    lines under the axis."""
    width, height = size[0], size[1] + 0.2 * below
    top = (0.5 + 0.19 * len(about)) / height
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - top), w_pad=0.12, h_pad=0.06)
    figure = Figure(figsize=(width, height), layout=layout)
    left = 0.12 / width
    figure.text(left, 1 - 0.12 / height, title, fontsize=12, fontweight="bold", va="top")
    for i, line in enumerate(about):
        figure.text(left, 1 - (0.4 + 0.19 * i) / height, line, fontsize=9, color=as_drawn(MUTED), va="top")
    return figure, figure.add_subplot()


def counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def power_ticks(axis: Any, low: float, high: float, base: int = 2) -> None:
    """Ticks of a logarithmic axis at powers, in full numbers; no more of them than fit."""
    powers = range(int(np.ceil(np.log(max(low, 1)) / np.log(base))), int(np.floor(np.log(high) / np.log(base))) + 1)
    every = max(1, -(-len(powers) // 9))
    axis.set_major_locator(FixedLocator([float(base**p) for p in powers][::every]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))


def _short(x: float) -> str:
    if x >= 2**20 and x % 2**20 == 0:
        return f"{x / 2**20:g}M"
    return f"{x / 1024:g}K" if x >= 4096 and x % 1024 == 0 else f"{x:g}"


def logarithmic_shares(axis: Any) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
    axis.yaxis.set_minor_locator(NullLocator())


def direct_label(axis: Any, x: float, y: float, text: str, **where: Any) -> None:
    where = {"xytext": (6, 0), "ha": "left", "va": "center"} | where
    axis.annotate(text, (x, y), textcoords="offset points", fontsize=9, color=as_drawn(INK), **where)
