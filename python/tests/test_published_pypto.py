# SPDX-License-Identifier: Apache-2.0
"""The PyPTO entries as their documents call them: every name, every keyword, every position, their objects and limits."""

import inspect
import types

import numpy as np
import pytest

import dsakit
from oracle import cases
from test_package_forms import (
    BOTH_OUTS,
    LIP_OUTS,
    MLA_OUTS,
    assert_equal,
    attention,
    copies,
    fused,
    indexer,
    mla,
    outputs,
    positional,
)

modules = pytest.mark.parametrize("module", [dsakit, dsakit.reference], ids=["fast", "reference"])

MLA_NAMES = """token_x w_dq w_uq_qr dequant_scale w_uk w_dkv_kr gamma_cq gamma_ckv cos sin cache_index kv_cache kr_cache
k_scale_cache""".split()
MLA_PUBLISHED_OUTS = """q_norm_out q_norm_scale_out query_nope_out query_rope_out kv_cache_out kr_cache_out
k_scale_cache_out""".split()
INDEXER_NAMES = """x_in q_norm_in q_norm_scale_in w_qb_in w_qb_scale_in wk_in w_proj_in ln_gamma_k_in ln_beta_k_in
cos_idx_rope_in sin_idx_rope_in hadamard_q_in hadamard_k_in k_int8_in k_scale_in k_cache_index_in""".split()
INDEXER_PUBLISHED_OUTS = "q_int8_out q_scale_out k_int8_out k_scale_out weights_out".split()
FUSED_NAMES = """token_x mla_w_dq mla_w_uq_qr mla_dequant_scale mla_w_uk mla_w_dkv_kr mla_gamma_cq mla_gamma_ckv cos sin
cache_index mla_kv_cache mla_kr_cache mla_k_scale_cache ip_w_qb_in ip_w_qb_scale_in ip_wk_in ip_w_proj_in
ip_ln_gamma_k_in ip_ln_beta_k_in ip_hadamard_q_in ip_hadamard_k_in ip_k_cache ip_k_cache_scale""".split()
FUSED_PUBLISHED_OUTS = """mla_query_nope_out mla_query_rope_out mla_kv_cache_out mla_kr_cache_out mla_k_scale_cache_out
ip_q_int8_out ip_q_scale_out ip_k_int8_out ip_k_scale_out ip_weights_out""".split()
ATTENTION_NAMES = """query_nope query_rope key_nope_2d key_rope_2d k_nope_scales topk_indcies block_table kv_act_seqs
attention_out nq n_kv softmax_scale topk block_size max_blocknum_perbatch tile_config""".split()


def refused(status, parameter, call):
    with pytest.raises(dsakit.Error) as caught:
        call()
    assert (caught.value.status, caught.value.parameter) == (status, parameter), caught.value
    assert f": {parameter}" in str(caught.value)
    return str(caught.value)


def published(module, operator, given, caches, names):
    """Arguments of the operator in the published order, under the published names."""
    return dict(zip(names, positional(module, operator, given | caches), strict=True))


def both_ways(entry, inputs, outs, tail, wanted, names):
    """By position and by keyword: results land in the given tensors, and the call returns None."""
    for by_keyword in (False, True):
        for out in outs.values():
            out.view(np.uint8)[...] = 1
        if by_keyword:
            assert entry(**inputs, **outs, **tail) is None
        else:
            assert entry(*inputs.values(), *outs.values(), *tail.values()) is None
        assert_equal(outs.values(), wanted, names)


