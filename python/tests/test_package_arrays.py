# SPDX-License-Identifier: Apache-2.0
"""Which Python objects are arrays, where their results go, and what is refused about them."""

import ml_dtypes
import numpy as np
import pytest

import dsakit

BF16 = ml_dtypes.bfloat16
X = np.linspace(-3, 3, 60, dtype=np.float32).reshape(5, 12)
Y, SCALE = dsakit.dynamic_quant(X)


def refused(status, call, parameter=None):
    with pytest.raises(dsakit.Error) as caught:
        call()
    assert caught.value.status == status, caught.value
    assert parameter is None or caught.value.parameter == parameter
    return caught.value


def same(results, wanted=(Y, SCALE)):
    for result, right in zip(results, wanted, strict=True):
        assert type(result) is np.ndarray and result.dtype == right.dtype
        np.testing.assert_array_equal(result, right)


def test_bfloat16_is_that_of_ml_dtypes():
    y, scale = dsakit.dynamic_quant(X.astype(BF16))
    assert y.dtype == np.int8 and scale.dtype == np.float32
    out = dsakit.lightning_indexer(
        np.ones((1, 2, 1, 8), BF16),
        np.ones((1, 2, 1, 8), BF16),
        np.ones((1, 2, 1), BF16),
        sparse_count=2,
        return_value=True,
    )
    assert out[1].dtype == BF16 and out[0].dtype == np.int32


def test_views_are_read_where_they_lie():
    wide = np.full((9, 20), 77, np.float32)
    wide[::2, 3:15] = X
    same(dsakit.dynamic_quant(wide[::2, 3:15]))
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(np.asfortranarray(X)), "input")


def test_negative_strides_are_copied_for_inputs_only():
    same(dsakit.dynamic_quant(X[::-1].copy()[::-1]))
    same(dsakit.dynamic_quant(X[:, ::-1].copy()[:, ::-1]))
    y = np.zeros_like(Y)
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(X, y=y[::-1], scale=np.zeros_like(SCALE)), "y")
    assert not y.any()


def test_read_only_is_for_inputs():
    x = X.copy()
    x.flags.writeable = False
    same(dsakit.dynamic_quant(x))
    y = np.zeros_like(Y)
    y.flags.writeable = False
    refused("INVALID_DEVICE", lambda: dsakit.dynamic_quant(X, y=y), "y")


def test_given_outputs_are_the_results():
    y, scale = np.zeros_like(Y), np.zeros_like(SCALE)
    results = dsakit.dynamic_quant(X, y=y, scale=scale)
    assert results[0] is y and results[1] is scale
    same(results)
    mixed = dsakit.dynamic_quant(X, scale=scale)
    assert mixed[1] is scale and mixed[0] is not y


@pytest.mark.parametrize("dtype", [">f4", object, [("a", "f4")], "c8", "U4", "M8[s]", np.longdouble, ml_dtypes.int4])
def test_dtypes_that_are_none_of_ours(dtype):
    for call in (
        lambda a: dsakit.dynamic_quant(a),
        lambda a: dsakit.dynamic_quant(X, smooth_scales=a),
        lambda a: dsakit.dynamic_quant(X, y=a),
    ):
        error = refused("INVALID_DTYPE", lambda: call(np.zeros((5, 12), dtype)))
        assert isinstance(error, TypeError) and str(np.dtype(dtype)) in error.got


@pytest.mark.parametrize("thing", [3, 2.5, "x", b"x", [[1.0, 2.0]], {}, print, np.float32(1)])
def test_what_is_no_array(thing):
    refused(
        "INVALID_DTYPE" if not isinstance(thing, np.generic) else "INVALID_SHAPE",
        lambda: dsakit.dynamic_quant(np.asarray(thing) if isinstance(thing, np.generic) else thing),
        "input",
    )


