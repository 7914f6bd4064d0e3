# SPDX-License-Identifier: Apache-2.0
"""The PyPTO calling forms give the bits of the native ones, in place or into other memory."""

import collections
import types

import numpy as np
import pytest

import dsakit
from oracle import cases

LIP_OUTS = ("q_int8", "q_scale", "k_cache", "k_scale_cache", "weights")
MLA_OUTS = ("q_norm", "q_norm_scale", "query_nope", "query_rope", "kv_cache", "kr_cache", "k_scale_cache")
BOTH_OUTS = (
    "query_nope",
    "query_rope",
    "kv_cache",
    "kr_cache",
    "k_scale_cache",
    "q_int8",
    "q_scale",
    "ip_k_cache",
    "ip_k_scale_cache",
    "weights",
)
ATTRS = types.SimpleNamespace(eps=1e-5, rope_layout="interleaved")
TUPLE_ATTRS = collections.namedtuple("Attrs", "eps rope_layout")(np.float64(1e-5), "interleaved")
modules = pytest.mark.parametrize("module", [dsakit, dsakit.reference], ids=["fast", "reference"])


def copies(caches):
    return {name: cache.copy() for name, cache in caches.items()}


def positional(module, name, given):
    """The native leading arguments by position."""
    import inspect

    kinds = inspect.signature(getattr(module, name)).parameters.values()
    return [given[p.name] for p in kinds if p.kind is p.POSITIONAL_OR_KEYWORD]


def indexer():
    given, caches = cases.indexer_prolog(5, t=4, he=40, hcq=24, n=3, di=16, dr=8)
    del given["rope_layout"]
    return given, caches


def mla(quantised=True):
    return cases.mla_prolog(6, t=4, he=40, hcq=24, n=2, d=8, dr=8, latent=32, groups=2, quantised=quantised)


def fused():
    given, caches = mla()
    more, index_caches = indexer()
    given |= {
        name: more[name]
        for name in ("w_qb", "w_qb_scale", "wk", "w_proj", "ln_gamma_k", "ln_beta_k", "hadamard_q", "hadamard_k")
    }
    return given, caches | {"ip_" + name: cache for name, cache in index_caches.items()}


def outputs(names, results, caches, in_place):
    """Out tensors for a call: fresh memory, or the caches themselves."""
    return [caches[n] if in_place and n in caches else np.full_like(r, 1) for n, r in zip(names, results)]


def assert_equal(outs, results, names):
    for name, out, result in zip(names, outs, results, strict=True):
        assert out.tobytes() == result.tobytes(), name


@modules
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    "tail", [(ATTRS, None), (None, ATTRS), (ATTRS, object()), ({"unroll": 4}, vars(ATTRS)), (TUPLE_ATTRS,)]
)
def test_indexer_prolog(module, in_place, tail):
    given, before = indexer()
    results = module.lightning_indexer_prolog_quant(
        **given, **copies(before), layernorm_epsilon_k=1e-5, rope_layout="interleaved"
    )
    caches = copies(before)
    outs = outputs(LIP_OUTS, results, caches, in_place)
    arguments = positional(module, "lightning_indexer_prolog_quant", given | caches)
    assert module.lightning_indexer_prolog_quant(*arguments, *outs, *tail) is None
    assert_equal(outs, results, LIP_OUTS)
    if not in_place:
        assert all(caches[name].tobytes() == before[name].tobytes() for name in caches)


def test_indexer_prolog_by_keyword():
    given, before = indexer()
    results = dsakit.lightning_indexer_prolog_quant(
        **given, **copies(before), layernorm_epsilon_k=1e-5, rope_layout="interleaved"
    )
    caches = copies(before)
    names = ("q_int8_out", "q_scale_out", "k_int8_out", "k_scale_out", "weights_out")
    outs = dict(zip(names, outputs(LIP_OUTS, results, caches, False)))
    dsakit.lightning_indexer_prolog_quant(
        **given, k_int8_in=caches["k_cache"], k_scale_in=caches["k_scale_cache"], **outs, configs=None, attrs=ATTRS
    )
    assert_equal(outs.values(), results, LIP_OUTS)


@modules
@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    "tail",
    [
        (),
        (1e-5, 1e-5, "PA_BSND", None, None),
        (np.float32(1e-5), np.float64(1e-5), np.str_("PA_BSND"), object(), {}),
    ],
)
def test_mla_prolog(module, quantised, in_place, tail):
    given, before = mla(quantised)
    results = list(module.mla_prolog_quant(**given, **copies(before)))
    caches = copies(before)
    if not quantised:
        results[-1] = given["k_scale_cache"] = np.ones((3, 5, 1, 2), np.float32)
        caches["k_scale_cache"] = given["k_scale_cache"]
    outs = outputs(MLA_OUTS, results, caches, in_place)
    assert module.mla_prolog_quant_d(*positional(module, "mla_prolog_quant", given | caches), *outs, *tail) is None
    assert_equal(outs, results, MLA_OUTS)


