# SPDX-License-Identifier: Apache-2.0
"""dsakit replay, check, diff and verbose."""

import json
import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dsakit
from dsakit import debug

COMMAND = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"


def command(*args, status=0):
    done = subprocess.run([COMMAND, *map(str, args)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    assert status > 0 or not done.stderr
    return done.stdout if status < 2 else done.stderr


def record(folder, between=1.0):
    """Three layers of a norm and a quantisation; `between` is done to a tensor between calls 3 and 4."""
    x = np.random.default_rng(3).standard_normal((64, 256)).astype(ml_dtypes.bfloat16)
    gamma = np.ones(256, ml_dtypes.bfloat16)
    with dsakit.capture(folder):
        for layer in range(3):
            dsakit.mark(step=0, layer=layer)
            y, _ = dsakit.rms_norm(x, gamma)
            if layer == 1:
                y = (y.astype(np.float32) * between).astype(ml_dtypes.bfloat16)
            codes, scale = dsakit.npu_dynamic_quant(y)
            x = (codes.astype(np.float32) * scale[:, None]).astype(ml_dtypes.bfloat16)
    return sorted(folder.glob("0*.safetensors"))


def edit(path, change):
    case = debug.Case.load(path)
    change(case)
    case.save(path)


def off_by_one(case):
    """200 codes of the first row."""
    codes = case["out.y"]
    codes[0, :200] ^= 1
    case["out.y"] = codes


@pytest.fixture
def dump(tmp_path):
    record(tmp_path / "a")
    return tmp_path / "a"


def test_replay_says_equal_on_every_rung(dump):
    out = command("replay", dump, "--isa", "all", "--threads", "1,2")
    assert out.startswith("agrees: 6 of 6 cases\n")
    assert out.count("out.y equal (16384)") == 6 * 2 * len(dsakit.info()["isas"])
    report = json.loads(command("replay", dump, "--reference", "--strides", "--json"))
    assert report["schema"] == "dsakit.replay/1" and all(c["agrees"] for c in report["cases"])
    assert command("replay", dump, "--quiet") == "agrees: 6 of 6 cases\n"


def test_replay_finds_what_is_not_ours(dump):
    second = sorted(dump.glob("0*"))[1]
    edit(second, off_by_one)
    out = command("replay", second, status=1)
    assert out.startswith("operator: 0 of 1 case\n") and "out.y differs: 200 of 16384 elements differ" in out
    edit(second, lambda case: case.set_metadata("versions", "another library"))
    few = (np.arange(256) == 7) & (np.arange(64)[:, None] < 30)
    edit(second, lambda case: case.__setitem__("out.y", case.run().results["out.y"] ^ few))
    report = json.loads(command("replay", second, "--json", status=1))  # steps of one: codes of given rows are equal
    assert report["cases"][0]["runs"][0]["outputs"][1]["different"] == 30


def test_refused_calls_are_replayed(tmp_path):
    with dsakit.capture(tmp_path), pytest.raises(dsakit.Error):
        dsakit.rms_norm(np.ones((2, 4), np.float32), np.ones(3, np.float32))
    assert "refused as recorded: rms_norm: gamma" in command("replay", tmp_path)


def test_check_names_rule_figures_and_worst(dump):
    second = sorted(dump.glob("0*"))[1]
    edit(second, off_by_one)
    out = command("check", second, "--rule", "cann-sfa", "--against", "reference", status=1)
    assert out.startswith("undecided: 0 of 1 passes by cann-sfa\n")
    for part in ("out.scale (scale) passes", "out.y (y) departs: 200 of 16384", "worst beyond the rule: [0][", "rms"):
        assert part in out
    edit(second, lambda case: case.__setitem__("ref.y", case["out.y"]))
    assert command("check", second, "--rule", "cann-sfa").startswith("agrees")
    report = json.loads(command("check", second, "--against", "fast", "--json", status=1))
    assert report["cases"][0]["outputs"][1]["departing"] == 200


def test_diff_names_the_call_that_departs(dump):
    assert command("diff", dump).startswith("agrees: every result follows from its own inputs\n")
    edit(sorted(dump.glob("0*"))[3], off_by_one)
    out = command("diff", dump, status=1)
    assert out.startswith("operator: call 4, dynamic_quant does not follow from its own inputs\n")
    assert "first departing output: out.y" in out and out.count("inherited") == 2


def test_diff_finds_what_was_written_between_the_calls(dump, tmp_path):
    record(tmp_path / "b", between=1.5)
    out = command("diff", tmp_path / "b", dump, status=1)
    assert out.startswith("undecided: inputs of call 4, dynamic_quant, were written between the calls\n")
    assert command("diff", dump, dump).startswith("agrees: all outputs are equal\n")
    report = json.loads(command("diff", tmp_path / "b", dump, "--json", status=1))
    assert [c["note"] for c in report["calls"]][3:] == ["inputs written between the calls", "inherited", "inherited"]


def prologs(folder):
    """Layer 3 with int8 and with bf16 weights of the same values; token 5 has one channel far above the others."""
    a = debug.golden("mla_prolog_v3", He=128, Hcq=1536, weight_quant_mode=1)
    x, down = a["in.token_x"], a["in.weight_dq"]
    x[:, 0], down[:, 413], down[0, 413] = 0, 0, 4
    x[5, 0] = 64
    a["in.token_x"], a["in.weight_dq"] = x, down
    a["in.dequant_scale_w_uq_qr"] = np.full_like(a["in.dequant_scale_w_uq_qr"], 2.0**-10)
    b = a.copy()
    b.attributes["weight_quant_mode"] = 0
    del b["in.dequant_scale_w_uq_qr"]
    b["in.weight_uq_qr"] = (a["in.weight_uq_qr"].astype(np.float32) * 2.0**-10).astype(ml_dtypes.bfloat16)
    for name, case in (("w8a8", a), ("bf16", b)):
        with dsakit.capture(folder / name, taps="all"):
            dsakit.mark(step=0, layer=3)
            assert case.run().refusal is None
    return folder / "w8a8", folder / "bf16"


def test_diff_of_codes_and_floats_names_the_step_and_the_row(tmp_path):
    a, b = prologs(tmp_path)
    out = command("diff", a, b, status=1)
    assert out.startswith("quantisation: first jump at call ")
    assert out.splitlines()[0].endswith(", mla_prolog_v3, layer 3, step 3 query_norm")
    assert "equal" in out.splitlines()[2]  # inputs: codes are compared as what they are worth
    assert " row 5: SQNR " in out and " without channel 413; " in out and " x median" in out


def test_diff_names_the_step_that_departs(tmp_path):
    a, _ = prologs(tmp_path)
    (file,) = a.glob("0*")

    def rotate_wrongly(case):
        for key in ("tap.6.query_rope", "out.query_rope"):
            case[key] = -case[key]

    edit(file, rotate_wrongly)
    out = command("diff", a, status=1)
    assert out.splitlines()[0].endswith("does not follow from its own inputs, from step 6 query_rope on")
    assert "the recorded steps depart from step 6 query_rope on" in command("replay", file, status=1)


def test_verbose_lines_are_summed_up(tmp_path):
    program = """
import numpy as np, dsakit
for _ in range(3): dsakit.rms_norm(np.ones((2, 4), np.float32), np.ones(4, np.float32))
try: dsakit.swiglu(np.ones((2, 7), np.float32))
except dsakit.Error: pass
"""
    log = tmp_path / "log.csv"
    run = [sys.executable, "-c", program]
    subprocess.run(run, env=os.environ | {"DSAKIT_VERBOSE": str(log)}, check=True, timeout=120)
    out = command("verbose", log)
    assert out.startswith("4 calls, ") and "dsakit.rms_norm" in out and "1 refused" in out
    done = subprocess.run(
        run, env=os.environ | {"DSAKIT_VERBOSE": "1"}, check=True, timeout=120, capture_output=True, text=True
    )
    assert done.stdout == "" and done.stderr.count("dsakit,1,exec,") == 4
    out = command("replay", log, "--threads", "1,2")
    assert out.startswith("3 of 4 calls: ") and out.count(" us then") == 4 and out.count(" x 2") == 3
    line = next(text for text in log.read_text().splitlines() if text.startswith("dsakit,1,exec,"))
    report = json.loads(command("replay", line, "--json"))
    assert report["calls"][0]["operator"] == "rms_norm" and report["calls"][0]["runs"][0]["microseconds"] > 0
    (tmp_path / "other").write_text("nothing\n")
    assert "no line of a call" in command("verbose", tmp_path / "other", status=3)


def test_wrong_files_and_names(dump, tmp_path):
    assert "nearest: cann-sfa" in command("check", dump, "--rule", "cann-sffa", status=2)
    assert "ref is empty" in command("check", dump, "--against", "ref", status=3)
    assert "cannot be opened" in command("replay", tmp_path / "none", status=3)
    (tmp_path / "empty").mkdir()
    assert "holds no case" in command("replay", tmp_path / "empty", status=3)
    assert "DSAKIT_ISA is mmx" in command("replay", dump, "--isa", "mmx", status=2)
    for name in ("replay", "check", "diff", "verbose"):
        assert "Examples:" in command(name, "--help")
