# SPDX-License-Identifier: Apache-2.0
"""Calls of upstream's own tests and goldens that used to be refused: each is computed, strict goes on refusing."""

import numpy as np
import pytest

import dsakit
from oracle import cases

F, BF16 = np.float32, cases.BF16
modules = pytest.mark.parametrize("module", [dsakit, dsakit.reference], ids=["fast", "reference"])


def refused(status, parameter, call):
    with pytest.raises(dsakit.Error) as caught:
        call()
    assert (caught.value.status, caught.value.parameter) == (status, parameter), caught.value


@modules
@pytest.mark.parametrize("mode, axes", [("perchannel", -2), ("pertensor", None)])
def test_dynamic_quant_perchannel_and_pertensor(module, mode, axes):
    rng = cases.generator(3)
    x, smooth = cases.uniform(rng, (2, 5, 24)), cases.uniform(rng, (5 if axes else 24,))
    y, scale = module.dynamic_quant(x, smooth_scales=smooth, quant_mode=mode)
    z = x.astype(F) * (smooth.astype(F)[:, None] if axes else smooth.astype(F))
    largest = np.abs(z).max(axis=axes)
    np.testing.assert_array_equal(scale, (largest / F(127)).reshape(scale.shape))
    assert scale.shape == ((2, 24) if axes else (1,))
    multiplier = F(127) / largest
    wanted = np.rint(z * (multiplier[:, None] if axes else multiplier)).clip(-128, 127)
    np.testing.assert_array_equal(y, wanted.astype(np.int8))
    refused("UNSUPPORTED", "quant_mode", lambda: module.dynamic_quant(x, quant_mode=mode, level="strict"))


@modules
@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_quantize_fp32_with_narrow_scales(module, dtype):
    rng = cases.generator(4)
    x, scales = (rng.random((3, 12)) * 9 - 4).astype(F), (rng.random(12) / 9 + 0.01).astype(dtype)
    y = module.quantize(x, scales, None, "int8", axis=-1)
    assert y.tobytes() == module.quantize(x, scales.astype(F), None, "int8", axis=-1).tobytes()
    refused("INVALID_DTYPE", "scales", lambda: module.quantize(x, scales, None, "int8", axis=-1, level="strict"))


@modules
def test_rotary_mul_with_a_matrix(module):
    rng = cases.generator(5)
    x, r1, r2, matrix = (cases.uniform(rng, s, dtype=F) for s in [(2, 3, 8), (2, 1, 8), (1, 3, 8), (8, 8)])
    y = module.rotary_mul(x, r1, r2, rotate=matrix)
    np.testing.assert_allclose(y, x * r1 + (x @ matrix) * r2, rtol=1e-5, atol=1e-6)
    assert y.tobytes() == module.rotary_mul(x, r1, r2, "interleave", matrix).tobytes()
    refused("INVALID_ARGUMENT", "rotary_mode", lambda: module.rotary_mul(x, r1, r2, "quarter", matrix))
    refused("UNSUPPORTED", "rotate", lambda: module.rotary_mul(x, r1, r2, rotate=matrix, level="strict"))


