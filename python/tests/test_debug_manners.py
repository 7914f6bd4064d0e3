# SPDX-License-Identifier: Apache-2.0
"""How the commands of docs/debugging.md speak: --quiet, --json and its schemas, exit codes, help, completion."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import dsakit
from dsakit import debug

PACKAGE = pathlib.Path(dsakit.__file__).parent
PROGRAM = PACKAGE / "bin" / "dsakit"
SCRIPT = pathlib.Path(sys.executable).parent / "dsakit"
SHARE = pathlib.Path(sys.prefix) / "share"


def run(*arguments, program=PROGRAM, **environment):
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=600, env=os.environ | environment
    )


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """good, a call that agrees; swapped, one whose sines and cosines were; refused; dump, three of one sequence."""
    folder = tmp_path_factory.mktemp("cases")
    random = np.random.default_rng(2)
    angle = random.uniform(0, 6, (3, 1, 64)).astype(np.float32)
    call = {"x": random.standard_normal((3, 4, 64)).astype(np.float32)}
    call |= {"cos": np.cos(angle)[:, :, :], "sin": np.sin(angle)[:, :, :]}
    with dsakit.capture(folder / "dump"):
        for layer in range(3):
            dsakit.mark(layer=layer)
            dsakit.rms_norm(call["x"], np.ones(64, np.float32))
    good = debug.Case.load(sorted((folder / "dump").glob("0*"))[0])
    good.save(folder / "good.safetensors")
    wrong = good.copy()
    wrong.set_metadata("versions", None)
    wrong.set_metadata("producer", "somebody else")
    y = wrong[wrong.find("out", "y")]
    wrong[wrong.find("out", "y")] = y[..., ::-1].copy()
    wrong.save(folder / "wrong.safetensors")
    with dsakit.capture(folder / "refused"), pytest.raises(dsakit.Error):
        dsakit.rms_norm(np.ones((2, 4), np.float32), np.ones(3, np.float32))
    (folder / "calls.csv").write_text("")
    program = "import numpy as np, dsakit; dsakit.rms_norm(np.ones((2, 4), np.float32), np.ones(4, np.float32))"
    log = os.environ | {"DSAKIT_VERBOSE": str(folder / "calls.csv")}
    subprocess.run([sys.executable, "-c", program], env=log, check=True, timeout=120)
    return folder


def test_quiet_is_the_verdict(cases):
    good, wrong, dump = cases / "good.safetensors", cases / "wrong.safetensors", cases / "dump"
    for arguments, says, code in (
        (("explain", good), "agrees: rms_norm, left over 0 roundings; side: consistent\n", 0),
        (("explain", wrong), "operator: no single change explains rms_norm; out.y departs first; side: producer\n", 1),
        (("replay", good), "agrees: 1 of 1 case\n", 0),
        (("replay", wrong), "operator: 0 of 1 case\n", 1),
        (("check", good), "agrees: 1 of 1 passes by dsakit\n", 0),
        (("check", wrong), "undecided: 0 of 1 passes by dsakit\n", 1),
        (("diff", dump), "agrees: every result follows from its own inputs\n", 0),
        (("diff", wrong), "operator: call 1, rms_norm does not follow from its own inputs\n", 1),
        (("diff", dump, dump), "agrees: all outputs are equal\n", 0),
    ):
        done = run(*arguments, "--quiet")
        assert (done.stdout, done.stderr, done.returncode) == (says, "", code)
        full = run(*arguments)
        assert full.stdout.startswith(says) and full.returncode == code and len(full.stdout.splitlines()) > 1


def test_no_line_is_longer_than_a_hundred_columns(cases):
    for arguments in (("explain", cases / "wrong.safetensors"), ("diff", cases / "dump", cases / "dump")):
        for line in run(*arguments).stdout.splitlines():
            assert len(line) <= 100 and "\x1b" not in line


def test_exit_codes(cases, tmp_path):
    good = cases / "good.safetensors"
    (tmp_path / "text").write_text("no case")
    for arguments, code, environment in (
        (("explain", good), 0, {}),
        (("explain", cases / "wrong.safetensors"), 1, {}),
        (("explain", cases / "refused"), 1, {}),
        (("explain",), 2, {}),
        (("explain", good, "--try", "X"), 2, {}),
        (("check", good, "--rule", "none"), 2, {}),
        (("plot", "mass", good, "-o", tmp_path / "x.svg"), 2, {}),
        (("explain", tmp_path / "text"), 3, {}),
        (("replay", tmp_path / "none"), 3, {}),
        (("diff", tmp_path), 3, {}),
        (("verbose", tmp_path / "text"), 3, {}),
        (("run",), 4, {"DSAKIT_MEM_LIMIT": "1000"}),
    ):
        done = run(*arguments, **environment)
        assert done.returncode == code, (arguments, done.stderr)
        assert (done.stderr == "") == (code < 2) and (done.stdout == "") == (code >= 2)


def test_interrupted_is_130():
    """What shells make of a command that a signal has ended."""
    waiting = subprocess.Popen(
        [PROGRAM, "run", "--text", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells have it ignored in the background
    )
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=300)  # against hangs
    assert waiting.returncode in (-signal.SIGINT, 128 + signal.SIGINT)


# ---- --json


def schema(name):
    return json.loads((PACKAGE / "schemas" / f"{name}-1.schema.json").read_text())


def test_every_object_is_as_its_schema_says(cases, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    random = np.random.default_rng(5)
    selection = debug.Case("dsakit.quant_lightning_indexer", {"sparse_count": 32, "sparse_mode": 0})
    selection["in.query"] = random.integers(-127, 128, (1, 2, 4, 32), np.int8)
    selection["in.key"] = random.integers(-127, 128, (1, 500, 1, 32), np.int8)
    for name, shape in (("weights", (1, 2, 4)), ("query_dequant_scale", (1, 2, 4)), ("key_dequant_scale", (1, 500, 1))):
        selection["in." + name] = random.uniform(0.1, 1, shape).astype(np.float16)
    selection["out.sparse_indices"] = selection.run().results["out.sparse_indices"]
    selection["in.key_dequant_scale"] = (1 / selection["in.key_dequant_scale"]).astype(np.float16)
    selection.save(tmp_path / "inverse.safetensors")
    good, wrong, dump = cases / "good.safetensors", cases / "wrong.safetensors", cases / "dump"
    refused = next((cases / "refused").glob("0*"))
    seen = set()
    for arguments in (
        ("explain", good), ("explain", wrong, "--try", "all"), ("explain", tmp_path / "inverse.safetensors"),
        ("explain", refused), ("replay", good, "--isa", "all"), ("replay", wrong), ("replay", refused),
        ("check", good), ("check", wrong, "--rule", "msprobe"), ("diff", dump), ("diff", dump, dump),
        ("verbose", cases / "calls.csv"),
    ):  # fmt: skip
        report = json.loads(run(*arguments, "--json").stdout)
        jsonschema.Draft202012Validator.check_schema(schema(arguments[0]))
        jsonschema.validate(report, schema(arguments[0]), cls=jsonschema.Draft202012Validator)
        seen.add(arguments[0])
    out = run("report", dump, wrong, "-o", tmp_path / "r.html", "--json", program=SCRIPT)
    jsonschema.validate(json.loads(out.stdout), schema("report"), cls=jsonschema.Draft202012Validator)
    assert {f.name.split("-")[0] for f in (PACKAGE / "schemas").iterdir()} == seen | {"report"}
    del report["schema"]  # and it can fail
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema("verbose"))


# ---- help, completion, the manual


def subcommands():
    listed = run("--help").stdout.partition("Subcommands:")[2]
    return re.findall(r"^  ([\w-]+)", listed, re.M)


def test_every_subcommand_has_examples():
    names = subcommands()
    assert {"explain", "replay", "plot", "report", "completion", "manual"} <= set(names)
    for name in names:
        out = run(name, "--help").stdout
        assert f"dsakit {name}" in out.partition("Examples:")[2], name
    assert "130 interrupted" in run("--help").stdout


def complete(*words):
    """What bash offers for the last word."""
    line = " ".join(words)
    script = f"""
