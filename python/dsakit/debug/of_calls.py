# SPDX-License-Identifier: Apache-2.0
"""Pictures of recorded calls."""

from __future__ import annotations

import os
import pathlib
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from ..errors import printable, raise_error
from . import gather
from .case import Case
from .gather import Call, Floats, Integers, Row
from .picture import (
    INK,
    LINES,
    MUTED,
    Drawn,
    Line,
    as_drawn,
    counted,
    direct_label,
    logarithmic_shares,
    new_figure,
    power_ticks,
)

ROWS = 64  # of attention that are looked at; more take long and show the same


def case_files(paths: Sequence[str | os.PathLike[str]]) -> list[pathlib.Path]:
    """Case files, and those of folders in the order of their names."""
    all_files = []
    for path in map(pathlib.Path, paths):
        if not path.is_dir():
            all_files.append(path)
            continue
        here = sorted(f for f in path.glob("*.safetensors") if not f.name.startswith((".", "weight-")))
        if not here:
            raise_error("INVALID_PATH", "case", printable(str(path)), "", "holds no case", "a folder of *.safetensors")
        all_files += here
    return all_files


class Sources:
    """What a picture is asked to show."""

    def __init__(self, kind: str, paths: Sequence[Any], row: int | None, ref: Any = None):
        self.kind, self.row = kind, row
        cases = [c for c in paths if isinstance(c, Case)]
        cases += [Case.load(f) for f in case_files([p for p in paths if not isinstance(p, Case)])]
        if ref is not None:
            if len(cases) != 1:
                raise_error("INVALID_ARGUMENT", "plot", "ref", "", f"is given with {len(cases)} cases", "one case")
            cases = [cases[0].copy()]
            cases[0].want_results(ref if isinstance(ref, Case) else Case.load(ref))
        self.calls = [Call(c) for c in cases if not c.refusal]
        if cases and not self.calls:
            raise_error(
                "INVALID_FILE", "plot", cases[0].name, "", "is a call that was refused", "one with results", "PLOT"
            )

    def of(self, *operators: str) -> list[Call]:
        """The calls of one of these."""
        found = [c for c in self.calls if c.operator in operators]
        if not found:
            got = "has " + ", ".join(sorted({c.operator for c in self.calls}))
            raise_error("INVALID_FILE", "plot", self.kind, "", got[:120], "a call of " + ", ".join(operators), "PLOT")
        return found

    def rows(self, call: Call, limit: int, longer_than: int = 0) -> list[Row]:
        """At most `limit` query rows of a call that see keys; if there are any, those above `longer_than`."""
        rows = [r for r in gather.query_rows(call) if r.visible > 0]
        if self.row is not None:
            rows = [r for r in rows if r.number == self.row]
            if not rows:
                call.refuse("row", f"is {self.row}", "a query row that sees keys")
            return rows
        return gather.spread([r for r in rows if r.visible > longer_than] or rows, limit)


def source_of(calls: Sequence[Call]) -> str:
    """The files, and who wrote them."""
    cases = [c.case for c in calls]
    first = re.sub(r"(-r\d+)-\d+\.safetensors$", r"\1", cases[0].name)  # as recorded, without the process
    names = first if len(cases) == 1 else f"{first} and {len(cases) - 1} more"
    layers = sorted({c.where["layer"] for c in cases if "layer" in c.where})
    where = f", layer {layers[0]}" if len(layers) == 1 else f", layers {layers[0]}..{layers[-1]}" if layers else ""
    return f"source: {names}{where}; {cases[0].metadata.get('producer', 'unknown producer').partition(',')[0]}"


# ---- who selects what


