# SPDX-License-Identifier: Apache-2.0
"""M03: nothing beside a tensor is read or written, and the bits are those of ordinary memory: every tensor of a call, results
too, ends, then begins, where an unmapped page begins or ends. Each in a process of its own, since a fault would end it; the
operator and the tensor are named. DSAKIT_GUARD_ALL=1 takes all widths and all tests on every instruction set, not a few."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import dsakit
from dsakit import _core

HERE = pathlib.Path(__file__).parent
ISAS = dsakit.info()["isas"]
ALL = os.environ.get("DSAKIT_GUARD_ALL") == "1"
# Around the lengths of vectors and tiles.
EDGES = [1, 2, 7, 15, 16, 17, 31, 33, 64, 65, 129, 257]


def guarded(folder, *command, **environment):
    """What was counted; a fault becomes the name of what was read or written beside."""
    last = folder / "last"
    last.touch()
    environment = os.environ | {"DSAKIT_GUARD_LAST": str(last), "PYTHONPATH": str(HERE)} | environment

    def run(**more):
        return subprocess.run(
            [sys.executable, *command], env=environment | more, cwd=HERE, capture_output=True, text=True
        )

    done = run()
    if done.returncode < 0:
        operator, end, tensors = last.read_text().strip().split("|")
        found = [t for t in tensors.split(",") if run(DSAKIT_GUARD_ONLY=t).returncode < 0]
        what = f"{operator}: beyond the {end} of {' or '.join(found) or tensors}"
        pytest.fail(f"{what}: {signal.Signals(-done.returncode).name}\n{done.stderr[-2000:]}", pytrace=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    counted = json.loads(done.stdout.splitlines()[-1])
    print(sum(counted["calls"].values()), "calls,", counted["tensors"], "tensors")
    return counted["calls"]


READS_ON = """
import ctypes, guarded
from dsakit import _core
real = _core.rms_norm
def reads_on(values, spelling):
    ctypes.string_at(values[1].ctypes.data + values[1].nbytes, 1)
    return real(values, spelling)
_core.rms_norm = reads_on
with guarded.guard:
    guarded.dsakit.rms_norm(**guarded.CALLS["rms norm"].make())
"""


def test_a_fault_is_named(tmp_path):
    with pytest.raises(pytest.fail.Exception, match="^rms_norm: beyond the end of gamma: SIGSEGV"):
        guarded(tmp_path, "-c", READS_ON)


every_isa = pytest.mark.parametrize("isa", ISAS)


@every_isa
def test_every_operator(isa, tmp_path):
    calls = guarded(tmp_path, "guarded.py", "small", DSAKIT_ISA=isa)
    assert set(calls) == set(_core.describe())


@every_isa
def test_every_width(isa, tmp_path):
    """From 1 to 257."""
    some = {*EDGES, *range(35 + 7 * ISAS.index(isa), 257, 53)}
    calls = guarded(tmp_path, "guarded.py", "widths", *map(str, range(1, 258) if ALL else sorted(some)), DSAKIT_ISA=isa)
    assert set(calls) == set(_core.describe())


@every_isa
def test_every_mode(isa, tmp_path):
    """The calls of the operators' own tests."""
    part = "0/1" if ALL else f"{ISAS.index(isa)}/24"
    files = sorted(HERE.glob("test_operators_*.py"))
    words = [
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "guarded",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:warnings",
        "-s",
        "--no-references",
    ]
    calls = guarded(tmp_path, *words, *map(str, files), DSAKIT_ISA=isa, DSAKIT_GUARD_PART=part)
    assert len(calls) >= 20
