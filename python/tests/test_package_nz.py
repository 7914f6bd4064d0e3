# SPDX-License-Identifier: Apache-2.0
"""FRACTAL_NZ: where every element lies, over numpy and over torch, and what a tagged tensor is to torch."""

import copy
import io
import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest

import dsakit
from oracle import cases
from oracle.harness import to_torch
from oracle.mla_prolog_v3_cases import mla_prolog_v3

BF16 = ml_dtypes.bfloat16
SIZES = {1: np.int8, 2: BF16, 4: np.float32, 8: np.int64}


@pytest.mark.parametrize("size", SIZES)
def test_every_small_matrix(size):
    """All K, N in 1..40: the documented offset of every element, zeros between, and back again bit by bit."""
    c0 = 32 // size
    rng = np.random.default_rng(size)
    for k, n in itertools.product(range(1, 41), repeat=2):
        bits = rng.integers(1, 256, (k, n * size), dtype=np.uint8)  # no element is 0
        x = bits.view(SIZES[size])
        nz = dsakit.format_cast(x, 29)
        kp, panels = -(-k // 16) * 16, -(-n // c0)
        assert nz.storage.shape == (panels, kp // 16, 16, c0)
        row, column = np.arange(k)[:, None], np.arange(n)[None]
        offset = column // c0 * kp * c0 + row * c0 + column % c0
        flat = nz.storage.reshape(-1).view(np.uint8).reshape(-1, size)
        assert np.array_equal(flat[offset], bits.reshape(k, n, size))
        assert len(np.unique(offset)) == k * n and np.count_nonzero(flat.any(axis=1)) == k * n
        assert dsakit.format_cast(nz, 2).tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16", "float32", "int64", "float8_e4m3fn"])
def test_torch_has_the_same_storage(dtype):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    for shape in ((1, 1), (16, 16), (17, 33), (40, 7), (2, 18, 48), (0, 5)):
        bits = np.random.default_rng(1).integers(0, 256, (*shape[:-1], shape[-1] * kind.itemsize), dtype=np.uint8)
        integers = bits.view({1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[kind.itemsize])
        x = torch.from_numpy(integers).view(kind)
        nz = dsakit.npu_format_cast(x, 29)
        assert isinstance(nz, torch.Tensor) and isinstance(nz, dsakit.FractalNZ)
        assert nz.format == 29 and nz.shape == x.shape and nz.logical_shape == shape and nz.dtype == x.dtype
        wanted = dsakit.format_cast(integers, 29).storage
        assert nz.storage.dtype == kind and tuple(nz.storage.shape) == wanted.shape
        same = lambda t: t.view(getattr(torch, integers.dtype.name))
        assert same(nz.storage).numpy().tobytes() == wanted.tobytes()
        assert dsakit.format_cast(nz, 29) is nz and dsakit.format_cast(x, 2) is x
        for back in (dsakit.npu_format_cast(nz, 2), dsakit.FractalNZ(nz.storage, shape).nd()):
            assert type(back) is torch.Tensor and back.dtype == kind
            assert torch.equal(same(back), same(x))


@pytest.fixture
def tagged():
    torch = pytest.importorskip("torch")
    x = torch.arange(18 * 48, dtype=torch.float32).reshape(18, 48).bfloat16()
    return x, dsakit.format_cast(x, 29)


def test_a_tagged_tensor_computes_as_its_values(tagged):
    import torch

    x, nz = tagged
    for result in (nz + 1, nz.t(), nz[3], nz.reshape(-1), nz @ nz.t(), torch.cat([nz, x]), nz.float().sum()):
        assert not isinstance(result, dsakit.FractalNZ) or result.shape == nz.shape
    assert torch.equal(nz + 1, x + 1) and torch.equal(nz.t(), x.t()) and torch.equal(x @ nz.t(), x @ x.t())
    assert type(nz + 1) is torch.Tensor and type(nz.t()) is torch.Tensor and type(nz[3]) is torch.Tensor
    assert np.asarray(nz).dtype == BF16 and np.array_equal(np.asarray(nz, np.float32), x.float().numpy())
    assert "FractalNZ" in repr(nz)
    nz[2, :5] = 7  # writes arrive, through views too
    nz.t()[3:5].zero_()
    x[2, :5] = 7
    x.t()[3:5].zero_()
    assert torch.equal(dsakit.format_cast(nz, 2), x)
    assert np.array_equal(dsakit.FractalNZ(nz.storage, nz.shape).nd().float().numpy(), x.float().numpy())


def test_casting_copies(tagged):
    import torch

    x, nz = tagged
    back = dsakit.format_cast(nz, 2)
    x.zero_()
    back.zero_()
    assert float(nz.float().max()) > 0 and type(back) is torch.Tensor


def test_the_tag_stays_where_weights_are_handled(tagged):
    import torch

    x, nz = tagged
    kept = [nz.clone(), nz.detach(), nz.to(torch.float32), nz.to("cpu"), nz.contiguous(), nz.half(), nz.data, nz.cpu()]
    kept += [copy.deepcopy(nz), pickle.loads(pickle.dumps(nz)), torch.nn.Parameter(nz, requires_grad=False)]
    kept += [torch.nn.Parameter(nz), copy.deepcopy(torch.nn.Parameter(nz))]
    for one in kept:
        assert isinstance(one, dsakit.FractalNZ) and one.format == 29 and torch.equal(one.float(), x.float())
    layer = torch.nn.Linear(48, 18, bias=False, dtype=torch.bfloat16)
    layer.weight = torch.nn.Parameter(nz, requires_grad=False)
    assert isinstance(layer.weight, torch.nn.Parameter) and layer.weight.format == 29
    assert torch.equal(layer(x), x @ x.t())
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)["weight"], x)
    # What engines write: the parameter takes the values, and is row-major as before.
    plain = torch.nn.Parameter(torch.zeros_like(x), requires_grad=False)
    plain.data = dsakit.npu_format_cast(x, 29)
    assert torch.equal(plain, x)


def test_operators_take_it_as_a_weight(tagged):
    import torch

    given, caches = cases.indexer_prolog(3, t=3, he=40, hcq=24, n=3, di=16, dr=8)

    def run(**other):
        state = {name: torch.from_numpy(cache.copy()) for name, cache in caches.items()}
        return [np.asarray(r) for r in dsakit.lightning_indexer_prolog_quant(**given | other, **state)]

    wanted = run()
    weight = torch.from_numpy(given["w_qb"].copy())
    wk = torch.from_numpy(given["wk"].view(np.int16).copy()).view(torch.bfloat16)
    for cast in (lambda w: dsakit.format_cast(w, 29), lambda w: dsakit.pack_weight(dsakit.format_cast(w, 29))):
        for got in (run(w_qb=cast(weight)), run(wk=cast(wk)), run(wk=cast(torch.nn.Parameter(wk)))):
            assert [r.tobytes() for r in got] == [r.tobytes() for r in wanted]


def test_strict_takes_the_tag_for_nz():
    torch = pytest.importorskip("torch")
    size = dict(he=1024, hcq=1536, n=1, d=128, dr=64, latent=512, tile=128, block_size=16)
    given, caches = mla_prolog_v3(1, 2, lengths=(3,), **size)
    names = ("weight_dq", "weight_uq_qr", "weight_dkv_kr")
    plain = {name: to_torch(given[name]) for name in names}
    tagged = {name: dsakit.npu_format_cast(weight, 29) for name, weight in plain.items()}

    def run(weights, level):
        state = {name: cache.copy() for name, cache in caches.items()}
        results = dsakit.mla_prolog_v3(**given | weights, **state, level=level)
        return [np.asarray(r).tobytes() for r in (*results, *state.values())]

    assert run(tagged, "strict") == run(tagged, "portable") == run(plain, "portable")
    for name in names:
        with pytest.raises(NotImplementedError) as caught:
            run(tagged | {name: plain[name]}, "strict")
        assert caught.value.parameter == name