def packed_call(dtype=BF16):
    rng = cases.generator(6)
    tokens, heads, dv, dr, tile, pages, block = 3, 4, 64, 16, 32, 4, 16
    codes = cases.codes(rng, (pages, block, 1, dv))
    rope = cases.uniform(rng, (pages, block, 1, dr), dtype=dtype)
    scales = (rng.random((pages, block, 1, dv // tile)) / 64).astype(F)
    key = np.concatenate([codes, rope.view(np.int8), scales.view(np.int8)], axis=-1)
    lists = np.stack([rng.permutation(60)[:20] for _ in range(tokens)]).astype(np.int32)
    return dict(
        query=cases.uniform(rng, (1, tokens, heads, dv + dr), dtype=dtype),
        key=key,
        value=key,
        sparse_indices=lists.reshape(1, tokens, 1, 20),
        scale_value=0.2,
        key_quant_mode=2,
        value_quant_mode=2,
        block_table=np.array([[2, 0, 3, 1]], np.int32),
        actual_seq_lengths_kv=[60],
        layout_kv="PA_BSND",
        sparse_mode=0,
        attention_mode=2,
        tile_size=tile,
        rope_head_dim=dr,
        return_softmax_lse=True,
    ), codes


@modules
def test_kv_quant_sparse_flash_attention_with_codes_alone(module):
    given, codes = packed_call()
    attend = module.kv_quant_sparse_flash_attention
    wanted = attend(**given)
    for value in (codes, given["key"][..., :64], given["key"].copy()):
        for a, b in zip(attend(**given | dict(value=value)), wanted, strict=True):
            assert a.tobytes() == b.tobytes()
    codes[2, 5, 0, 3] ^= 1  # position 5 of the sequence
    given["sparse_indices"][0, 1, 0, 0] = 5
    refused("INVALID_ARGUMENT", "value", lambda: attend(**given | dict(value=codes)))
    refused("INVALID_SHAPE", "value", lambda: attend(**given | dict(value=codes), level="strict"))


@modules
def test_selection_lists_of_width_0(module):
    given, _ = packed_call()
    given["sparse_indices"] = given["sparse_indices"][..., :0]
    out, most, total = module.kv_quant_sparse_flash_attention(**given)
    assert not out.astype(F).any() and not most.any() and not total.any()
    rng = cases.generator(7)
    query, rope = cases.uniform(rng, (1, 2, 3, 16)), cases.uniform(rng, (1, 2, 3, 8))
    key, key_rope = cases.uniform(rng, (1, 5, 1, 16)), cases.uniform(rng, (1, 5, 1, 8))
    call = dict(query_rope=rope, key_rope=key_rope, attention_mode=2, return_softmax_lse=True)
    empty = np.zeros((1, 2, 1, 0), np.int32)
    out, most, total = module.sparse_flash_attention(query, key, key, empty, 0.1, **call)
    assert not out.astype(F).any() and not most.any() and not total.any()
    refused(
        "INVALID_SHAPE",
        "sparse_indices",
        lambda: module.sparse_flash_attention(query, key, key, empty, 0.1, **call, level="strict"),
    )


@modules
@pytest.mark.parametrize("dtype", [F, BF16])
def test_fused_infer_attention_score_v2_learnable_sink(module, dtype):
    rng = cases.generator(8)
    query, key, value = (cases.uniform(rng, (2, heads, rows, 16)) for heads, rows in [(4, 3), (2, 40), (2, 40)])
    sink = np.array([0.5, -np.inf, -3, 4], dtype)
    given = dict(num_query_heads=4, num_key_value_heads=2, softmax_scale=0.25, input_layout="BNSD")
    given |= dict(actual_seq_kvlen=[40, 0], return_softmax_lse=True)
    attend = module.fused_infer_attention_score_v2
    out, lse = attend(query, key, value, **given, learnable_sink=sink)
    q, k, v = (x.astype(np.float64) for x in (query, np.repeat(key, 2, axis=1), np.repeat(value, 2, axis=1)))
    score = q[0] @ k[0].transpose(0, 2, 1) * 0.25
    total = np.exp(score).sum(-1) + np.exp(sink.astype(np.float64))[:, None]
    np.testing.assert_allclose(lse[0, :, :, 0], np.log(total), rtol=1e-5)
    np.testing.assert_allclose(out[0].astype(F), np.exp(score) @ v[0] / total[..., None], atol=4e-3)
    assert not out[1].astype(F).any() and (lse[1] == np.inf).all()  # without a key
    without = attend(query, key, value, **given)
    assert np.array_equal(without[0][:, 1], out[:, 1])  # a sink of -inf is none
    refused("UNSUPPORTED", "learnable_sink", lambda: attend(query, key, value, **given, learnable_sink=sink, level="strict"))


@modules
def test_lse_of_a_single_token_without_keys(module):
    x = np.ones((1, 2, 1, 16), BF16)
    given = dict(num_query_heads=2, input_layout="BNSD", actual_seq_kvlen=[0], return_softmax_lse=True)
    out, lse = module.fused_infer_attention_score_v2(x, x, x, **given)
    assert (lse == F(-3.4e38)).all() and not out.astype(F).any()