def selection(s: Sources) -> Drawn:
    indexers = [c for c in s.calls if c.operator in gather.INDEXERS]
    calls = s.of(*(gather.INDEXERS if indexers else gather.ATTENTION))
    found = []
    for call in calls:
        all_lists = gather.lists(call)
        found += [(row, gather.list_of(call, row, all_lists)) for row in s.rows(call, len(all_lists))]
    positions = np.array([r.position for r, _ in found])
    newest = int(positions.max()) + 1
    columns = np.unique(np.linspace(positions.min(), newest, min(256, newest - positions.min() + 1) + 1).astype(int))
    bins = np.unique(np.geomspace(1, newest + 1, 72).astype(int))
    bins = np.append(bins[bins <= newest], newest + 1)
    chosen, visible = np.zeros((2, len(bins) - 1, len(columns) - 1))
    sink = recent = entries = 0
    for row, list_ in found:
        at = np.searchsorted(columns, row.position, "right") - 1
        ago = row.position - list_ + 1  # the newest key is 1
        chosen[:, at] += np.histogram(ago, bins)[0]
        visible[:, at] += np.diff(np.minimum(bins, row.position + 2))
        sink, recent, entries = sink + (list_ < 4).sum(), recent + (ago <= 64).sum(), entries + len(list_)
    share = np.divide(chosen, visible, out=np.full(chosen.shape, np.nan), where=visible > 0)
    k = max(len(list_) for _, list_ in found)
    about = [
        f"n = {counted(len(found), 'query row')} of {counted(len(calls), 'call')}, at most {k:,} keys a row",
        source_of(calls),
    ]
    figure, axis = new_figure("Which keys are selected, by how far back they are", about, (7.6, 4.6))
    norm = PowerNorm(0.5, 0, 1)
    mesh = axis.pcolormesh(columns, bins, share, cmap="cividis", norm=norm, rasterized=True)
    axis.set_yscale("log", base=2)
    power_ticks(axis.yaxis, 1, newest)
    axis.set_xlabel("position of the query (tokens)")
    axis.set_ylabel("distance of the key (tokens, newest = 1)")
    axis.grid(False)
    bar = figure.colorbar(mesh, ax=axis, pad=0.02, aspect=28)
    bar.set_label("share of the keys selected")
    bar.set_ticks([0, 0.02, 0.1, 0.25, 0.5, 0.75, 1])
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)  # type: ignore[operator]
    far = share[:, -1][~np.isnan(share[:, -1])]
    alt = (
        f"Heat map of the share of keys that {counted(len(found), 'query row')} selected, by position of the query "
        f"and distance of the key. {recent / max(entries, 1):.0%} of all entries are among the newest 64 keys, "
        f"{sink / max(entries, 1):.1%} are the first 4 positions; in the last column between {far.min():.0%} and "
        f"{far.max():.0%} of the keys of a distance are selected."
    )
    return about[0], figure, alt


