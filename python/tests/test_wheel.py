# SPDX-License-Identifier: Apache-2.0
"""The wheel of scripts/wheel.sh, as somebody installs it who has no compiler."""
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import venv
import zipfile

import pytest

import dsakit

ROOT = pathlib.Path(__file__).parents[2]
WHEELS = sorted((ROOT / "build" / "wheel").glob("dsakit-*.whl"))
pytestmark = pytest.mark.skipif(not WHEELS, reason="no wheel was built (scripts/wheel.sh)")


def test_name_says_what_runs_it():
    assert len(WHEELS) == 1
    assert re.fullmatch(rf"dsakit-{re.escape(dsakit.__version__)}-cp3\d+-cp3\d+-manylinux_.*\.whl", WHEELS[0].name)


def test_holds_the_command_the_model_and_the_types():
    names = zipfile.ZipFile(WHEELS[0]).namelist()
    for name in ("dsakit/bin/dsakit", "dsakit/models/tiny-dsa/model.safetensors", "dsakit/py.typed", "dsakit/_core.pyi",
                 "dsakit/schemas/explain-1.schema.json", "dsakit/debug/report.html"):  # fmt: skip
        assert name in names
    assert any(name.endswith("data/data/share/man/man1/dsakit.1") for name in names)
    assert any(name.startswith("dsakit.libs/libfmt") for name in names)
    assert not any(name.endswith((".a", ".hpp", ".cc")) for name in names)


def test_installs_and_runs_without_a_compiler(tmp_path):
    venv.create(tmp_path, with_pip=True)
    bin = tmp_path / "bin"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DSAKIT", "CC", "CXX"))} | {"PATH": str(bin)}

    def run(*command):
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(bin / "python", "-m", "pip", "install", "-q", "--only-binary", ":all:", WHEELS[0])
    assert run(bin / "dsakit", "--version").strip() == f"dsakit {dsakit.__version__}"
    assert '"isas"' in run(bin / "dsakit", "info", "--json")
    code = "import sys, dsakit, numpy as np; y = dsakit.quantize(np.ones((2, 4), np.float32), np.full(4, 0.5, np.float32), None, 'int8');"
    assert run(bin / "python", "-c", code + "print(y.tolist(), 'torch' in sys.modules)").strip() == f"{[[2] * 4] * 2} False"


def test_extras_are_named():
    metadata = next(n for n in zipfile.ZipFile(WHEELS[0]).namelist() if n.endswith("dist-info/METADATA"))
    extras = re.findall(r"^Provides-Extra: (\w+)$", zipfile.ZipFile(WHEELS[0]).read(metadata).decode(), re.M)
    assert {"torch", "hf", "plot"} <= set(extras)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    zipfile.ZipFile(WHEELS[0]).extractall(folder)
    return folder


def test_binaries_are_hardened_and_know_no_path_of_the_build(unpacked):
    binaries = [*(unpacked / "dsakit").glob("_core*.so"), unpacked / "dsakit" / "bin" / "dsakit"]
    command = [sys.executable, ROOT / "tests" / "binaries.py", "--hardened", "--without", ROOT, *binaries]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2 files as they should be\n"), done.stderr


def test_everything_in_it_has_the_time_of_the_sources():
    times = {entry.date_time for entry in zipfile.ZipFile(WHEELS[0]).infolist()}
    assert len(times) == 1


def test_says_what_it_is_made_of(unpacked):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    (file,) = unpacked.glob("dsakit-*.dist-info/sboms/dsakit.cdx.json")
    text = file.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(text) is None
    bom = json.loads(text)
    assert bom["metadata"]["component"]["version"] == dsakit.__version__
    parts = {part["name"]: part for part in bom["components"]}
    for name, part in parts.items():
        assert part["licenses"] and (part.get("version") or part["type"] == "machine-learning-model"), name
    # Headers alone, a library beside it, what nanobind has of others, what gcc links into everything.
    assert {"nlohmann-json3-dev", "libfmt-dev", "libcli11-dev", "nanobind", "robin_map"} <= set(parts)
    assert any(re.fullmatch(r"libgcc-\d+-dev", name) for name in parts)
    (fmt,) = (part for name, part in parts.items() if re.fullmatch(r"libfmt\d+", name))
    assert [part["dsakit:use"] for part in map(properties, (fmt, parts["nanobind"]))] == [
        "loaded when it runs",
        "compiled or linked into it",
    ]
    weights = (unpacked / "dsakit" / "models" / "tiny-dsa" / "model.safetensors").read_bytes()
    assert parts["tiny-dsa"]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(weights).hexdigest()}]
    assert str(ROOT) not in text and "/tmp" not in text


def properties(part):
    return {entry["name"]: entry["value"] for entry in part["properties"]}
