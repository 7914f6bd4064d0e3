# SPDX-License-Identifier: Apache-2.0
"""cast against exact arithmetic: tables of all values of the target, float64 that holds every source exactly, integers."""

import functools

import ml_dtypes
import numpy as np
import pytest

from dsakit import pypto

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy: NaN and Inf are cast on purpose
MODES = {"RINT": 1, "ROUND": 2, "FLOOR": 3, "CEIL": 4, "TRUNC": 5}
INTEGERS = {
    w: (getattr(pypto, "DT_" + w.upper()), np.dtype(w))
    for w in "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
}
HALF = {"fp16": (pypto.DT_FP16, np.dtype(np.float16)), "bf16": (pypto.DT_BF16, np.dtype(ml_dtypes.bfloat16))}


def patterns(kind):
    return np.arange(2**16, dtype=np.uint16).view(HALF[kind][1])


@functools.cache
def floats():
    """fp32: a million random patterns, and what lies around every power of two, tie and limit."""
    rng = np.random.default_rng(5)
    random = rng.integers(0, 2**32, 10**6, np.uint32).view(np.float32)
    near = [np.float32(2.0**e) for e in range(-149, 128)]
    near += [
        np.float32(v)
        for v in (0.5, 1.5, 2.5, 65504, 65519.996, 65520, 127.5, 255.5, 32767.5, 2**31, 2**32, 2**63, 2**64)
    ]
    near += [np.float32(1 + k * 2.0**-9) for k in range(8)] + [np.float32(1 + k * 2.0**-12) for k in range(8)]
    around = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(0))]
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    values = np.concatenate([random, *(np.asarray(a, np.float32) for a in around), special])
    return np.concatenate([values, -values])


def cast(x, dtype, mode, saturate=False):
    sat = pypto.SaturationMode.ON if saturate else pypto.SaturationMode.OFF
    return pypto.cast(pypto.from_torch(x), dtype, getattr(pypto.CastMode, "CAST_" + mode), sat).numpy()


def integral(x, mode):
    """float64 to integral float64."""
    if mode == "ROUND":  # ties away
        return np.copysign(np.floor(np.abs(x)) + (np.abs(x) - np.floor(np.abs(x)) >= 0.5), x)
    return {"RINT": np.rint, "FLOOR": np.floor, "CEIL": np.ceil, "TRUNC": np.trunc}[mode](x)


def to_integer(x, mode, kind, saturate):
    wide = x.astype(np.float64)
    whole = integral(np.where(np.isfinite(wide), wide, 0), mode)
    limits, bits = np.iinfo(kind), 8 * kind.itemsize
    if saturate:
        inside = (whole >= float(limits.min)) & (whole < float(limits.max) + (bits < 64))
        kept = np.where(inside, whole, 0).astype(np.int64 if kind.kind == "i" else np.uint64).astype(kind)
        big = np.where(wide == np.inf, True, whole > 0)
        out = np.where(inside, kept, np.where(big, limits.max, limits.min).astype(kind)).astype(kind)
        out = np.where(wide == np.inf, limits.max, np.where(wide == -np.inf, limits.min, out)).astype(kind)
    else:
        low = np.fmod(np.abs(whole), 2.0**bits)  # exact
        u = np.array(low, np.float64).astype(np.uint64) if bits == 64 else low.astype(np.int64).astype(np.uint64)
        out = np.where(whole < 0, np.uint64(0) - u, u).astype(np.uint64).astype(kind)
        out = np.where(np.isfinite(wide), out, 0).astype(kind)
    return np.where(np.isnan(wide), 0, out).astype(kind)


@functools.cache
def table(kind):
    every = patterns(kind)
    every = every[np.isfinite(every.astype(np.float32))].astype(np.float64)
    return np.unique(every)


