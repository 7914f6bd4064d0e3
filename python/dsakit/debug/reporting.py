# SPDX-License-Identifier: Apache-2.0
"""Recorded calls, their verdicts and their pictures as one HTML file that asks nobody for anything."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jinja2
import numpy as np

from ..errors import Error, printable, raise_error
from ..whole_files import write_whole
from . import gather
from .case import Case
from .of_calls import case_files
from .picture import DARK, FOLLOWS, GRID, INK, MUTED, PAPER
from .plotting import plot

_PROGRAM = pathlib.Path(__file__).parents[1] / "bin" / "dsakit"


def _program(subcommand: str, *arguments: str | os.PathLike[str]) -> str:
    """What the command prints; its refusal is ours."""
    done = subprocess.run([_PROGRAM, subcommand, *arguments], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise_error("INVALID_FILE", "report", subcommand, "", "failed", "a verdict", sentence=done.stderr.strip())
    return done.stdout


def _kinds(case: Case) -> Iterator[str]:
    """The pictures that say something about a call."""
    if case.refusal:
        return
    if case.operator in gather.INDEXERS:
        yield from ("selection", "profile")
        if case.keys("float"):
            yield from ("mass", "recency")
    if case.operator in gather.ATTENTION:
        yield from ("mass", "recency", "heads")
    results = [case[k] for k in (*case.keys("out"), *case.keys("after"))]
    if any(r.dtype.kind == "f" or r.dtype.name == "bfloat16" for r in results if r.size):
        yield "ulp"
    if any(r.dtype in (np.int8, np.uint8) for r in results if r.size):
        yield "codes"


def _pictures(kinds: Sequence[str], sources: Sequence[pathlib.Path], ref: Any = None) -> list[dict[str, str]]:
    """Drawn, or why not."""
    found = []
    for kind in kinds:
        try:
            picture = plot(kind, *sources, ref=ref)
        except Error as e:
            found.append({"kind": kind, "refused": str(e)})
        else:
            svg = re.sub(r"<style>@media.*?</style>\n?", "", picture.svg(), flags=re.DOTALL)
            found.append({"kind": kind, "svg": svg, "alt": picture.alt})
    return found


def _tensors(case: Case) -> list[dict[str, str]]:
    rows = []
    for key in case.keys():
        array, layout = case[key], case.layout(key)
        about = ", ".join(f"{k} {v}" for k, v in layout.items() if k != "file")
        shape = " x ".join(map(str, layout.get("full", array.shape)))
        rows.append({"name": key, "dtype": str(array.dtype), "shape": shape, "layout": about})
    return rows


def _progress(text: str) -> None:
    """One line that is rewritten, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r{text:<79}", end="" if text else "\r", file=sys.stderr, flush=True)


def report(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    cases: int = 20,
    ref: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Writes what `explain` says of cases and folders of them, with pictures, as HTML; returns what `--json` prints.

    cases   at most so many are shown in full, those that do not agree first
    ref     of one case: another recording of the call, whose results are wanted
    """
    if pathlib.Path(output).suffix not in (".html", ".htm"):
        got = f"is {printable(pathlib.Path(output).name)}"
        raise_error("INVALID_ARGUMENT", "report", "output", "", got, "a file *.html")
    paths = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    files = case_files(paths)
    if ref is not None and len(files) != 1:
        raise_error("INVALID_ARGUMENT", "report", "ref", "", f"is given with {len(files)} cases", "one case")
    wanted = [] if ref is None else ["--ref", ref]
    calls = []
    for n, file in enumerate(files, 1):
        _progress(f"explain {n} of {len(files)}: {file.name}")
        said = json.loads(_program("explain", file, *wanted, "--json"))
        line = _program("explain", file, *wanted, "--quiet").strip()
        case = Case.load(file)
        calls.append({"id": f"call{n}", "file": file, "case": case, "said": said, "line": line, "where": case.where})
    worst_first = sorted(calls, key=lambda c: c["said"]["verdict"] == "agrees")
    shown = sorted(worst_first[:cases], key=calls.index)
    for n, call in enumerate(shown, 1):
        _progress(f"pictures {n} of {len(shown)}: {call['file'].name}")
        call["text"] = _program("explain", call["file"], *wanted)
        call["pictures"] = _pictures(list(_kinds(call["case"])), [call["file"]], ref)
        call["tensors"] = _tensors(call["case"])
    indexers = [c["file"] for c in calls if c["case"].operator in gather.INDEXERS and not c["case"].refusal]
    together = _pictures(["selection"], indexers) if len(indexers) > 1 else []
    folders = [p for p in paths if pathlib.Path(p).is_dir()]
    diff = _program("diff", folders[0]) if len(folders) == len(paths) == 1 else ""
    _progress("")

    verdicts = Counter(c["said"]["verdict"] for c in calls)
    verdict = next((c["said"]["verdict"] for c in calls if c["said"]["verdict"] != "agrees"), "agrees")
    said = ", ".join(f"{n} x {v}" for v, n in verdicts.most_common())
    template = jinja2.Environment(
        loader=jinja2.PackageLoader("dsakit.debug", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    ).get_template("report.html")  # fmt: skip
    light = {"ink": INK, "muted": MUTED, "grid": GRID, "paper": PAPER}
    text = template.render(
        title=", ".join(pathlib.Path(p).name for p in paths)[:120], verdict=verdict, said=said, calls=calls,
        shown=shown, together=together, diff=diff, light=light, dark={k: DARK[v] for k, v in light.items()},
        follows=FOLLOWS,
    )  # fmt: skip
    write_whole(output, lambda file: file.write(text.encode()), "report")
    return {
        "schema": "dsakit.report/1",
        "verdict": verdict,
        "said": said,
        "file": os.fspath(output),
        "calls": [
            {
                "file": os.fspath(c["file"]),
                "operator": c["case"].operator,
                "verdict": c["said"]["verdict"],
                "side": c["said"]["side"],
                "pictures": [p["kind"] for p in c.get("pictures", ()) if "svg" in p],
            }
            for c in calls
        ],
    }
