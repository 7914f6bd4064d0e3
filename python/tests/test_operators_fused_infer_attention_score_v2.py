# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import dsakit
from oracle import dense_attention as dense
from oracle.harness import BF16, assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch

NAME = "fused_infer_attention_score_v2"
LAYOUTS = ["BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND", "TND_NTD", "NTD_TND"]
LAYOUTS += ["NTD", "BSH_BNSD", "BSND_BNSD", "NSD"]
LIMITS = {np.dtype(np.float32): (1e-5, 1e-4), np.dtype(np.float16): (1e-3, 2e-3), np.dtype(BF16): (4e-3, 1e-2)}


def normal(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


def close(got, wanted, largest=1.0):
    absolute, relative = LIMITS[got.dtype]
    error = np.abs(got.astype(np.float64) - wanted)
    assert np.isfinite(got.astype(np.float64)).all() and (error <= absolute * largest + relative * np.abs(wanted)).all()


def close_lse(got, wanted):
    assert got.dtype == np.float32 and got.shape == wanted.shape
    empty = np.isinf(wanted)
    assert (got[empty] == wanted[empty]).all()
    assert (np.abs(got[~empty] - wanted[~empty]) <= 1e-4 + 1e-5 * np.abs(wanted[~empty])).all()


class Case:
    """A call of any layout and what it owes."""

    def __init__(self, seed, layout, dtype=np.float16, heads=4, kv_heads=2, d=32, dv=24, dr=None, mode=3, storage=None,
                 lq=(5, 3), lk=(21, 9), longest_query=None, longest_key=None, pre=2**31 - 1, nxt=2**31 - 1):  # fmt: skip
        rng = np.random.default_rng(seed)
        front, _, back = layout.partition("_")
        back = back or front
        folded = "T" in front
        lq, lk = (lq[:1], lk[:1]) if front == "NSD" else (lq, lk)
        longest_query, longest_key = longest_query or max(lq), longest_key or max(lk)
        q = [normal(rng, (heads, n, d), dtype) for n in lq]
        k = [normal(rng, (kv_heads, n, d), dtype) for n in lk]
        v = [normal(rng, (kv_heads, n, dv), dtype) for n in lk]
        self.key, self.value, self.query = k, v, q
        scale = 1 / np.sqrt(d)
        self.args = dict(
            query=dense.fold(q, front, longest_query, np.nan),
            num_query_heads=heads,
            num_key_value_heads=kv_heads,
            softmax_scale=scale,
            input_layout=layout,
            sparse_mode=mode,
            return_softmax_lse=True,
            pre_tokens=pre,
            next_tokens=nxt,
            actual_seq_qlen=np.cumsum(lq).tolist() if folded else list(lq),
            actual_seq_kvlen=np.cumsum(lk).tolist() if folded and not storage else list(lk),
        )
        tensors = dict(key=k, value=v)
        if dr is not None:
            qr = [normal(rng, (heads, n, dr), dtype) for n in lq]
            kr = [normal(rng, (kv_heads, n, dr), dtype) for n in lk]
            tensors["key_rope"] = kr
            self.args["query_rope"] = dense.fold(qr, front, longest_query, np.nan)
            q = [np.concatenate(pair, -1) for pair in zip(q, qr)]
            k = [np.concatenate(pair, -1) for pair in zip(k, kr)]
        for name, arrays in tensors.items():
            if storage:
                rank, block_size = storage
                self.args[name], table = dense.pages(arrays, block_size, rank, np.random.default_rng(seed), np.nan)
                self.args.update(block_table=table, block_size=block_size)
            else:
                self.args[name] = dense.fold(arrays, front, longest_key, np.nan)

        pairs = [
            dense.attend(a, b, c, scale, dense.visible(mode, a.shape[1], b.shape[1], pre, nxt, None))
            for a, b, c in zip(q, k, v)
        ]
        if folded:
            out, lse = np.concatenate([p[0] for p in pairs], 1), np.concatenate([p[1] for p in pairs], 1)
            self.out = out.transpose(1, 0, 2) if back == "TND" else out
            self.lse = lse.T[:, :, None]
        else:
            out = np.zeros((len(q), heads, longest_query, dv))
            self.lse = np.full((len(q), heads, longest_query, 1), np.inf)
            for b, (o, e) in enumerate(pairs):
                out[b, :, : o.shape[1]], self.lse[b, :, : o.shape[1], 0] = o, e
            self.out = dense.arrange(out, back)

    def judge(self, out, lse):
        assert out.shape == self.out.shape
        close(out, self.out)
        close_lse(lse, self.lse)


@both
@pytest.mark.parametrize("rope", [None, 16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, rope, impl):
    for mode in (0, 2, 3, 4):
        case = Case(1, layout, dr=rope, mode=mode, lq=(5, 3, 0), lk=(21, 2, 7), pre=3, nxt=1)
        case.judge(*operator(NAME, impl)(**case.args))


@both
@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
def test_pages(rank, dtype, impl):
    for layout in ("BSH", "BNSD", "TND", "NTD_TND"):
        case = Case(2, layout, dtype, dv=32, dr=16, storage=(rank, 8), lq=(4, 1), lk=(70, 13))
        out, lse = operator(NAME, impl)(**case.args)
        case.judge(out, lse)
        apart = Case(2, layout, dtype, dv=32, dr=16, lq=(4, 1), lk=(70, 13))
        for a, b in zip((out, lse), operator(NAME, impl)(**apart.args)):
            assert_same(a, b)


@seeds(30)
def test_random(seed):
    rng = np.random.default_rng(seed)
    kv_heads = int(rng.integers(1, 4))
    sequences = int(rng.integers(1, 4))
    case = Case(
        seed,
        str(rng.choice(LAYOUTS)),
        rng.choice([np.float16, BF16, np.float32]),
        heads=kv_heads * int(rng.integers(1, 6)),
        kv_heads=kv_heads,
        d=int(rng.choice([1, 8, 33, 128])),
        dv=int(rng.choice([1, 16, 65])),
        dr=rng.choice([None, 7, 64]),
        mode=int(rng.choice([0, 2, 3, 4])),
        storage=rng.choice([None, 3, 4]) and (int(rng.choice([3, 4])), int(rng.choice([1, 16, 100]))),
        lq=tuple(int(x) for x in rng.integers(2, 7, sequences)),
        lk=tuple(int(x) for x in rng.integers(0, 600, sequences)),
        pre=int(rng.integers(0, 9)),
        nxt=int(rng.integers(0, 9)),
    )
    case.judge(*operator(NAME)(**case.args))


def test_bits_do_not_depend_on_threads():
    case = Case(3, "TND", BF16, heads=8, d=128, dv=128, lq=(60, 1), lk=(700, 900))
    results = per_thread_count(lambda: operator(NAME)(**case.args))
    for out, lse in results[1:]:
        assert_same(out, results[0][0])
        assert_same(lse, results[0][1])


@both
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["dense", "causal", "mask", "bias", "groups", "single"])
def test_torch_agrees(kind, dtype, impl):
    """torch's scaled_dot_product_attention, in float64 from the same numbers."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    heads, kv_heads = (8, 2) if kind == "groups" else (4, 4)
    rows, keys, d = (1 if kind == "single" else 37), 37 if kind == "causal" else 300, 64
    make = lambda *shape: torch.randn(*shape, dtype=torch.float64).to(getattr(torch, dtype))
    q, k, v = make(2, heads, rows, d), make(2, kv_heads, keys, d), make(2, kv_heads, keys, d)
    args, theirs = {}, {}
    if kind == "causal":
        args, theirs = dict(sparse_mode=3), dict(is_causal=True)
    if kind == "mask":
        hidden = torch.rand(2, 1, rows, keys) < 0.4
        args, theirs = dict(atten_mask=hidden), dict(attn_mask=~hidden)
    if kind == "bias":
        bias = make(2, heads, rows, keys)
        args, theirs = dict(pse_shift=bias), dict(attn_mask=bias.double())
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), enable_gqa=kind == "groups", scale=0.2, **theirs
    )
    out, lse = operator(NAME, impl)(
        q, k, v, num_query_heads=heads, num_key_value_heads=kv_heads, softmax_scale=0.2, input_layout="BNSD", **args
    )
    assert isinstance(out, torch.Tensor) and out.dtype == q.dtype
    assert lse.shape == (1,) and lse.dtype == torch.float32 and lse.item() == 0
    close(to_numpy(out), wanted.numpy())


@both
def test_lengths_come_in_any_kind(impl):
    case = Case(4, "TND")
    wanted = operator(NAME, impl)(**case.args)
    for kind in (tuple, np.array, lambda x: np.array(x, np.int32), lambda x: to_torch(np.array(x))):
        given = {n: kind(case.args[n]) for n in ("actual_seq_qlen", "actual_seq_kvlen")}
        for a, b in zip(operator(NAME, impl)(**{**case.args, **given}), wanted):
            assert_same(a, b)


@both
def test_torch_tensors(impl):
    case = Case(5, "BSH", BF16)
    out, lse = operator(NAME, impl)(**{n: to_torch(v) for n, v in case.args.items()})
    case.judge(to_numpy(out), to_numpy(lse))


@both
def test_without_lse(impl):
    case = Case(6, "BNSD")
    del case.args["return_softmax_lse"]
    out, lse = operator(NAME, impl)(**case.args)
    close(out, case.out)
    assert lse.dtype == np.float32 and lse.tolist() == [0.0]


def test_parts_merge():
    """Keys in two calls, one of them without keys in the end."""
    rng = np.random.default_rng(7)
    q, k, v = (normal(rng, (1, 4, n, 64), np.float32) for n in (1, 400, 400))
    op = lambda a, b: operator(NAME)(
        q, k[:, :, a:b], v[:, :, a:b], num_query_heads=4, input_layout="BNSD", return_softmax_lse=True
    )
    whole, lse = op(0, 400)
    for cut in (0, 1, 256, 300, 400):
        parts = [op(0, cut), op(cut, 400)]
        kept = [p for p in parts if p[1].view(np.uint32)[0, 0, 0, 0] not in (0xFF7FC99E, 0x7F800000)]
        assert len(kept) == (1 if cut in (0, 400) else 2)
        most = np.max([p[1] for p in kept], 0)
        weights = [np.exp(p[1] - most) for p in kept]
        np.testing.assert_allclose(sum(w * p[0] for w, p in zip(weights, kept)) / sum(weights), whole, 1e-4, 1e-5)
        np.testing.assert_allclose(most + np.log(sum(weights)), lse, 1e-5, 1e-4)


@both
@pytest.mark.parametrize("int4", [False, True])
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_quantised_keys(mode, int4, impl):
    rng = np.random.default_rng(8 + mode)
    b, n, s, d = 2, 2, 40, 32
    q = normal(rng, (b, 4, 3, d), BF16)
    codes = [rng.integers(-8 if int4 else -127, 8 if int4 else 128, (b, n, s, d)) for _ in range(2)]
    shape = {0: (n, d), 1: (b, s), 2: (n,), 3: (b, n, s)}[mode]
    scales, offsets = [
        [rng.uniform(low, high, shape).astype(np.float32) for _ in range(2)] for low, high in ((0.01, 0.02), (-3, 3))
    ]
    spread = {0: (1, n, 1, d), 1: (b, 1, s, 1), 2: (1, n, 1, 1), 3: (b, n, s, 1)}[mode]
    k, v = (
        (c.astype(np.float32) + o.reshape(spread)) * x.reshape(spread) for c, o, x in zip(codes, offsets, scales)
    )
    stored = [dense.pack_int4(c) if int4 else c.astype(np.int8) for c in codes]
    out, lse = operator(NAME, impl)(
        q,
        *stored,
        num_query_heads=4,
        num_key_value_heads=n,
        input_layout="BNSD",
        softmax_scale=0.5,
        return_softmax_lse=True,
        key_quant_mode=mode,
        value_quant_mode=mode,
        **dict(zip(("dequant_scale_key", "dequant_scale_value"), scales)),
        **dict(zip(("dequant_offset_key", "dequant_offset_value"), offsets)),
    )
    for i in range(b):
        wanted, wanted_lse = dense.attend(q[i], k[i], v[i], 0.5, np.ones((3, s), bool))
        close(out[i], wanted)
        close_lse(lse[i, :, :, 0], wanted_lse)


@both
def test_fully_quantised(impl):
    rng = np.random.default_rng(9)
    lk, heads, d, dr = (40, 9), 8, 64, 32
    q, k, v = (
        [rng.integers(-127, 128, (h, n, d)).astype(np.int8) for n in rows]
        for h, rows in ((heads, (1, 1)), (1, lk), (1, lk))
    )
    qr, kr = ([normal(rng, (h, n, dr), BF16) for n in rows] for h, rows in ((heads, (1, 1)), (1, lk)))
    sq, sk, sv = rng.uniform(0.005, 0.01, (2, 1, heads)).astype(np.float32), np.float32([0.02]), np.float32([0.03])
    for rank in (3, 4, 5):
        cache = {}
        for name, arrays in (("key", k), ("value", v), ("key_rope", kr)):
            cache[name], cache["block_table"] = dense.pages(arrays, 16, rank, np.random.default_rng(1), 1)
        out, _ = operator(NAME, impl)(
            np.stack([a.transpose(1, 0, 2) for a in q]),
            query_rope=np.stack([a.transpose(1, 0, 2) for a in qr]),
            **cache,
            dequant_scale_query=sq,
            dequant_scale_key=sk,
            dequant_scale_value=sv,
            num_query_heads=heads,
            num_key_value_heads=1,
            query_quant_mode=3,
            softmax_scale=0.1,
            block_size=16,
            actual_seq_kvlen=lk,
            input_layout="BSND_NBSD",
        )
        assert out.dtype == BF16 and out.shape == (heads, 2, 1, d)
        for b in range(2):
            wide = np.concatenate([q[b].astype(np.float64), qr[b].astype(np.float64)], -1)
            wide *= (sq[b, 0].astype(np.float64) * np.float64(sk[0]))[:, None, None]
            key = np.concatenate([k[b].astype(np.float64), kr[b].astype(np.float64)], -1)
            wanted, _ = dense.attend(wide, key, v[b], 0.1, np.ones((1, lk[b]), bool))
            close(out[:, b], wanted * np.float64(sv[0]), largest=127 * 0.03)


@both
def test_codes_out(impl):
    case = Case(10, "BSND", d=64, dv=64)
    rng = np.random.default_rng(1)
    scale, offset = rng.uniform(20, 40, (4, 64)).astype(np.float32), rng.uniform(-9, 9, (4, 64)).astype(np.float32)
    out, _ = operator(NAME, impl)(**case.args, quant_scale_out=scale, quant_offset_out=offset)
    wanted = np.clip(np.rint(case.out.astype(np.float32) * scale + offset), -128, 127)
    wanted[1, 3:] = 0  # padding
    assert out.dtype == np.int8
    difference = np.abs(out - wanted)
    assert difference.max() <= 1 and (difference > 0).mean() < 0.01


RESERVED = ["query", "key", "value", "query_rope", "key_rope", "key_shared_prefix", "value_shared_prefix"]
RESERVED += ["dequant_scale_query", "dequant_scale_key", "dequant_scale_value", "dequant_scale_key_rope"]


@both
def test_refusals(impl):
    op = operator(NAME, impl)
    case = Case(11, "BNSD")
    bad = lambda status, parameter, position=None, **change: refused(
        lambda: op(**{**case.args, **change}), NAME, status, parameter, position
    )
    for name in [n + "_dtype" for n in RESERVED] + ["quant_scale_p", "out_dtype"]:
        bad("UNSUPPORTED", name, **{name: 1})
        op(**case.args, **{name: None})
    bad("UNSUPPORTED", "dequant_scale_key_rope", dequant_scale_key_rope=np.ones(1, np.float32))
    bad("UNSUPPORTED", "sparse_mode", sparse_mode=9)
    bad("INVALID_ARGUMENT", "sparse_mode", sparse_mode=5)
    bad("INVALID_ARGUMENT", "input_layout", input_layout="SBH")
    bad("INVALID_SHAPE", "num_query_heads", num_query_heads=3)
    bad("INVALID_DTYPE", "value", value=case.args["value"].astype(np.float32))
    bad("INVALID_SEQLEN", "actual_seq_kvlen", "[1]", actual_seq_kvlen=[21, 22])
    bad("INVALID_SEQLEN", "actual_seq_qlen", actual_seq_qlen=[1, 2**40])
    bad("INVALID_ARGUMENT", "softmax_scale", softmax_scale=float("nan"))
    bad("INVALID_SHAPE", "pse_shift", pse_shift=np.zeros((1, 1, 5, 21), np.float16))
    bad("UNSUPPORTED", "value", level="strict")  # values narrower than keys
    with pytest.raises(TypeError):
        op(*(case.args[n] for n in ("query", "key", "value")), case.args["query"])
    paged = Case(11, "TND", storage=(4, 16))
    table = paged.args["block_table"].copy()
    table[0, 1] = 99
    refused(lambda: op(**{**paged.args, "block_table": table}), NAME, "INVALID_BLOCK", "block_table", "[0][1]")


def test_signature():
    import inspect

    parameters = inspect.signature(dsakit.fused_infer_attention_score_v2).parameters
    names = list(parameters)
    assert names[:10] == ["query", "key", "value", "query_rope", "key_rope", "pse_shift", "atten_mask",
                          "actual_seq_qlen", "actual_seq_kvlen", "block_table"]  # fmt: skip
    assert all(parameters[n].kind == inspect.Parameter.POSITIONAL_OR_KEYWORD for n in names[:3])
    assert all(parameters[n].kind == inspect.Parameter.KEYWORD_ONLY for n in names[3:])
    assert parameters["input_layout"].default == "BSH" and parameters["pre_tokens"].default == 2147483647
