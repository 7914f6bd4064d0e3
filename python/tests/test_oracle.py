# SPDX-License-Identifier: Apache-2.0
"""The oracle itself: worked examples of the documentation, and proof that its judges accept a plain evaluation and
refuse one with a rounding in the wrong place."""

import ml_dtypes
import numpy as np
import pytest

from oracle import cases, indexer, layouts, mla_prolog_v3, rows
from oracle.indexer_prolog import judge_indexer_prolog
from oracle.mla_prolog import judge_mla_prolog
from oracle.mla_prolog_v3 import ROWS, judge_mla_prolog_v3
from oracle.mla_prolog_v3_cases import mla_prolog_v3 as v3_case
from oracle.quantise import dynamic_quant
from oracle.rounding import bf16, f16, fma32, i8, i8_away
from oracle.rows import F
from oracle.sparse_attention import attend

BF16 = ml_dtypes.bfloat16


def bits(x):
    return [hex(v) for v in np.asarray(x, F).reshape(-1).view(np.uint32)]


def test_rounding_agrees_with_the_formats():
    with np.errstate(invalid="ignore"):
        every = np.arange(65536, dtype=np.uint16).view(BF16).astype(np.float64)
    every = every[np.isfinite(every)]
    assert (bf16(every) == every).all()
    half = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    half = half[np.isfinite(half)]
    assert (f16(half) == half).all()
    ordered = np.unique(half)
    middle = (ordered[1:] + ordered[:-1]) / 2
    assert (f16(middle) == middle.astype(np.float16).astype(np.float64)).all()
    assert f16(65520.0) == np.inf and f16(65519.9) == 65504
    assert list(i8(np.array([2.5, -2.5, 127.5, -300, np.nan]))) == [2, -2, 127, -128, 0]


def test_fma_rounds_once():
    # 1 + 2^-24 + 2^-60: a float64 sum would drop the last term and leave a tie.
    assert fma32(F(2.0**-30), F(2.0**-30), F(1)) == 1
    a, b, c = F(1 + 2.0**-23), F(2.0**-24), F(1)  # 1 + 2^-24 + 2^-47, just above the tie
    assert fma32(a, b, c) == F(1 + 2.0**-23)
    assert fma32(F(1 + 2.0**-12), F(1 + 2.0**-12), F(-1)) == F(2.0**-11 + 2.0**-24)


def test_canonical_sum_uses_sixteen_lanes():
    x = np.zeros(33, F)
    x[0], x[1], x[16], x[32] = 2.0**24, 1, 1, 1  # lane 0 loses both ones, lane 1 keeps its own
    assert rows.canonical_sum(x) == F(2.0**24)
    x[1] = 2
    assert rows.canonical_sum(x) == F(2.0**24 + 2)


KEYS = np.array([[2, 1, 0, 0], [3, 1, 2, 0], [0, 2, 0, 2], [3, 0, -1, -1]], F)
QUERY = np.array([[1, 2, 0, -1], [0, 1, 1, 2]], F)


def test_indexer_m1_scores_and_order():
    scores = indexer.float_scores(QUERY, KEYS, np.array([1, -0.5]))
    assert scores.tolist() == [3.5, 3.5, -1, 4]
    assert [indexer.select(scores, k).tolist() for k in (2, 4, 6)] == [[3, 0], [3, 0, 1, 2], [3, 0, 1, 2, -1, -1]]
    assert indexer.select(scores[:3], 4).tolist() == [0, 1, 2, -1]


def test_indexer_m2_m3_m4():
    q, k = np.array([[64, 1, 0, 0]], np.int8), np.array([[64, 0, 0, 0], [64, 1, 0, 0]], np.int8)
    one = np.ones(1, np.float16)
    assert indexer.select(indexer.quant_scores(q, k, one, one, np.ones(2)), 1).tolist() == [1]
    assert indexer.select(indexer.quant_scores(q, k, one, one, np.ones(2), "device"), 1).tolist() == [0]
    k3 = np.array([[3], [6]], np.int8)
    scores = indexer.quant_scores(np.ones((1, 1), np.int8), k3, one, one, np.array([0.5, 0.25], np.float16))
    assert scores.tolist() == [1.5, 1.5] and indexer.select(scores, 2).tolist() == [0, 1]
    assert indexer.select(np.zeros(5, F), 3).tolist() == [0, 1, 2]
    assert indexer.select(np.zeros(2, F), 3).tolist() == [0, 1, -1]
    special = np.array([np.nan, -np.inf, -0.0, 0.0, np.inf], F)
    assert indexer.select(special, 6).tolist() == [4, 2, 3, 1, 0, -1]


