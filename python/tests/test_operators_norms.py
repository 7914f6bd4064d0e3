# SPDX-License-Identifier: Apache-2.0
"""rms_norm, add_rms_norm, add_rms_norm_bias and swiglu."""

import numpy as np
import pytest

from oracle.cases import BF16, F, generator, uniform
from oracle.harness import both, operator, refused, seeds, to_numpy, to_torch
from oracle.rounding import bf16, f16
from oracle.rows import canonical_sum

ROUND = {BF16: bf16, np.float16: f16, F: lambda v: v}
KINDS = [BF16, np.float16, F]


def same(got, want):
    """Equal; the sign of a zero is nobody's."""
    want = np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    assert np.array_equal(np.asarray(got).astype(F), want.astype(F))


def rstd_of(x, n, epsilon):
    rows = np.asarray(x, F).reshape(-1, n)
    return F(1) / np.sqrt(canonical_sum(rows * rows) * (F(1) / F(n)) + F(epsilon))


@both
@seeds(24)
def test_norms(seed, impl):
    rng, dtype = generator(seed), KINDS[seed % 3]
    round_ = lambda v: ROUND[dtype](np.asarray(v, F)).astype(dtype)
    row = tuple(int(v) for v in rng.integers(1, 20, rng.integers(1, 3)))
    shape = tuple(int(v) for v in rng.integers(1, 5, 2)) + row
    n, epsilon = int(np.prod(row)), [1e-6, 1e-2][seed % 2]
    x1, x2 = uniform(rng, shape, 3, dtype), uniform(rng, shape, 3, dtype)
    gamma, beta = uniform(rng, row, 2, dtype), uniform(rng, row, 2, dtype)

    rstd = rstd_of(x1, n, epsilon).reshape(shape[:2] + (1,) * len(row))
    y, got = operator("rms_norm", impl)(x1, gamma, epsilon)
    same(got, rstd)
    same(y, round_(x1.astype(F) * rstd * gamma.astype(F)))

    x = round_(x1.astype(F) + x2.astype(F))
    rstd = rstd_of(x, n, epsilon).reshape(rstd.shape)
    scaled = round_(x.astype(F) * rstd).astype(F) * gamma.astype(F)
    for got, want in zip(operator("add_rms_norm", impl)(x1, x2, gamma, epsilon), (round_(scaled), rstd, x)):
        same(got, want)
    biased = (round_(scaled).astype(F) if dtype == np.float16 else scaled) + beta.astype(F)
    for got, want in zip(operator("add_rms_norm_bias", impl)(x1, x2, gamma, beta, epsilon), (round_(biased), rstd, x)):
        same(got, want)
    for got, want in zip(
        operator("add_rms_norm_bias", impl)(x1, x2, gamma, epsilon=epsilon), (round_(scaled), rstd, x)
    ):
        same(got, want)


@both
def test_worked_examples(impl):
    row = lambda *v: np.array([v], BF16)
    x, gamma = row(1.25, 0.5, 0, -1), row(1.5, 0.75, 1.25, 3)[0]
    y, rstd, _ = operator("add_rms_norm", impl)(x, row(0, 0, 0, 0), gamma)
    assert rstd.view(np.uint32)[0, 0] == 0x3F98A618
    same(y, row(2.234375, 0.44921875, 0, -3.59375))
    same(operator("rms_norm", impl)(x, gamma)[0], row(2.234375, 0.447265625, 0, -3.578125))
    sums = operator("add_rms_norm", impl)(row(1, -2, 2, 4), row(0.005859375, 0, 0, 0), gamma)[2]
    same(sums, row(1.0078125, -2, 2, 4))
    same(operator("swiglu", impl)(row(1, 2, 3, 4)), row(2.1875, 7.03125))


@both
@seeds(12)
def test_swiglu(seed, impl):
    rng, dtype = generator(seed), KINDS[seed % 3]
    shape = [int(v) for v in rng.integers(1, 7, 3)]
    dim = int(rng.integers(-3, 3))
    shape[dim] *= 2
    x = uniform(rng, tuple(shape), 9, dtype)
    a, b = np.split(x.astype(np.float64), 2, axis=dim)
    got, want = operator("swiglu", impl)(x, dim), a / (1 + np.exp(-a)) * b
    assert got.dtype == dtype and got.shape == want.shape
    unit = {BF16: 2**-8, np.float16: 2**-11, F: 2**-22}[dtype] * 1.01
    assert (abs(got.astype(np.float64) - want) <= unit * abs(want) + (2**-24 if dtype == np.float16 else 0)).all()


@both
def test_torch(impl):
    torch = pytest.importorskip("torch")
    rng = generator(3)
    x, gamma = uniform(rng, (4, 6, 32)), uniform(rng, 16)
    y, rstd = operator("npu_rms_norm", impl)(to_torch(x)[..., :16], to_torch(gamma))
    assert isinstance(y, torch.Tensor) and rstd.shape == (4, 6, 1)
    for got, want in zip((y, rstd), operator("rms_norm", impl)(np.ascontiguousarray(x[..., :16]), gamma)):
        same(to_numpy(got), want)
    same(to_numpy(operator("npu_swiglu", impl)(to_torch(x))), operator("swiglu", impl)(x))


X, G = np.ones((2, 3, 8), BF16), np.ones(8, BF16)
GOOD = dict(
    rms_norm=dict(self=X, gamma=G),
    add_rms_norm=dict(x1=X, x2=X, gamma=G),
    add_rms_norm_bias=dict(x1=X, x2=X, gamma=G, beta=G),
    swiglu=dict(self=X),
)
REFUSED = [
    ("rms_norm", dict(gamma=G[:7].copy()), "INVALID_SHAPE", "gamma"),
    ("rms_norm", dict(gamma=G.astype(np.float16)), "INVALID_DTYPE", "gamma"),
    ("rms_norm", dict(self=X[..., :0].copy(), gamma=G[:0].copy()), "INVALID_SHAPE", "gamma"),
    ("rms_norm", dict(epsilon=0.0), "INVALID_ARGUMENT", "epsilon"),
    ("add_rms_norm", dict(x2=X[0]), "INVALID_SHAPE", "x2"),
    ("add_rms_norm", dict(gamma=G.astype(F)), "INVALID_DTYPE", "gamma"),
    ("add_rms_norm_bias", dict(beta=X[0]), "INVALID_SHAPE", "beta"),
    ("swiglu", dict(dim=3), "INVALID_ARGUMENT", "dim"),
    ("swiglu", dict(dim=1), "INVALID_SHAPE", "self"),
    ("swiglu", dict(self=X.astype(np.int8)), "INVALID_DTYPE", "self"),
]


@both
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row[0]} {' '.join(row[1])}")
def test_refused(row, impl):
    name, change, status, parameter = row
    refused(lambda: operator(name, impl)(**GOOD[name] | change), name, status, parameter)
