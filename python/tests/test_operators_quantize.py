# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from oracle.cases import BF16, F, generator
from oracle.harness import assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.quantise import pack_int4, quantize

NAME = "quantize"
INPUTS = [F, np.float16, BF16]
ZERO_POINTS = dict(qint8=np.int8, quint8=np.uint8, qint32=np.int32)


def numbers(rng, shape, dtype, scale=1.0):
    """Many magnitudes, exact halves of the scale among them."""
    x = (rng.random(shape) * 2 - 1) * 2.0 ** rng.integers(-3, 9, shape)
    halves = rng.integers(-300, 300, shape) / 2
    return (np.where(rng.random(shape) < 0.3, halves, x) * scale).astype(dtype)


def case(seed):
    rng = generator(seed)
    div_mode = bool(seed % 3)
    dtype = INPUTS[rng.integers(3)]
    rank = int(rng.integers(1, 5))
    shape = tuple(int(v) for v in rng.integers(1, 7, rank - 1)) + (int(rng.choice([1, 3, 8, 16, 33, 40])),)
    packed = not div_mode and bool(rng.integers(2))
    if packed:
        shape = shape[:-1] + (8 * int(rng.integers(1, 6)),)
    axis = int(rng.integers(-rank, rank))
    if not div_mode and rank >= 2 and rng.integers(2):
        axis = -2
    along = axis if div_mode else -2 if axis == -2 else -1
    n = shape[along] if rng.integers(3) else 1
    kind = BF16 if dtype == BF16 and (rng.integers(2) or not div_mode) else F if div_mode else dtype
    step = 2.0 ** rng.integers(-2, 3) if rng.integers(2) else rng.random() + 0.05
    scales = (np.sign(rng.random(n) - 0.1) * step * (1 + rng.integers(0, 3, n))).astype(kind)
    if div_mode:
        name = ["qint8", "quint8", "qint32", "int8", "uint8", "int32"][rng.integers(6)]
        points = rng.integers(0, 100, n)
        if name[-5:] != "uint8":
            points = points - 50
        zero = points.astype(ZERO_POINTS[name if name[0] == "q" else "q" + name])
        if kind == BF16 and rng.integers(2):
            zero = (points + rng.integers(0, 2, n) / 2).astype(BF16)
    else:
        name = "quint4x2" if packed else "qint8"
        zero = (rng.integers(-20, 20, n) / 4).astype(kind)
    if rng.integers(3) == 0:
        zero = None
    x = numbers(rng, shape, dtype, step if div_mode else 1 / step)
    return x, scales, zero, name, axis, div_mode


@both
@seeds(150)
def test_random(seed, impl):
    args = case(seed)
    assert_same(operator(NAME, impl)(*args), quantize(*args))


@both
@seeds(12, 300)
def test_scales_of_full_rank(seed, impl):
    """Multiplied scales may have the rank of the input, with all other axes 1."""
    rng = generator(seed)
    dtype, axis = INPUTS[seed % 3], [-1, -2][seed % 2]
    x = numbers(rng, (2, 3, 16), dtype)
    scales = (rng.random(x.shape[axis]) + 0.1).astype(dtype)
    zero = (rng.random(x.shape[axis]) * 4).astype(dtype)
    shape = [1, 1, 1]
    shape[axis] = -1
    got = operator(NAME, impl)(x, scales.reshape(shape), zero.reshape(shape), "qint8", axis=axis, div_mode=False)
    assert_same(got, quantize(x, scales, zero, "qint8", axis, False))


@both
def test_worked_examples(impl):
    op = operator(NAME, impl)
    one = lambda *v: np.array(v, F)
    assert op(one(0.25), one(0.1), None, "qint8", axis=0).tolist() == [2]
    # the zero point behind the rounding, and inside it
    assert op(one(2.5, 3.5, -2.5), one(1), np.array([1], np.int8), "qint8", 0).tolist() == [3, 5, -1]
    assert op(one(2.5, 3.5, -2.5), one(1), one(1), "qint8", -1, False).tolist() == [4, 4, -2]
    packed = op(one(1, -1, 2, -2, 7, -8, 0, 3), one(1), None, "quint4x2", -1, False)
    assert packed.dtype == np.int32 and packed.tolist() == [0x3087E2F1]
    assert_same(packed, pack_int4([1, -1, 2, -2, 7, -8, 0, 3]))
    assert op(one(100, -100, 9, -9, 0, 0, 0, 0), one(1), None, "quint4x2", -1, False).view(np.uint32)[0] == 0x00008787
    assert op(one(-1, 300, 1e30, -1e30), one(1), None, "quint8", 0).tolist() == [0, 255, 255, 0]
    assert op(one(200, -200), one(1), None, "int8", 0).tolist() == [127, -128]
    assert op(one(2147483520, 3e9, -3e9, 2**30), one(1), np.array([100], np.int32), "qint32", 0).tolist() == [
        2147483620, 2**31 - 1, -(2**31), 2**30 + 100,
    ]  # fmt: skip
    # x/0: infinities saturate, NaN is 0
    assert op(one(1, -1, 0), one(0), None, "qint8", 0).tolist() == [127, -128, 0]
    assert op(one(np.nan, np.inf), one(1), None, "qint32", 0).tolist() == [0, 2**31 - 1]
    assert op(one(np.nan), one(1), one(3), "qint8", -1, False).tolist() == [0]


