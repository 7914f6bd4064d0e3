# SPDX-License-Identifier: Apache-2.0
"""dsakit explain: its text, its JSON, its exit codes."""

import json
import pathlib
import re
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


def codes(random, *shape):
    """int8 rows that reach 127 somewhere, as quantised ones do."""
    rows = random.integers(-127, 128, shape, np.int8).reshape(-1, shape[-1])
    rows[np.arange(len(rows)), random.integers(0, shape[-1], len(rows))] = 127
    return rows.reshape(shape)


def selection(scale=None):
    """Two rows over 500 keys, the keys' scales in half precision; `scale`: those that the producer used."""
    random = np.random.default_rng(5)
    case = debug.Case("dsakit.quant_lightning_indexer", {"sparse_count": 32, "sparse_mode": 0})
    case["in.query"], case["in.key"] = codes(random, 1, 2, 4, 32), codes(random, 1, 500, 1, 32)
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
    assert lines[2].split() == "2 rows x 4 heads, 500 keys, K 32; inputs clean common tie near wrong".split()
    assert lines[4].split()[-9:] == "32 0 0 0 named, 2 of 2 rows".split()
    assert all(len(line) <= 100 for line in lines)
    assert explain(inverse, status=1).splitlines() == lines
    assert explain(inverse, "--quiet", status=1).splitlines() == lines[:1]


def paged_selection():
    """Four rows over 16 pages; the producer read the keys' scales by position."""
    random = np.random.default_rng(8)
    layouts = {"layout_query": "BSND", "layout_key": "PA_BSND"}
    case = debug.Case("dsakit.quant_lightning_indexer", layouts | {"sparse_count": 32})
    case["in.query"], case["in.key"] = codes(random, 1, 4, 8, 32), codes(random, 16, 16, 1, 32)
    case["in.weights"] = random.uniform(0.1, 1, (1, 4, 8)).astype(np.float16)
    case["in.query_dequant_scale"] = random.uniform(0.01, 0.05, (1, 4, 8)).astype(np.float16)
    case["in.actual_seq_lengths_key"] = np.array([256], np.int32)
    table = random.permutation(16).astype(np.int32)
    case["in.block_table"] = table[None]
    scales = random.uniform(0.01, 0.05, (16, 16, 1)).astype(np.float16)
    by_position = np.empty_like(scales)
    by_position[table] = scales
    case["in.key_dequant_scale"] = by_position
    selected = case.run(reference=True).results["out.sparse_indices"]
    case["in.key_dequant_scale"] = scales
    case["out.sparse_indices"] = selected
    return case


def attention():
    """Lists of 64 of 256 keys; the results are right."""
    random = np.random.default_rng(9)
    case = debug.Case("dsakit.sparse_flash_attention", {"scale_value": 0.2, "sparse_mode": 3, "attention_mode": 2})
    case["in.query"] = random.uniform(-1, 1, (1, 4, 8, 32)).astype(np.float16)
    case["in.query_rope"] = random.uniform(-1, 1, (1, 4, 8, 16)).astype(np.float16)
    case["in.key"] = case["in.value"] = random.uniform(-1, 1, (1, 256, 1, 32)).astype(np.float16)
    case["in.key_rope"] = random.uniform(-1, 1, (1, 256, 1, 16)).astype(np.float16)
    lists = [random.permutation(253)[:64] for _ in range(4)]
    case["in.sparse_indices"] = np.stack(lists)[None, :, None].astype(np.int32)
    for name, result in case.run(reference=True).results.items():
        case[name] = result
    return case


