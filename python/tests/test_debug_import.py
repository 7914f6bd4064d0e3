# SPDX-License-Identifier: Apache-2.0
"""Cases from what other tools wrote."""

import json

import ml_dtypes
import numpy as np
import pytest

import dsakit
from dsakit import debug
from dsakit.debug.__main__ import main
from dsakit.debug.importing import export_case, import_cases

torch = pytest.importorskip("torch")
CALL = "torch_npu.npu_rms_norm"
X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
GAMMA = np.ones(4, np.float32)


def agrees(case):
    found = case.compare(case.run())
    return bool(found) and all(c.equal for c in found)


@pytest.mark.parametrize("form", ["dict", "list", "call"])
def test_pt_files(form, tmp_path):
    x, gamma, results = torch.from_numpy(X), torch.from_numpy(GAMMA), dsakit.rms_norm(X, GAMMA)
    outputs = [torch.from_numpy(r) for r in results]
    value = {
        "dict": {"x": x, "gamma": gamma, "epsilon": 1e-6},
        "list": [x, gamma, 1e-6],
        "call": {"args": [x], "kwargs": {"gamma": gamma}, "outputs": outputs},
    }[form]
    torch.save(value, tmp_path / "a.pt")
    file = tmp_path / "a.safetensors"
    assert main(["import", str(tmp_path / "a.pt"), "--call", CALL, "--map", "x=self", "-o", str(file)]) == 0
    case = debug.Case.load(file)
    np.testing.assert_array_equal(case.run().results["out.y"], results[0])
    assert form != "call" or agrees(case)


class Anything:
    pass


def test_a_pickle_of_anything_else_is_refused(tmp_path, capsys):
    torch.save({"self": Anything()}, tmp_path / "a.pt")
    assert main(["import", str(tmp_path / "a.pt"), "--call", CALL, "-o", str(tmp_path / "a.safetensors")]) == 3
    assert "x.cpu()" in capsys.readouterr().err and not (tmp_path / "a.safetensors").exists()


def test_folders_come_back_as_they_went(tmp_path):
    case = debug.Case(CALL, {"epsilon": 1e-5})
    case["in.0"], case["in.gamma"] = X.astype(ml_dtypes.bfloat16), GAMMA.astype(ml_dtypes.bfloat16)
    case["out.0"] = case.run().results["out.y"]
    case.set_metadata("where", '{"step": 3}')
    export_case(case, tmp_path / "folder")
    (back,) = import_cases(tmp_path / "folder")
    assert back.keys() == case.keys() and back.where == {"step": 3} and agrees(back)
    np.testing.assert_array_equal(back["in.0"].view(np.uint16), case["in.0"].view(np.uint16))


@pytest.mark.parametrize(
    "operator,settings",
    [
        (
            "sparse_flash_attention",
            {"layout_kv": "PA_BSND", "data": "V15"},
        ),  # value is key, of which some pages are stored
        ("mla_prolog_v3", {"data": "V15", "weight_dq": "bfloat16:128x64:nz"}),
    ],
)
def test_pages_and_nz_go_out_and_come_back(operator, settings, tmp_path):
    case = debug.golden(operator, **settings)
    export_case(case, tmp_path / "folder")
    (back,) = import_cases(tmp_path / "folder")
    case.save(tmp_path / "a")
    back.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert all(c.equal for c in back.judge("dsakit", back.run()))


def bits_of(number):
    return np.float64(number).tobytes()


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324, 0.1, 1e300], ids=repr)
def test_numbers_go_out_as_json_and_come_back(number, tmp_path):
    """What JSON has no number for is a string, as in cases."""
    case = debug.Case(CALL, {"epsilon": float(number)})
    case["in.self"], case["in.gamma"] = X, GAMMA
    case.set_metadata("where", '{"step":3}')
    case.set_metadata("note", "NaN, and no JSON")
    export_case(case, tmp_path / "folder")
    text = (tmp_path / "folder" / "case.json").read_text()
    about = json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    assert isinstance(about["attributes"]["epsilon"], float if np.isfinite(number) else str), text
    (back,) = import_cases(tmp_path / "folder")
    for name, one in (("a", case), ("b", back)):
        assert bits_of(one.attributes["epsilon"]) == bits_of(number)
        one.save(tmp_path / name)
        assert bits_of(debug.Case.load(tmp_path / name).attributes["epsilon"]) == bits_of(number)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    "key,text,said",
    [
        ("undefined", "1e999", "is no number"),
        ("recipe", "[1e999]", "is no number"),
        ("shapes", "3", "has metadata shapes"),
    ],
)
def test_metadata_that_no_folder_has(key, text, said, tmp_path, capsys):
    case = debug.Case(CALL)
    case["in.self"], case["in.gamma"] = X, GAMMA
    case.set_metadata(key, text)
    case.save(tmp_path / "a.safetensors")
    assert main(["export", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "out")]) == 3
    error = capsys.readouterr().err
    assert said in error and ", wanted " in error and error.count("\n") == 1 and not list((tmp_path / "out").iterdir())