def test_indexer_m5_m6_m7():
    assert [indexer.visible(3, 3, 2, i) for i in range(3)] == [0, 1, 2]
    codes, scale = rows.rowq_p(np.array([0.5, -1, 0.25, 2], F))
    assert codes.tolist() == [32, -64, 16, 127] and f16(scale) == F(0.01574707).astype(np.float16)
    x, cos, sin = [1, 2, 3, 4], [0.5, 0, 0.5, 0], [0.25, 1, 0.25, 1]
    assert rows.rope(x, cos, sin, "half").tolist() == [-0.25, -4, 1.75, 2]
    assert rows.rope(x, cos, sin, "interleaved_to_half").tolist() == [0, -4, 1.25, 3]
    assert rows.rope(x, cos, sin, "interleaved").tolist() == [0, 1.25, -4, 3]


def test_prolog_e1_e4_e8_e11_e12():
    codes, scale = rows.rowq_p(np.array([0.8125, -0.40625, 0.10009765625, 0.796875, 0], F))
    assert codes.tolist() == [127, -64, 16, 125, 0] and bits(scale) == ["0x3bd1a346"]
    y, scale = dynamic_quant(np.array([[0.8125, -0.40625, 0.10009765625, 0.796875, 0]], F))
    assert y.tolist() == [[127, -64, 16, 125, 0]] and bits(scale) == ["0x3bd1a347"]
    rotated = rows.rope([1, 2, 3, 4], [0.5, 0.25, 1, 2], [1, 0.5, 0.125, 0.75], "interleaved_to_half")
    assert rotated.tolist() == [-1.5, -1.25, 2.125, 10.25]
    normed = rows.norm_p(np.array([1, -2, 2, 4], F), np.array([1, 0.5, 1, 2], F), 1e-5)
    assert bits(normed) == ["0x3eccccc3", "0xbeccccc3", "0x3f4cccc3", "0x404cccc3"]
    assert bits(rows.deq(np.array([-181602]), F(0.643), F(0.549))) == ["0xc77a6ac8"]
    assert rows.rowq_p(bf16([1, 0.30315]))[0].tolist() == [127, 38]
    assert rows.rowq_p(np.array([1, 0.30315], F))[0].tolist() == [127, 39]
    zero_codes, zero_scale = rows.rowq_p(np.array([1e-38, 0], F))
    assert zero_codes.tolist() == [0, 0] and zero_scale == 0


def test_prolog_e2_e3_e9_e10():
    assert i8_away([2.5, -2.5, 2.4995, 127.6, -200]).tolist() == [3, -3, 3, 127, -128]
    z = np.array([4, -1.5, 0.75, -2], F)
    codes, scale = rows.tile_rule(z, 0.5)
    assert codes(z).tolist() == [127, -95, 48, -127] and bits(scale) == ["0x3c810204"]
    assert i8(np.array([1.5 * 3, 0.5 * 5, 40 * 4, -40 * 4], F)).tolist() == [4, 2, 127, -128]
    scale = F(3) / F(127)
    assert bits([scale, F(2) / scale]) == ["0x3cc18306", "0x42a95555"] and bf16(F(0.75) * (F(2) / scale)) == 63.5
    assert rows.rowq(np.array([0.8125, -0.40625, 0.10009765625, 0.796875, 0], F))[0].tolist() == [127, -64, 16, 125, 0]
    assert bits(rows.rowq(np.array([0.8125], F))[1]) == ["0x3bd1a347"]
    x, g = np.array([1, -2, 2, 4], F), np.array([1, 0.5, 1, 2], F)
    assert bits(rows.norm(x, g, 1e-5)) == ["0x3eccccc3", "0xbeccccc3", "0x3f4cccc3", "0x404cccc3"]
    assert bits(rows.root(x, 1e-5)) == bits(F(2.500002))