@modules
def test_mla_prolog_without_scales(module):
    given, before = mla(quantised=False)
    results = module.mla_prolog_quant(**given, **copies(before))
    outs = [None if r is None or r.size == 0 else np.zeros_like(r) for r in results]
    inputs = positional(module, "mla_prolog_quant", given | copies(before) | {"k_scale_cache": None})
    assert module.mla_prolog_quant_d(*inputs, *outs, 1e-5, 1e-5, "PA_BSND", None, None) is None
    assert_equal([outs[0], *outs[2:6]], [results[0], *results[2:6]], (MLA_OUTS[0], *MLA_OUTS[2:6]))
    given, before = mla()
    outs = [np.zeros_like(r) for r in module.mla_prolog_quant(**given, **copies(before))]
    with pytest.raises(ValueError, match="q_norm_scale_out is missing"):
        module.mla_prolog_quant_d(*positional(module, "mla_prolog_quant", given | before), outs[0], None, *outs[2:])


def test_mla_prolog_native_form_in_place_and_not():
    given, before = mla()
    caches = copies(before)
    results = dsakit.mla_prolog_quant(**given, **caches)
    assert all(r is caches[name] for r, name in zip(results[4:], before))
    other = {name + "_out": np.zeros_like(cache) for name, cache in before.items()}
    again = dsakit.mla_prolog_quant(**given, **copies(before), **other, tile_config=7, rope_cfg="any")
    assert all(r is other[name + "_out"] for r, name in zip(again[4:], before))
    assert_equal(again, results, MLA_OUTS)


def test_p_is_the_quantised_mode_only():
    given, before = mla()
    assert_equal(
        dsakit.mla_prolog_quant_p(**given, **copies(before)),
        dsakit.mla_prolog_quant(**given, **copies(before)),
        MLA_OUTS,
    )
    given, before = mla(quantised=False)
    for empty in (None, np.zeros((0, 1), np.float32)):
        with pytest.raises(ValueError) as caught:
            dsakit.mla_prolog_quant_p(**given | dict(dequant_scale=empty), **before)
        assert (caught.value.status, caught.value.parameter) == ("INVALID_ARGUMENT", "dequant_scale")


@modules
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    "tail", [(), (1e-5, 1e-5, "PA_BSND", None, None, None, None), (object(), {"layernorm_epsilon_k": 1e-6})]
)
def test_fused_prolog(module, in_place, tail):
    given, before = fused()
    results = module.mla_indexer_prolog_quant(**given, **copies(before))
    caches = copies(before)
    outs = outputs(BOTH_OUTS, results, caches, in_place)
    arguments = positional(module, "mla_indexer_prolog_quant", given | caches)
    assert module.mla_indexer_prolog_quant_p(*arguments, *outs, *tail) is None
    assert_equal(outs, results, BOTH_OUTS)


def attention():
    rng = cases.generator(8)
    b, s1, nq, dv, dr, topk, pages, block = 2, 2, 3, 16, 8, 6, 4, 4
    arguments = dict(
        query_nope=cases.uniform(rng, (b * s1 * nq, dv)),
        query_rope=cases.uniform(rng, (b * s1 * nq, dr)),
        key_nope_2d=cases.codes(rng, (pages * block, dv)),
        key_rope_2d=cases.uniform(rng, (pages * block, dr)),
        k_nope_scales=rng.random((pages * block, 2)).astype(np.float32),
        topk_indices=np.tile(np.arange(topk, dtype=np.int32), (b * s1, 1)),
        block_table=np.array([[0, 1], [3, 2]], np.int32),
        kv_act_seqs=np.array([7, 6], np.int32),
    )
    return arguments, dict(nq=nq, n_kv=1, softmax_scale=0.3, topk=topk, block_size=block), (b, s1)