@both
def test_forms(impl):
    op, rng = operator(NAME, impl), generator(1)
    x, scales = numbers(rng, (3, 5), BF16), (rng.random(5) + 0.5).astype(F)
    want = quantize(x, scales, None, "qint8", 1)
    for dtype in ("int8", "qint8", np.int8, np.dtype(np.int8)):
        assert_same(op(x, scales, None, dtype), want)
    assert_same(op(input=x, scales=scales, zero_points=None, dtype="qint8", level="strict"), want)
    wide = np.zeros((3, 9), BF16)
    wide[:, 2:7] = x
    assert_same(op(wide[:, 2:7], scales, None, "qint8"), want)
    assert_same(op(np.broadcast_to(x[:1], (4, 5)), scales, None, "qint8"), want[[0] * 4])
    assert op(x[:0], scales, None, "quint8").shape == (0, 5)


@both
def test_torch(impl):
    torch = pytest.importorskip("torch")
    rng = generator(2)
    x, scales = numbers(rng, (3, 16), BF16), (rng.random(16) + 0.5).astype(F)
    names = {
        torch.int8: "qint8",
        torch.qint8: "qint8",
        torch.quint8: "quint8",
        torch.qint32: "qint32",
        torch.uint8: "quint8",
    }
    for dtype, name in names.items():
        y = operator(NAME, impl)(to_torch(x).requires_grad_(True), to_torch(scales), None, dtype)
        assert isinstance(y, torch.Tensor)
        assert_same(to_numpy(y), quantize(x, scales, None, name))
    y = operator(NAME, impl)(to_torch(x), to_torch(scales.astype(BF16)), None, torch.quint4x2, -1, False)
    assert_same(to_numpy(y), quantize(x, scales.astype(BF16), None, "quint4x2", -1, False))


def test_threads():
    x = numbers(generator(3), (67, 513), F)
    scales = (generator(4).random(513) + 0.1).astype(F)
    for y in per_thread_count(lambda: operator(NAME)(x, scales, None, "qint8")):
        assert_same(y, quantize(x, scales, None, "qint8"))


X, S = np.ones((4, 12), F), np.ones(12, F)
GOOD = dict(input=X, scales=S, zero_points=None, dtype="qint8")
SHAPE = {"INVALID_SHAPE", "INVALID_ARGUMENT"}
MULTIPLY = dict(div_mode=False)
REFUSED = {
    "input int8": (dict(input=X.astype(np.int8)), "INVALID_DTYPE", "input"),
    "input fp64": (dict(input=X.astype(np.float64)), "INVALID_DTYPE", "input"),
    "input missing": (dict(input=None), "INVALID_ARGUMENT", "input"),
    "input of rank 0": (dict(input=np.ones((), F), axis=0), SHAPE, {"input", "axis"}),
    "scales missing": (dict(scales=None), "INVALID_ARGUMENT", "scales"),
    "scales size": (dict(scales=np.ones(11, F)), "INVALID_SHAPE", "scales"),
    "scales of another axis": (dict(axis=0), "INVALID_SHAPE", "scales"),
    "scales rank 2 divided": (dict(scales=np.ones((1, 12), F)), "INVALID_SHAPE", "scales"),
    "scales bf16 beside fp32": (dict(scales=S.astype(BF16), level="strict"), "INVALID_DTYPE", "scales"),
    "scales fp16": (dict(scales=S.astype(np.float16), level="strict"), "INVALID_DTYPE", "scales"),
    "zero points size": (dict(zero_points=np.ones(1, np.int8)), "INVALID_SHAPE", "zero_points"),
    "zero points fp32": (dict(zero_points=S), "INVALID_DTYPE", "zero_points"),
    "zero points int64": (dict(zero_points=np.ones(12, np.int64)), "INVALID_DTYPE", "zero_points"),
    "axis 2": (dict(axis=2), SHAPE, "axis"),
    "axis -3": (dict(axis=-3), SHAPE, "axis"),
    "rank 1, default axis": (dict(input=X[0]), SHAPE, {"axis", "input"}),
    "dtype unknown": (dict(dtype="int9"), "INVALID_ARGUMENT", "dtype"),
    "dtype float8": (dict(dtype="float8_e4m3fn"), "UNSUPPORTED", "dtype"),
    "dtype hifloat8": (dict(dtype="hifloat8"), "UNSUPPORTED", "dtype"),
    "int4 divided": (
        dict(dtype="quint4x2", input=X[:, :8], scales=S[:8]),
        {"INVALID_ARGUMENT", "UNSUPPORTED"},
        "dtype",
    ),
    "uint8 multiplied": (MULTIPLY | dict(dtype="quint8"), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "dtype"),
    "int4 width": (MULTIPLY | dict(dtype="quint4x2"), "INVALID_SHAPE", "input"),
    "scales bf16 multiplied": (MULTIPLY | dict(scales=S.astype(BF16)), "INVALID_DTYPE", "scales"),
    "scales rank 2 multiplied": (MULTIPLY | dict(scales=np.ones((4, 12), F)), "INVALID_SHAPE", "scales"),
    "zero points int8 multiplied": (MULTIPLY | dict(zero_points=np.ones(12, np.int8)), "INVALID_DTYPE", "zero_points"),
    "zero points shape multiplied": (MULTIPLY | dict(zero_points=np.ones((1, 12), F)), "INVALID_SHAPE", "zero_points"),
    "axis multiplied": (MULTIPLY | dict(axis=5), SHAPE, "axis"),
    "div_mode number": (dict(div_mode=2.5), "INVALID_DTYPE", "div_mode"),
    "level": (dict(level="loose"), "INVALID_ARGUMENT", "level"),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    change, status, parameter = REFUSED[name]
    refused(lambda: operator(NAME, impl)(**GOOD | change), NAME, status, parameter)
