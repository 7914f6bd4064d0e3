# SPDX-License-Identifier: Apache-2.0
"""The pictures of README and docs/tutorial.md, made anew: docs/selection.svg, docs/latency.svg, docs/tutorial.svg.

usage: pictures.py [selection] [latency] [tutorial]    In a virtual environment with the wheel and its extra plot.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import dsakit
from dsakit import debug

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def selection(folder: pathlib.Path) -> None:
    """What the small model selects of 2048 bytes that it has never seen, all layers together."""
    text = (ROOT / "models/tiny-dsa/heldout.txt").read_bytes()[:2048]
    with dsakit.capture(folder / "heldout.txt", operators=["quant_lightning_indexer"]):
        dsakit.Model(ROOT / "models/tiny-dsa").logits(list(text), mode="sparse_w8a8")
    debug.plot("selection", folder / "heldout.txt", output=DOCS / "selection.svg")


def latency(folder: pathlib.Path) -> None:
    """A decode step at DeepSeek-V3.2's sizes on this machine, over the context."""
    command = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"
    (folder / "bench.json").write_bytes(subprocess.check_output([command, "bench", "contexts", "--json"]))
    debug.plot("latency", folder / "bench.json", output=DOCS / "latency.svg")


def tutorial(folder: pathlib.Path) -> None:
    """The errors behind the planted bug: the commands of the page, then its picture."""
    for name in ("models", "examples"):
        (folder / name).symlink_to(ROOT / name)
    path = f"PATH={pathlib.Path(sys.executable).parent}:$PATH; "
    for command in re.findall(r"^\$ (.*)$", (DOCS / "tutorial.md").read_text(), re.MULTILINE):
        if "report" not in command:
            subprocess.run(["bash", "-c", path + command], cwd=folder, stdout=subprocess.DEVNULL)
    (right,), (wrong,) = ((folder / f"{name}.calls").glob("000007-*") for name in ("right", "wrong"))
    call = debug.Case.load(right)
    debug.plot("ulp", call, ref=wrong, output=DOCS / "tutorial.svg")


for make in (selection, latency, tutorial):
    if make.__name__ in sys.argv[1:] or len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as scratch:
            make(pathlib.Path(scratch))
        print(DOCS / f"{make.__name__}.svg")