def to_half(x, mode, kind):
    """Through the sorted values of the target."""
    wide, values = x.astype(np.float64), table(kind)
    finite = np.where(np.isfinite(wide), wide, 0)
    at = np.searchsorted(values, finite, "right") - 1  # the last one not above
    below = np.where(at >= 0, values[np.maximum(at, 0)], -np.inf)
    above = np.where(at + 1 < len(values), values[np.minimum(at + 1, len(values) - 1)], np.inf)
    exact = below == finite
    if mode in ("RINT", "ROUND"):
        step = values[-1] - values[-2]
        low, high = (
            np.where(np.isinf(below), -values[-1] - step, below),
            np.where(np.isinf(above), values[-1] + step, above),
        )
        near_high = finite - low > high - finite
        tie = finite - low == high - finite
        even = (
            low.astype(HALF[kind][1]).view(np.uint16) % 2 == 0
        )  # one step beyond the largest is the pattern of inf: even
        up = near_high | tie & (~even if mode == "RINT" else finite > 0)
        out = np.where(up, above, below)
    elif mode == "TRUNC":
        out = np.where(finite > 0, below, above)
        out = np.where(np.isinf(out), np.copysign(values[-1], finite), out)
    else:
        out = below if mode == "FLOOR" else above
    out = np.where(exact, finite, out)
    out = np.where(np.isfinite(wide), out, wide)
    return np.where(out == 0, np.copysign(0, wide), out)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", ["fp16", "bf16", "fp32"])
def test_to_integers(source, mode, saturate):
    x = floats() if source == "fp32" else patterns(source)
    for word, (dtype, kind) in INTEGERS.items():
        np.testing.assert_array_equal(cast(x, dtype, mode, saturate), to_integer(x, mode, kind, saturate), word)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source, target", [("fp32", "fp16"), ("fp32", "bf16"), ("bf16", "fp16"), ("fp16", "bf16")])
def test_to_sixteen_bits(source, target, mode):
    x = floats() if source == "fp32" else patterns(source)
    found = cast(x, HALF[target][0], mode).astype(np.float64)
    due = to_half(x, mode, target)
    np.testing.assert_array_equal(found, due)
    np.testing.assert_array_equal(np.signbit(found[~np.isnan(due)]), np.signbit(due[~np.isnan(due)]))


def test_nearest_is_what_numpy_and_ml_dtypes_round_to():
    x = floats()
    with np.errstate(all="ignore"):
        for dtype, kind in HALF.values():
            due = x.astype(kind).astype(np.float32)
            np.testing.assert_array_equal(cast(x, dtype, "RINT").astype(np.float32), due)


@pytest.mark.parametrize("kind", HALF)
@pytest.mark.parametrize("mode", MODES)
def test_widening_is_exact(kind, mode):
    np.testing.assert_array_equal(cast(patterns(kind), pypto.DT_FP32, mode), patterns(kind).astype(np.float32))


@pytest.mark.parametrize("mode", MODES)
def test_fp32_with_a_mode_becomes_integral(mode):
    x = floats()
    due = integral(x.astype(np.float64), mode).astype(np.float32)
    np.testing.assert_array_equal(cast(x, pypto.DT_FP32, mode), due)


def test_odd():
    x = floats()
    found = cast(x, pypto.DT_FP16, "ODD")
    toward_zero = to_half(x, "TRUNC", "fp16")
    inexact = np.isfinite(x) & (toward_zero != x) & (np.abs(x.astype(np.float64)) < 65504)
    due = toward_zero.astype(np.float16).view(np.uint16)
    due = np.where(inexact, due | 1, due)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(found.view(np.uint16)[number], due[number])
    assert (
        cast(np.array([1 + 2**-11, 1 + 3 * 2**-11], np.float32), pypto.DT_FP16, "ODD").view(np.uint16).tolist()
        == [0x3C01] * 2
    )


def test_modes_that_a_pair_does_not_know():
    x = np.array([2.5, -2.6, 1 + 2**-8], np.float32)
    for other in (pypto.DT_INT32, pypto.DT_BF16):
        np.testing.assert_array_equal(cast(x, other, "ODD").astype(float), cast(x, other, "NONE").astype(float))
    wide = np.array([2049, 2051, -2051, 65519, 65520, -(2**31)], np.int32)
    for mode in (*MODES, "ODD", "NONE"):
        assert cast(wide, pypto.DT_FP16, mode).tolist() == [2048, 2052, -2052, 65504, np.inf, -np.inf]


