# SPDX-License-Identifier: Apache-2.0
"""dsakit golden and dsakit.debug.golden."""

import json
import pathlib
import subprocess

import pytest

import dsakit
from dsakit import debug

COMMAND = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"


def command(*args, status=0):
    done = subprocess.run([COMMAND, *map(str, args)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def test_the_command_and_python_make_the_same_case(tmp_path):
    settings = {
        "layout_key": "PA_BSND",
        "data": "V11",
        "seed": 4,
        "actual_seq_lengths_key": [40, 23],
        "return_value": True,
    }
    debug.golden("lightning_indexer", **settings).save(tmp_path / "python")
    words = ["layout_key=PA_BSND", "data=V11", "seed=4", "actual_seq_lengths_key=40+23", "return_value=true"]
    file = tmp_path / "command.safetensors"
    assert command("golden", "lightning_indexer", *(a for w in words for a in ("--set", w)), "-o", file) == f"{file}\n"
    assert file.read_bytes() == (tmp_path / "python").read_bytes()
    case = debug.Case.load(file)
    assert json.loads(case.metadata["recipe"]) == "dsakit golden lightning_indexer --set " + " --set ".join(words)
    assert list(case["in.actual_seq_lengths_key"]) == [40, 23]
    assert command("replay", file).startswith("agrees")


def test_values_in_a_row_are_files(tmp_path):
    files = command("golden", "rms_norm", "--set", "T=1,8", "--set", "data=V1,V3", "-o", tmp_path / "all").split()
    assert [pathlib.Path(f).name for f in files] == [f"00000{i}-rms_norm.safetensors" for i in (1, 2, 3, 4)]
    assert [debug.Case.load(f)["in.self"].shape[0] for f in files] == [1, 1, 8, 8]
    assert debug.Case.load(files[2]).where == {"sequence": 3}


def test_what_is_unknown_is_refused(tmp_path):
    with pytest.raises(dsakit.Error, match="golden: rwo is unknown to rms_norm.*nearest: row"):
        debug.golden("rms_norm", rwo=8)
    error = command("golden", "rms_norm", "--set", "T", "-o", tmp_path / "a", status=2)
    assert error == "golden: --set is 'T', wanted NAME=VALUE\n"
    error = command("golden", "rms_norm", "--set", "epsilon=-1", "-o", tmp_path / "a", status=2)
    assert error.startswith("rms_norm: epsilon is -1") and not (tmp_path / "a").exists()