@modules
@pytest.mark.parametrize("suffix", ["d", "p", "d_950", "compute"])
def test_attention_entries(module, suffix):
    tensors, numbers, (b, s1) = attention()
    wanted = module.sparse_flash_attention_quant(**tensors, **numbers, b=b, s1=s1)
    entry = getattr(module, "sparse_flash_attention_quant_" + suffix)
    out = np.zeros_like(wanted)
    assert entry(*tensors.values(), out, *numbers.values(), 2, object(), level="portable") is None
    assert out.tobytes() == wanted.tobytes()
    out[:] = 0
    with pytest.raises(NotImplementedError):
        entry(*tensors.values(), out, *numbers.values(), level="strict")
    tensors["topk_indcies"] = tensors.pop("topk_indices")
    entry(**tensors, **numbers, attention_out=out, max_blocknum_perbatch=2, tile_config=None)
    assert out.tobytes() == wanted.tobytes()


def test_probability_roundings_of_the_reference():
    tensors, numbers, (b, s1) = attention()
    call = lambda **more: dsakit.reference.sparse_flash_attention_quant(
        **tensors, **numbers, b=b, s1=s1, **more
    )  # noqa: E731
    plain = call()
    assert call(p_rounding="none").tobytes() == plain.tobytes()
    for rounding in ("normalised", "unnormalised_tile2048"):
        np.testing.assert_allclose(
            call(p_rounding=rounding).astype(np.float32), plain.astype(np.float32), atol=0.05 * 128
        )
    with pytest.raises(ValueError, match="p_rounding"):
        call(p_rounding="some")


def refused(call, status, parameter, guards=()):
    before = [g.tobytes() for g in guards]
    with pytest.raises(dsakit.Error) as caught:
        call()
    assert (caught.value.status, caught.value.parameter) == (status, parameter), caught.value
    assert [g.tobytes() for g in guards] == before


def test_refusals_write_nothing():
    given, caches = indexer()
    results = dsakit.lightning_indexer_prolog_quant(**given, **copies(caches))
    arguments = positional(dsakit, "lightning_indexer_prolog_quant", given | caches)
    outs = outputs(LIP_OUTS, results, caches, False)
    guards = [*outs, *caches.values()]
    name = dsakit.lightning_indexer_prolog_quant
    late = dict(zip(("k_cache_index",), [np.full(4, 10**6)]))
    refused(
        lambda: name(*positional(dsakit, "lightning_indexer_prolog_quant", given | caches | late), *outs),
        "INVALID_SLOT",
        "k_cache_index",
        guards,
    )
    refused(lambda: name(*arguments, *outs[:4]), "INVALID_ARGUMENT", "weights_out", guards)
    refused(lambda: name(*arguments, *outs, 3), "INVALID_DTYPE", "attrs", guards)
    wrong = [*outs[:2], np.zeros((1, 1, 1, 1), np.int8), *outs[3:]]
    refused(lambda: name(*arguments, *wrong), "INVALID_SHAPE", "k_int8_out", guards)
    wrong[2] = np.zeros(outs[2].shape, np.uint8)
    refused(lambda: name(*arguments, *wrong), "INVALID_DTYPE", "k_int8_out", guards)
    twice = np.zeros((caches["k_cache"].size + 16,), np.int8)
    shape = caches["k_cache"].shape
    arguments[13], wrong[2] = twice[:-16].reshape(shape), twice[16:].reshape(shape)
    refused(lambda: name(*arguments, *wrong), "ALIASED", "k_int8_out", guards)
    with pytest.raises(TypeError, match="too many"):
        name(*arguments, *outs, None, None, None)
    with pytest.raises(TypeError, match="multiple values"):
        name(*arguments, *outs, weights_out=outs[-1])


def test_torch_npu_spellings():
    x = cases.uniform(cases.generator(3), (32, 32))
    assert dsakit.npu_format_cast(x, 29).storage.tobytes() == dsakit.format_cast(x, 29).storage.tobytes()
    for module in (dsakit, dsakit.reference):
        for a, b in zip(module.npu_dynamic_quant(x), module.dynamic_quant(x), strict=True):
            assert a.tobytes() == b.tobytes()


def test_attention_entry_refusals():
    tensors, numbers, (b, s1) = attention()
    out = np.zeros((b, s1, numbers["nq"], 16), cases.BF16)
    entry = dsakit.sparse_flash_attention_quant_d
    refused(lambda: entry(**tensors, **numbers), "INVALID_ARGUMENT", "attention_out")
    refused(lambda: entry(**tensors, **numbers, attention_out=out[0]), "INVALID_SHAPE", "attention_out", [out])
    refused(
        lambda: entry(**tensors, **numbers, attention_out=out, max_blocknum_perbatch=3),
        "INVALID_ARGUMENT",
        "max_blocknum_perbatch",
        [out],
    )
    refused(
        lambda: entry(**tensors, **numbers, attention_out=out, topk_indcies=tensors["topk_indices"]),
        "INVALID_ARGUMENT",
        "topk_indcies",
        [out],
    )
