# SPDX-License-Identifier: Apache-2.0
"""dsakit run --tokens: ids from .npy and safetensors files, scored and continued like the bytes they are."""

import json

import numpy as np
import pytest
from test_command import TINY, dsakit_command

TEXT = (TINY / "heldout.txt").read_bytes()[:700]
IDS = np.frombuffer(TEXT, np.uint8)


def scored(*args, stdin=b""):
    report = json.loads(
        dsakit_command("run", TINY, "--mode", "dense_bf16", "--context", 300, "--json", *args, stdin=stdin)
    )
    return report, report["modes"]["dense_bf16"]


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_numpy_files(tmp_path, dtype):
    np.save(tmp_path / "ids.npy", IDS.astype(dtype))
    report, mode = scored("--tokens", tmp_path / "ids.npy")
    _, by_text = scored("--text", "-", stdin=TEXT)
    assert report["tokens"] == len(TEXT) and report["bytes"] == 0 and mode["predictions"] == len(TEXT) - 1
    assert mode["bits_per_token"] == by_text["bits_per_token"] == by_text["bits_per_byte"]
    assert "bits_per_byte" not in mode


def test_bits_per_byte_where_the_text_is_known(tmp_path):
    np.save(tmp_path / "ids.npy", IDS)
    _, mode = scored("--tokens", tmp_path / "ids.npy", "--text", "-", stdin=TEXT)
    assert mode["bits_per_byte"] == pytest.approx(mode["bits_per_token"] * (len(TEXT) - 1) / len(TEXT), rel=1e-12)


@pytest.mark.parametrize("shape", [(-1,), (1, -1)])
def test_safetensors_files(tmp_path, shape):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file({"input_ids": IDS.astype(np.int64).reshape(shape)}, tmp_path / "ids.safetensors")
    np.save(tmp_path / "ids.npy", IDS)
    files = (tmp_path / "ids.safetensors", tmp_path / "ids.npy")
    values = [scored("--tokens", path)[1]["bits_per_token"] for path in files]
    assert values[0] == values[1] > 0


def test_continued(tmp_path):
    np.save(tmp_path / "ids.npy", IDS)
    args = ("run", TINY, "--mode", "sparse_bf16", "--generate", 9)
    by_text = dsakit_command(*args, "--text", "-", stdin=TEXT)[:-1]
    assert dsakit_command(*args, "--tokens", tmp_path / "ids.npy").split() == [b"%d" % t for t in by_text]
    report = json.loads(dsakit_command(*args, "--tokens", tmp_path / "ids.npy", "--json"))["modes"]["sparse_bf16"]
    assert report["tokens"] == list(by_text) and "text" not in report


def test_refusals(tmp_path):
    def refused(array, status=3, raw=None):
        path = tmp_path / "ids.npy"
        np.save(path, array)
        if raw is not None:
            path.write_bytes(raw(path.read_bytes()))
        return dsakit_command("run", TINY, "--tokens", path, "--mode", "dense_bf16", status=status)

    assert "ids.npy[2] is 256, wanted 0..255 (vocab_size)" in refused(np.array([0, 255, 256]), status=2)
    assert "ids.npy[1] is -1, wanted 0..255" in refused(np.array([0, -1]), status=2)
    assert "ids.npy[0] is 18446744073709551615" in refused(np.array([2**64 - 1], np.uint64), status=2)
    assert "tokens has 1 tokens, wanted at least 2" in refused(np.array([7]), status=2)
    for array in (np.zeros(3, np.float32), np.zeros((2, 2), np.int32), np.zeros(3, ">i4"), np.zeros(3, bool)):
        assert "wanted one-dimensional little-endian integers" in refused(array)
    assert "wanted one-dimensional" in refused(np.array(3, np.int32))
    few = np.arange(5, dtype=np.int32)
    assert "has 19 bytes of data, wanted those of shape (5,)" in refused(few, raw=lambda data: data[:-1])
    assert "has 24 bytes of data" in refused(few, raw=lambda data: data + b"abcd")
    assert "wanted that of an .npy file" in refused(few, raw=lambda data: data[:9])
    assert "wanted that of an .npy file" in refused(few, raw=lambda data: data[:6] + b"\x04" + data[7:])
    assert "ids.npy has 3 bytes" in refused(few, raw=lambda data: b"abc")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    for tensors, message in (
        ({"ids": few}, "input_ids is missing"),
        ({"input_ids": few.astype(np.float32)}, "input_ids is F32 [5], wanted integers [T] or [1, T]"),
        ({"input_ids": np.zeros((2, 3), np.int64)}, "input_ids is I64 [2, 3], wanted"),
    ):
        save_file(tensors, tmp_path / "ids.safetensors")
        assert message in dsakit_command("run", TINY, "--tokens", tmp_path / "ids.safetensors", status=3)


def test_bytes_are_tokens_only_where_there_are_256(tmp_path):
    config = json.loads((TINY / "config.json").read_text()) | {"vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ml_dtypes = pytest.importorskip("ml_dtypes")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    import dsakit

    tensors = dsakit.load_safetensors(TINY / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        more = np.zeros((44, tensors[name].shape[1]), ml_dtypes.bfloat16)
        tensors[name] = np.concatenate([tensors[name], more])
    save_file(tensors, tmp_path / "model.safetensors")
    message = dsakit_command("run", tmp_path, "--text", TINY / "heldout.txt", status=2)
    assert "has 300 tokens, wanted --tokens FILE" in message and "dsakit.text" in message
    np.save(tmp_path / "ids.npy", np.arange(300))
    report = json.loads(
        dsakit_command("run", tmp_path, "--tokens", tmp_path / "ids.npy", "--mode", "dense_bf16", "--json")
    )
    assert report["modes"]["dense_bf16"]["predictions"] == 299
