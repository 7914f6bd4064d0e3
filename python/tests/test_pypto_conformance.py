# SPDX-License-Identifier: Apache-2.0
"""dsakit.pypto: every documented name computes or is refused by name; an example of each operation; the micro-examples."""

import enum
import inspect

import ml_dtypes
import numpy as np
import pypto_conformance as conformance
import pytest
from pypto_conformance import bf16, fp16, fp32, int32, int64

import dsakit
from dsakit import pypto
from dsakit.pypto import names

OFF, ON = pypto.SaturationMode.OFF, pypto.SaturationMode.ON


@pytest.mark.parametrize("example", conformance.EXAMPLES, ids=lambda e: f"{e.name}:{e.call}")
def test_example(example):
    assert conformance.evaluate(example) == example.result


def test_the_page_shows_the_examples():
    assert conformance.PAGE.read_text() == conformance.page()


def test_every_operation_has_an_example():
    operations = {n for n in pypto.__all__ if hasattr(getattr(pypto, n), "raw")}
    assert operations <= {e.name for e in conformance.EXAMPLES}


@pytest.mark.parametrize("owner", ["pypto", "distributed", "experimental", "frontend", "pypto_impl", "runtime"])
def test_what_is_not_offered_can_be_imported_and_says_so_when_it_is_called(owner):
    module = pypto if owner == "pypto" else getattr(pypto, owner)
    for name in names.NOT_OFFERED[owner]:
        if isinstance(getattr(module, name), type) and issubclass(getattr(module, name), enum.Enum):
            continue
        with pytest.raises(NotImplementedError, match=name):
            getattr(module, name)(1, 2)


@pytest.mark.parametrize("name", names.NOT_OFFERED["Tensor"])
def test_methods_that_are_not_offered(name):
    t = fp32([1])
    with pytest.raises(NotImplementedError, match=name):
        t % t if name == "__mod__" else getattr(t, name)(1)


@pytest.mark.parametrize("name", names.NOT_OFFERED["SymbolicScalar"])
def test_scalar_methods_that_are_not_offered(name):
    with pytest.raises(NotImplementedError, match=name):
        getattr(pypto.SymbolicScalar(1), name)()


@pytest.mark.parametrize("name", names.ERRORS_NOT_OFFERED)
def test_error_classes_can_stand_behind_except(name):
    try:
        raise ValueError
    except getattr(pypto.error, name):
        pytest.fail("nobody raises it")
    except ValueError:
        pass
    assert pypto.error.PyptoError is dsakit.Error


def test_unknown_names():
    with pytest.raises(AttributeError, match="matmull"):
        pypto.matmull
    with pytest.raises(AttributeError, match="cast"):
        fp32([1]).to("cpu")
    with pytest.raises(AttributeError, match="frob"):
        fp32([1]).frob


def test_numbers_of_the_enumerations():
    assert [pypto.DT_INT8.value, pypto.DT_FP16.value, pypto.DT_BF16.value, pypto.DT_BOTTOM.value] == [1, 6, 8, 24]
    assert [m.value for m in pypto.CastMode] == list(range(7))
    assert (ON.value, OFF.value) == (0, 1)
    assert (pypto.DYNAMIC.value, pypto.STATIC.value, pypto.DYN.value) == ("DYNAMIC", "STATIC", "DYN")
    assert pypto.TileOpFormat.TILEOP_NZ.value == 1 and pypto.RunMode.SIM == 1


@pytest.mark.parametrize("name", [n for n in pypto.__all__ if hasattr(getattr(pypto, n), "raw")])
def test_operations_say_what_they_do(name):
    assert inspect.getdoc(getattr(pypto, name))


# ---- the micro-examples of the specification


def test_m1_chain_of_casts():
    x = fp32([127, -63.5, 15.646, np.nan, np.inf])
    x = pypto.cast(x, pypto.DT_INT32, pypto.CastMode.CAST_RINT)
    x = pypto.cast(x, pypto.DT_FP16, pypto.CastMode.CAST_ROUND)
    assert pypto.cast(x, pypto.DT_INT8, pypto.CastMode.CAST_TRUNC, ON).numpy().tolist() == [127, -64, 16, 0, 0]


