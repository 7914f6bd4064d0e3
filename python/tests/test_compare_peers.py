# SPDX-License-Identifier: Apache-2.0
"""What scripts/compare_peers.py reports, with sizes at which no time means anything: only its structure is looked at."""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

import dsakit

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
PACKAGE = pathlib.Path(dsakit.__file__).parents[1]
OPERATORS = {
    "mla_prolog_quant",
    "mla_prolog_v3",
    "lightning_indexer_prolog_quant",
    "quant_lightning_indexer",
    "sparse_flash_attention",
    "kv_quant_sparse_flash_attention",
    "fused_infer_attention_score_v2",
    "quant_matmul",
    "dynamic_quant",
    "rms_norm",
    "swiglu",
    "interleave_rope",
}


def script(*arguments, path=()):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*path, PACKAGE]))}
    call = [sys.executable, SCRIPTS / "compare_peers.py", *map(str, arguments)]
    done = subprocess.run(call, capture_output=True, text=True, env=environment, timeout=600)  # against hangs
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def module():
    """The script as a module: for what needs no measuring."""
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("compare_peers")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The file, what was printed, what is in the file."""
    file = tmp_path_factory.mktemp("peers") / "figures.json"
    printed = script("--tiny", "--threads", 1, "--json", file)
    return file, printed, json.loads(file.read_text())


def test_every_row_has_figures_or_names_what_is_absent(measured):
    _, printed, report = measured
    assert {row["operator"] for row in report["rows"]} == OPERATORS
    for row in report["rows"]:
        assert row["seconds"] > 0 and row["floor_seconds"] > 0 and row["threads"] == 1 and row["peers"]
        assert row["share_of_floor"] == row["floor_seconds"] / row["seconds"]
        for name, peer in row["peers"].items():
            assert peer["absent"] if "absent" in peer else peer["seconds"] > 0, (row["operator"], name)
        line = next(
            line for line in printed.splitlines() if line.startswith(row["operator"] + " ") and row["size"] in line
        )
        assert line.rstrip().endswith(" x") or "absent: " in line


def test_peers_compute_the_same(measured):
    """Where a peer does all of the work, its result is ours up to the roundings of bf16."""
    compared = set()
    for row in measured[2]["rows"]:
        for name, peer in row["peers"].items():
            if "difference" in peer:
                compared.add(row["operator"])
                assert peer["difference"] < (0.13 if row["operator"] == "quant_lightning_indexer" else 0.01), (
                    row,
                    name,
                )
    assert compared == OPERATORS - {
        "mla_prolog_quant",
        "mla_prolog_v3",
        "lightning_indexer_prolog_quant",
        "quant_matmul",
    }


def test_report_says_where_it_was_measured(measured):
    _, printed, report = measured
    machine = report["machine"]
    assert machine["cpu"] and machine["threads"] == [1] and machine["isa"] == dsakit.info()["isa"]
    assert machine["torch"] and machine["transformers"] and machine["load_begin"] >= 0 and machine["load_end"] >= 0
    for part in (machine["cpu"], machine["isa"], f"load average {machine['load_begin']} at the beginning"):
        assert part in printed
    assert ("warning: " in printed) == bool(machine["warning"])
    assert report["limits"]["1"]["rungs"].keys() == set(dsakit.info()["isas"])


def test_tables_are_made_of_the_figures(measured, module, capsys):
    file, printed, report = measured
    module.main(["--from", str(file)])
    assert capsys.readouterr().out == printed
    for table in ("peers", "summary"):
        module.main(["--from", str(file), "--markdown", table])
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1 and set(lines[1]) == set("|- ")
        assert {line.split("`")[1] for line in lines[2:] if "`" in line} == OPERATORS
        if table == "peers":
            assert len(lines) == 2 + len(report["rows"])
    module.main(["--from", str(file), "--markdown", "machine"])
    assert capsys.readouterr().out.startswith(report["machine"]["cpu"])


def test_times_have_three_digits(module):
    wanted = {
        2.345e-6: "2.35 us",
        999.4e-6: "999 us",
        999.6e-6: "1.00 ms",
        0.04666: "46.7 ms",
        0.9999: "1.00 s",
        123.4: "123 s",
    }
    assert {seconds: module.duration(seconds) for seconds in wanted} == wanted
    assert [module.times(x) for x in (0.846, 1, 9.94, 9.96, 326.2)] == ["0.85 x", "1.0 x", "9.9 x", "10 x", "326 x"]


def test_without_torch_peers_are_absent_by_name(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('none here')\n")
    printed = script("rows", "quant_matmul", "layer", "--tiny", "--threads", 1, path=[tmp_path])
    assert "torch absent (none here)" in printed
    assert "absent: oneDNN packed: no torch: none here" in printed.splitlines()
    assert sum(line.startswith("quant_matmul ") and " us " in line for line in printed.splitlines()) == 2


def test_tables_of_pages_want_their_figures(measured, module, capsys):
    with pytest.raises(SystemExit, match="2"):
        module.main(["--from", str(measured[0]), "--markdown", "rungs"])
    assert "a run with --pages" in capsys.readouterr().err


def test_tables_are_renewed_of_the_own_machine_and_what_was_measured(measured, module):
    report = json.loads(measured[0].read_text())
    report["limits"] = {int(n): limit for n, limit in report["limits"].items()}
    place = "<!-- figures {} {} -->\nold\n<!-- end -->\n".format
    isa = report["machine"]["isa"]
    assert module.renewed(place("peers", "another"), report) == place("peers", "another")
    assert module.renewed(place("rungs", isa), report) == place("rungs", isa)
    page = module.renewed("before\n" + place("peers", isa) + "behind", report)
    assert page.startswith(f"before\n<!-- figures peers {isa} -->\n| operator") and page.endswith("|\n<!-- end -->\nbehind")


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["frob"], "NAME is frob"),
        (["--threads", "0"], "--threads is 0"),
        (["rows", "--pages"], "--pages wants everything"),
    ],
    ids=str,
)
def test_what_it_refuses(module, arguments, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        module.main(arguments)
    assert says in capsys.readouterr().err


def test_pages_have_a_place_for_every_table():
    pages = "".join((ROOT / page).read_text() for page in ("README.md", "docs/performance.md"))
    peers = dict(machine=1, peers=1, summary=1)
    places = dict(
        avx512=peers | dict(operators=1, rungs=1, transformers=2), amx=peers, avx512vnni=peers | dict(summary=0)
    )
    for isa, tables in places.items():
        for table, times in tables.items():
            assert pages.count(f"<!-- figures {table} {isa} -->\n") == times
    assert pages.count("<!-- figures ") == 12 == pages.count("<!-- end -->")