def test_table_of_the_modes():
    integers = {
        "RINT": [2, -2, -3],
        "ROUND": [3, -3, -3],
        "FLOOR": [2, -3, -3],
        "CEIL": [3, -2, -2],
        "TRUNC": [2, -2, -2],
    }
    bits = {"RINT": (0x3F80, 0xBF80), "ROUND": (0x3F81, 0xBF81), "FLOOR": (0x3F80, 0xBF81), "CEIL": (0x3F81, 0xBF80),
            "TRUNC": (0x3F80, 0xBF80)}  # fmt: skip
    big = {"RINT": [np.inf, -np.inf], "ROUND": [np.inf, -np.inf], "FLOOR": [65504, -np.inf], "CEIL": [np.inf, -65504],
           "TRUNC": [65504, -65504], "ODD": [65504, -65504]}  # fmt: skip
    for mode, due in integers.items():
        assert cast(np.array([2.5, -2.5, -2.6], np.float32), pypto.DT_INT32, mode).tolist() == due
        tie = cast(np.array([1 + 2**-8, -(1 + 2**-8)], np.float32), pypto.DT_BF16, mode)
        assert tuple(tie.view(np.uint16).tolist()) == bits[mode]
    for mode, due in big.items():
        assert cast(np.array([70000, -70000], np.float32), pypto.DT_FP16, mode).tolist() == due


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_between_integers(source, target):
    kind, out = INTEGERS[source][1], INTEGERS[target][1]
    limits = np.iinfo(kind)
    values = {limits.min, limits.max, 0, 1, limits.max // 2}
    values |= {v + d for b in (7, 8, 15, 16, 31, 32, 63) for v in (2**b, -(2**b)) for d in (-1, 0, 1)}
    x = np.array([v for v in sorted(values) if limits.min <= v <= limits.max], kind)
    wide, to = [int(v) for v in x], np.iinfo(out)
    assert cast(x, INTEGERS[target][0], "FLOOR", True).tolist() == [min(max(v, to.min), to.max) for v in wide]
    low = np.array([v % 2 ** (8 * out.itemsize) for v in wide], f"u{out.itemsize}").view(out)
    assert cast(x, INTEGERS[target][0], "RINT").tolist() == low.tolist()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", ["int64", "uint64", "int32", "int16", "uint8"])
def test_integers_to_floats(source, mode):
    """Against the values of the target around the integer: exact."""
    kind = INTEGERS[source][1]
    limits = np.iinfo(kind)
    rng = np.random.default_rng(6)
    x = rng.integers(limits.min, limits.max, 2000, kind, endpoint=True)
    ties = [
        v
        for b in (9, 12, 25, 40, 62)
        for k in (1, 2, 3, 5)
        for v in (2**b + k * 2 ** max(b - 8, 0), -(2**b) - k * 2 ** max(b - 24, 0))
    ]
    x = np.concatenate(
        [x, np.array([v for v in (*ties, limits.min, limits.max) if limits.min <= v <= limits.max], kind)]
    )
    for word, kept in (("fp32", np.dtype(np.float32)), ("bf16", HALF["bf16"][1]), ("fp16", HALF["fp16"][1])):
        used = "RINT" if (source, word) == ("int32", "fp16") else mode
        dtype = pypto.DT_FP32 if word == "fp32" else HALF[word][0]
        for value, found in zip(x.tolist(), cast(x, dtype, mode)):
            assert good(value, found, kept, used), (value, float(found), word)


def good(value, found, kind, mode):
    """Whether a float is the integer rounded by `mode`."""
    most = int(float(ml_dtypes.finfo(kind).max))
    y = float(found)
    if abs(value) > most and y in (np.inf, -np.inf, most, -most):
        step = 2 ** (most.bit_length() - ml_dtypes.finfo(kind).nmant - 1)
        nearest = abs(value) >= most + step // 2
        to_inf = {"RINT": nearest, "ROUND": nearest, "FLOOR": value < 0, "CEIL": value > 0, "TRUNC": False}[mode]
        return y == np.copysign(np.inf if to_inf else most, value)
    exact, away = int(y), 1 if value >= int(y) else -1
    if exact == value:
        return True
    neighbour = np.nextafter(found, kind.type(np.inf if away > 0 else -np.inf))
    other = int(float(neighbour)) if np.isfinite(float(neighbour)) else None
    low, high = sorted((exact, other if other is not None else exact + away * 2 * abs(value - exact)))
    if not low < value < high:
        return False
    if mode == "FLOOR":
        return exact == low
    if mode == "CEIL":
        return exact == high
    if mode == "TRUNC":
        return abs(exact) == min(abs(low), abs(high))
    if 2 * value != low + high:
        return abs(value - exact) < abs(value - (other if other is not None else np.inf))
    if mode == "ROUND":
        return abs(exact) == max(abs(low), abs(high))
    return found.view(f"u{kind.itemsize}") & 1 == 0