GOLDEN_SELECTION = """\
layout: agrees if key_dequant_scale is read by position, not by block_table (L10); side: producer
  out.sparse_indices: as called, left over 35 keys a row
  4 rows x 8 heads, 253 keys, K 32; inputs clean  common    tie   near   wrong
    as called                                       16.5   0.75   0.25      30
    key_dequant_scale is read by position, no..       32      0      0       0  named, 4 of 4 rows
  row 0: cut 25.793, next 145.842, 1 within 0.1 %, 2 within 1 %, zero plateau 2; 1 of 1 ties kept;
      first 4 positions 6.2 %, last 64 25.0 % of the list
  keys within 2^-10, 2^-8, 2^-6, 2^-4, 2^-2, 2^0 of the cut, and beyond: 1, 0, 2, 7, 37, 118, 88
    moved keys:   position    page  rank recorded  computed       score
                       130       2              -         0     145.842
                        45       4              -         1      138.18
                        81       9              -         2     127.823
                       134       2              -         3     124.974
                       241       6              -         6     122.946
                        68       0              -         8     114.058
                       218      12              -        10     111.224
                       133       2              -        11     106.712
                       143       2              -        12     105.742
                        62      11              -        13     105.437
  query: 4 % saturated, 0.59 % zeros; by 16 codes: 57 61 70 60 73 61 59 67 51 66 48 66 58 73 65 89
  key: 4.1 % saturated, 0.39 % zeros; by 16 codes: 497 508 518 496 505 480 516 525 514 491 461 485
      496 511 457 732
  rows 0, 1, 2, 3; 39 changes tried; blind: block_table lies transposed (L7); block_table of the
      next sequence is read (L7); query_dequant_scale is of 128 steps, not 127 (Q1);
      query_dequant_scale is of 127 steps, not 128 (Q1); and 5 more
"""
GOLDEN_ATTENTION = """\
agrees: sparse_flash_attention, left over 1 roundings; side: consistent
  mass of the list 25.8 % (best list of 64: 30.2 %, best per head 41.5 %); first 4 positions 1.4 %,
      last 64 25.6 %
  worst heads 6: 23.3 % (effective context 227), 4: 24.0 % (effective context 230), 0: 25.2 %
      (effective context 227); median effective context 230 of 253
  rows 0, 1, 2, 3; no change tried
"""


@pytest.mark.parametrize(
    "case, status, golden", [(paged_selection, 1, GOLDEN_SELECTION), (attention, 0, GOLDEN_ATTENTION)]
)
def test_the_whole_text(tmp_path, case, status, golden):
    path = tmp_path / "case.safetensors"
    case().save(path)
    text = explain(path, status=status)
    # What is left over of rounded results is another number on another machine.
    assert re.sub(r"left over \S+ roundings", "left over 1 roundings", text) == golden


def test_json_has_the_same_in_fields(inverse):
    report = json.loads(explain(inverse, "--json", status=1))
    assert report["schema"] == "dsakit.explain/1"
    assert (report["verdict"], report["side"], report["target"]) == ("quantisation", "producer", "out")
    (finding,) = report["findings"]
    assert (finding["id"], finding["change"]) == ("Q1", "key_dequant_scale is used as its inverse")
    assert finding["outputs"] == ["out.sparse_indices"] and finding["after"] == 0 < finding["before"]
    assert report["rows"] == [0, 1] and report["untried"] == [] and report["tried"] > 10
    assert report["selection"]["visible"] == 500 and report["selection"]["selected"] == 32
    assert sum(report["selection"]["margins"]) == 500 and len(report["selection"]["moved"]) == 10
    assert [codes["name"] for codes in report["codes"]] == ["query", "key"]
    assert sum(report["codes"][0]["histogram"]) == 2 * 4 * 32


def test_what_codes_lose(tmp_path):
    case, path = selection(), tmp_path / "case.safetensors"
    case["float.query"] = -case["in.query"].astype(np.float32)  # of another call altogether
    case["ref.sparse_indices"] = np.sort(selection(lambda s: s[:, ::-1])["out.sparse_indices"])[..., ::-1].copy()
    case.save(path)
    assert explain(path, status=1).startswith("quantisation: recall ")
    report = json.loads(explain(path, "--json", status=1))
    assert report["side"] == "call" and report["loss"].startswith("recall ")
    assert explain(path, "--limits=-1000,1000,0", status=1).startswith("operator: no single change explains")
    assert "--limits" in explain(path, "--limits", "much", status=2)


def test_other_verdicts_and_exits(tmp_path, inverse):
    right = tmp_path / "right.safetensors"
    selection().save(right)
    assert explain(right, status=0).startswith(
        "agrees: quant_lightning_indexer, left over 0 keys a row; side: consistent\n"
    )
    assert "no change tried" in explain(right, status=0)
    assert " changes tried" in explain(right, "--try", "all", status=0)
    assert explain(inverse, "--try", "L", status=1).startswith("operator: no single change explains")
    assert "  untried: " in explain(inverse, "--tries", "2", status=1)
    assert "rows 1;" in explain(inverse, "--row", "1", status=1)
    path = tmp_path / "attention.safetensors"
    attention().save(path)
    report = json.loads(explain(path, "--json", status=0))["attention"]
    assert report["visible"] == 253 and report["listed"] == 64 and 0 < report["mass"] <= report["best"] < 1
    assert len(json.loads(explain(right, inverse, "--json", status=1))) == 2
    assert "--try" in explain(right, "--try", "X", status=2)
    assert explain(__file__, status=3)