@modules
@pytest.mark.parametrize("name", ["mla_prolog_quant_compute", "mla_prolog_quant", "mla_prolog_quant_p", "mla_prolog_quant_d"])
def test_mla_prolog_quant(module, name):
    given, before = mla()
    wanted = module.mla_prolog_quant(**given, **copies(before))
    inputs = published(module, "mla_prolog_quant", given, copies(before), MLA_NAMES)
    outs = dict(zip(MLA_PUBLISHED_OUTS, outputs(MLA_OUTS, wanted, before, False), strict=True))
    tail = dict(epsilon_cq=1e-5, epsilon_ckv=1e-5, cache_mode="PA_BSND")
    tail |= dict(tile_config=dsakit.forms.MlaTileConfig(tile_bs=8), rope_cfg=dsakit.forms.RopeTileShapeConfig())
    both_ways(getattr(module, name), inputs, outs, tail, wanted, MLA_OUTS)


@modules
@pytest.mark.parametrize("name", ["lightning_indexer_prolog_quant_compute", "lightning_indexer_prolog_quant"])
@pytest.mark.parametrize("w_qb", ["w_qb_in", "wq_b_in"])
def test_lightning_indexer_prolog_quant(module, name, w_qb):
    given, before = indexer()
    wanted = module.lightning_indexer_prolog_quant(**given, **copies(before), layernorm_epsilon_k=1e-5)
    names = [w_qb if n == "w_qb_in" else n for n in INDEXER_NAMES]
    inputs = published(module, "lightning_indexer_prolog_quant", given, copies(before), names)
    outs = dict(zip(INDEXER_PUBLISHED_OUTS, outputs(LIP_OUTS, wanted, before, False), strict=True))
    tail = dict(attrs=dsakit.forms.IndexerPrologQuantAttr(eps=1e-5), configs=dsakit.forms.IndexerPrologQuantConfigs(q=1))
    both_ways(getattr(module, name), inputs, outs, tail, wanted, LIP_OUTS)


@modules
@pytest.mark.parametrize("name", ["mla_indexer_prolog_quant_d", "mla_indexer_prolog_quant", "mla_indexer_prolog_quant_p"])
def test_mla_indexer_prolog_quant(module, name):
    given, before = fused()
    wanted = module.mla_indexer_prolog_quant(**given, **copies(before))
    inputs = published(module, "mla_indexer_prolog_quant", given, copies(before), FUSED_NAMES)
    outs = dict(zip(FUSED_PUBLISHED_OUTS, outputs(BOTH_OUTS, wanted, before, False), strict=True))
    tail = dict(mla_epsilon_cq=1e-5, mla_epsilon_ckv=1e-5, mla_cache_mode="PA_BSND", mla_tile_config=None)
    tail |= dict(ip_attrs=dsakit.forms.IndexerPrologQuantAttr(), ip_configs=None, rope_cfg=None)
    both_ways(getattr(module, name), inputs, outs, tail, wanted, BOTH_OUTS)


@modules
@pytest.mark.parametrize("suffix", ["_compute", "", "_p", "_d"])
def test_sparse_flash_attention_quant(module, suffix):
    tensors, numbers, (b, s1) = attention()
    wanted = module.sparse_flash_attention_quant(**tensors, **numbers, b=b, s1=s1)
    values = [*tensors.values(), np.zeros_like(wanted), *numbers.values(), 2, dsakit.forms.MlaTileConfig(any=1)]
    entry = getattr(module, "sparse_flash_attention_quant" + suffix)
    out = values[8]
    assert entry(*values) is None
    assert out.tobytes() == wanted.tobytes()
    out.view(np.uint8)[...] = 1
    assert entry(**dict(zip(ATTENTION_NAMES, values, strict=True))) is None
    assert out.tobytes() == wanted.tobytes()
    out.view(np.uint8)[...] = 1
    assert entry(**tensors, **numbers, attention_out=out) is None
    assert out.tobytes() == wanted.tobytes()


