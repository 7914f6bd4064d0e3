# SPDX-License-Identifier: Apache-2.0
"""Pictures of what `dsakit bench --json` prints."""

from __future__ import annotations

import json
import pathlib
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, NullLocator

from ..errors import printable, raise_error
from .case import Case
from .picture import DASHES, INK, LINES, MUTED, Drawn, Line, as_drawn, counted, direct_label, new_figure, power_ticks


def _bench(paths: Sequence[Any], kind: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Timed operators, limits of the machine, and the names of the files."""
    timed, limits, names = [], [], []
    for path in paths:
        if isinstance(path, Case):
            raise_error("INVALID_ARGUMENT", "plot", kind, "", "is asked of a case", "what dsakit bench --json prints")
        path = pathlib.Path(path)
        try:
            rows = json.loads(path.read_text())
            known = all("seconds" in r or "rungs" in r for r in rows) and rows
        except (ValueError, TypeError):
            known = False
        except OSError as e:
            raise_error("IO_ERROR", "plot", printable(path.name), "", f"cannot be read: {e.strerror}", "a file")
        if not known:
            raise_error(
                "INVALID_FILE", "plot", printable(path.name), "", "is no list of times", "what dsakit bench --json prints"
            )
        timed += [r for r in rows if "operator" in r]
        limits += [r for r in rows if "rungs" in r]
        names.append(path.name)
    if not timed:
        raise_error("INVALID_FILE", "plot", kind, "", "has no times", "what dsakit bench --json prints")
    most = max(r["threads"] for r in timed)
    timed = [r for r in timed if r["threads"] == most]
    about = f"{counted(most, 'thread')}, {timed[0]['isa']}; source: {', '.join(names)}"
    return timed, [r for r in limits if r["threads"] == most], about


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            return f"{seconds / scale:.3g} {unit}"
    return ""


def latency(paths: Sequence[Any]) -> Drawn:
    timed, _, about = _bench(paths, "latency")
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    for r in timed:
        found = re.search(r"\b(?:context|keys)=(\d+)", r["size"])
        if found:
            rest = r["size"].replace(found[0], "").split()
            lines[" ".join([r["operator"], *rest])][int(found[1])] = r["seconds"]
    lines = {name: dict(sorted(of.items())) for name, of in lines.items() if len(of) > 1}
    if not lines:
        got, wanted = "has no operator at two contexts", "what dsakit bench contexts --json prints"
        raise_error("INVALID_FILE", "plot", "latency", "", got, wanted, "PLOT")
    dense = {n: t for n, t in lines.items() if n.startswith("fused_infer")}
    index = next((t for n, t in lines.items() if "lightning_indexer" in n), {})
    attention = next((t for n, t in lines.items() if "sparse_flash_attention" in n), {})
    both = {c: index[c] + attention[c] for c in index if c in attention}
    named: list[tuple[str, dict[int, float]]] = [("dense attention", t) for t in dense.values()][:1]
    if both:
        named += [
            ("sparse: indexer + attention", both),
            ("sparse: its attention", attention),
            ("sparse: its indexer", index),
        ]
    if not named:
        named = list(lines.items())[: len(LINES)]
    count = sum(len(t) for _, t in named)
    title = "A decode step of attention over the context, dense and sparse"
    if not (both and dense):
        title = "Time over the context"
    figure, axis = new_figure(title, [f"n = {count} medians of at least 5 runs; {about}"])
    for i, (name, times) in enumerate(named):
        look = Line.of(i)
        thin = ": its " in name
        axis.plot(
            list(times), list(times.values()), color=look.color, linestyle=look.linestyle, marker=look.marker,
            label=name, linewidth=1.3 if thin else 2.2,
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    contexts = sorted({c for _, t in named for c in t})
    power_ticks(axis.xaxis, contexts[0], contexts[-1])
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _duration(y)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("context (tokens)")
    axis.set_ylabel("time of a step (s, ms, us)")
    axis.set_xlim(contexts[0] / 1.3, contexts[-1] * 2.4)
    axis.legend(loc="lower right")
    alt = "Time over the length of the context, both logarithmic. "
    if both and dense:
        first = named[0][1]
        longest = max(c for c in both if c in first)
        factor = first[longest] / both[longest]
        direct_label(axis, longest, first[longest], _duration(first[longest]), xytext=(9, 0))
        text = f"{_duration(both[longest])}\n{factor:.0f} x less"
        direct_label(axis, longest, both[longest], text, xytext=(9, 0))
        crossing = _crossing(first, both)
        if crossing:
            axis.axvline(crossing, color=as_drawn(MUTED), linewidth=1.1, linestyle=(0, (2, 2)))
            text = f"sparse is faster\nfrom {_rounded(crossing)} tokens"
            top = axis.get_xaxis_transform()
            direct_label(axis, crossing, 0.97, text, xycoords=top, xytext=(6, 0), va="top")
            alt += f"Sparse attention is faster by 5 % and more from about {_rounded(crossing)} tokens on. "
        alt += (
            f"At {longest} tokens dense takes {_duration(first[longest])}, sparse with its indexer "
            f"{_duration(both[longest])}, {factor:.0f} times less."
        )
    else:
        alt += "; ".join(f"{n}: {_duration(min(t.values()))} to {_duration(max(t.values()))}" for n, t in named) + "."
    return about, figure, alt


def _rounded(tokens: float) -> str:
    return f"{tokens / 1024:.1f}K" if tokens >= 1024 else f"{tokens:.0f}"


def _crossing(dense: dict[int, float], sparse: dict[int, float]) -> float | None:
    """Where dense becomes slower for good, by more than times are uncertain: 5 %. Between two measured contexts, on
    straight lines of the picture."""
    contexts = [c for c in sorted(sparse) if c in dense]
    gaps = [float(np.log(dense[c] / sparse[c] / 1.05)) for c in contexts]
    for i in range(len(gaps) - 1, 0, -1):
        if gaps[i - 1] <= 0 < gaps[i]:
            share = -gaps[i - 1] / (gaps[i] - gaps[i - 1])
            return float(contexts[i - 1] * (contexts[i] / contexts[i - 1]) ** share)
    return None


def roofline(paths: Sequence[Any]) -> Drawn:
    timed, limits, about = _bench(paths, "roofline")
    points = [r for r in timed if r["bytes"] > 0 and r["i8_ops"] + r["bf16_flops"] > 0]
    if not points:
        raise_error("INVALID_FILE", "plot", "roofline", "", "has no products", "an operator with some", "PLOT")
    # A floor is the longer of bytes and products at the machine's speed: where one of them makes it, that is the speed.
    memory = max(r["bytes"] / r["floor_seconds"] for r in points)
    peaks = {}
    for name, key, other in (("int8", "i8_ops", "bf16_flops"), ("bf16", "bf16_flops", "i8_ops")):
        alone = [r[key] / r["floor_seconds"] for r in points if r[key] > 0 and r[other] == 0]
        if alone:
            peaks[name] = max(alone)
    if limits:
        memory = limits[0]["bytes_per_second"]
        peaks = {"int8": limits[0]["i8_ops_per_second"], "bf16": limits[0]["bf16_flops_per_second"]}
    measured = "measured" if limits else "as the floors in the file have them"
    intensities = [(r["i8_ops"] + r["bf16_flops"]) / r["bytes"] for r in points]
    figure, axis = new_figure(
        "How near the operators are to the limits of the machine",
        [f"n = {counted(len(points), 'size')}; {about}", f"limits {measured}: memory {memory / 1e9:.1f} GB/s, "
         + ", ".join(f"{n} {p / 1e9:,.0f} GOP/s" for n, p in peaks.items())],
        (8.2, 4.9),
    )  # fmt: skip
    x = np.geomspace(min(intensities) / 2, max(max(intensities) * 2, 4 * max(peaks.values(), default=1) / memory), 200)
    for i, (name, peak) in enumerate(peaks.items()):
        roof = np.minimum(memory * x, peak) / 1e9
        colour = as_drawn(INK if i == 0 else MUTED)
        axis.plot(x, roof, color=colour, linewidth=1.6, linestyle=DASHES[i], label=f"limit: memory, {name}")
    operators = list(dict.fromkeys(r["operator"] for r in points))
    best = 0.0
    for i, operator in enumerate(operators):
        look = Line.of(i)
        of = [(at, r) for at, r in zip(intensities, points) if r["operator"] == operator]
        axis.plot(
            [at for at, _ in of], [r["ops_per_second"] / 1e9 for _, r in of], linestyle="none", marker=look.marker,
            color=look.color if i < len(LINES) else "none", markeredgecolor=look.color, markersize=6.5,
            markeredgewidth=1.4, label=operator,
        )  # fmt: skip
        best = max([best, *(r["share_of_floor"] for _, r in of)])
    for one, scale in ((axis.xaxis, axis.set_xscale), (axis.yaxis, axis.set_yscale)):
        scale("log", base=4)
        one.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        one.set_minor_locator(NullLocator())
    axis.set_xlabel("intensity (operations of products a byte)")
    axis.set_ylabel("speed (GOP/s)")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=2.4)
    middle = float(np.median([r["share_of_floor"] for r in points]))
    alt = (
        f"Speed of {counted(len(points), 'size')} of {counted(len(operators), 'operator')} over their intensity, "
        f"below the limits of memory and products. The median reaches {middle:.0%} of its limit, the best {best:.0%}."
    )
    return about, figure, alt
