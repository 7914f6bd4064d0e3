# SPDX-License-Identifier: Apache-2.0
"""The dsakit command, as the wheel installs it."""
import json
import pathlib
import re
import subprocess
import sys

import dsakit

COMMAND = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"
TINY = pathlib.Path(dsakit.__file__).parent / "models" / "tiny-dsa"


def dsakit_command(*args, stdin=b"", status=0):
    done = subprocess.run([COMMAND, *map(str, args)], input=stdin, capture_output=True, timeout=1800)  # against hangs
    assert done.returncode == status, done.stderr.decode()
    return done.stdout if status == 0 else done.stderr.decode()


def test_script_is_on_the_path():
    script = pathlib.Path(sys.executable).parent / "dsakit"
    assert subprocess.check_output([script, "--version"], text=True).strip() == f"dsakit {dsakit.__version__}"


def test_run_reports_every_mode_and_agrees_with_the_package():
    text = (TINY / "heldout.txt").read_bytes()[:3000]
    report = json.loads(dsakit_command("run", TINY, "--text", "-", "--context", 512, "--json", stdin=text))
    modes = report["modes"]
    assert list(modes) == ["dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"]
    for mode in modes.values():
        assert 0.5 < mode["bits_per_byte"] < 3 and mode["tokens_per_second"] > 0 and mode["cache_bytes"] > 0
        assert mode["predictions"] == len(text) - 1
        assert all(op["seconds"] >= 0 and op["bytes"] >= 0 and op["calls"] > 0 for op in mode["operators"].values())
    assert modes["dense_bf16"]["selected_share"] == 1 and modes["sparse_w8a8"]["selected_share"] < 0.7
    assert "quant_lightning_indexer" in modes["sparse_w8a8"]["operators"]
    assert "kv_quant_sparse_flash_attention" in modes["sparse_w8a8_packed"]["operators"]
    for mode in ("sparse_w8a8", "sparse_w8a8_packed"):
        assert abs(modes[mode]["bits_per_byte"] - modes["sparse_bf16"]["bits_per_byte"]) < 0.01

    # Windows of 512 by hand.
    import numpy as np

    bits = 0.0
    model = dsakit.Model(str(TINY))
    for start in range(0, len(text) - 1, 512):
        window = text[start : start + 513]
        logits = np.asarray(model.logits(list(window[:-1]), mode="dense_bf16")).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        bits -= log_p[np.arange(len(window) - 1), list(window[1:])].sum() / np.log(2)
    assert abs(bits / (len(text) - 1) - modes["dense_bf16"]["bits_per_byte"]) < 1e-6


def test_generate_is_greedy_and_reproducible():
    args = ("run", TINY, "--text", "-", "--mode", "sparse_w8a8", "--generate", 20)
    first = dsakit_command(*args, stdin=b"In the beginning ")
    assert first == dsakit_command(*args, stdin=b"In the beginning ") and len(first) == 21
    wanted = dsakit.Model(str(TINY)).generate(list(b"In the beginning "), 20, mode="sparse_w8a8")
    assert first[:-1] == bytes(wanted)
    warm = [dsakit_command(*args, "--temperature", 1, "--seed", seed, stdin=b"In the beginning ") for seed in (1, 1, 2)]
    assert warm[0] == warm[1] != warm[2]


def test_inspect_and_info():
    assert re.search(rb"^\d+ tensors", dsakit_command("inspect", TINY / "model.safetensors").splitlines()[-1])
    assert "wanted" in dsakit_command("inspect", TINY / "config.json", status=3)
    info = json.loads(dsakit_command("info", "--json"))
    assert info["version"] == dsakit.__version__ and info["isa"] in info["isas"]


def test_errors_leave_with_their_status():
    assert "mode" in dsakit_command("run", TINY, "--mode", "fp4", status=2)
    assert dsakit_command("run", TINY / "nowhere", status=3).count("\n") == 1
    assert dsakit_command("run", TINY, "--text", "/nowhere", status=3).count("\n") == 1
    dsakit_command("bench", "no_such_operator", status=2)
    dsakit_command("frobnicate", status=2)


def test_demo_checks_itself():
    """And the figures of its first table, of the whole text in windows of 1024."""
    out = dsakit_command("demo", "--quick").decode()
    assert re.search(r"needles found +8 of 8", out) and "equal, in order" in out and "same bits" in out
    bits = {mode: float(figure) for mode, figure in re.findall(r"^(\w+) +(1\.\d{5}) ", out, re.M)}
    assert abs(bits["dense_bf16"] - 1.69020) < 5e-4  # transformers, float32
    assert abs(bits["sparse_bf16"] - 1.69044) < 5e-4
    assert abs(bits["sparse_w8a8"] - bits["sparse_bf16"]) <= 0.002
    assert abs(bits["sparse_w8a8_packed"] - bits["sparse_bf16"]) <= 0.003
    assert bits["sparse_w8a8"] <= bits["dense_bf16"] + 0.02