def test_messages_have_the_name_that_was_written():
    tensors, numbers, _ = attention()
    out = np.zeros((2, 2, 3, 16), cases.BF16)
    lists = tensors.pop("topk_indices").astype(np.int64)
    for suffix in ("", "_d", "_p", "_compute"):
        entry = getattr(dsakit, "sparse_flash_attention_quant" + suffix)
        call = dict(tensors, **numbers, attention_out=out)
        refused("INVALID_DTYPE", "topk_indcies", lambda: entry(**call, topk_indcies=lists))
        refused("INVALID_DTYPE", "topk_indices", lambda: entry(**call, topk_indices=lists))
    given, before = indexer()
    inputs = published(dsakit, "lightning_indexer_prolog_quant", given, before, INDEXER_NAMES)
    outs = dict.fromkeys(INDEXER_PUBLISHED_OUTS, np.zeros(1, np.int8))
    for name in ("x_in", "wq_b_in", "cos_idx_rope_in"):
        wrong = dict(inputs) | {name: np.zeros((3, 3, 3), np.int8)}
        if name == "wq_b_in":
            del wrong["w_qb_in"]
        results = dsakit.lightning_indexer_prolog_quant(**given, **copies(before))
        outs = dict(zip(INDEXER_PUBLISHED_OUTS, outputs(LIP_OUTS, results, before, False)))
        with pytest.raises(dsakit.Error) as caught:
            dsakit.lightning_indexer_prolog_quant(**wrong, **outs)
        assert caught.value.parameter in (name, "q_norm_in"), caught.value
    outs["weights_out"] = np.zeros((4, 7), np.float16)
    refused("INVALID_SHAPE", "weights_out", lambda: dsakit.lightning_indexer_prolog_quant(**inputs, **outs))
    with pytest.raises(TypeError, match="multiple values for argument 'wq_b_in'"):
        dsakit.lightning_indexer_prolog_quant(**inputs, wq_b_in=given["w_qb"], **outs)


def test_configuration_objects():
    forms = dsakit.forms
    assert forms.MlaTileConfig(any=3, other=[1]).other == [1]
    assert forms.IndexerPrologQuantAttr().eps == 1e-6
    assert [f for f in inspect.signature(forms.MlaQuantInputs).parameters][0] == "dequant_scale_x"
    for tiling in (forms.MlaTileConfig, forms.RopeTileShapeConfig, forms.IndexerPrologQuantConfigs):
        assert vars(tiling()) == {}


@pytest.mark.parametrize("layout", ["layout_query", "layout_key", "layerout_query", "layerout_key"])
def test_layout_fields_are_honoured_in_every_entry(layout):
    right = "TND" if layout.endswith("query") else "PA_BSND"
    given, before = indexer()
    alone = published(dsakit, "lightning_indexer_prolog_quant", given, copies(before), INDEXER_NAMES)
    results = dsakit.lightning_indexer_prolog_quant(**given, **copies(before))
    alone_outs = dict(zip(INDEXER_PUBLISHED_OUTS, outputs(LIP_OUTS, results, before, False)))
    given, before = fused()
    both = published(dsakit, "mla_indexer_prolog_quant", given, copies(before), FUSED_NAMES)
    results = dsakit.mla_indexer_prolog_quant(**given, **copies(before))
    both_outs = dict(zip(FUSED_PUBLISHED_OUTS, outputs(BOTH_OUTS, results, before, False)))
    for value in (right, "BNSD"):
        attrs = types.SimpleNamespace(**{layout: value})
        calls = [
            lambda: dsakit.lightning_indexer_prolog_quant_compute(**alone, **alone_outs, attrs=attrs),
            lambda: dsakit.mla_indexer_prolog_quant_d(**both, **both_outs, ip_attrs=attrs),
        ]
        for call in calls:
            if value == right:
                assert call() is None
            else:
                assert right in refused("INVALID_ARGUMENT", layout, call)


