# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from oracle.cases import BF16, generator
from oracle.harness import assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.quantise import dynamic_block_quant

NAME = "dynamic_block_quant"


def rows(seed, dtype, shape):
    """Blocks of many magnitudes, zero blocks, exact halves, single large elements, tiny ones."""
    rng = generator(seed)
    x = (rng.random(shape) * 2 - 1) * 2.0 ** rng.integers(-8, 9, shape[:-1] + (1,))
    flat = x.reshape(-1, shape[-1])
    for row in flat:
        first = int(rng.integers(shape[-1]))
        kind = rng.integers(6)
        if kind == 0:
            row[:first] = 0
        elif kind == 1:
            row[first] = 30000
        elif kind == 2:
            row[...] = rng.integers(-254, 255, shape[-1]) * 0.5
            row[::16] = 127
        elif kind == 3 and dtype == BF16:
            row[...] *= 10.0 ** -rng.integers(30, 40)
    return x.astype(dtype)


def check(x, impl, min_scale=0.0, col=128):
    y, scale = operator(NAME, impl)(x, min_scale=min_scale, col_block_size=col)
    want = dynamic_block_quant(x, min_scale, col)
    assert_same(y, want[0], "y")
    assert_same(scale, want[1], "scale")


@both
@seeds(60)
def test_random(seed, impl):
    rng = generator(seed + 10000)
    col = int(rng.choice([128, 128, 1, 7, 16, 100]))
    shape = tuple(int(v) for v in rng.integers(1, 5, rng.integers(1, 3))) + (
        int(rng.choice([1, 7, 128, 129, 300, 512])),
    )
    x = rows(seed, [BF16, np.float16][seed % 2], shape)
    check(x, impl, [0.0, 0.0, 3.5, 1e-3, 4000.0][rng.integers(5)], col)


@both
def test_forms(impl):
    torch = pytest.importorskip("torch")
    x = rows(1, BF16, (3, 5, 300))
    want = dynamic_block_quant(x)
    args = dict(round_mode="rint", dst_type=1, row_block_size=1, col_block_size=128, dst_type_max=0.0, level="strict")
    for got, w in zip(operator(NAME, impl)(x, **args), want):
        assert_same(got, w)
    wide = np.zeros((3, 5, 320), BF16)[..., 7:307]
    wide[...] = x
    for got, w in zip(operator(NAME, impl)(wide), want):
        assert_same(got, w)
    for got, w in zip(operator(NAME, impl)(to_torch(x)), want):
        assert isinstance(got, torch.Tensor)
        assert_same(to_numpy(got), w)
    y, scale = operator(NAME, impl)(x[:, :0])
    assert y.shape == (3, 0, 300) and scale.shape == (3, 0, 3)


def test_threads():
    x = rows(3, BF16, (67, 513))
    for got in per_thread_count(lambda: operator(NAME)(x)):
        for g, w in zip(got, dynamic_block_quant(x)):
            assert_same(g, w)


X = np.ones((4, 256), BF16)
UNKNOWN = {"INVALID_ARGUMENT", "UNSUPPORTED"}
REFUSED = {
    "fp32": (dict(x=X.astype(np.float32)), "INVALID_DTYPE", "x"),
    "rank 1": (dict(x=X[0]), "INVALID_SHAPE", "x"),
    "rank 4": (dict(x=X[None, None]), "INVALID_SHAPE", "x"),
    "missing": (dict(x=None), "INVALID_ARGUMENT", "x"),
    "round_mode": (dict(round_mode="floor"), UNKNOWN, "round_mode"),
    "dst_type": (dict(dst_type=291), UNKNOWN, "dst_type"),
    "dst_type_max": (dict(dst_type_max=1.0), UNKNOWN, "dst_type_max"),
    "row_block_size": (dict(row_block_size=128), UNKNOWN, "row_block_size"),
    "col_block_size 0": (dict(col_block_size=0), UNKNOWN, "col_block_size"),
    "min_scale nan": (dict(min_scale=float("nan")), "INVALID_ARGUMENT", "min_scale"),
    "other columns in strict": (dict(col_block_size=64, level="strict"), "UNSUPPORTED", "col_block_size"),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    change, status, parameter = REFUSED[name]
    refused(lambda: operator(NAME, impl)(**dict(x=X) | change), NAME, status, parameter)