def test_prolog_e5_e7_e13_places():
    for dtype, h, column, offset in ((BF16, 512, 100, 144068), (np.int8, 512, 100, 144772), (BF16, 64, 40, 21192)):
        cache = np.zeros(3 * 128 * h, dtype)
        cache[offset] = 1
        found = np.argwhere(mla_prolog_v3.nz_block_to_rows(cache.reshape(3, 128, 1, h)).astype(F))
        assert found.tolist() == [[300, column]]
    assert mla_prolog_v3.packed_width(512, 64, 128) == 656
    row = np.zeros((1, 656), np.int8)
    row.view(np.uint8)[0, [518, 519]] = 0x20, 0xC0
    row.view(np.uint8)[0, 644:648] = 0x06, 0x83, 0xC1, 0x3C
    row[0, 130] = 5
    codes, rope_row, scales = mla_prolog_v3.split_rows(row, 512, 64)
    assert codes[0, 130] == 5 and rope_row[0, 3] == BF16(-2.5) and bits(scales[0, 1]) == ["0x3cc18306"]
    assert (mla_prolog_v3.join_rows(codes, rope_row, scales) == row).all()
    given = dict(
        token_x=np.zeros((263, 1)),
        actual_seq_len=[130, 135, 135, 263],
        cache_mode="PA_BLK_BSND",
        cache_index=np.array([7, 2, 5, 0]),
    )
    slots = {token: slot for slot, token in mla_prolog_v3.destinations(given, 128).items()}
    assert [slots[t] for t in (0, 127, 128, 129, 130, 134, 135, 262)] == [896, 1023, 256, 257, 640, 644, 0, 127]


def test_nz_offsets():
    assert layouts.nz_offset(7168, 16, 5, 20) == 114772
    assert layouts.nz_offset(7168, 32, 5, 40) == 229544
    assert layouts.nz_offset(18, 16, 17, 33) == 1297
    m = np.arange(18 * 48, dtype=np.int16).reshape(18, 48)
    stored = layouts.to_nz(m)
    assert stored.shape == (3, 2, 16, 16) and stored.reshape(-1)[1297] == m[17, 33]


def test_int4_packing():
    x = np.array([[1, -1, 2, -2, 7, -7, 0, 3]], F)
    y, scale = dynamic_quant(x, int4=True)
    assert scale[0] == 1 and y.view(np.uint32).tolist() == [[0x3097E2F1]]


def test_attention_e1_e2():
    latent = np.array([[5.0, 6], [1, 2]])
    assert attend(np.zeros((1, 2)), np.zeros((1, 0)), latent, np.zeros((2, 0)), 1).tolist() == [[3, 4]]
    out = attend(np.zeros((1, 2)), np.array([[1.0]]), latent, np.array([[np.log(2)], [0.0]]), 1)
    assert np.allclose(out, [[11 / 3, 14 / 3]]) and bf16(out).tolist() == [[3.671875, 4.65625]]


def plain_mla_prolog(g, before, flaw=None):
    """fp32 evaluation in numpy, for the judges' sake."""
    n = {k: np.asarray(v).astype(F) if isinstance(v, np.ndarray) else v for k, v in g.items()}
    half = n["token_x"].shape[1] // 2
    c = bf16(n["token_x"][:, :half] @ n["w_dq"][:half] + n["token_x"][:, half:] @ n["w_dq"][half:]).astype(F)
    cq = rows.norm_p(c, n["gamma_cq"], 1e-5)
    cq = cq if flaw == "no bf16 before codes" else bf16(cq).astype(F)
    codes, scale = rows.rowq_p(cq)
    if flaw == "a/127":
        scale = np.abs(cq).max(axis=1) / F(127)
    heads, d, latent = n["w_uk"].shape
    acc = codes.astype(np.float64) @ n["w_uq_qr"].astype(np.float64)
    q = rows.deq(acc, scale[:, None], n["dequant_scale"].reshape(1, -1))
    q = (q if flaw == "no bf16 before rope" else bf16(q).astype(F)).reshape(len(q), heads, -1)
    nope = bf16(np.einsum("thd,hdl->thl", bf16(q[..., :d]).astype(F), n["w_uk"]))
    layout = "half" if flaw == "rope layout" else "interleaved_to_half"
    q_rope = bf16(rows.rope(q[..., d:], n["cos"][:, None], n["sin"][:, None], layout))
    kv = bf16(n["token_x"] @ n["w_dkv_kr"]).astype(F)
    caches = {k: v.copy() for k, v in before.items()}
    k_codes, k_scale = rows.rowq_p(
        bf16(rows.norm_p(kv[:, :latent], n["gamma_ckv"], 1e-5)).reshape(len(q), caches["k_scale_cache"].shape[-1], -1)
    )
    for slot, t in ((int(s), t) for t, s in enumerate(g["cache_index"]) if s >= 0):
        caches["kv_cache"].reshape(-1, latent)[slot] = k_codes[t].reshape(-1)
        caches["k_scale_cache"].reshape(-1, k_scale.shape[1])[slot] = k_scale[t]
        caches["kr_cache"].reshape(-1, q_rope.shape[-1])[slot] = bf16(
            rows.rope(kv[t, latent:], n["cos"][t], n["sin"][t], layout)
        ).astype(BF16)
    return dict(q_norm=codes, q_norm_scale=scale[:, None].astype(F), query_nope=nope, query_rope=q_rope, **caches)