BROKEN = {
    "{": "is not JSON",
    "[]": "a JSON object",
    '{"attributes": {"epsilon": NaN}}': "NaN is no number",
    '{"attributes": {"epsilon": 1e999}}': "1e999 is no number",
    '{"call": "a", "call": "b"}': "twice",
    '{"note": "\\ud800"}': "surrogates",
    "[" * 100000: "is not JSON",
    "\xff": "is not JSON",
    '{"call": 3}': "has 3 for call",
    '{"attributes": 3}': "has 3 for attributes",
    '{"attributes": {"epsilon": {}}}': "epsilon is a dict",
    '{"dtypes": {"self": "nonsense"}}': "self.npy cannot be read",
    '{"dtypes": {"self": ["f4"]}}': "self.npy cannot be read",
    '{"shapes": {"self": [5]}}': "self.npy cannot be read",
    '{"layouts": {"in.self": 3}}': "has 3 for in.self",
    '{"layouts": {"in.self": {"colour": 3}}}': "layout.colour is unknown",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:40])
def test_a_case_json_that_is_none(text, tmp_path, capsys):
    """One sentence each, and no case."""
    np.save(tmp_path / "self.npy", X)
    np.save(tmp_path / "gamma.npy", GAMMA)
    (tmp_path / "case.json").write_bytes(text.encode("latin1"))
    file = tmp_path / "a.safetensors"
    assert main(["import", str(tmp_path), "--call", CALL, "-o", str(file)]) in (2, 3) and not file.exists()
    error = capsys.readouterr().err
    assert BROKEN[text] in error and ", wanted " in error and error.count("\n") == 1, error


@pytest.mark.parametrize("name", ["self.npy", "a.pt", "dump.json"])
@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"\x93NUMPY\x01\x00\xff\xff{", b"PK\x03\x04", b'{"data": 3}'], ids=repr
)
def test_files_that_are_none(data, name, tmp_path, capsys):
    (tmp_path / name).write_bytes(data)
    path = tmp_path / name if name == "a.pt" else tmp_path
    assert main(["import", str(path), "--call", CALL, "-o", str(tmp_path / "a.safetensors")]) == 3
    error = capsys.readouterr().err
    assert name in error and ", wanted " in error and error.count("\n") == 1, error


def test_raw_bytes_and_bare_names(tmp_path):
    np.save(tmp_path / "gamma.npy", GAMMA)
    X.tofile(tmp_path / "self.bin")
    with pytest.raises(dsakit.Error, match="raw bytes"):
        import_cases(tmp_path, CALL)
    about = {"call": CALL, "dtypes": {"self": "float32"}, "shapes": {"self": [3, 4]}}
    (tmp_path / "case.json").write_text(json.dumps(about))
    (case,) = import_cases(tmp_path)
    np.testing.assert_array_equal(case["in.self"], X)
    np.save(tmp_path / "in.epsilon.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(ValueError):
        import_cases(tmp_path)


def test_a_dump_of_msprobe(tmp_path):
    folder = tmp_path / "step2" / "rank1"
    (folder / "dump_tensor_data").mkdir(parents=True)
    y, rstd = dsakit.rms_norm(X, GAMMA)

    def saved(name, array):
        torch.save(torch.from_numpy(array), folder / "dump_tensor_data" / name)
        return {"type": "torch.Tensor", "data_name": name}

    key = "NPU.npu_rms_norm.0.forward"
    entry = {
        "input_args": [
            saved(f"{key}.input.0.pt", X),
            saved(f"{key}.input.1.pt", GAMMA),
            {"type": "float", "value": 1e-6},
        ],
        "input_kwargs": {},
        "output": [saved(f"{key}.output.0.pt", y), saved(f"{key}.output.1.pt", rstd)],
    }
    data = {"Functional.linear.0.forward": {}, key: entry, "NPU.npu_rms_norm.0.backward": {}}
    (folder / "dump.json").write_text(json.dumps({"task": "tensor", "data": data}))
    assert main(["import", str(tmp_path), "-o", str(tmp_path / "cases")]) == 0
    case = debug.Case.load(tmp_path / "cases" / "000001-rms_norm.safetensors")
    assert case.call == CALL and case.where == {"sequence": 1, "step": 2, "rank": 1} and agrees(case)