def profile(s: Sources) -> Drawn:
    calls = s.of(*gather.INDEXERS)
    k = int(calls[0].attributes["sparse_count"])
    if len(calls) > 4:
        calls = [calls[i] for i in np.linspace(0, len(calls) - 1, 4).round().astype(int)]
    each = max(1, 4 // len(calls))
    rows = [(c, r) for c in calls for r in s.rows(c, each if each > 1 else 2, k)[-each:]]
    about = [
        f"n = {counted(len(rows), 'query row')}, {max(r.visible for _, r in rows):,} keys at most; K = {k:,}",
        source_of(calls),
    ]
    figure, axis = new_figure("What the keys are worth, best first: a cliff or a plain at the cut?", about)
    longest, near_keys = 0, []
    for i, (call, row) in enumerate(rows):
        (scores,) = call.case.index_scores([row.number])
        ranked = np.sort(scores[np.isfinite(scores)])[::-1]
        longest = max(longest, len(ranked))
        cut = ranked[min(k, len(ranked)) - 1] if len(ranked) else 0.0
        near = int((np.abs(ranked - cut) <= abs(cut) * 0.01).sum())
        near_keys.append(near)
        look = Line.of(i)
        layer = f"layer {call.case.where['layer']}, " if "layer" in call.case.where else ""
        ranks = np.arange(1, len(ranked) + 1)
        at = np.unique(np.geomspace(1, max(len(ranked), 1), 400).astype(int)) - 1
        every = [int(j) for j in np.linspace(0, len(at) - 1, 9)]
        axis.plot(
            ranks[at], ranked[at], color=look.color, linestyle=look.linestyle, marker=look.marker, markevery=every,
            label=f"{layer}position {row.position}: cut {cut:.4g}, {near} within 1 %",
        )  # fmt: skip
        axis.axhspan(
            cut - abs(cut) * 0.01, cut + abs(cut) * 0.01, color=look.color, alpha=0.18, linewidth=0,
            xmin=0, xmax=1,
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    power_ticks(axis.xaxis, 1, longest)
    axis.axvline(k, color=as_drawn(MUTED), linewidth=1.2, linestyle=(0, (2, 2)))
    direct_label(axis, k, 1, f"K = {k:,}", xycoords=axis.get_xaxis_transform(), xytext=(4, -2), va="top")
    axis.set_xlabel("rank of the key (best = 1)")
    axis.set_ylabel("score of the indexer (no unit)")
    axis.legend(loc="best")
    alt = (
        f"Scores of the keys of {counted(len(rows), 'query row')} in descending order over the logarithm of their "
        f"rank, with the cut at rank {k} and a band of 1 % around it. Within 1 % of the cut are "
        f"{', '.join(map(str, near_keys))} keys."
    )
    return about[0], figure, alt


# ---- what a list holds of attention


class _Shares:
    """Of some rows of sparse attention: the softmax over all keys beside the list."""

    def __init__(self, s: Sources):
        self.calls = s.of(*gather.ATTENTION)
        self.each: list[tuple[Row, Floats, Integers]] = []
        for call in self.calls:
            attention = gather.Attention(call)
            k = gather.lists(call).shape[1]
            for row in s.rows(call, max(1, ROWS // len(self.calls)), k):
                list_ = attention.list_of(row)
                if len(np.unique(list_)) != len(list_):
                    call.refuse(f"list of row {row.number}", "names a key twice", "each once")
                self.each.append((row, attention.softmax(row), list_))
        self.k = max(len(list_) for _, _, list_ in self.each)
        self.heads = self.each[0][1].shape[0]

    def about(self) -> str:
        longest = max(row.visible for row, _, _ in self.each)
        return f"n = {counted(len(self.each), 'query row')} x {counted(self.heads, 'head')}, {longest:,} keys at most"


def _curve(axis: Any, i: int, x: Floats | Integers, y: Floats, label: str) -> None:
    look = Line.of(i)
    every = [int(j) for j in np.linspace(0, len(x) - 1, 9)]
    axis.plot(
        x, y, color=look.color, linestyle=look.linestyle, marker=look.marker, markevery=every, label=label
    )  # fmt: skip


def _share_axes(axis: Any, longest: float, x: str, y: str) -> None:
    axis.set_xscale("log", base=2)
    power_ticks(axis.xaxis, 1, longest)
    axis.set_ylim(0, 1.03)
    axis.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def _grid_of(longest: int) -> Integers:
    return np.unique(np.geomspace(1, longest, 160).astype(int))


def _mean_curve(curves: Sequence[Floats], grid: Integers) -> Floats:
    """Cumulative shares by 1, 2, .. entries, averaged; a row that has fewer stays where it ends."""
    return np.mean([c[np.minimum(grid, len(c)) - 1] for c in curves], axis=0)


def mass(s: Sources) -> Drawn:
    if all(c.operator in gather.INDEXERS for c in s.calls):
        return _recall(s)
    shares = _Shares(s)
    best, own, ours, newest = [], [], [], []
    for row, p, list_ in shares.each:
        mean = p.mean(0)
        best.append(np.cumsum(np.sort(mean)[::-1]))
        own.append(np.cumsum(np.sort(p, 1)[:, ::-1].mean(0)))
        newest.append(np.cumsum(mean[::-1]))
        ours.append(mean[list_].sum())
    grid = _grid_of(max(len(b) for b in best))
    about = [f"{shares.about()}; lists of {shares.k:,}", source_of(shares.calls)]
    figure, axis = new_figure("How much of the dense softmax a list of this length holds", about)
    curves = [_mean_curve(c, grid) for c in (own, best, newest)]
    for i, (y, label) in enumerate(zip(curves, ("best list of each head", "best list for all heads", "newest keys"))):
        _curve(axis, i, grid, y, label)
    ours_mean = float(np.mean(ours))
    axis.plot(
        [shares.k], [ours_mean], marker="*", markersize=15, linestyle="none", color=as_drawn(INK), label="recorded list"
    )
    direct_label(axis, shares.k, ours_mean, f"{100 * ours_mean:.1f} %", xytext=(0, -10), ha="center", va="top")
    _share_axes(axis, grid[-1], "length of the list (keys)", "softmax mass, mean of rows and heads")
    axis.legend(loc="upper left")
    at = int(np.searchsorted(grid, min(shares.k, grid[-1])))
    alt = (
        f"Share of the dense softmax that lists hold, over their length. The recorded lists of {shares.k} keys hold "
        f"{ours_mean:.1%}, the best lists of that length for all heads {curves[1][at]:.1%}, the best of each head "
        f"{curves[0][at]:.1%}, the newest keys {curves[2][at]:.1%}."
    )
    return about[0], figure, alt


def _float_lists(s: Sources) -> list[tuple[Row, Floats, Integers]]:
    """Of indexers with group `float`: what keys were worth before quantisation, beside the list."""
    each = []
    for call in s.of(*gather.INDEXERS):
        all_lists = gather.lists(call)
        for row in s.rows(call, ROWS, all_lists.shape[1]):
            each.append((row, gather.float_scores(call, row), gather.list_of(call, row, all_lists)))
    return each


def _recall(s: Sources) -> Drawn:
    """Lists are best first: their first k entries beside the k best of the unquantised scores."""
    each = _float_lists(s)
    k = max(len(list_) for _, _, list_ in each)
    grid = _grid_of(k)
    recall = np.empty((len(each), len(grid)))
    for i, (_, scores, list_) in enumerate(each):
        order = np.argsort(-scores, kind="stable")
        for j, n in enumerate(grid):
            n = min(int(n), len(list_))
            recall[i, j] = len(np.intersect1d(list_[:n], order[:n])) / max(n, 1)
    calls = s.of(*gather.INDEXERS)
    about = [f"n = {counted(len(each), 'query row')}; lists of {k:,}", source_of(calls)]
    figure, axis = new_figure("How much of the list before quantisation is found, by its length", about)
    _curve(axis, 0, grid, recall.mean(0), "mean of the rows")
    _curve(axis, 1, grid, recall.min(0), "worst row")
    _share_axes(axis, k, "length of the list (keys)", "recall against the unquantised scores")
    axis.legend(loc="lower right")
    alt = (
        f"Recall of the first entries of {counted(len(each), 'list')} against the best keys by scores before "
        f"quantisation. Of all {k} entries {recall[:, -1].mean():.2%} are found on average, "
        f"{recall[:, -1].min():.2%} in the worst row."
    )
    return about[0], figure, alt


def recency(s: Sources) -> Drawn:
    if all(c.operator in gather.INDEXERS for c in s.calls):
        return _recall_by_distance(s)
    shares = _Shares(s)
    mass: list[Floats] = []
    ours: list[Floats] = []
    best: list[Floats] = []
    for row, p, list_ in shares.each:
        mean = p.mean(0)
        n = len(mean)
        mass.append(np.cumsum(mean[::-1]))
        best_list = np.argsort(-mean, kind="stable")[: len(list_)]
        for curves, chosen in ((ours, list_), (best, best_list)):
            taken = np.zeros(n)
            taken[chosen] = 1 / max(len(list_), 1)
            curves.append(np.cumsum(taken[::-1]))
    grid = _grid_of(max(len(m) for m in mass))
    about = [f"{shares.about()}; lists of {shares.k:,}", source_of(shares.calls)]
    figure, axis = new_figure("How far back attention and its list go", about)
    labels = ("mass of the dense softmax", "entries of the recorded list", "entries of the best list for all heads")
    curves_ = [_mean_curve(c, grid) for c in (mass, ours, best)]
    for i, (y, label) in enumerate(zip(curves_, labels)):
        _curve(axis, i, grid, y, label)
    _share_axes(axis, grid[-1], "distance of the key (tokens, newest = 1)", "share within this distance")
    axis.legend(loc="upper left")
    at = min(int(np.searchsorted(grid, 64)), len(grid) - 1)
    alt = (
        f"Cumulative share within a distance. Within the newest {grid[at]} keys lie {curves_[0][at]:.1%} of the mass "
        f"of the dense softmax, {curves_[1][at]:.1%} of the entries of the recorded list and {curves_[2][at]:.1%} of "
        f"those of the best list."
    )
    return about[0], figure, alt


def _recall_by_distance(s: Sources) -> Drawn:
    each = _float_lists(s)
    longest = max(row.visible for row, _, _ in each)
    bins = np.append(np.unique(np.geomspace(1, longest, 16).astype(int)), longest + 1)
    found, wanted = np.zeros((2, len(bins) - 1))
    for row, scores, list_ in each:
        best = np.argsort(-scores, kind="stable")[: len(list_)]
        wanted += np.histogram(row.position - best + 1, bins)[0]
        found += np.histogram(row.position - np.intersect1d(best, list_) + 1, bins)[0]
    recall = np.divide(found, wanted, out=np.full(len(found), np.nan), where=wanted > 0)
    calls = s.of(*gather.INDEXERS)
    about = [f"n = {counted(len(each), 'query row')}, {int(wanted.sum()):,} entries", source_of(calls)]
    figure, axis = new_figure("How much of the list before quantisation is found, by distance", about)
    look = Line.of(0)
    axis.plot(
        bins[:-1], recall, color=look.color, linestyle=look.linestyle, marker=look.marker, label="mean of the rows"
    )
    _share_axes(axis, longest, "distance of the key (tokens, newest = 1)", "recall against the unquantised scores")
    axis.legend(loc="lower right")
    worst = int(np.nanargmin(recall))
    alt = (
        f"Recall of lists against the best keys by scores before quantisation, over the distance of the key: "
        f"{found.sum() / wanted.sum():.2%} in all, worst from distance {bins[worst]} on with {recall[worst]:.2%}."
    )
    return about[0], figure, alt


def heads(s: Sources) -> Drawn:
    shares = _Shares(s)
    ours = np.mean([p[:, list_].sum(1) for _, p, list_ in shares.each], axis=0)
    own = np.mean([np.sort(p, 1)[:, ::-1][:, : len(list_)].sum(1) for _, p, list_ in shares.each], axis=0)
    best = np.mean(
        [p[:, np.argsort(-p.mean(0), kind="stable")[: len(list_)]].sum(1) for _, p, list_ in shares.each], axis=0
    )
    order = np.argsort(-ours, kind="stable")
    about = [f"{shares.about()}; lists of {shares.k:,}", source_of(shares.calls)]
    figure, axis = new_figure("How much of its softmax each head finds in the list, and who is starved", about)
    x = np.arange(1, shares.heads + 1)
    few = shares.heads <= 16  # each has its name
    labels = ("best list of the head alone", "best list for all heads", "recorded list")
    for i, (values, label) in enumerate(zip((own, best, ours), labels)):
        look = Line.of(i)
        axis.plot(
            x, values[order], color=look.color, linestyle="none" if few else look.linestyle, marker=look.marker,
            markersize=7 if few else 5, markevery=max(1, shares.heads // 24), label=label,
        )  # fmt: skip
    worst = [int(head) for head in order[::-1][: min(3, shares.heads)]]
    axis.set_ylim(min(0, ours.min() - 0.05), 1.03)
    axis.set_xlim(0.4, shares.heads + 0.6)
    if few:
        axis.set_xticks(x, [str(head) for head in order])
    axis.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axis.set_xlabel(f"head ({'number' if few else 'count'}), ordered by the mass of the recorded list")
    axis.set_ylabel("softmax mass, mean of the rows")
    names = ", ".join(f"{head} ({100 * ours[head]:.0f} %)" for head in worst)
    axis.legend(loc="lower left", title=f"worst heads: {names}", title_fontsize=9, alignment="left")
    alt = (
        f"Share of each head's dense softmax that the recorded list of {shares.k} keys holds, beside the best list for "
        f"all heads and the head's own best. Mean {ours.mean():.1%}; worst is head {worst[0]} with "
        f"{ours[worst[0]]:.1%}, where its own best list would hold {own[worst[0]]:.1%}."
    )
    return about[0], figure, alt


# ---- results


def _symlog_bins(reach: float) -> Floats:
    """Around 0, whole steps, then doubling."""
    outer = [0.5, 1.5, 2.5]
    while outer[-1] < reach:
        outer.append(outer[-1] * 2**0.5 if outer[-1] > 4 else outer[-1] + 1)
    return np.array([-x for x in outer[::-1]] + outer)


def ulp(s: Sources) -> Drawn:
    """Beside group `ref` if there is one, else beside the reference. What is not finite has no error; it is counted."""
    errors: dict[str, list[Floats]] = defaultdict(list)
    lost: dict[str, int] = defaultdict(int)
    used = []
    for call in s.calls:
        group = "ref" if call.case.keys("ref") else ""
        for name, recorded, golden in gather.results(call, group):
            if recorded.dtype.kind != "f" and recorded.dtype.name != "bfloat16":
                continue
            a, g = recorded.astype(np.float64), golden.astype(np.float64)
            with np.errstate(invalid="ignore"):
                size = np.where(np.isfinite(g), g, 0)
                rms = np.sqrt(np.mean(size * size, 1, keepdims=True))
                unit = gather.steps_of(recorded.dtype, np.maximum(np.abs(size), rms / 16))
                error = ((a - g) / unit).reshape(-1)
            title = f"{call.operator}, {name}, {recorded.dtype.name}"
            finite = np.isfinite(error)
            errors[title].append(error[finite])
            lost[title] += int((~finite & ~((a == g) | (np.isnan(a) & np.isnan(g))).reshape(-1)).sum())
            used.append(call)
    if not errors:
        raise_error("INVALID_FILE", "plot", "ulp", "", "has no results of floats", "a case with some", "PLOT")
    joined = {name: np.concatenate(parts) for name, parts in errors.items()}
    shown_ = sorted(joined, key=lambda n: (-lost[n], -np.abs(joined[n]).max(initial=0)))[: len(LINES)]
    total = sum(len(joined[n]) for n in shown_)
    reach = max(np.abs(joined[n]).max(initial=2.0) for n in shown_)
    bins = _symlog_bins(reach)
    used = list({id(c): c for c in used}.values())
    wanted = "group ref" if any(c.case.keys("ref") for c in used) else "the reference"
    about = [f"n = {total:,} elements of {counted(len(used), 'call')}; beside {wanted}", source_of(used)]
    figure, axis = new_figure("Errors of the results: rounding is narrow, a fault has tails", about, below=len(shown_))
    worst = ""
    for i, name in enumerate(shown_):
        share = np.histogram(joined[name], bins)[0] / max(len(joined[name]), 1)
        look = Line.of(i)
        middle = (bins[1:] + bins[:-1]) / 2
        there = share > 0
        label = name + (f": {lost[name]:,} not finite" if lost[name] else "")
        axis.step(
            middle, np.where(there, share, np.nan), where="mid", color=look.color, linestyle=look.linestyle,
            marker=look.marker, markersize=4, label=label,
        )  # fmt: skip
        if i == 0:
            beyond = float((np.abs(joined[name]) > 1.5).mean()) if len(joined[name]) else 0
            most = np.abs(joined[name]).max(initial=0)
            widest = f"{most:,.0f}" if most >= 1000 else f"{most:.3g}"
            worst = f"{label} has the widest: at most {widest} ULP, {beyond:.2%} beyond one"
    axis.set_xscale("symlog", linthresh=2.5, base=10)
    logarithmic_shares(axis)
    axis.set_ylim(min(0.5e-3, axis.get_ylim()[0]), 1.6)
    axis.set_xlim(bins[0], bins[-1])
    axis.xaxis.set_minor_locator(NullLocator())
    powers = [10.0**p for p in range(1, 20) if 10.0**p <= reach * 1.5]
    ticks = [-p for p in powers[::-1]] + [-1, 0, 1] + powers
    axis.xaxis.set_major_locator(FixedLocator(ticks if len(ticks) < 12 else ticks[::2]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_xlabel("recorded - wanted (ULP of the dtype; of an element at least those of its row's rms / 16)")
    axis.set_ylabel("share of the elements")
    figure.legend(loc="outside lower left")
    return about[0], figure, f"Histogram of the errors of {total:,} results in ULP, logarithmic on both sides. {worst}."


def _codes_of(call: Call) -> dict[str, np.ndarray[Any, Any]]:
    """int8 and uint8 tensors of a call: its results, or what it was given; of caches the rows in use, of packed rows
    the codes."""
    case = call.case
    for group in ("out", "after", "in"):
        found = {}
        for key in case.keys(group):
            name = case.parameter(group, key.partition(".")[2]) or key
            array = case[key]
            if array.dtype not in (np.int8, np.uint8) or case.layout(key).get("dtype") or array.size == 0:
                continue
            if group == "after":
                array = _written(case, name, key, array)
            elif (call.operator in gather.INDEXERS or call.operator in gather.ATTENTION) and name.startswith("key"):
                array = _visible(call, name)
            if call.operator == "kv_quant_sparse_flash_attention":
                array = array[..., : int(call.required("query").shape[-1]) - int(call.attributes["rope_head_dim"])]
            elif call.operator == "mla_prolog_v3" and name == "kv_cache":  # packed if it is wider than its codes
                array = array[..., : call.required("weight_uk").shape[-1]]
            if name != "value" and array.size > 0:
                found[f"{call.operator}, {name}"] = array.reshape(-1)
        if found:
            return found
    return {}


def _written(case: Case, name: str, key: str, after: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The rows of a cache that a call has changed."""
    before = case.find("in", name)
    rows = after.reshape(-1, after.shape[-1])
    if before is None or case[before].shape != after.shape or case.layout(key).get("pages"):
        return rows[rows.any(1)]
    return rows[(rows != case[before].reshape(rows.shape)).any(1)]


def _visible(call: Call, name: str) -> np.ndarray[Any, Any]:
    """The keys that are seen, each sequence's once."""
    keys = gather.Keys(call, name)
    last: dict[int, Row] = {}
    for row in gather.query_rows(call):
        if row.sequence not in last or row.visible > last[row.sequence].visible:
            last[row.sequence] = row
    return np.concatenate([keys.of(row, all_of_it=False) for row in last.values()])


def codes(s: Sources) -> Drawn:
    all_codes: dict[str, list[np.ndarray[Any, Any]]] = defaultdict(list)
    used = []
    for call in s.calls:
        found = _codes_of(call)
        for name, codes in found.items():
            all_codes[name].append(codes)
        if found:
            used.append(call)
    if not all_codes:
        raise_error("INVALID_FILE", "plot", "codes", "", "has no codes of 8 bits", "a case with some", "PLOT")
    total = sum(len(c) for parts in all_codes.values() for c in parts)
    about = [f"n = {total:,} codes of {counted(len(used), 'call')}", source_of(used)]
    figure, axis = new_figure(
        "How codes are used: zeros in the middle, saturation at the ends", about, below=len(all_codes)
    )
    words = []
    for i, (name, parts) in enumerate(list(all_codes.items())[: len(LINES)]):
        codes = np.concatenate(parts).astype(int)
        low, high = (0, 255) if parts[0].dtype == np.uint8 else (-128, 127)
        share = np.histogram(codes, np.arange(low, high + 2) - 0.5)[0] / len(codes)
        look = Line.of(i)
        saturated, zeros = float(((codes <= -127) | (codes == high)).mean()), float((codes == 0).mean())
        axis.step(
            np.arange(low, high + 1), np.where(share > 0, share, np.nan), where="mid", color=look.color,
            linestyle=look.linestyle, linewidth=1.6,
            label=f"{name}: {100 * zeros:.1f} % zeros, {100 * saturated:.2f} % saturated",
        )  # fmt: skip
        ends = [j for j in (0, 1, len(share) // 2, len(share) - 1) if share[j] > 0]
        axis.plot(np.arange(low, high + 1)[ends], share[ends], color=look.color, marker=look.marker, linestyle="none")
        words.append(f"{name}: {zeros:.1%} zeros, {saturated:.2%} at -128, -127 or {high}")
    logarithmic_shares(axis)
    axis.set_xlabel("code (steps of the scale)")
    axis.set_ylabel("share of the codes")
    axis.xaxis.set_major_locator(FixedLocator([-128, -96, -64, -32, 0, 32, 64, 96, 127]))
    figure.legend(loc="outside lower left")
    return about[0], figure, f"Histogram of {total:,} codes with a logarithmic share. {'; '.join(words)}."
