# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md: its commands run as they stand, and print what it says."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()


def commands():
    """(command, printed lines) of the page's blocks, in order."""
    found = []
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def stable(line):
    """Without what depends on the machine: the instruction set, times, and the digits of figures."""
    line = re.sub(r"\b\d+(\.\d+)?(e[-+]\d+)?\b", "#", line)
    return " ".join(re.sub(r"# threads?, \w+$", "# threads", line).split())


def test_the_page_does_what_it_says(tmp_path):
    pytest.importorskip("safetensors")
    for name in ("models", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = os.environ | {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    bits, used = [], 0
    for command, expected in commands():
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode in (0, 1) and done.stderr == "", command + done.stderr
        used += command.startswith(("dsakit ", "DSAKIT_CAPTURE")) and "convert" not in command
        printed = [stable(line) for line in done.stdout.splitlines()]
        at = 0
        for line in expected:  # in this order; ".." is anything
            if line == "..":
                continue
            assert stable(line) in printed[at:], (command, line, done.stdout)
            at = printed.index(stable(line), at) + 1
        if expected and expected[0] != "..":
            assert printed[0] == stable(expected[0])
        if " run " in command:
            bits.append(float(re.search(r"^sparse_w8a8 +([\d.]+)", done.stdout, re.MULTILINE)[1]))
        if "diff" in command:
            assert done.stdout.splitlines()[0] == expected[0]  # with its numbers
            assert done.stdout.count("equal    equal") >= 6
        if "explain" in command:
            assert done.stdout.splitlines()[0] == expected[0]
            assert re.search(r"one row late \(L10\)  [\d.]+ -> 0 roundings  named", done.stdout)
    assert used == 5
    assert 1.0005 < bits[1] / bits[0] < 1.02  # worse, and not much
    report = (tmp_path / "bug.html").read_text()
    assert "dequant_scale is one row late (L10)" in report and "beside group ref" in report
    shutil.rmtree(tmp_path / "right.calls"), shutil.rmtree(tmp_path / "wrong.calls")


def test_its_picture_is_there():
    for picture in re.findall(r"!\[[^]]{40,}\]\(([\w.]+)\)", PAGE):
        assert "<desc>" in (ROOT / "docs" / picture).read_text()
    assert PAGE.count("![") == 1
