# SPDX-License-Identifier: Apache-2.0
"""interleave_rope and rotary_mul."""

import numpy as np
import pytest

from oracle.cases import BF16, F, generator
from oracle.harness import both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.rounding import bf16, f16
from oracle.rows import rope

ROUND = {BF16: bf16, np.float16: f16, F: lambda v: v}


def numbers(rng, shape, dtype, largest=4):
    return ((rng.random(shape) * 2 - 1) * largest * 2.0 ** rng.integers(-6, 3, shape)).astype(dtype)


def same(got, want, dtype):
    """Equal; the sign of a zero is nobody's."""
    assert got.shape == want.shape and got.dtype == dtype
    assert np.array_equal(np.asarray(got).astype(np.float64), np.asarray(want, np.float64))


def rotated(x, cos, sin, mode):
    """half and interleave: both halves, or both of a pair, keep their places; cos and sin at every element."""
    x, cos, sin = (np.asarray(v, F) for v in (x, cos, sin))
    other = np.empty_like(x)
    m = x.shape[-1] // 2
    if mode == "half":
        other[..., :m], other[..., m:] = -x[..., m:], x[..., :m]
    else:
        other[..., 0::2], other[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    return x * cos + other * sin


@both
@seeds(40)
def test_interleave_rope(seed, impl):
    rng = generator(seed)
    dtype = [BF16, np.float16][seed % 2]
    b, n, s = (int(v) for v in rng.integers(1, 6, 3))
    d = int(rng.choice([64, 64, 2, 6, 34, 128]))
    x = numbers(rng, (b, n, s, d), dtype)
    cos, sin = (numbers(rng, (b, 1, [s, 1][rng.integers(2)], d), dtype, 1) for _ in range(2))
    if cos.shape != sin.shape:
        sin = sin[:, :, :1] if cos.shape[2] == 1 else np.broadcast_to(sin, cos.shape).copy()
    same(operator("interleave_rope", impl)(x, cos, sin), ROUND[dtype](rope(x, cos, sin, "interleaved_to_half")), dtype)


@both
@seeds(60)
def test_rotary_mul(seed, impl):
    rng = generator(seed + 100)
    dtype, mode = [BF16, np.float16, F][seed % 3], ["half", "interleave"][rng.integers(2)]
    shape = tuple(int(v) for v in rng.integers(1, 6, rng.integers(2, 4))) + (int(rng.choice([2, 6, 34, 64, 128])),)
    x = numbers(rng, shape, dtype)
    narrow = tuple(1 if rng.integers(2) else n for n in shape[:-1]) + shape[-1:]
    r1, r2 = numbers(rng, narrow, dtype, 1), numbers(rng, narrow, dtype, 1)
    got = (
        operator("rotary_mul", impl)(x, r1, r2, mode)
        if seed % 2
        else operator("rotary_mul", impl)(x, r1, r2, rotary_mode=mode)
    )
    same(got, ROUND[dtype](rotated(x, r1, r2, mode)), dtype)


@both
def test_worked_examples(impl):
    v, cos, sin = (
        np.array(n, BF16).reshape(1, 1, 1, 4) for n in ([1, 2, 3, 4], [0.5, 0.25, 1, 2], [1, 0.5, 0.125, 0.75])
    )
    flat = lambda y: y.astype(F).reshape(-1).tolist()
    assert flat(operator("interleave_rope", impl)(v, cos, sin)) == [-1.5, -1.25, 2.125, 10.25]
    assert flat(operator("rotary_mul", impl)(v, cos, sin)) == [-2.5, -1.5, 3.125, 9.5]
    assert flat(operator("rotary_mul", impl)(v, cos, sin, "interleave")) == [-1.5, 1.0, 2.5, 10.25]


@both
def test_there_and_back(impl):
    """A rotation and its inverse; halves are the interleaved pairs in another order."""
    rng = generator(5)
    angle = rng.random((2, 1, 3, 8)) * 6
    table = lambda f: np.concatenate([f(angle), f(angle)], axis=-1).astype(F)
    x = (rng.random((2, 4, 3, 16)) * 2 - 1).astype(F)
    turn = operator("rotary_mul", impl)
    back = turn(turn(x, table(np.cos), table(np.sin)), table(np.cos), -table(np.sin))
    assert np.allclose(back, x, atol=1e-6)
    pairs = np.stack([x[..., :8], x[..., 8:]], axis=-1).reshape(x.shape)
    both_halves = lambda f: np.repeat(f(angle), 2, axis=-1).astype(F)
    turned = turn(pairs, both_halves(np.cos), both_halves(np.sin), "interleave")
    halves = turn(x, table(np.cos), table(np.sin))
    assert np.array_equal(np.concatenate([turned[..., 0::2], turned[..., 1::2]], axis=-1), halves)
    tables = table(np.cos).astype(BF16), table(np.sin).astype(BF16)
    same(operator("interleave_rope", impl)(pairs.astype(BF16), *tables), turn(x.astype(BF16), *tables).astype(F), BF16)


@both
def test_forms(impl):
    torch = pytest.importorskip("torch")
    rng = generator(6)
    x, cos, sin = (
        numbers(rng, (2, 3, 5, 64), BF16),
        numbers(rng, (2, 1, 5, 64), BF16),
        numbers(rng, (2, 1, 5, 64), BF16),
    )
    want = operator("interleave_rope", impl)(x, cos, sin, level="strict")
    got = operator("interleave_rope", impl)(to_torch(x).requires_grad_(True), cos=to_torch(cos), sin=to_torch(sin))
    assert isinstance(got, torch.Tensor)
    same(to_numpy(got), want, BF16)
    swapped = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)  # heads inside tokens, seen from outside
    same(operator("interleave_rope", impl)(swapped, cos, sin), want, BF16)
    want = operator("rotary_mul", impl)(x, cos, sin, rotate=None, level="strict")
    same(operator("rotary_mul", impl)(swapped, cos, sin), want, BF16)
    same(to_numpy(operator("rotary_mul", impl)(*map(to_torch, (x, cos, sin)))), want, BF16)
    for name in ("interleave_rope", "rotary_mul"):
        assert operator(name, impl)(x[:, :, :0], cos[:, :, :0], sin[:, :, :0]).shape == (2, 3, 0, 64)


