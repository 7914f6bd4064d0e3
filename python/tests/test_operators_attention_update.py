# SPDX-License-Identifier: Apache-2.0
"""attention_update: lists of tensors in, one attention out."""

import numpy as np
import pytest

import dsakit
from oracle.cases import BF16, F, generator, uniform
from oracle.harness import both, operator, refused, seeds, to_numpy, to_torch

NAME = "attention_update"
UNIT = {BF16: 2**-8, np.float16: 2**-11, F: 2**-24}


def expected(lse, values):
    """In float64, shards without a key left out."""
    lse = np.stack(lse).astype(np.float64)
    empty = np.isinf(lse)
    lse[empty] = -np.inf
    m = np.where(empty.all(0), 0, np.max(lse, axis=0))
    with np.errstate(divide="ignore"):
        total = m + np.log(np.exp(lse - m).sum(0))
    with np.errstate(invalid="ignore"):
        weight = np.where(empty, 0, np.exp(lse - total))[..., None]
    return np.where(weight > 0, weight * np.stack(values).astype(np.float64), 0).sum(0), total


@both
@seeds(24)
def test_random(seed, impl):
    rng, dtype = generator(seed), [BF16, np.float16, F][seed % 3]
    shards, rows, width = [1, 2, 5, 16][seed % 4], int(rng.integers(0, 20)), int(rng.integers(1, 70))
    lse = [uniform(rng, rows, 9, F) for _ in range(shards)]
    values = [uniform(rng, (rows, width), 2, dtype) for _ in range(shards)]
    for i in range(shards):
        hidden = rng.random(rows) < 0.2
        lse[i][hidden] = [np.inf, -np.inf][i % 2]
        values[i][hidden] = np.nan
    out, all_keys = operator(NAME, impl)(lse, tuple(values), 1)
    want, total = expected(lse, values)
    assert out.dtype == dtype and out.shape == (rows, width) and all_keys.shape == (rows,)
    unit = UNIT[dtype]
    assert (abs(out.astype(np.float64) - want) <= 1.01 * unit * abs(want) + (shards + 2) * 2**-23).all()
    assert np.array_equal(all_keys, total.astype(F))
    again, none = operator(NAME, impl)(tuple(lse), values, 0)
    assert again.tobytes() == out.tobytes() and none.shape == (0,) and none.dtype == F


@both
def test_worked_example(impl):
    out, lse = operator(NAME, impl)([np.array([1], F), np.array([2], F)], [np.array([[v]], F) for v in (10, 20)], 1)
    assert lse[0] == F(2.3132617) and np.isclose(out[0, 0], 17.310586, rtol=2e-7)


@both
def test_what_unbind_returns(impl):
    torch = pytest.importorskip("torch")
    rng = generator(4)
    lse, values = uniform(rng, (4, 6), 3, F), uniform(rng, (4, 6, 16))
    out, total = operator("npu_" + NAME, impl)(to_torch(lse).unbind(0), to_torch(values).unbind(0), update_type=1)
    assert isinstance(out, torch.Tensor) and isinstance(total, torch.Tensor)
    want = operator(NAME, impl)(list(lse), list(values), 1)
    assert to_numpy(out).tobytes() == want[0].tobytes() and to_numpy(total).tobytes() == want[1].tobytes()


def test_results_of_fused_attention():
    """Keys cut in two give what they give whole; a row whose keys all lie in the other shard has lse +inf."""
    rng = generator(5)
    query, key = uniform(rng, (2, 3, 4, 16)), uniform(rng, (2, 10, 4, 16))
    args = dict(num_query_heads=4, input_layout="BSND", softmax_scale=0.25, return_softmax_lse=True)
    whole, lse = dsakit.fused_infer_attention_score_v2(query, key, key, **args)
    parts = [dsakit.fused_infer_attention_score_v2(query, k, k, **args) for k in (key[:, :4], key[:, 4:])]
    out, total = dsakit.attention_update(
        [np.ascontiguousarray(part[1].swapaxes(1, 2)) for part in parts], [part[0] for part in parts], 1
    )
    assert np.allclose(out.astype(F), whole.astype(F), atol=2e-2)
    assert np.allclose(total.swapaxes(1, 2), lse, atol=1e-4)


L, V = [np.ones(4, F)] * 3, [np.ones((4, 8), BF16)] * 3
REFUSED = {
    "no list": (dict(lse=np.ones((3, 4), F)), "INVALID_DTYPE", "lse", None),
    "missing": (dict(local_out=None), "INVALID_ARGUMENT", "local_out", None),
    "empty": (dict(lse=[]), "INVALID_ARGUMENT", "lse", None),
    "shorter": (dict(local_out=V[:2]), "INVALID_ARGUMENT", "local_out", None),
    "none in it": (dict(lse=[L[0], None, L[2]]), "INVALID_ARGUMENT", "lse", "[1]"),
    "word in it": (dict(lse=[L[0], L[1], "x"]), "INVALID_DTYPE", "lse", "[2]"),
    "shape": (dict(local_out=[V[0], V[1][:, :7], V[2]]), "INVALID_SHAPE", "local_out", "[1]"),
    "rows": (dict(lse=[*L[:2], np.ones(5, F)]), "INVALID_SHAPE", "lse", "[2]"),
    "dtype": (dict(local_out=[V[0], V[1].astype(F), V[2]]), "INVALID_DTYPE", "local_out", "[1]"),
    "strides": (dict(local_out=[V[0], np.ones((4, 16), BF16)[:, ::2], V[2]]), "INVALID_STRIDE", "local_out", "[1]"),
    "update_type": (dict(update_type=2), "INVALID_ARGUMENT", "update_type", None),
    "shards in strict": (dict(lse=L * 6, local_out=V * 6, level="strict"), "UNSUPPORTED", "lse", None),
    "overlap": (dict(out=V[0], lse_out=np.ones(4, F)), "ALIASED", "out", None),
}


@both
@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, impl):
    change, status, parameter, position = REFUSED[what]
    good = dict(lse=L, local_out=V, update_type=1)
    refused(lambda: operator(NAME, impl)(**good | change), NAME, status, parameter, position, guards=(V[0],))
