# SPDX-License-Identifier: Apache-2.0
"""quant_matmul, transpose_batchmatmul and batch_matmul_transpose."""

import numpy as np
import pytest

import dsakit
from oracle.cases import BF16, F, codes, generator
from oracle.harness import assert_same, both, operator, refused, seeds, to_numpy, to_torch

X, W = np.array([[1, 2], [-3, 4]], np.int8), np.array([[5, -6], [7, 8]], np.int8)


def vector(*v, dtype=F):
    return np.array(v, dtype)


@both
def test_quant_matmul_examples(impl):
    matmul = operator("npu_quant_matmul", impl)
    dynamic = matmul(X, W, vector(0.5, 0.25), pertoken_scale=vector(0.1, 0.2), output_dtype="bfloat16")
    assert dynamic.dtype == BF16 and dynamic.astype(F).tolist() == [[0.94921875, 0.25], [1.296875, 2.5]]
    static = matmul(X, W, vector(0.1, 0.2), bias=vector(1, -1, dtype=np.int32), output_dtype=BF16)
    assert static.astype(F).tolist() == [[2, 1.796875], [1.3984375, 9.8125]]
    assert_same(matmul(X, W, vector(1)), (X @ W).astype(np.int8))  # None is int8
    assert_same(matmul(X, W, None, output_dtype=np.int32), X.astype(np.int32) @ W)


@both
@seeds(12)
def test_quant_matmul(seed, impl):
    """Against int64 products, in the written order of float32 operations."""
    rng = generator(seed)
    m, k, n = (int(v) for v in rng.integers(1, 90, 3))
    x, w = codes(rng, (2, m, k)), codes(rng, (k, n) if seed % 2 else (2, k, n))
    scale, token, bias = (rng.random(s).astype(F) / 50 for s in (n, m, n))
    acc = x.astype(np.int64) @ w.astype(np.int64)
    if seed % 3 == 0:
        given, want = dict(output_dtype="int32"), acc.astype(np.int32)
    elif seed % 3 == 1:
        given = dict(pertoken_scale=token, bias=bias, output_dtype="float16")
        want = (acc.astype(F) * token[:, None] * scale + bias).astype(np.float16)
    else:
        given = dict(bias=np.arange(n, dtype=np.int32), offset=vector(-3.5))
        want = np.clip(np.rint((acc + given["bias"]).astype(F) * scale + F(-3.5)), -128, 127).astype(np.int8)
    matmul = operator("quant_matmul", impl)
    assert_same(matmul(x, w, scale, **given), want)
    across = np.ascontiguousarray(w.swapaxes(-1, -2)).swapaxes(-1, -2)
    assert_same(matmul(x, across, scale, **given), want)
    if w.ndim == 2:
        assert_same(matmul(x, dsakit.format_cast(w, 29), scale, **given), want)
        assert_same(matmul(x, dsakit.pack_weight(w), scale, **given), want)


def test_quant_matmul_takes_what_the_prolog_gives():
    torch = pytest.importorskip("torch")
    rng = generator(30)
    x, w, scale, token = codes(rng, (4, 32)), codes(rng, (32, 16)), rng.random(16).astype(F), rng.random((4, 1)).astype(F)
    given = dict(pertoken_scale=to_torch(token), output_dtype=torch.bfloat16)
    got = dsakit.npu_quant_matmul(to_torch(x), to_torch(w.T.copy()).t(), to_torch(scale), **given)
    assert got.dtype == torch.bfloat16
    assert_same(to_numpy(got), ((x.astype(F) @ w.astype(F)) * token * scale).astype(BF16))
    call = lambda: dsakit.npu_quant_matmul(to_torch(x), to_torch(w), to_torch(scale), **given, level="strict")
    refused(call, "npu_quant_matmul", "INVALID_SHAPE", "pertoken_scale")


@both
def test_transpose_batchmatmul(impl):
    matmul, small = operator("npu_transpose_batchmatmul", impl), lambda *v: np.array(v, BF16).reshape(2, 1, 1)
    for perm in (None, [0, 1, 2], (0, 1, 2)):
        y = matmul(small(2, 3), small(5, 7), perm_x1=perm, perm_x2=perm, perm_y=perm and [1, 0, 2])
        assert y.shape == (1, 2, 1) and y.astype(F).ravel().tolist() == [10, 21]
    rng = generator(31)
    for dtype in (BF16, np.float16, F):
        x, w = (rng.integers(-3, 4, s).astype(dtype) for s in ((5, 3, 20), (3, 20, 8)))
        want = np.einsum("mbk,bkn->mbn", x.astype(F), w.astype(F)).astype(dtype)
        assert_same(matmul(x, w, perm_x1=[1, 0, 2]), want)
        assert_same(matmul(x.swapaxes(0, 1), w), want)
        assert_same(matmul(x, np.ascontiguousarray(w.swapaxes(1, 2)), perm_x1=[1, 0, 2], perm_x2=[0, 2, 1]), want)
        slabs = matmul(x, w, perm_x1=[1, 0, 2], batch_split_factor=3)
        assert_same(slabs, np.ascontiguousarray(want.reshape(5, 3, 8).swapaxes(0, 1)))
        into = np.zeros((5, 3, 8), dtype)
        if dtype != F:
            space = dsakit.ops._C_ascend if impl == "fast" else dsakit.reference
            for c in (into, into.reshape(5, 24)):
                c[...] = 0
                assert space.batch_matmul_transpose(x, w, c) is None
                assert_same(into, want)
    packed = dsakit.pack_weight(w.astype(BF16))
    assert_same(matmul(x.astype(BF16), packed, perm_x1=[1, 0, 2]), want.astype(BF16))


def test_refusals():
    x, w, c = np.ones((2, 3, 16), BF16), np.ones((2, 16, 16), BF16), np.zeros((3, 2, 16), BF16)
    matmul = dsakit.transpose_batchmatmul
    for wrong, status in (((1, 0), "INVALID_ARGUMENT"), ("012", "INVALID_DTYPE"), ((0, 1, 2.0), "INVALID_DTYPE"), (range(9), "INVALID_DTYPE")):
        refused(lambda: matmul(x, w, perm_x1=wrong), "transpose_batchmatmul", status, "perm_x1")
    refused(lambda: matmul(x, w, perm_y=[0] * 9), "transpose_batchmatmul", "INVALID_ARGUMENT", "perm_y")
    for name in ("bias", "scale"):
        refused(lambda: matmul(x, w, **{name: x}), "transpose_batchmatmul", "UNSUPPORTED", name)
    into = dsakit.ops._C_ascend.batch_matmul_transpose
    for name in ("format_mode", "quant_mode"):
        call = lambda: into(x.swapaxes(0, 1), w, c, **{name: "default"})
        refused(call, "batch_matmul_transpose", "UNSUPPORTED", name, guards=[c])
    for name in ("x1_dtype", "x2_dtype", "pertoken_scale_dtype", "scale_dtype", "group_sizes", "y_scale"):
        refused(lambda: dsakit.quant_matmul(X, W, vector(1), **{name: 1}), "quant_matmul", "UNSUPPORTED", name)
    refused(lambda: dsakit.quant_matmul(X, W, np.ones(2, np.int64)), "quant_matmul", "UNSUPPORTED", "scale")
    refused(lambda: dsakit.quant_matmul(X, W, None), "quant_matmul", "INVALID_ARGUMENT", "scale")
    refused(lambda: dsakit.quant_matmul(X, W, vector(1), output_dtype="float32"), "quant_matmul", "INVALID_ARGUMENT", "output_dtype")