@pytest.mark.parametrize("name", ["interleave_rope", "rotary_mul"])
def test_threads(name):
    rng = generator(7)
    x, cos, sin = (
        numbers(rng, (3, 8, 67, 64), BF16),
        numbers(rng, (3, 1, 67, 64), BF16),
        numbers(rng, (3, 1, 67, 64), BF16),
    )
    first, *others = per_thread_count(lambda: operator(name)(x, cos, sin))
    for other in others:
        assert other.tobytes() == first.tobytes()


X, R = np.ones((2, 3, 5, 8), BF16), np.ones((2, 1, 5, 8), BF16)
GOOD = dict(interleave_rope=dict(x=X, cos=R, sin=R), rotary_mul=dict(x=X, r1=R, r2=R))
REFUSED = {
    "interleave_rope": {
        "fp32": (dict(x=X.astype(F), cos=R.astype(F), sin=R.astype(F)), "INVALID_DTYPE", "x"),
        "cos fp16": (dict(cos=R.astype(np.float16)), "INVALID_DTYPE", {"cos", "x"}),
        "rank 3": (dict(x=X[0]), "INVALID_SHAPE", "x"),
        "cos of heads": (dict(cos=X), "INVALID_SHAPE", "cos"),
        "cos of another batch": (dict(cos=R[:1]), "INVALID_SHAPE", "cos"),
        "cos of other tokens": (dict(cos=R[:, :, :2]), "INVALID_SHAPE", "cos"),
        "sin width": (dict(sin=R[..., :4].copy()), "INVALID_SHAPE", "sin"),
        "odd width": (dict(x=X[..., :7].copy(), cos=R[..., :7].copy(), sin=R[..., :7].copy()), "INVALID_SHAPE", "x"),
        "sin missing": (dict(sin=None), "INVALID_ARGUMENT", "sin"),
        "width in strict": (dict(level="strict"), "UNSUPPORTED", "x"),
    },
    "rotary_mul": {
        "r1 fp16": (dict(r1=R.astype(np.float16)), "INVALID_DTYPE", {"r1", "x"}),
        "int8": (dict(x=X.astype(np.int8), r1=R.astype(np.int8), r2=R.astype(np.int8)), "INVALID_DTYPE", "x"),
        "rank 2": (dict(x=X[0, 0], r1=R[0, 0], r2=R[0, 0]), "INVALID_SHAPE", "x"),
        "rank 5": (dict(x=X[None], r1=R[None], r2=R[None]), "INVALID_SHAPE", "x"),
        "ranks differ": (dict(r1=R[0]), "INVALID_SHAPE", "r1"),
        "r2 shape": (dict(r2=R[:, :, :2]), "INVALID_SHAPE", "r2"),
        "r1 width": (dict(r1=R[..., :1].copy()), "INVALID_SHAPE", "r1"),
        "odd width": (dict(x=X[..., :7].copy(), r1=R[..., :7].copy(), r2=R[..., :7].copy()), "INVALID_SHAPE", "x"),
        "mode": (dict(rotary_mode="quarter"), "INVALID_ARGUMENT", "rotary_mode"),
        "rotate": (dict(rotate=X[0, 0, :1], level="strict"), "UNSUPPORTED", "rotate"),
        "rotate shape": (dict(rotate=X), "INVALID_SHAPE", "rotate"),
        "r2 missing": (dict(r2=None), "INVALID_ARGUMENT", "r2"),
        "width in strict": (
            dict(x=np.ones((1, 1, 1, 896), BF16), r1=np.ones((1, 1, 1, 896), BF16), r2=np.ones((1, 1, 1, 896), BF16), level="strict"),
            "UNSUPPORTED",
            "x",
        ),
        "batch in strict": (
            dict(x=np.ones((1000, 1, 1, 2), BF16), r1=np.ones((1, 1, 1, 2), BF16), r2=np.ones((1, 1, 1, 2), BF16), level="strict"),
            "UNSUPPORTED",
            "x",
        ),
    },
}  # fmt: skip


@both
@pytest.mark.parametrize("name, what", [(name, what) for name, rows in REFUSED.items() for what in rows])
def test_refused(name, what, impl):
    change, status, parameter = REFUSED[name][what]
    refused(lambda: operator(name, impl)(**GOOD[name] | change), name, status, parameter)
