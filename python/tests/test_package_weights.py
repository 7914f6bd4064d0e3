# SPDX-License-Identifier: Apache-2.0
"""Packed and FRACTAL_NZ weights: the same bits wherever a weight is taken."""

import ml_dtypes
import numpy as np
import pytest

import dsakit
from oracle import cases

BF16 = ml_dtypes.bfloat16


def prolog():
    given, caches = cases.indexer_prolog(3, t=3, he=40, hcq=24, n=3, di=16, dr=8)
    return given, caches


def run(given, caches, **other):
    caches = {name: cache.copy() for name, cache in caches.items()}
    return [np.asarray(r) for r in dsakit.lightning_indexer_prolog_quant(**given | other, **caches)]


def assert_equal(a, b):
    assert [r.tobytes() for r in a] == [r.tobytes() for r in b]


@pytest.mark.parametrize("form", ["packed", "packed from NZ", "packed from NZ storage", "NZ", "NZ storage"])
@pytest.mark.parametrize("weight", ["w_qb", "wk", "w_proj"])
def test_every_form_of_a_weight_gives_the_same_bits(weight, form):
    given, caches = prolog()
    plain = given[weight]
    nz = dsakit.format_cast(plain, 29)
    other = {
        "packed": lambda: dsakit.pack_weight(plain),
        "packed from NZ": lambda: dsakit.pack_weight(nz),
        "packed from NZ storage": lambda: dsakit.pack_weight(nz.storage, format="NZ", shape=plain.shape),
        "NZ": lambda: nz,
        "NZ storage": lambda: nz.storage,
    }[form]()
    assert_equal(run(given, caches, **{weight: other}), run(given, caches))


def test_packed_weight_tells_what_it_is():
    packed = dsakit.pack_weight(np.zeros((30, 70), BF16))
    assert packed.shape == (30, 70) and packed.dtype == BF16 and packed.nbytes >= 30 * 70 * 2
    assert dsakit.pack_weight(np.zeros((4, 30, 70), BF16)).shape == (4, 30, 70)
    assert dsakit.pack_weight(np.zeros((30, 70), np.int8)).dtype == np.int8


@pytest.mark.parametrize(
    "call,builtin,parameter",
    [
        (lambda: dsakit.pack_weight(np.zeros((3, 4), np.float32)), TypeError, "weight"),
        (lambda: dsakit.pack_weight(None), ValueError, "weight"),
        (lambda: dsakit.pack_weight(np.zeros(4, BF16)), ValueError, "weight"),
        (lambda: dsakit.pack_weight(dsakit.pack_weight(np.zeros((3, 4), BF16))), ValueError, "weight"),
        (lambda: dsakit.pack_weight(np.zeros((3, 4), BF16), format="NK"), ValueError, "format"),
        (lambda: dsakit.pack_weight(np.zeros((1, 1, 16, 16), BF16), format="NZ"), ValueError, "shape"),
        (lambda: dsakit.pack_weight(np.zeros((3, 4), BF16), shape=(3, 4)), ValueError, "shape"),
        (lambda: dsakit.pack_weight(np.zeros((1, 1, 16, 15), BF16), format="NZ", shape=(3, 4)), ValueError, "storage"),
        (lambda: dsakit.format_cast(np.zeros(4, BF16), 29), ValueError, "x"),
        (lambda: dsakit.format_cast(np.zeros((4, 4), BF16), 30), ValueError, "format"),
        (lambda: dsakit.format_cast(np.zeros((4, 4), BF16), 29.0), ValueError, "format"),
        (lambda: dsakit.format_cast(np.zeros((4, 4), BF16), True), ValueError, "format"),
        (lambda: dsakit.npu_format_cast(np.zeros((4, 4), BF16), 29, 1), NotImplementedError, "dtypes"),
        (lambda: dsakit.format_cast([[1, 2], [3, 4]], 29), TypeError, "x"),
        (lambda: dsakit.FractalNZ([1], (1, 1)), TypeError, "storage"),
        (lambda: dsakit.FractalNZ(np.zeros(16, BF16), (16,)), ValueError, "logical_shape"),
    ],
)
def test_refusals(call, builtin, parameter):
    with pytest.raises(builtin) as caught:
        call()
    assert isinstance(caught.value, dsakit.Error) and caught.value.parameter == parameter


@pytest.mark.parametrize(
    "dtype,shape,place,offset",
    [(BF16, (18, 48), (17, 33), 1297), (BF16, (7168, 1536), (5, 20), 114772), (np.int8, (7168, 1536), (5, 40), 229544)],
)
def test_documented_offsets(dtype, shape, place, offset):
    x = np.zeros(shape, dtype)
    x[place] = 1
    assert np.flatnonzero(dsakit.format_cast(x, 29).storage.reshape(-1)).tolist() == [offset]


@pytest.mark.parametrize("dtype", [BF16, np.int8, np.float32])
@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (17, 33), (2, 18, 48), (0, 5)])
def test_cast_there_and_back(dtype, shape):
    x = np.random.default_rng(1).integers(-99, 99, shape).astype(dtype)
    nz = dsakit.format_cast(x, 29)
    assert nz.format == 29 and nz.logical_shape == shape and nz.dtype == x.dtype
    assert dsakit.format_cast(nz, 29) is nz and dsakit.format_cast(x, 2) is x
    for back in (dsakit.format_cast(nz, 2), np.asarray(nz)):
        assert back.dtype == x.dtype and back.tobytes() == x.tobytes()
