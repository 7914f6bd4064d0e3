# SPDX-License-Identifier: Apache-2.0
"""numerics="device" and "golden" of sparse attention, for people who compare with a device or with its golden."""

import numpy as np
import pytest

import dsakit
from oracle import cases
from test_package_forms import attention
from test_published_upstream_calls import packed_call

F, BF16 = np.float32, cases.BF16
modules = pytest.mark.parametrize("module", [dsakit, dsakit.reference], ids=["fast", "reference"])


def two_to_one(module, numerics, operator):
    """Scores ln 2 and 0 over latents [5, 6] and [1, 2]."""
    query, rope = np.zeros((1, 1, 1, 2), BF16), np.ones((1, 1, 1, 1), BF16)
    latent, key_rope = np.array([[1, 2], [3, 4], [5, 6], [0, 0]], BF16), np.array([[0], [0], [1], [0]], BF16)
    lists = np.array([[2, 0]], np.int32)
    if operator == "sparse_flash_attention":
        key, key_rope = latent.reshape(1, 4, 1, 2), key_rope.reshape(1, 4, 1, 1)
        call = dict(query_rope=rope, key_rope=key_rope, attention_mode=2, sparse_mode=0, numerics=numerics)
        return module.sparse_flash_attention(query, key, key, lists.reshape(1, 1, 1, 2), np.log(2), **call)[0].ravel()
    return module.sparse_flash_attention_quant(
        query.reshape(1, 2), rope.reshape(1, 1), latent, key_rope, None, lists, np.array([[0]], np.int32),
        np.array([3], np.int32), b=1, s1=1, nq=1, softmax_scale=np.log(2), topk=2, block_size=4, numerics=numerics,
    ).ravel()  # fmt: skip


@modules
@pytest.mark.parametrize(
    "operator, numerics, wanted",
    [
        ("sparse_flash_attention", "exact", [3.671875, 4.65625]),
        ("sparse_flash_attention", "device", [3.671875, 4.65625]),  # unnormalised: 1 and 0.5 are exact
        ("sparse_flash_attention", "golden", [3.671875, 4.6875]),
        ("sparse_flash_attention_quant", "exact", [3.671875, 4.65625]),
        ("sparse_flash_attention_quant", "device", [3.671875, 4.6875]),  # the shipped kernel normalises
        ("sparse_flash_attention_quant", "golden", [3.671875, 4.6875]),
    ],
)
def test_weights_two_to_one(module, operator, numerics, wanted):
    assert two_to_one(module, numerics, operator).astype(F).tolist() == wanted


def golden(given, dtype):
    """The published comparison: keys in the query's dtype, normalised probabilities rounded to it."""
    key = given["key"].reshape(64, -1)
    codes, rope = key[:, :64].astype(F), key[:, 64:96].copy().view(dtype).astype(F)
    scales = key[:, 96:].copy().view(F).repeat(32, axis=1)
    latent = (codes * scales).astype(dtype).astype(F)
    order = np.concatenate([np.arange(16) + 16 * page for page in given["block_table"][0]])
    latent, rope = latent[order], rope[order]
    out = []
    for token, query in enumerate(given["query"][0].astype(F)):
        rows = given["sparse_indices"][0, token, 0]
        score = (query[:, :64] @ latent[rows].T + query[:, 64:] @ rope[rows].T) * F(0.2)
        p = np.exp(score - score.max(axis=1, keepdims=True))
        p = (p / p.sum(axis=1, keepdims=True)).astype(dtype).astype(F)
        out.append((p @ latent[rows]).astype(dtype))
    return np.stack(out)


@modules
def test_golden_is_the_published_comparison(module):
    given, _ = packed_call()
    out, _, _ = module.kv_quant_sparse_flash_attention(**given, numerics="golden")
    exact, _, _ = module.kv_quant_sparse_flash_attention(**given)
    wanted = golden(given, BF16)
    assert np.mean(out[0] == wanted) > 0.98 > np.mean(exact[0] == wanted)


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("numerics", ["device", "golden"])
def test_fast_path_and_reference_agree(numerics, dtype):
    given, _ = packed_call(dtype)
    fast = dsakit.kv_quant_sparse_flash_attention(**given, numerics=numerics)
    slow = dsakit.reference.kv_quant_sparse_flash_attention(**given, numerics=numerics)
    assert np.mean(fast[0] == slow[0]) > 0.98
    np.testing.assert_allclose(fast[1], slow[1], rtol=1e-5)
    np.testing.assert_allclose(fast[2], slow[2], rtol=1e-5)


def test_unknown_numerics_are_refused():
    given, _ = packed_call()
    tensors, numbers, (b, s1) = attention()
    for call in (
        lambda: dsakit.kv_quant_sparse_flash_attention(**given, numerics="chip"),
        lambda: dsakit.sparse_flash_attention_quant(**tensors, **numbers, b=b, s1=s1, numerics="chip"),
    ):
        with pytest.raises(dsakit.Error) as caught:
            call()
        assert (caught.value.status, caught.value.parameter) == ("INVALID_ARGUMENT", "numerics")
