# SPDX-License-Identifier: Apache-2.0
"""dsakit run on mixtures of experts: bits do not depend on what memory holds, reports tell what was read."""

import json
import pathlib
import sys

import pytest
from test_command import TINY, dsakit_command

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))
import make_checkpoints as made

TEXT = (TINY / "heldout.txt").read_bytes()[:200]
EXPERT = 3 * 160 * 48  # bytes in a file, of 8 in each of two layers, 3 for a token
ROOM = "200 KB"  # for about six of them, padded


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made.make("v32", "mtp").write(tmp_path_factory.mktemp("experts"))


def run(folder, *args):
    report = dsakit_command(
        "run", folder, "--mode", "sparse_bf16", "--text", "-", "--context", 60, "--json", *args, stdin=TEXT
    )
    return json.loads(report)


def test_scores(folder):
    whole = run(folder)
    bits = whole["modes"]["sparse_bf16"]["bits_per_token"]
    assert whole["experts"]["all"] == 16 and whole["experts"]["read"] == 0
    few = run(folder, "--expert-memory", ROOM, "--pass", 50)
    assert few["modes"]["sparse_bf16"]["bits_per_token"] == bits
    assert run(folder, "--weights", "bf16")["modes"]["sparse_bf16"]["bits_per_token"] == bits
    assert 4 <= few["experts"]["held"] < 16 < few["experts"]["read"] and few["experts"]["bytes_read"] > 16 * EXPERT
    int8 = run(folder, "--mlp", "int8")["modes"]["sparse_bf16"]["bits_per_token"]
    assert 0 < abs(int8 - bits) < 0.05 * bits


def test_steps_of_generation(folder):
    args = ("--generate", 6, "--expert-memory", "5 KB")
    message = dsakit_command("run", folder, *args, "--text", "-", stdin=TEXT, status=4)
    assert "expert" in message
    report = run(folder, "--generate", 6, "--expert-memory", ROOM)["modes"]["sparse_bf16"]
    steps = report["steps"]
    assert len(steps) == len(report["tokens"]) == 6 and report["decode_steps"] == 5
    assert report["prefill_seconds"] == steps[0]["seconds"]
    assert all(step["experts_asked"] == 6 for step in steps[1:])  # 3 in each of two layers
    assert all(step["experts_read"] <= 6 and step["bytes_read"] >= step["experts_read"] * EXPERT for step in steps[1:])
    assert report["tokens"] == run(folder, "--generate", 6)["modes"]["sparse_bf16"]["tokens"]


def test_notes_and_refusals(folder):
    for option, value in (("--mlp", "fp4"), ("--weights", "int4"), ("--static", "yes")):
        assert value in dsakit_command("run", folder, option, value, "--text", "-", stdin=TEXT, status=2)
    assert "--pass" in dsakit_command("run", folder, "--pass", 0, status=2)
    assert "--expert-memory: is 'lots'" in dsakit_command("run", folder, "--expert-memory", "lots", status=2)