def test_m2_saturation():
    x = fp16([300, -300, 200])
    assert pypto.cast(x, pypto.DT_INT8, satmode=OFF).numpy().tolist() == [44, -44, -56]
    assert pypto.cast(x, pypto.DT_INT8, satmode=ON).numpy().tolist() == [127, -128, 127]
    assert pypto.cast(fp32([3e9]), pypto.DT_INT32, satmode=OFF).numpy().tolist() == [-1294967296]
    assert pypto.cast(int32([2049, 2051, 65520]), pypto.DT_FP16).numpy().tolist() == [2048, 2052, np.inf]


def test_m3_view():
    x = fp32(np.arange(24).reshape(4, 6))
    v = pypto.view(x, [3, 4], [2, 3])
    assert v.valid_shape == [2, 3]
    assert v.numpy()[:2, :3].tolist() == [[15, 16, 17], [21, 22, 23]]
    assert pypto.sum(v, -1).numpy()[:2].tolist() == [48, 66]
    assert pypto.amax(v, -1).numpy()[:2].tolist() == [17, 23]
    small = pypto.view(x, [3, 4], [2, 3], valid_shape=[1, 2])
    assert pypto.sum(small, -1).numpy().tolist() == [31, 0, 0] and pypto.sum(small, -1).valid_shape == [1]


def test_m4_scatter_update():
    cache, rows = np.zeros((2, 4, 1, 2), np.float32), np.repeat(np.arange(1, 5, dtype=np.float32), 2)
    t, src = pypto.from_torch(cache), fp32(rows.reshape(4, 1, 1, 2))
    assert pypto.scatter_update(t, -2, int64([[5], [-1], [0], [5]]), src) is t
    assert cache[1, 1, 0].tolist() == [4, 4] and cache[0, 0, 0].tolist() == [3, 3] and cache.sum() == 14
    before = cache.copy()
    with pytest.raises(
        IndexError, match=r"index\[3\]\[0\] is 8, wanted below 8 \(2 blocks of 4\); negative entries skip"
    ):
        pypto.scatter_update(t, -2, int64([[1], [-1], [0], [8]]), src)
    assert (cache == before).all()


def test_m5_assemble():
    dst = np.full((4, 4), 9, np.float32)
    src = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    pypto.assemble(fp32(src, [1, 3]), [3, 1], pypto.from_torch(dst))
    assert dst[3].tolist() == [9, 1, 2, 3] and (dst[:3] == 9).all()
    with pytest.raises(IndexError, match=r"offsets\[0\] is 3 for 2 elements"):
        pypto.assemble(fp32(src), [3, 1], pypto.from_torch(dst))


def test_m6_topk():
    x = fp32([1, 3, 3, -0.0, 0, np.nan, 2])

    def of(k, largest=True, x=x):
        found, at = pypto.topk(x, k, -1, largest)
        return found.numpy().tolist(), at.numpy().tolist()

    assert of(4) == ([3, 3, 2, 1], [1, 2, 6, 0])
    found, at = of(7)
    assert (
        at[4:] == [3, 4, 5]
        and found[4] == 0
        and np.signbit(found[4])
        and not np.signbit(found[5])
        and np.isnan(found[6])
    )
    assert of(3, False)[1] == [3, 4, 0] and of(3, False)[0][2] == 1
    partial, at = pypto.topk(fp32([5, 7, 0, 0], [2]), 3)
    assert partial.valid_shape == [2] and at.valid_shape == [2]
    assert partial._box.a.tolist() == [7, 5, -np.inf] and at._box.a.tolist() == [1, 0, -1]
    assert pypto.topk(fp32([5, 7, 0, 0], [2]), 3, largest=False)[0]._box.a.tolist() == [5, 7, np.inf]


def test_m7_loop_unroll():
    def of(*args, **options):
        return [(int(i), p) for i, p in pypto.loop_unroll(*args, **options)]

    assert of(0, 45, unroll_list={32, 16, 8, 4, 2, 1}) == [(0, 32), (32, 8), (40, 4), (44, 1)]
    assert of(3, 14, unroll_list=[4, 2]) == [(3, 4), (7, 4), (11, 2), (13, 1)]
    assert of(0, 10, 4, unroll_list=[2]) == [(0, 2), (8, 1)]
    assert of(0, 10, unroll_list=[6, 4]) == [(0, 6), (6, 4)]
    with pypto.configure(level="strict"), pytest.raises(NotImplementedError, match="strict: Atlas"):
        of(0, 10, unroll_list=[6, 4])