@pytest.mark.parametrize("flaw", [None, "a/127", "no bf16 before codes", "no bf16 before rope", "rope layout"])
def test_prolog_judge(flaw):
    given, before = cases.mla_prolog(7, t=6, he=512, hcq=192, n=4, d=32, dr=16, latent=128, groups=4)
    got = plain_mla_prolog(given, before, flaw)
    if flaw is None:
        judge_mla_prolog(given, got, before)
    else:
        with pytest.raises(AssertionError):
            judge_mla_prolog(given, got, before)


def plain_indexer_prolog(g, before, flaw=None):
    n = {k: np.asarray(v).astype(F) if isinstance(v, np.ndarray) else v for k, v in g.items()}
    t, di, heads = len(n["x"]), n["ln_gamma_k"].shape[0], n["w_proj"].shape[1]
    layout = "interleaved_to_half" if flaw == "rope layout" else "half"
    q = bf16(
        rows.deq(
            n["q_norm"].astype(np.float64) @ n["w_qb"].astype(np.float64),
            n["q_norm_scale"],
            n["w_qb_scale"].reshape(1, -1),
        )
    )
    q = rows.rope_first(q.reshape(t, heads, di), n["cos"][:, None], n["sin"][:, None], layout)
    codes, scale = rows.rowq_p(bf16(q @ n["hadamard_q"]))
    k = n["x"] @ n["wk"]
    k = bf16(k).astype(F) if flaw == "bf16 before norm" else k
    k = rows.rope_first(bf16(rows.layer_norm(k, n["ln_gamma_k"], n["ln_beta_k"], 1e-6)), n["cos"], n["sin"], layout)
    k_codes, k_scale = rows.rowq_p(bf16(k @ n["hadamard_k"]))
    caches = {name: v.copy() for name, v in before.items()}
    for slot, i in ((int(s), i) for i, s in enumerate(g["k_cache_index"]) if s >= 0):
        caches["k_cache"].reshape(-1, di)[slot] = k_codes[i]
        caches["k_scale_cache"].reshape(-1)[slot] = k_scale[i]
    w = bf16(n["x"] @ n["w_proj"]).astype(F) * F(1 / (np.sqrt(heads) * np.sqrt(di)))
    return dict(q_int8=codes, q_scale=scale[..., None].astype(np.float16), weights=w.astype(np.float16), **caches)


@pytest.mark.parametrize("flaw", [None, "bf16 before norm", "rope layout"])
def test_indexer_prolog_judge(flaw):
    given, before = cases.indexer_prolog(3, t=6, he=512, hcq=96, n=4, di=64, dr=16)
    got = plain_indexer_prolog(given, before, flaw)
    if flaw is None:
        judge_indexer_prolog(given, got, before)
    else:
        with pytest.raises(AssertionError):
            judge_indexer_prolog(given, got, before)


