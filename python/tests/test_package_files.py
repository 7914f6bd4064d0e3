# SPDX-License-Identifier: Apache-2.0
"""load_safetensors: every file of the corpus gets the answer owed, good files come back as they were written."""

import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dsakit

MAKER = pathlib.Path(__file__).parents[2] / "tests" / "corpus" / "make_bad_safetensors.py"


def test_corpus(tmp_path):
    subprocess.run([sys.executable, MAKER, tmp_path], check=True, stdout=subprocess.DEVNULL)
    rows = [line.split("\t") for line in (tmp_path / "expected.tsv").read_text().splitlines()[1:]]
    assert len(rows) == 87
    for name, _, expected in rows:
        path = tmp_path / (name + ".safetensors")
        if expected.startswith("OK:"):
            assert len(dsakit.load_safetensors(path)) == int(expected[3:]), name
            continue
        with pytest.raises(ValueError) as caught:
            dsakit.load_safetensors(str(path))
        error = caught.value
        assert (error.status, error.reason) == ("INVALID_FILE", expected), name
        assert isinstance(error, dsakit.Error) and str(error).endswith(f"[{expected}]"), name


def test_round_trip(tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    rng = np.random.default_rng(0)
    dtypes = [
        np.float64,
        np.float32,
        np.float16,
        ml_dtypes.bfloat16,
        np.int64,
        np.int32,
        np.int16,
        np.int8,
        np.uint8,
        np.bool_,
    ]
    written = {np.dtype(d).name: rng.integers(0, 2, (3, 1, 5)).astype(d) for d in dtypes}
    written |= {"scalar": np.array(3, np.float32), "nothing": np.zeros((0, 4), np.float32)}
    save_file(written, tmp_path / "all.safetensors")
    loaded = dsakit.load_safetensors(tmp_path / "all.safetensors")
    assert loaded.keys() == written.keys()
    for name, array in written.items():
        got = loaded[name]
        assert (
            got.dtype == array.dtype
            and got.shape == array.shape
            and got.tobytes() == array.tobytes()
            and got.flags.writeable
        )


def test_element_types_that_numpy_lacks(tmp_path):
    header = (
        b'{"f8":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]},'
        b'"e8":{"dtype":"F8_E8M0","shape":[2,1],"data_offsets":[4,6]},'
        b'"f4":{"dtype":"F4","shape":[2,2],"data_offsets":[6,8]},"c":{"dtype":"C64","shape":[1],"data_offsets":[8,16]}}'
    )
    data = bytes(range(8)) + np.complex64(1 + 2j).tobytes()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    loaded = dsakit.load_safetensors(tmp_path / "x.safetensors")
    assert loaded["f8"].dtype == ml_dtypes.float8_e4m3fn and loaded["f8"].tobytes() == bytes(range(4))
    assert loaded["e8"].dtype == np.uint8 and loaded["e8"].shape == (2, 1) and loaded["e8"].tobytes() == bytes([4, 5])
    assert loaded["f4"].dtype == np.uint8 and loaded["f4"].tobytes() == bytes([6, 7])
    assert loaded["c"].dtype == np.complex64 and loaded["c"][0] == 1 + 2j


def test_what_is_no_file(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(OSError) as caught:
            dsakit.load_safetensors(path)
        assert caught.value.status == "IO_ERROR" and isinstance(caught.value, dsakit.Error)
    with pytest.raises(TypeError):
        dsakit.load_safetensors(3)
