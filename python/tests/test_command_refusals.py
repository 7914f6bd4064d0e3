# SPDX-License-Identifier: Apache-2.0
"""What the dsakit command says about what it cannot do: one line, and the exit code of its kind."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import dsakit

COMMAND = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"
TINY = pathlib.Path(dsakit.__file__).parent / "models" / "tiny-dsa"


def refused(code, *args, says=(), stdin=b"", longest=600, **environment):
    done = subprocess.run(
        [COMMAND, *map(str, args)], input=stdin, capture_output=True, timeout=1800, env=os.environ | environment
    )  # the timeout is against hangs
    error = done.stderr.decode()
    assert done.returncode == code, (done.returncode, error)
    assert error.count("\n") == 1 and error.endswith("\n") and len(error) < longest, error
    for part in (says,) if isinstance(says, str) else says:
        assert part in error, error
    return error


@pytest.fixture
def folder(tmp_path):
    """The small model, its weights by link: change(config), or replace a file."""
    for name in ("config.json", "heldout.txt"):
        shutil.copy(TINY / name, tmp_path / name)
    os.link(TINY / "model.safetensors", tmp_path / "model.safetensors") if _same_disk(tmp_path) else shutil.copy(
        TINY / "model.safetensors", tmp_path / "model.safetensors"
    )
    return tmp_path


def _same_disk(path):
    return os.stat(path).st_dev == os.stat(TINY).st_dev


@pytest.mark.parametrize(
    "arguments,says",
    [
        ([], "subcommand"),
        (["nonsense"], ("subcommand is 'nonsense'", "nearest: ")),
        (
            ["frob"],
            ("subcommand is 'frob'", "run, plan, convert, layer, demo, bench, dist-bench, inspect, info, describe"),
        ),
        (["rnu"], "nearest: run"),
        (["inspct", "x"], "nearest: inspect"),
        (["x" * 1000], "nearest: "),
        (["run", "a", "b"], "b"),
        (["run", "--nonsense"], "--nonsense"),
        (["run", ""], "MODEL"),
        (["run", TINY, "--context", "0"], ("--context", "'0'", "1..")),
        (["run", TINY, "--context", "-5"], "--context"),
        (["run", TINY, "--context", "1.5"], "'1.5'"),
        (["run", TINY, "--context", "99999999999999999999"], "--context"),
        (["run", TINY, "--context"], "--context"),
        (["run", TINY, "--generate", "0"], "--generate"),
        (["run", TINY, "--generate", "4", "--temperature", "-1"], "--temperature"),
        (["run", TINY, "--generate", "4", "--temperature", "nan"], "--temperature"),
        (["run", TINY, "--mode", "dense"], ("mode is dense", "sparse_w8a8")),
        (["run", TINY, "--text", "-"], ("text has 0 bytes", "at least 2")),
        (["run", TINY, "--text", os.devnull + "x", "--mode", "no"], ()),
        (["inspect"], "FILE"),
        (["bench", "no_such_operator"], "no_such_operator"),
        (["bench", "lightning_idexer"], ("lightning_idexer", "nearest: lightning_indexer")),
        (["bench", "limits", "rms_norm"], ("OPERATOR is limits", "limits alone")),
        (["bench", "--threads", "0"], "--threads"),
        (["bench", "--threads", "100000000"], "--threads"),
    ],
    ids=str,
)
def test_arguments(arguments, says):
    refused(3 if os.devnull + "x" in arguments else 2, *arguments, says=says)


def test_texts(tmp_path):
    fifo, one = tmp_path / "fifo", tmp_path / "one"
    os.mkfifo(fifo)
    one.write_bytes(b"a")
    refused(3, "run", TINY, "--text", fifo, says="wanted a regular file")
    refused(3, "run", TINY, "--text", tmp_path)
    refused(3, "run", TINY, "--text", "/dev/zero", says="wanted a regular file")
    refused(3, "run", TINY, "--text", tmp_path / "missing", says="No such file")
    refused(2, "run", TINY, "--text", one, says=("text has 1 bytes", "at least 2"))
    refused(2, "run", TINY, "--text", "-", stdin=b"a", says="text has 1 bytes")


def test_folders(tmp_path, folder):
    refused(3, "run", tmp_path / "missing", says=("config.json", "No such file"))
    refused(3, "run", TINY / "config.json", says="config.json")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    refused(3, "run", folder, says="model.safetensors")
    for cut, reason in ((0, "TOO_SHORT"), (7, "TOO_SHORT"), (100, "HEADER_LENGTH"), (len(weights) - 1, "")):
        (folder / "model.safetensors").write_bytes(weights[:cut])
        error = refused(3, "run", folder, says=f"[{reason}]" if reason else "[")
        assert "model.safetensors" in error
    (folder / "model.safetensors").write_bytes(weights + b"\0")
    refused(3, "run", folder, says="[")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    refused(3, "run", folder)


CONFIGS = [
    ({"hidden_size": 1e308}, 3, "hidden_size"),
    ({"hidden_size": -1}, 3, "hidden_size"),
    ({"hidden_size": 0}, 3, "hidden_size"),
    ({"hidden_size": "128"}, 3, "hidden_size"),
    ({"hidden_size": 2**31}, 3, "hidden_size"),
    ({"hidden_size": True}, 3, "hidden_size"),
    ({"hidden_size": 96}, {2, 3}, ""),
    ({"num_hidden_layers": 5}, {2, 3}, ""),
    ({"num_hidden_layers": 2**31 - 1}, {2, 3, 4}, ""),
    ({"vocab_size": 2**31 - 1}, {2, 3, 4}, ""),
    ({"intermediate_size": 2**31 - 1}, {2, 3, 4}, ""),
    ({"rms_norm_eps": 0}, 3, "rms_norm_eps"),
    ({"rms_norm_eps": 1}, 3, "rms_norm_eps"),
    ({"index_topk": 0}, 3, "index_topk"),
    ({"quantization_config": {"quant_method": "magic"}}, {2, 3}, "magic"),
    ({"model_type": "llama"}, {2, 3}, "llama"),
]


@pytest.mark.parametrize("change,codes,says", CONFIGS, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_configurations(folder, change, codes, says):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    done = subprocess.run([COMMAND, "run", folder, "--mode", "dense_bf16"], capture_output=True, timeout=1800)
    refused(done.returncode, "run", folder, says=says)
    assert done.returncode in ({codes} if isinstance(codes, int) else codes)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "nonsense", '{"hidden_size": NaN}', "[" * 10_000_000, '{"a": 1, "a": 2}', "\xff"]
)
def test_configurations_that_are_none(folder, text):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    refused(3, "run", folder, says="config.json")


def test_inspect(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "empty").touch()
    refused(3, "inspect", fifo, says="wanted a regular file")
    refused(3, "inspect", tmp_path / "empty", says="[TOO_SHORT]")
    refused(3, "inspect", tmp_path / "missing")
    refused(3, "inspect", tmp_path)
    long = tmp_path / ("x" * 200 + "\n\x1b[31m")
    assert "\x1b" not in refused(3, "inspect", long)


def test_environment():
    refused(2, "info", says=("DSAKIT_ISA is mmx", "generic"), DSAKIT_ISA="mmx")
    refused(2, "run", says="DSAKIT_ISA", DSAKIT_ISA="mmx")
    refused(2, "dist-bench", says="ranks are not started by a launcher, wanted 2 or more")
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):  # the wheel has no MPI
        refused(2, "dist-bench", says=(f"started 4 processes ({variable})", "no MPI"), **{variable: "4"})
    refused(4, "run", says="DSAKIT_MEM_LIMIT", DSAKIT_MEM_LIMIT="1000")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")
@pytest.mark.parametrize(
    "words", [["describe", "--json"], ["info"], ["inspect", TINY / "model.safetensors"]], ids=lambda w: w[0]
)
def test_a_full_disk(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([COMMAND, *words], stdout=full, stderr=subprocess.PIPE, timeout=1800)
    assert done.returncode == 3 and done.stderr.count(b"\n") == 1, done


PYTHON = [
    ["export", "x", "-o", "y", "{}"],
    ["export", "x", "-o", "y", "--{}"],
    ["{}"],
    ["plot", "{}", "x", "-o", "y.svg"],
    ["plot", "selection", "x", "-o", "y.svg", "--row", "{}"],
    ["report", "x", "-o", "{}"],
    ["import", "x", "--map", "{}", "-o", "y"],
    ["import", "{}", "-o", "y"],
    ["export", "{}", "-o", "y"],
]


@pytest.mark.parametrize("words", PYTHON, ids=lambda w: " ".join(w[:2]))
def test_control_characters_for_python(words, tmp_path):
    words = [w.format("a\n\x1b[31mb") for w in words]
    done = subprocess.run(
        [sys.executable, "-m", "dsakit.debug", *words], capture_output=True, timeout=1800, cwd=tmp_path
    )
    error = done.stderr.decode()
    assert done.returncode in (2, 3) and error.count("\n") == 1 and error[:-1].isprintable(), error


@pytest.mark.parametrize(
    "words",
    [
        ["describe"],
        ["info"],
        ["bench"],
        ["replay", "x", "--threads"],
        ["run", TINY, "--mode"],
        ["explain", "x", "--try"],
    ],
    ids=lambda w: w[0],
)
def test_control_characters(words):
    error = refused(2, *words, "a\n\x1b[31mb" + "x" * 500, longest=1200)
    assert error.rstrip("\n").isprintable() and "a\\u000a\\u001b[31mb" in error and "x" * 120 not in error, error
