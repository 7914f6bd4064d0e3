# SPDX-License-Identifier: Apache-2.0
"""M02: the n-th request for memory of a call is refused, alone or with all after it: MemoryError with a sentence, nothing
written, nothing lost, and the next call has its bits. Of every operator, by arrays and as torch_npu has them."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from oracle.calls import CALLS
from oracle.refusals import FIELDS
from preloaded import compiled

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("memory"), "memory_refused")


def refused(memory, face, *names):
    done = subprocess.run(
        [sys.executable, "refused_memory.py", memory, face, *names],
        env=os.environ | {"LD_PRELOAD": str(memory)},
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    if said["wrong"]:
        pytest.fail("\n".join(said["wrong"]), pytrace=False)
    print(sum(said["refused"].values()), "refused")
    return said["refused"]


@pytest.mark.parametrize("part", range(4))
def test_arrays(memory, part):
    assert {CALLS[name].operator for name in CALLS} == set(FIELDS)
    names = list(CALLS)[part::4]
    counts = refused(memory, "numpy", *names)
    assert all(counts[name] >= 8 for name in names)


def test_as_torch_npu(memory):
    pytest.importorskip("torch", minversion="2.13")
    names = ["li", "v3", "kvsfa", "fia pages", "rotary", "kv cache v2", "scatter", "quant matmul"]
    assert all(count >= 8 for count in refused(memory, "torch_npu", *names).values())
