# SPDX-License-Identifier: Apache-2.0
"""mla_indexer_prolog_quant is the two prologs in sequence, bit for bit."""

import numpy as np
import pytest

import dsakit
from oracle import cases
from oracle.cases import F
from oracle.harness import assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.layouts import to_nz

NAME = "mla_indexer_prolog_quant"
RESULTS = (
    "query_nope query_rope kv_cache kr_cache k_scale_cache q_int8 q_scale ip_k_cache ip_k_scale_cache weights".split()
)
INDEXER = "w_qb w_qb_scale wk w_proj ln_gamma_k ln_beta_k hadamard_q hadamard_k".split()
CACHES = "kv_cache kr_cache k_scale_cache ip_k_cache ip_k_scale_cache".split()
SIZES = [
    (dict(t=6, he=64, hcq=48, n=3, d=20, dr=8, latent=32, groups=4), dict(n=4, di=32)),
    (dict(t=2, he=256, hcq=128, n=64, d=32, dr=64, latent=128, groups=4), dict(n=32, di=128)),
    (dict(t=9, he=100, hcq=40, n=2, d=16, dr=16, latent=64, groups=2), dict(n=5, di=40)),
]


def make(seed, blocks=3, index_blocks=4):
    size, index = SIZES[seed % len(SIZES)]
    given, before = cases.mla_prolog(seed, **size, blocks=blocks)
    second, caches = cases.indexer_prolog(
        seed + 1, t=size["t"], he=size["he"], hcq=size["hcq"], dr=size["dr"], blocks=index_blocks, **index
    )
    args = {
        **given,
        **before,
        **{n: second[n] for n in INDEXER},
        "ip_k_cache": caches["k_cache"],
        "ip_k_scale_cache": caches["k_scale_cache"],
    }
    return args, ["half", "interleaved", "interleaved_to_half"][seed % 3]


def copied(args):
    return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}


def in_two_calls(args, layout, impl):
    args = copied(args)
    first = (
        "token_x",
        "w_dq",
        "w_uq_qr",
        "dequant_scale",
        "w_uk",
        "w_dkv_kr",
        "gamma_cq",
        "gamma_ckv",
        "cos",
        "sin",
        "cache_index",
        "kv_cache",
        "kr_cache",
        "k_scale_cache",
    )
    q_norm, q_scale, nope, q_rope, kv, kr, ks = operator("mla_prolog_quant", impl)(**{n: args[n] for n in first})
    q_int8, q_int8_scale, ipk, ips, weights = operator("lightning_indexer_prolog_quant", impl)(
        x=args["token_x"],
        q_norm=q_norm,
        q_norm_scale=q_scale,
        cos=args["cos"],
        sin=args["sin"],
        k_cache=args["ip_k_cache"],
        k_scale_cache=args["ip_k_scale_cache"],
        k_cache_index=args["cache_index"],
        rope_layout=layout,
        **{n: args[n] for n in INDEXER},
    )
    return dict(zip(RESULTS, (nope, q_rope, kv, kr, ks, q_int8, q_int8_scale, ipk, ips, weights)))


def run(args, layout, impl, convert=lambda v: v):
    args = {k: convert(v) for k, v in copied(args).items()}
    got = dict(zip(RESULTS, operator(NAME, impl)(**args, rope_layout_indexer=layout)))
    assert len(got) == 10
    for name in CACHES:
        assert got[name] is args[name]
    return {k: to_numpy(v) for k, v in got.items()}


@both
@seeds(6)
def test_equals_the_two_calls(seed, impl):
    args, layout = make(seed)
    want, got = in_two_calls(args, layout, impl), run(args, layout, impl)
    for name in RESULTS:
        assert_same(got[name], want[name], name)


@both
def test_weight_formats_threads_and_torch(impl):
    args, layout = make(7)
    want = run(args, layout, impl)
    matrices = ("w_dq", "w_uq_qr", "w_dkv_kr", "w_qb", "wk", "w_proj")
    for form in (lambda v: to_nz(v, padding=55), dsakit.pack_weight):
        got = dict(
            zip(
                RESULTS,
                operator(NAME, impl)(
                    **{**copied(args), **{n: form(args[n]) for n in matrices}}, rope_layout_indexer=layout
                ),
            )
        )
        for name in RESULTS:
            assert_same(got[name], want[name], name)
    others = per_thread_count(lambda: run(args, layout, impl)) if impl == "fast" else []
    if pytest.importorskip("torch"):
        others.append(run(args, layout, impl, convert=to_torch))
    for got in others:
        for name in RESULTS:
            assert_same(got[name], want[name], name)


def put(**changes):
    return lambda a: a.update({k: v(a[k]) if callable(v) else v for k, v in changes.items()})


def index(value):
    def change(a):
        a["cache_index"][4] = value
        return "[4]"

    return change


REFUSED = {
    "past the latent caches only": (index(17), "INVALID_SLOT", "cache_index"),
    "past all caches": (index(20), "INVALID_SLOT", "cache_index"),
    "past the index caches only": (
        put(
            ip_k_cache=lambda v: v[:1].copy(),
            ip_k_scale_cache=lambda v: v[:1].copy(),
            cache_index=np.array([0, 1, 2, 3, 4, 9]),
        ),
        "INVALID_SLOT",
        "cache_index",
    ),
    "other block_size": (
        put(ip_k_cache=np.zeros((4, 6, 1, 32), np.int8), ip_k_scale_cache=np.zeros((4, 6, 1, 1), np.float16)),
        "INVALID_SHAPE",
        {"ip_k_cache", "ip_k_scale_cache", "kv_cache"},
    ),
    "no dequant_scale": (put(dequant_scale=None), "INVALID_ARGUMENT", "dequant_scale"),
    "cache dtype": (put(ip_k_scale_cache=np.zeros((4, 5, 1, 1), np.int8)), "INVALID_DTYPE", "ip_k_scale_cache"),
    "cache_mode": (put(cache_mode="PA_NZ"), {"UNSUPPORTED", "INVALID_ARGUMENT"}, "cache_mode"),
    "one matrix missing": (put(hadamard_q=None), "INVALID_ARGUMENT", {"hadamard_q", "hadamard_k"}),
    "layout": (put(rope_layout_indexer="full"), "INVALID_ARGUMENT", "rope_layout_indexer"),
    "epsilon": (put(layernorm_epsilon_k=-1.0), "INVALID_ARGUMENT", "layernorm_epsilon_k"),
    "wk rows": (put(wk=lambda v: v[:-1].copy()), "INVALID_SHAPE", {"wk", "token_x"}),
    "w_proj dtype": (put(w_proj=lambda v: v.astype(F)), "INVALID_DTYPE", "w_proj"),
    "ip_k_cache missing": (put(ip_k_cache=None), "INVALID_ARGUMENT", "ip_k_cache"),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    change, status, parameter = REFUSED[name]
    args = copied(make(6)[0])
    position = change(args)
    guards = [v for v in args.values() if isinstance(v, np.ndarray)]
    refused(lambda: operator(NAME, impl)(**args), NAME, status, parameter, position, guards)
