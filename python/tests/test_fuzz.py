# SPDX-License-Identifier: Apache-2.0
"""Damaged files and calls: fuzz.py, each target in a process of its own, since what is looked for would end it. The same few
examples each time; DSAKIT_FUZZ_SECONDS=3600 draws others for an hour a target."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import dsakit

pytest.importorskip("hypothesis")

HERE = pathlib.Path(__file__).parent
SECONDS = float(os.environ.get("DSAKIT_FUZZ_SECONDS", "0"))
EXAMPLES = dict(header=1000, checkpoint=100, case=200, inspect=40, arguments=60, call=500, capsules=300)


@pytest.mark.parametrize("target", EXAMPLES)
def test_fuzz(target, tmp_path):
    if not (HERE.parents[1] / "tests" / "corpus").is_dir():
        pytest.skip("the seeds are in the sources")
    words = [target, tmp_path, "--seconds", SECONDS, "--examples", EXAMPLES[target]]
    words += ["--seed", int.from_bytes(os.urandom(4), "big")] if SECONDS else []
    done = subprocess.run(
        [sys.executable, HERE / "fuzz.py", *map(str, words)], capture_output=True, timeout=SECONDS + 1800
    )  # the timeout is against hangs
    text = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, f"exit {done.returncode}, input in {tmp_path}\n{text[-6000:]}"
    print(text)
    assert int(re.search(r"(\d+) examples", text)[1]) >= EXAMPLES[target] * 0.9


def test_a_selection_longer_than_any_text(model_folder, tmp_path):
    config = json.loads((model_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | dict(index_topk=2**31 - 1)))
    (tmp_path / "model.safetensors").symlink_to(model_folder / "model.safetensors")
    try:
        dsakit.Model(tmp_path).logits([1, 2, 3])
    except dsakit.Error as error:
        assert ", wanted " in str(error)
