# SPDX-License-Identifier: Apache-2.0
"""dsakit explain: its text, its JSON, its exit codes."""

import json
import pathlib
import subprocess

import numpy as np
import pytest

import dsakit
from dsakit import debug

COMMAND = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"


def explain(*args, status):
    done = subprocess.run([COMMAND, "explain", *map(str, args)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout or done.stderr


def selection(scale=None):
    """Two rows over 500 keys, the keys' scales in half precision; `scale`: those that the producer used."""
    random = np.random.default_rng(5)
    case = debug.Case("dsakit.quant_lightning_indexer", {"sparse_count": 32, "sparse_mode": 0})
    case["in.query"] = random.integers(-127, 128, (1, 2, 4, 32), np.int8)
    case["in.key"] = random.integers(-127, 128, (1, 500, 1, 32), np.int8)
    case["in.weights"] = random.uniform(0.1, 1, (1, 2, 4)).astype(np.float16)
    case["in.query_dequant_scale"] = random.uniform(0.01, 0.05, (1, 2, 4)).astype(np.float16)
    scales = random.uniform(0.01, 0.05, (1, 500, 1)).astype(np.float16)
    case["in.key_dequant_scale"] = scales if scale is None else scale(scales)
    selected = case.run(reference=True).results["out.sparse_indices"]
    case["in.key_dequant_scale"] = scales
    case["out.sparse_indices"] = selected
    return case


@pytest.fixture
def inverse(tmp_path):
    path = tmp_path / "inverse.safetensors"
    selection(lambda s: (1 / s.astype(np.float64)).astype(np.float16)).save(path)
    return path


def test_the_mistake_is_the_first_line(inverse):
    lines = explain(inverse, status=1).splitlines()
    assert lines[0] == "quantisation: agrees if key_dequant_scale is used as its inverse (Q1); side: producer"
    assert lines[2].split() == ["keys", "a", "row", "common", "tie", "near", "wrong"]
    assert lines[4].split()[-5:] == ["32", "0", "0", "0", "named"]
    assert all(len(line) <= 100 for line in lines)
    assert explain(inverse, status=1).splitlines() == lines
    assert explain(inverse, "--quiet", status=1).splitlines() == lines[:1]


def test_json_has_the_same_in_fields(inverse):
    report = json.loads(explain(inverse, "--json", status=1))
    assert report["schema"] == "dsakit.explain/1"
    assert (report["verdict"], report["side"], report["target"]) == ("quantisation", "producer", "out")
    (finding,) = report["findings"]
    assert (finding["id"], finding["change"]) == ("Q1", "key_dequant_scale is used as its inverse")
    assert finding["outputs"] == ["out.sparse_indices"] and finding["after"] == 0 < finding["before"]
    assert report["rows"] == [0, 1] and report["untried"] == [] and report["tried"] > 10
    assert report["selection"]["visible"] == 500 and report["selection"]["selected"] == 32


def test_other_verdicts_and_exits(tmp_path, inverse):
    right = tmp_path / "right.safetensors"
    selection().save(right)
    assert explain(right, status=0).startswith(
        "agrees: quant_lightning_indexer, left over 0 keys a row; side: consistent\n"
    )
    assert "no change tried" in explain(right, status=0)
    assert " changes tried" in explain(right, "--try", "all", status=0)
    assert explain(inverse, "--try", "L", status=1).startswith("operator: no single change explains")
    assert "untried for want of --tries" in explain(inverse, "--tries", "2", status=1)
    assert "rows 1;" in explain(inverse, "--row", "1", status=1)
    assert len(json.loads(explain(right, inverse, "--json", status=1))) == 2
    assert "--try" in explain(right, "--try", "X", status=2)
    assert explain(__file__, status=3)