def test_m8_sum():
    v = np.zeros(18, np.float32)
    v[0], v[[1, 16, 17]] = 2**24, 1
    assert pypto.sum(fp32(v), 0).numpy() == 16777218
    assert pypto.sum(fp32(np.stack([v, v], 1)), 0).numpy().tolist() == [16777218] * 2  # along another axis too


@pytest.mark.parametrize("scale", [{"scale": 0.2}, {"scale_tensor": int64([[0x3E4CCCCD | 7 << 40]])}])
def test_m9_scale(scale):
    a = pypto.from_torch(np.array([[3]], np.int8)), pypto.from_torch(np.array([[1]], np.int8))
    found = pypto.matmul(*a, pypto.DT_FP16, extend_params=scale).numpy()
    assert found.view(np.uint16).tolist() == [[0x38CC]]


# ---- values


def test_sixteen_bit_arithmetic_is_rounded_once():
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**16, (2, 20000), np.uint16)
    for kind, dtype in ((ml_dtypes.bfloat16, pypto.DT_BF16), (np.float16, pypto.DT_FP16)):
        x, y = bits.view(kind) if kind is np.float16 else bits.view(ml_dtypes.bfloat16)
        a, b = pypto.from_torch(x), pypto.from_torch(y)
        assert a.dtype is dtype
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64), y.astype(np.float64)
            due = {
                "add": wide[0] + wide[1],
                "sub": wide[0] - wide[1],
                "mul": wide[0] * wide[1],
                "div": wide[0] / wide[1],
            }
            for name, exact in due.items():
                found = getattr(pypto, name)(a, b).numpy().astype(np.float64)
                np.testing.assert_array_equal(found, exact.astype(kind).astype(np.float64), name)


def test_numbers_take_the_dtype_of_the_tensor_with_one_rounding():
    value = 1 + 2**-8 + 2**-40  # through fp32 it would be a tie
    assert pypto.mul(bf16([1]), value).numpy().view(np.uint16).tolist() == [0x3F81]
    assert pypto.full([1], value, pypto.DT_BF16).numpy().view(np.uint16).tolist() == [0x3F81]


def test_transcendental_functions_are_within_two_ulp():
    x = np.concatenate([np.linspace(-80, 80, 4001), np.geomspace(1e-30, 80, 2001)]).astype(np.float32)
    for name in ("exp", "exp2", "expm1", "sin", "cos", "tanh", "log1p", "log", "log2", "log10", "sigmoid"):
        ours = getattr(pypto, name)(fp32(x)).numpy().astype(np.float64)
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            exact = 1 / (1 + np.exp(-wide)) if name == "sigmoid" else getattr(np, name)(wide)
            ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
            near = np.abs(ours - exact) <= 2 * ulp
        assert np.all(near | ~np.isfinite(exact) & (np.isnan(ours) == np.isnan(exact))), name


@pytest.mark.parametrize("shape, axis", [((5, 40), 1), ((40, 5), 0), ((3, 33, 4), 1), ((2, 3, 1000), 2)])
def test_sum_is_the_canonical_row_sum(shape, axis):
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    rows = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
    due = []
    for r in rows:
        lanes = [np.float32(0)] * 16
        for i, v in enumerate(r):
            lanes[i % 16] = np.float32(lanes[i % 16] + v)
        for half in (8, 4, 2, 1):
            lanes = [np.float32(lanes[i] + lanes[i + half]) for i in range(half)]
        due.append(lanes[0])
    assert pypto.sum(fp32(x), axis).numpy().reshape(-1).tolist() == due


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("trans", [(False, False), (True, False), (False, True), (True, True)])
def test_matmul_is_the_same_whatever_lies_around(dtype, trans):
    rng = np.random.default_rng(3)
    make = {"bf16": bf16, "fp16": fp16, "fp32": fp32}[dtype]
    a, b = rng.standard_normal((9, 700)), rng.standard_normal((700, 70))
    x, y = make(a), make(b)
    whole = pypto.matmul(x, y, pypto.DT_FP32).numpy()
    exact = x.numpy().astype(np.float64) @ y.numpy().astype(np.float64)
    assert np.abs(whole - exact).max() < 1e-4 * np.sqrt(700)
    ta, tb = make(a.T if trans[0] else a), make(b.T if trans[1] else b)
    np.testing.assert_array_equal(
        pypto.matmul(ta, tb, pypto.DT_FP32, a_trans=trans[0], b_trans=trans[1]).numpy(), whole
    )
    for rows in (slice(0, 1), slice(3, 8)):
        np.testing.assert_array_equal(pypto.matmul(make(a[rows]), y, pypto.DT_FP32).numpy(), whole[rows])
    padded = pypto.view(make(np.pad(a, ((0, 3), (0, 5)), constant_values=7)), [12, 705], [0, 0], valid_shape=[9, 700])
    longer = make(np.pad(b, ((0, 5), (0, 0)), constant_values=7))
    found = pypto.matmul(padded, longer, pypto.DT_FP32)
    assert found.valid_shape == [9, 70]
    np.testing.assert_array_equal(found.numpy()[:9], whole)
    stack = pypto.matmul(make(np.stack([a, 2 * a])), make(b[None]), pypto.DT_FP32).numpy()
    np.testing.assert_array_equal(stack, np.stack([whole, 2 * whole]))
    if dtype == "bf16":
        with pypto.configure(gemm="fma"):
            np.testing.assert_allclose(pypto.matmul(x, y, pypto.DT_FP32).numpy(), whole, atol=1e-3)