source <('{PROGRAM}' completion bash)
COMP_WORDS=({" ".join(f"'{w}'" for w in words)}) COMP_CWORD={len(words) - 1} COMP_LINE='{line}'
_dsakit
printf '%s\\n' "${{COMPREPLY[@]}}"
complete -p dsakit >&2
"""
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert "-F _dsakit dsakit" in done.stderr
    return done.stdout.split()


def test_bash_completes():
    assert complete("dsakit", "expl") == ["explain"]
    assert sorted(complete("dsakit", "")) == sorted([*subcommands(), "--help", "--version"])
    assert (
        complete(
            "dsakit",
            "explain",
            "--ti",
        )
        == []
    )
    assert complete("dsakit", "explain", "--tri") == ["--tries"]
    assert set(complete("dsakit", "check", "--rule", "cann")) == {r for r in debug.rules() if r.startswith("cann")}
    assert {*dsakit.info()["isas"], "all"} <= set(complete("dsakit", "replay", "--isa", ""))
    assert complete("dsakit", "plot", "pro") == ["profile"]
    assert "quant_lightning_indexer" in complete("dsakit", "bench", "quant_l")
    assert complete("dsakit", "completion", "") == ["bash", "zsh", "fish"]
    assert complete("dsakit", "explain", "") == []  # then bash offers files


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_read_their_completion(shell):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    text = run("completion", shell).stdout
    assert subprocess.run([shell, "-n"], input=text, capture_output=True, text=True).stderr == ""
    for word in (*subcommands(), "tries", "strides"):
        assert re.search(rf"\b{word}\b", text), word
    if shell == "fish":
        ask = f"'{PROGRAM}' completion fish | source; complete -C 'dsakit plot '; complete -C 'dsakit expl'"
        offered = subprocess.run([shell, "--no-config", "-c", ask], capture_output=True, text=True).stdout
        assert "roofline" in offered and "explain" in offered


def test_the_manual_is_installed_and_says_what_help_says():
    page = (SHARE / "man/man1/dsakit.1").read_text()
    assert page == run("manual").stdout
    for file, shell in (("bash-completion/completions/dsakit", "bash"), ("zsh/site-functions/_dsakit", "zsh"),
                        ("fish/vendor_completions.d/dsakit.fish", "fish")):  # fmt: skip
        assert (SHARE / file).read_text() == run("completion", shell).stdout
    if not shutil.which("man"):
        pytest.skip("man is not installed")
    done = subprocess.run(["man", "--warnings", "-l", SHARE / "man/man1/dsakit.1"], capture_output=True, text=True,
                          env=os.environ | {"MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""})  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    shown = re.sub(r".\x08", "", done.stdout)
    for name in subcommands():
        assert f"dsakit {name}" in shown
    for text in (
        "--tries",
        "Runs at most",
        "dsakit explain dump --try L,Q --json",
        "130 interrupted",
        "DSAKIT_VERBOSE",
    ):
        assert text in shown