def test_memory_must_be_the_arrays_own():
    strided = np.lib.stride_tricks.as_strided
    buffer = np.zeros(60, np.float32)
    inside = strided(buffer, (5, 12), (48, 4))
    same(dsakit.dynamic_quant(inside), dsakit.dynamic_quant(np.zeros((5, 12), np.float32)))
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(strided(buffer, (5, 13), (48, 4))), "input")
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(strided(buffer, (50, 12), (48, 4))), "input")
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(strided(buffer[8:], (5, 12), (48, 4))), "input")
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(X, y=strided(np.zeros(60, np.int8), (5, 12), (0, 1))), "y")
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(np.zeros((5, 12), [("a", "f4"), ("b", "i2")])["a"]), "input")
    same(dsakit.dynamic_quant(np.frombuffer(X.tobytes(), np.float32).reshape(5, 12)))
    odd = np.frombuffer(b"." + X.tobytes(), np.float32, 60, 1).reshape(5, 12)
    refused("MISALIGNED", lambda: dsakit.dynamic_quant(odd), "input")


def test_rank_nine():
    refused("INVALID_SHAPE", lambda: dsakit.dynamic_quant(np.zeros((1,) * 9, np.float32)), "input")


@pytest.mark.parametrize("form", [list, tuple, *(np.dtype(t) for t in "bBhHiIlL")], ids=str)
def test_lengths_are_any_integers(indexer, form):
    values = [3, 2]
    wanted = dsakit.quant_lightning_indexer(
        **indexer,
        actual_seq_lengths_query=np.array(values, np.int32),
        actual_seq_lengths_key=np.array([9, 4], np.int32),
    )
    given = np.array(values, form) if isinstance(form, np.dtype) else form(values)
    got = dsakit.quant_lightning_indexer(
        **indexer, actual_seq_lengths_query=given, actual_seq_lengths_key=[9, np.int64(4)]
    )
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "given,status,position",
    [
        ([3, True], "INVALID_DTYPE", "[1]"),
        ([3, 2.0], "INVALID_DTYPE", "[1]"),
        ([None, 2], "INVALID_DTYPE", "[0]"),
        ([3, 2**31], "INVALID_SEQLEN", "[1]"),
        ([3, 2**70], "INVALID_SEQLEN", "[1]"),
        (np.array([2**40, 2]), "INVALID_SEQLEN", "[0]"),
        (np.array([3.0, 2.0]), "INVALID_DTYPE", ""),
        (np.array([True, False]), "INVALID_DTYPE", ""),
        (3, "INVALID_DTYPE", ""),
        ("32", "INVALID_DTYPE", ""),
    ],
)
def test_lengths_that_are_not(indexer, given, status, position):
    error = refused(
        status,
        lambda: dsakit.quant_lightning_indexer(**indexer, actual_seq_lengths_query=given),
        "actual_seq_lengths_query",
    )
    assert error.position == position


def test_block_table_stays_int32(indexer):
    pages = dict(
        key=np.zeros((4, 3, 1, 16), np.int8),
        key_dequant_scale=np.zeros((4, 3, 1), np.float16),
        layout_key="PA_BSND",
        actual_seq_lengths_key=[4, 5],
    )
    table = np.array([[0, 1], [2, 3]])
    refused(
        "INVALID_DTYPE", lambda: dsakit.quant_lightning_indexer(**indexer | pages, block_table=table), "block_table"
    )
    refused(
        "INVALID_DTYPE",
        lambda: dsakit.quant_lightning_indexer(**indexer | pages, block_table=table.tolist()),
        "block_table",
    )
    assert dsakit.quant_lightning_indexer(**indexer | pages, block_table=table.astype(np.int32)).shape == (2, 3, 1, 5)


def test_packed_weight_only_where_a_weight_is():
    packed = dsakit.pack_weight(X.astype(BF16))
    refused("INVALID_DTYPE", lambda: dsakit.dynamic_quant(packed), "input")
    refused("INVALID_DTYPE", lambda: dsakit.dynamic_quant(dsakit.format_cast(X.astype(BF16), 29)), "input")


class Exported:
    """Somebody else's array: nothing but DLPack."""

    def __init__(self, array, **more):
        self.array, self.more = array, more

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.more.get("device", self.array.__dlpack_device__())


def test_dlpack():
    same(dsakit.dynamic_quant(Exported(X)))
    same(dsakit.dynamic_quant(Exported(np.concatenate([X, X], axis=1)[:, 12:])))
    same(dsakit.dynamic_quant(X.__dlpack__()))
    y = np.zeros_like(Y)
    dsakit.dynamic_quant(X, y=Exported(y))
    np.testing.assert_array_equal(y, Y)