def plain_mla_prolog_v3(row, g, before, flaw=None):
    """PA_BSND, fp32 evaluation in numpy with every rounding that the page names."""
    n = {k: np.asarray(v).astype(F) if isinstance(v, np.ndarray) else v for k, v in g.items()}
    heads, d, latent = n["weight_uk"].shape
    layout = "half" if flaw == "rope layout" else "interleaved_to_half"
    vector = lambda name: n[name].reshape(-1)

    def project(weight, scale):
        if not row.int8_tokens:
            return bf16(n["token_x"] @ n[weight]).astype(F)
        tok, chan = vector("dequant_scale_x")[:, None], vector(scale)
        tok, chan = (chan, tok) if flaw == "channel scale first" else (tok, chan)
        return rows.deq(n["token_x"].astype(np.float64) @ n[weight].astype(np.float64), tok, chan)

    norm = rows.norm_p if flaw == "norm of the other family" else rows.norm
    cq = norm(project("weight_dq", "dequant_scale_w_dq"), n["rmsnorm_gamma_cq"], 1e-5) * F(g.get("qc_qr_scale", 1))
    if row.weights_int8:
        cq = bf16(cq).astype(F) if flaw == "bf16 before token codes" else cq
        cq = cq * vector("smooth_scales_cq") if "smooth_scales_cq" in g else cq
        query_norm, scale = (rows.rowq_p if flaw == "scale 1/(127/a)" else rows.rowq)(cq)
        acc = query_norm.astype(np.float64) @ n["weight_uq_qr"].astype(np.float64)
        m2 = rows.deq(acc, scale[:, None], vector("dequant_scale_w_uq_qr"))
    else:
        query_norm, scale = bf16(cq).astype(BF16), np.zeros(0, F)
        m2 = bf16(query_norm.astype(F) @ n["weight_uq_qr"]).astype(F)
    m2 = m2.reshape(len(cq), heads, -1)
    q = bf16(np.einsum("thd,hdl->thl", bf16(m2[..., :d]).astype(F), n["weight_uk"]))
    rope_in = bf16(m2[..., d:]) if flaw == "bf16 before query rope" else m2[..., d:]
    r = bf16(rows.rope(rope_in, n["rope_cos"][:, None], n["rope_sin"][:, None], layout))
    dq = np.zeros(0, F)
    if row.int8_query:
        a = np.abs(q).max(axis=-1, keepdims=True)
        m, _ = rows.multiplier(a)
        codes = q.astype(F) * m
        q, dq = (i8 if flaw == "query ties to even" else i8_away)(codes), (a.astype(F) / F(127))
        if flaw != "query rope not rescaled":
            r = bf16(r.astype(F) * (vector("quant_scale_ckv")[0] / dq))
    kv = project("weight_dkv_kr", "dequant_scale_w_dkv_kr")
    ckv = norm(kv[:, :latent], n["rmsnorm_gamma_ckv"], 1e-5) * F(g.get("kc_scale", 1))
    kr = rows.rope(kv[:, latent:], n["rope_cos"], n["rope_sin"], layout)
    kr = kr if flaw == "no bf16 before key rope codes" else bf16(kr).astype(F)
    if row.packed:
        ckv = bf16(ckv).astype(F) if flaw == "bf16 before tile codes" else ckv
        tiles = ckv.reshape(len(cq), -1, g["tile_size"])
        if flaw == "tile scale of the other family":
            codes, scales = rows.rowq_p(tiles)
        else:
            step, scales = rows.tile_rule(tiles, g["k_nope_clip_alpha"][0])
            codes = step(tiles)
        new = dict(kv_cache=mla_prolog_v3.join_rows(codes.reshape(len(cq), -1), kr.astype(BF16), scales))
    elif row.static_rows:
        new = dict(kv_cache=i8(ckv * vector("quant_scale_ckv")), kr_cache=i8(kr * vector("quant_scale_ckr")))
    elif row.int8_query:
        new = dict(kv_cache=i8(ckv * vector("quant_scale_ckv")[0]), kr_cache=kr.astype(BF16))
    else:
        new = dict(kv_cache=bf16(ckv).astype(BF16), kr_cache=kr.astype(BF16))
    caches = {k: v.copy() for k, v in before.items()}
    for slot, token in ((int(s), t) for t, s in enumerate(g["cache_index"]) if s >= 0):
        for name, stored in new.items():
            caches[name].reshape(-1, stored.shape[1])[slot] = stored[token]
    return dict(
        query=q.astype(np.int8 if row.int8_query else BF16),
        query_rope=r.astype(BF16),
        dequant_scale_q_nope=dq,
        query_norm=query_norm,
        dequant_scale_q_norm=scale.reshape(-1, 1) if row.weights_int8 else scale,
        **caches,
    )


@pytest.mark.parametrize("number", ROWS)
def test_prolog_v3_judge_accepts(number):
    more = dict(qc_qr_scale=1.75, kc_scale=0.3) if number % 2 else {}
    alpha = dict(k_nope_clip_alpha=np.array([0.7], F)) if number in (4, 7) else {}
    given, before = v3_case(number, number, lengths=[6], smooth=number in (3, 5, 7), **more, **alpha)
    judge_mla_prolog_v3(ROWS[number], given, plain_mla_prolog_v3(ROWS[number], given, before), before)


FLAWS = {
    "rope layout": (1, 2, 5),
    "norm of the other family": (2, 7),
    "channel scale first": (5, 6, 7),
    "bf16 before token codes": (2, 7),
    "scale 1/(127/a)": (4, 5),
    "bf16 before query rope": (2, 3, 4, 5, 6, 7),
    "query ties to even": (6,),
    "query rope not rescaled": (6,),
    "no bf16 before key rope codes": (3,),
    "bf16 before tile codes": (4, 7),
    "tile scale of the other family": (4, 7),
}


@pytest.mark.parametrize("flaw, number", [(flaw, n) for flaw, numbers in FLAWS.items() for n in numbers])
def test_prolog_v3_judge_refuses(flaw, number):
    given, before = v3_case(number, number, lengths=[8], he=192, hcq=160)
    got = plain_mla_prolog_v3(ROWS[number], given, before, flaw)
    with pytest.raises(AssertionError):
        judge_mla_prolog_v3(ROWS[number], given, got, before)
