# SPDX-License-Identifier: Apache-2.0
"""Every row of robustness_cases.tsv that can be made from the description of an operator and a small good call of it, for
every operator, in every way of calling: the answer that is due, in one sentence that is the same everywhere; nothing is
written; the next good call gives its bits."""

import csv
import functools
import json
import pathlib
import subprocess
import sys

import pytest

import dsakit
from dsakit import debug
from oracle import c_api
from oracle.calls import CALLS
from oracle.refusals import (
    FIELDS,
    GOOD,
    TAG,
    C,
    Dispatched,
    Numpy,
    Spelled,
    Torch,
    TorchNpu,
    answer,
    breaks,
    case_of,
    good_bits,
    in_strict,
)

HERE = pathlib.Path(__file__).parent
TABLE = list(csv.DictReader((HERE / "robustness_cases.tsv").open(encoding="utf-8"), delimiter="\t"))
COMMAND = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"
# What each face has to be asked at least, so that nothing can fall out unseen.
FACES = {
    "numpy": (lambda: Numpy(dsakit), 30000),
    "reference": (lambda: Numpy(dsakit.reference), 30000),
    "C": (lambda: C(c_library()), 23000),
    "npu_ names": (lambda: Spelled(dsakit), 20000),
    "torch": (lambda: Torch(dsakit), 11000),
    "torch.ops": (Dispatched, 6500),
    "torch_npu": (TorchNpu, 4500),
}


@functools.cache
def of_call(name, level=""):
    return [b for b in map(in_strict, breaks(name)) if b] if level else list(breaks(name))


@functools.cache
def numpys_sentence(name, level=""):
    """What arrays are answered, break by break."""
    return {str(b): answer(Numpy(dsakit), b)[0] for b in of_call(name, level)}


@functools.cache
def c_library():
    path = c_api.find()
    if path is None:
        pytest.skip("build/*/libdsakit.so is not built")
    library = c_api.Library(path)
    assert library.version() == dsakit.__version__, f"{path} is another version"
    return library


@pytest.fixture
def face(request):
    """Made when it is used: some need torch, and one is installed."""
    if request.param in ("torch", "torch.ops", "torch_npu"):
        pytest.importorskip("torch", minversion="2.13")
    if request.param == "torch_npu":
        request.getfixturevalue("npu")
    return FACES[request.param][0]()


every_face = pytest.mark.parametrize("face", FACES, indirect=True)


@every_face
@pytest.mark.parametrize(
    "name, level", [(name, "") for name in GOOD] + [(name, "strict") for name in CALLS], ids=lambda v: v or "as is"
)
def test_refused(face, name, level):
    """In strict a refusal is that of portable, or it ends with what the chip is called."""
    if name not in face.calls():
        pytest.skip("has no such name")
    good, wrong = good_bits(face, name), []
    asked = [b for b in of_call(name, level) if face.takes(b)]
    if level and not asked:
        pytest.skip("has no levels")
    for b in asked:
        sentence, fault = answer(face, b)
        same = numpys_sentence(name, level)[str(b)]
        spelled = face.spelling(b.operator)
        # in strict a spelling asks for more than the operator: modes have to be said
        otherwise = face.says_otherwise(b) or (level and spelled != b.operator and sentence.endswith(TAG))
        if not fault and not otherwise and sentence != spelled + same[len(b.operator) :]:
            fault = f"{sentence!r}, and to arrays {same!r}"
        if not fault and good_bits(face, name) != good:
            fault = "the next good call has other bits"
        if fault:
            wrong.append(f"{b}: {fault}")
    if wrong:
        pytest.fail(f"{len(wrong)} of {len(asked)}:\n" + "\n".join(wrong), pytrace=False)
    assert asked


@every_face
def test_there_are_enough(face, request):
    least = FACES[request.node.callspec.params["face"]][1]
    asked = [b for name in face.calls() for level in ("", "strict") for b in of_call(name, level) if face.takes(b)]
    print(len(asked), "calls")
    assert len(asked) >= least
    assert len({str(b) for b in asked}) == len(asked), "ids are not distinct"


def test_every_operator_is_asked():
    assert {CALLS[name].operator for name in CALLS} == set(FIELDS)
    assert all(len(of_call(name)) >= 50 for name in CALLS)


# ---- recorded calls


FILE_ROWS = {"S01", "S06", "B01", "B02", "C01", "I03", "I06", "P01", "P03", "T06", "T14"}
UNFIT = {"9"}  # a rank that no file holds


def write(path, b):
    args = CALLS[b.call].make()
    b.change(args)
    case_of(b.call, args)._core.write(path)  # save() asks first whether it can be read


def replayed(folder):
    """What `dsakit replay` says of each file."""
    done = subprocess.run([COMMAND, "replay", folder, "--json"], capture_output=True, timeout=600)
    assert done.returncode == 1 and not done.stderr, done.stderr
    cases = json.loads(done.stdout)["cases"]
    return {pathlib.Path(c["file"]).name: c["runs"][0].get("status", "computed") for c in cases}


@pytest.mark.parametrize("name", CALLS)
def test_recordings(name, tmp_path):
    """`dsakit replay` of a file with the same thing wrong says the same sentence."""
    wanted = {}
    for b in of_call(name):
        unfit = b.what.split()[-1] in UNFIT
        if b.id in FILE_ROWS and FIELDS[b.operator][b.field]["role"] != "out" and not unfit:
            file = f"{len(wanted):03}.safetensors"
            write(tmp_path / file, b)
            wanted[file] = numpys_sentence(name)[str(b)]
    assert len(wanted) >= 2
    assert replayed(tmp_path) == wanted


@pytest.mark.parametrize("what", ["nan", "-nan", "inf", "-inf"])
def test_a_recorded_refusal_can_be_read(what, tmp_path):
    """Of a call that was refused for its number, as DSAKIT_CAPTURE writes it."""
    code = f"""
import os
os.environ["DSAKIT_CAPTURE"] = {str(tmp_path)!r}
import dsakit, numpy as np
x = np.ones((2, 4), np.float32)
try:
    dsakit.rms_norm(x, x[0], float({what!r}))
except dsakit.Error:
    pass
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    (file,) = tmp_path.glob("*.safetensors")
    status, sentence = debug.Case.load(file).run().refusal
    assert status == "INVALID_ARGUMENT" and f"epsilon is {what}" in sentence


# ---- the table


def test_the_table():
    """Every row is made here, or its file is there and names it."""
    made = {b.id for name in CALLS for b in breaks(name)}
    generated = {row["id"] for row in TABLE if "generated" in row["shown"].split()}
    assert made == generated
    assert len({row["id"] for row in TABLE}) == len(TABLE)
    root = HERE.parents[1]
    for row in TABLE:
        files = [w for w in row["shown"].split() if w != "generated"]
        assert row["shown"] and row["answer"], row
        if (root / "src").is_dir():
            assert all((root / f).is_file() for f in files), row