def test_extended_matmul():
    rng = np.random.default_rng(4)
    a, b = rng.integers(-128, 128, (5, 64), np.int8), rng.integers(-128, 128, (64, 9), np.int8)
    x, y = pypto.from_torch(a), pypto.from_torch(b)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    assert (pypto.matmul(x, y, pypto.DT_INT32).numpy() == exact).all()
    bias, scale = rng.integers(-5000, 5000, (1, 9)).astype(np.int32), np.float32(0.0078125)
    for out, kind in ((pypto.DT_FP16, np.float16), (pypto.DT_BF16, ml_dtypes.bfloat16)):
        params = {"bias_tensor": pypto.from_torch(bias), "scale": float(scale), "relu_type": pypto.ReLuType.RELU}
        due = np.maximum((exact + bias).astype(np.float32) * scale, 0).astype(kind)
        np.testing.assert_array_equal(pypto.matmul(x, y, out, extend_params=params).numpy(), due)
    due = np.clip(np.rint(exact.astype(np.float32) * scale), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(pypto.matmul(x, y, pypto.DT_INT8, extend_params={"scale": float(scale)}).numpy(), due)
    f = rng.standard_normal((2, 8)).astype(np.float32)
    due = np.maximum(f @ f.T + 1, 0)
    params = {"bias_tensor": fp32([[1, 1]]), "relu_type": pypto.ReLuType.RELU}
    np.testing.assert_allclose(
        pypto.matmul(fp32(f), fp32(f.T), pypto.DT_FP32, extend_params=params).numpy(), due, atol=1e-5
    )


def test_symbolic_scalars():
    n = pypto.SymbolicScalar(7)
    for value in (n + 1, 1 + n, n - 1, 9 - n, n * 2, 2 * n, n // 2, 15 // n, n % 4, 9 % n, -n, n.min(3), n.max(9), +n):
        assert isinstance(value, pypto.SymbolicScalar)
    assert (n + 1, 9 - n, n // 2, 9 % n, n.min(3), n.max(9), n.concrete()) == (8, 2, 3, 2, 3, 9, 7)
    assert type(n.concrete()) is int and n.as_variable() == 7 and isinstance(n, int) and range(n) == range(7)
    bare = pypto.symbolic_scalar("n")
    with pytest.raises(ValueError, match="'n'"):
        bare.concrete()
    for use in (lambda: bare + 1, lambda: 1 + bare, lambda: bare // 2, lambda: bare < 3):
        with pytest.raises(NotImplementedError, match="'n'"):
            use()


def test_shapes_of_arguments_are_fresh_and_symbolic():
    seen = {}

    @pypto.frontend.jit
    def kernel(x: pypto.Tensor([pypto.DYNAMIC, 2], pypto.DT_FP32)):
        x.shape.append(5)
        seen["shape"] = x.shape
        seen["of sum"] = pypto.sum(x, 1).shape
        x[:] = x + 1

    kernel(np.zeros((3, 2), np.float32))
    assert seen["shape"] == [3, 2]
    assert [type(n) for n in seen["shape"]] == [pypto.SymbolicScalar, int]
    assert [type(n) for n in seen["of sum"]] == [int]
