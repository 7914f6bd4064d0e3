# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from oracle.cases import BF16, F, generator
from oracle.harness import assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.quantise import dynamic_quant

NAME = "dynamic_quant"
DTYPES = [BF16, np.float16, F]


def rows(seed, dtype, shape):
    """Rows of many magnitudes, with zeros, a single large element, exact halves and tiny groups among them."""
    rng = generator(seed)
    x = ((rng.random(shape) * 2 - 1) * 2.0 ** rng.integers(-8, 9, shape[:-1] + (1,))).astype(dtype)
    flat = x.reshape(-1, shape[-1])
    for r in range(len(flat)):
        kind = rng.integers(6)
        if kind == 0:
            flat[r] = 0
        elif kind == 1:
            flat[r, rng.integers(shape[-1])] = 30000
        elif kind == 2:  # multiplier 1: the codes are the halves themselves
            flat[r] = (rng.integers(-254, 255, shape[-1]) * 0.5).astype(dtype)
            flat[r, 0] = 127
        elif kind == 3 and dtype != np.float16:
            flat[r] = (rng.random(shape[-1]) * 10.0 ** -rng.integers(30, 40)).astype(dtype)
    return x


@both
@seeds(24)
def test_per_token(seed, impl):
    rng = generator(seed + 10000)
    shape = tuple(int(v) for v in rng.integers(1, 5, rng.integers(1, 3))) + (
        int(rng.choice([1, 7, 16, 33, 255, 1024])),
    )
    x = rows(seed, DTYPES[seed % 3], shape)
    smooth = ((rng.random(shape[-1]) * 4 - 1).astype(x.dtype)) if seed % 2 else None
    codes, scale = operator(NAME, impl)(x, smooth_scales=smooth)
    want = dynamic_quant(x, smooth)
    assert_same(codes, want[0], "y")
    assert_same(scale, want[1], "scale")


@both
@seeds(8, 50)
def test_int4(seed, impl):
    x = rows(seed, DTYPES[seed % 3], (3, 4, 40))
    want = dynamic_quant(x, int4=True)
    codes, scale = operator(NAME, impl)(x, dst_type="quint4x2")
    assert codes.shape == (3, 4, 5)
    assert_same(codes, want[0], "y")
    assert_same(scale, want[1], "scale")


@both
@seeds(8, 100)
def test_groups(seed, impl):
    x = rows(seed, DTYPES[seed % 3], (2, 6, 33))
    smooth = (generator(seed).random((4, 33)) + 0.25).astype(x.dtype)
    ends = np.array([[3, 3, 7, 12], [0, 5, 5, 12], [12, 12, 12, 12], [1, 2, 3, 12]][seed % 4], np.int32)
    codes, scale = operator(NAME, impl)(x, smooth_scales=smooth, group_index=ends)
    want = dynamic_quant(x, smooth, ends)
    assert_same(codes, want[0], "y")
    assert_same(scale, want[1], "scale")


@both
def test_forms(impl):
    op = operator(NAME, impl)
    x = rows(1, BF16, (5, 24))
    want = dynamic_quant(x)
    for kind in ("int8", "qint8", np.int8, np.dtype(np.int8)):
        assert_same(op(x, dst_type=kind)[0], want[0], "y")
    wide = np.zeros((5, 40), BF16)
    wide[:, 3:27] = x
    for got, w in zip(op(wide[:, 3:27], quant_mode="pertoken", dst_type_max=0.0), want):
        assert_same(got, w)
    codes, scale = op(np.zeros((0, 24), BF16))
    assert codes.shape == (0, 24) and scale.shape == (0,)
    assert_same(
        op(np.array([[0.8125, -0.40625, 0.10009765625, 0.796875, 0]], F))[1], np.array([0x3BD1A347], np.uint32).view(F)
    )


@both
def test_torch(impl):
    torch = pytest.importorskip("torch")
    x = rows(2, BF16, (5, 24))
    codes, scale = operator(NAME, impl)(to_torch(x).requires_grad_(True), dst_type=torch.int8)
    assert isinstance(codes, torch.Tensor) and not codes.requires_grad
    assert_same(to_numpy(codes), dynamic_quant(x)[0])
    assert_same(to_numpy(scale), dynamic_quant(x)[1])


def test_threads():
    x = rows(3, BF16, (67, 513))
    results = per_thread_count(lambda: operator(NAME)(x))
    for codes, scale in results:
        assert_same(codes, dynamic_quant(x)[0])
        assert_same(scale, dynamic_quant(x)[1])


X = np.ones((4, 12), BF16)
REFUSED = {
    "dtype": (dict(input=X.astype(np.float64)), "INVALID_DTYPE", "input"),
    "integers": (dict(input=X.astype(np.int8)), "INVALID_DTYPE", "input"),
    "rank 1": (dict(input=X[0]), "INVALID_SHAPE", "input"),
    "int4 width": (dict(dst_type="quint4x2"), "INVALID_SHAPE", "input"),
    "smooth dtype": (dict(smooth_scales=np.ones(12, F)), "INVALID_DTYPE", "smooth_scales"),
    "smooth width": (dict(smooth_scales=np.ones(11, BF16)), "INVALID_SHAPE", "smooth_scales"),
    "groups without smooth": (
        dict(group_index=np.array([4], np.int32)),
        "INVALID_ARGUMENT",
        {"group_index", "smooth_scales"},
    ),
    "groups decrease": (
        dict(smooth_scales=np.ones((3, 12), BF16), group_index=np.array([3, 2, 4], np.int32)),
        {"INVALID_SEQLEN", "INVALID_INDEX"},
        "group_index",
    ),
    "groups end early": (
        dict(smooth_scales=np.ones((2, 12), BF16), group_index=np.array([1, 3], np.int32)),
        {"INVALID_SEQLEN", "INVALID_INDEX"},
        "group_index",
    ),
    "groups int64": (
        dict(smooth_scales=np.ones((2, 12), BF16), group_index=np.array([1, 4])),
        "INVALID_DTYPE",
        "group_index",
    ),
    "groups count": (
        dict(smooth_scales=np.ones((3, 12), BF16), group_index=np.array([1, 4], np.int32)),
        "INVALID_SHAPE",
        {"group_index", "smooth_scales"},
    ),
    "per channel": (dict(quant_mode="perchannel", level="strict"), "UNSUPPORTED", "quant_mode"),
    "per tensor": (dict(quant_mode="pertensor", level="strict"), "UNSUPPORTED", "quant_mode"),
    "mode unknown": (dict(quant_mode="perrow"), "INVALID_ARGUMENT", "quant_mode"),
    "dst unknown": (dict(dst_type="int5"), "INVALID_ARGUMENT", "dst_type"),
    "dst_type_max": (dict(dst_type_max=1.0), {"UNSUPPORTED", "INVALID_ARGUMENT"}, "dst_type_max"),
    "input missing": (dict(input=None), "INVALID_ARGUMENT", "input"),
    "fp32 in strict": (dict(input=X.astype(F), level="strict"), {"UNSUPPORTED", "INVALID_DTYPE"}, "input"),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    change, status, parameter = REFUSED[name]
    refused(lambda: operator(NAME, impl)(**dict(dict(input=X), **change)), NAME, status, parameter)