def test_dlpack_refusals():
    refused("INVALID_DEVICE", lambda: dsakit.dynamic_quant(Exported(X, device=(2, 0))), "input")
    capsule = X.__dlpack__()
    dsakit.dynamic_quant(capsule)
    refused("INVALID_ARGUMENT", lambda: dsakit.dynamic_quant(capsule), "input")
    refused("INVALID_DTYPE", lambda: dsakit.dynamic_quant(Exported(X.astype(np.complex64))), "input")
    y = np.zeros_like(Y)
    y.flags.writeable = False
    refused("INVALID_DEVICE", lambda: dsakit.dynamic_quant(X, y=y.__dlpack__(max_version=(1, 0))), "y")


def test_torch_in_torch_out(indexer):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X.copy())
    for given in (x, torch.nn.Parameter(x), torch.cat([x, x], dim=1)[:, 12:]):
        y, scale = dsakit.dynamic_quant(given)
        assert y.dtype == torch.int8 and scale.dtype == torch.float32 and not scale.requires_grad
        same((y.numpy(), scale.numpy()))
    as_torch = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in indexer.items()
    }
    got = dsakit.quant_lightning_indexer(**as_torch, actual_seq_lengths_key=torch.tensor([9, 4]))
    assert isinstance(got, torch.Tensor)
    np.testing.assert_array_equal(got.numpy(), dsakit.quant_lightning_indexer(**indexer, actual_seq_lengths_key=[9, 4]))


def test_the_first_tensor_decides_the_kind():
    torch = pytest.importorskip("torch")
    smooth = np.ones(12, np.float32)
    assert all(
        isinstance(r, torch.Tensor) for r in dsakit.dynamic_quant(torch.from_numpy(X.copy()), smooth_scales=smooth)
    )
    same(dsakit.dynamic_quant(X, smooth_scales=torch.ones(12)))
    y = torch.zeros(5, 12, dtype=torch.int8)
    result = dsakit.dynamic_quant(X, y=y)
    assert result[0] is y and isinstance(result[1], np.ndarray)


def test_bfloat16_of_torch():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X.copy()).bfloat16()
    y, scale = dsakit.dynamic_quant(x)
    same((y.numpy(), scale.numpy()), dsakit.dynamic_quant(x.view(torch.int16).numpy().view(BF16)))


def test_torch_refusals():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X.copy())
    refused("INVALID_DEVICE", lambda: dsakit.reference.dynamic_quant(x.to("meta")), "input")
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(x.to_sparse()), "input")
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(torch._neg_view(x)), "input")
    refused("INVALID_DTYPE", lambda: dsakit.dynamic_quant(x.to(torch.complex64)), "input")
    refused("INVALID_STRIDE", lambda: dsakit.dynamic_quant(x.t()), "input")


@pytest.mark.parametrize("name", ["int8", "qint8", "quint4x2"])
def test_dtype_arguments(name):
    torch = pytest.importorskip("torch")
    x = np.linspace(-3, 3, 80, dtype=np.float32).reshape(5, 16)
    wanted = dsakit.dynamic_quant(x, dst_type=name)
    spellings = [getattr(torch, name)] + [np.int8, np.dtype(np.int8)] * (name == "int8")
    for spelling in spellings:
        same(dsakit.dynamic_quant(x, dst_type=spelling), wanted)
    refused("INVALID_ARGUMENT", lambda: dsakit.dynamic_quant(x, dst_type="int9"), "dst_type")


def test_a_call_is_two_python_frames(indexer):
    """And torch's answer whether it compiles, if it is there: what a call costs beside its work is counted, not timed."""
    import sys

    frames = []
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_name) if event == "call" else None)
    try:
        dsakit.quant_lightning_indexer(**indexer)
        dsakit.dynamic_quant(indexer["weights"])
    finally:
        sys.setprofile(None)
    frames = [name for name in frames if name not in ("is_compiling", "is_scripting")]
    assert frames == ["quant_lightning_indexer", "run", "dynamic_quant", "run"]