def test_strict_limits():
    """t of the prologs; b, s1 and s2 of attention: beyond them portable computes and strict refuses by name."""
    x = np.zeros((1025, 7168), cases.BF16)
    given, caches = cases.mla_prolog(6, t=4, he=40, hcq=24, n=2, d=8, dr=8, latent=32, groups=2, quantised=True)
    given = {name: v for name, v in given.items()}
    t = {"token_x": x[:, :40], "cos": np.zeros((1025, 8), cases.BF16), "sin": np.zeros((1025, 8), cases.BF16)}
    index = np.full(1025, -1, np.int64)
    call = given | caches | t | {"cache_index": index}
    assert dsakit.mla_prolog_quant(**call)[0].shape[0] == 1025
    message = refused("UNSUPPORTED", "token_x", lambda: dsakit.mla_prolog_quant(**call, level="strict"))
    assert "at most 1024" in message
    given, caches = indexer()
    call = given | caches | dict(x=x[:, :40])
    message = refused("UNSUPPORTED", "x", lambda: dsakit.lightning_indexer_prolog_quant(**call, level="strict"))
    assert "at most 1024" in message


@pytest.mark.parametrize(
    "parameter, change",
    [("b", dict(b=129, s1=1)), ("s1", dict(b=2, s1=5)), ("s1", dict(b=1, s1=1025)), ("kv_act_seqs", dict(act=131073))],
)
def test_strict_limits_of_attention(parameter, change):
    b, s1, act = (change.get(name, 1) for name in ("b", "s1", "act"))
    zeros = lambda *shape, dtype=cases.BF16: np.zeros(shape, dtype)  # noqa: E731
    call = dict(
        query_nope=zeros(b * s1 * 128, 512),
        query_rope=zeros(b * s1 * 128, 64),
        key_nope_2d=zeros(128, 512, dtype=np.int8),
        key_rope_2d=zeros(128, 64),
        k_nope_scales=zeros(128, 4, dtype=np.float32),
        topk_indices=zeros(b * s1, 2048, dtype=np.int32),
        block_table=zeros(b, 1025, dtype=np.int32),
        kv_act_seqs=np.full(b, act, np.int32),
        **dict(b=b, s1=s1, nq=128, softmax_scale=1.0, topk=2048, block_size=128, level="strict"),
    )
    refused("UNSUPPORTED", parameter, lambda: dsakit.sparse_flash_attention_quant(**call))


def test_outputs_of_one_operator_fit_the_next():
    """q_scale [t, n, 1] and weights [t, n] of the indexer's prolog go into quant_lightning_indexer, in strict too."""
    rng = cases.generator(9)
    t, n, d, pages = 3, 64, 128, 2
    call = dict(
        query=cases.codes(rng, (t, n, d)),
        key=cases.codes(rng, (pages, 128, 1, d)),
        weights=rng.random((t, n)).astype(np.float16),
        query_dequant_scale=rng.random((t, n, 1)).astype(np.float16),
        key_dequant_scale=rng.random((pages, 128, 1)).astype(np.float16),
        query_quant_mode=0,
        key_quant_mode=0,
        actual_seq_lengths_query=np.array([t], np.int32),
        actual_seq_lengths_key=np.array([200], np.int32),
        block_table=np.array([[1, 0]], np.int32),
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=64,
    )
    wanted = dsakit.npu_quant_lightning_indexer(**call)
    folded = call | {"query_dequant_scale": call["query_dequant_scale"][..., 0]}
    for level in ("portable", "strict"):
        assert np.array_equal(dsakit.npu_quant_lightning_indexer(**call, level=level), wanted)
        assert np.array_equal(dsakit.npu_quant_lightning_indexer(**folded, level=level), wanted)


def test_another_fold_of_the_same_rows_names_the_reshape():
    rng = cases.generator(9)
    query = cases.uniform(rng, (2, 3, 64, 128))
    call = dict(weights=cases.uniform(rng, (6, 64)), key=cases.uniform(rng, (2, 40, 1, 128)), level="strict")
    message = refused("INVALID_SHAPE", "weights", lambda: dsakit.lightning_indexer(query, **call))
    assert "reshape(2, 3, 64)" in message
    call |= dict(weights=call["weights"].reshape(2, 3, 64), level="strict", sparse_count=16)
    assert dsakit.lightning_indexer(query, **call)[0].shape == (2, 3, 1, 16)
