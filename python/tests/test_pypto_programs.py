# SPDX-License-Identifier: Apache-2.0
"""dsakit.pypto.programs: the four operators as programs, beside the fused operators and the references."""

import contextlib
import dataclasses
import types

import numpy as np
import pytest

import dsakit
from dsakit import pypto
from dsakit.pypto import programs
from oracle import cases
from oracle.cases import BF16, F, codes, generator, page_table, paged, uniform
from oracle.harness import assert_same, per_thread_count, to_numpy, to_torch
from oracle.indexer_prolog import judge_indexer_prolog
from oracle.mla_prolog import judge_mla_prolog
from oracle.rows import deq, inverse_rms, multiplier, rope, rope_first
from oracle.sparse_attention import attend, attend_plain, check_output

MLA = "token_x w_dq w_uq_qr dequant_scale w_uk w_dkv_kr gamma_cq gamma_ckv cos sin cache_index".split()
MLA_CACHES = "kv_cache kr_cache k_scale_cache".split()
MLA_OUTS = "q_norm q_norm_scale query_nope query_rope".split()
INDEXER = "x q_norm q_norm_scale w_qb w_qb_scale wk w_proj ln_gamma_k ln_beta_k cos sin hadamard_q hadamard_k".split()
INDEXER_OWN = "w_qb w_qb_scale wk w_proj ln_gamma_k ln_beta_k hadamard_q hadamard_k".split()
TOKENS = [1, 7, 8, 32, 45]
UNROLL_LISTS = [(32, 16, 8, 4, 2, 1), (8, 4), (1,)]
SMALL = dict(he=70, hcq=48, n=3, d=20, dr=8, latent=32)
SMALL_INDEXER = dict(he=70, hcq=48, n=5, di=32, dr=8)
V32 = dict(he=7168, hcq=1536, n=128, d=128, dr=64, latent=512, block_size=128)
V32_INDEXER = dict(he=7168, hcq=1536, n=64, di=128, dr=64, block_size=128)
PROLOGS = ["mla_int8", "mla_bf16", "indexer", "mla_indexer"]
ATTENTIONS = ["attention_int8", "attention_bf16"]


@dataclasses.dataclass
class Case:
    """Tensors by name in the published order, what follows them, and what judges the tensors after a run."""

    name: str
    tensors: dict
    tail: list
    config: int  # the place in `tail` of the object that has the unroll list
    judge: object = None

    def copy(self):
        """The same with tensors of its own; caches that are their own outputs stay so."""
        made = {}
        own = {n: made.setdefault(id(v), v.copy()) for n, v in self.tensors.items()}
        return dataclasses.replace(self, tensors=own)

    def unrolled(self, unroll_list):
        tail = list(self.tail)
        tail[self.config] = dsakit.forms.MlaTileConfig(unroll_list=unroll_list)
        return dataclasses.replace(self, tail=tail)

    @property
    def arguments(self):
        return [*self.tensors.values(), *self.tail]

    def run(self, module=programs):
        """The tensors after a run on copies of them."""
        own = self.copy()
        getattr(module, self.name)(*own.arguments)
        return own.tensors


def mla(seed, quantised=True, groups=4, **sizes):
    given, before = cases.mla_prolog(seed, **sizes, groups=groups, quantised=quantised)
    t, n, hcq = sizes["t"], sizes["n"], sizes["hcq"]
    if not quantised:
        given["dequant_scale"], before["k_scale_cache"] = np.zeros((0, 1), F), np.zeros(0, F)
    outs = {
        "q_norm": np.zeros((t, hcq), np.int8 if quantised else BF16),
        "q_norm_scale": np.zeros((t, 1) if quantised else 0, F),
        "query_nope": np.zeros((t, n, sizes["latent"]), BF16),
        "query_rope": np.zeros((t, n, sizes["dr"]), BF16),
    }
    tensors = {n: given[n] for n in MLA} | {n: before[n] for n in MLA_CACHES} | {f"{n}_out": v for n, v in outs.items()}
    tensors |= {f"{n}_out": before[n] for n in MLA_CACHES}

    def judge(got):
        results = {n: got[f"{n}_out"] for n in MLA_OUTS + MLA_CACHES}
        judge_mla_prolog(given, results, before)

    return Case("mla_prolog_quant", tensors, [1e-5, 1e-5, "PA_BSND", None, None], 3, judge)


def indexer(seed, **sizes):
    given, before = cases.indexer_prolog(seed, **sizes)
    t, n, di = sizes["t"], sizes["n"], sizes["di"]
    outs = dict(
        q_int8_out=np.zeros((t, n, di), np.int8),
        q_scale_out=np.zeros((t, n, 1), np.float16),
        k_int8_out=before["k_cache"],
        k_scale_out=before["k_scale_cache"],
        weights_out=np.zeros((t, n), np.float16),
    )
    tensors = {n: given[n] for n in INDEXER} | before | {"k_cache_index": given["k_cache_index"]} | outs

    def judge(got):
        names = dict(q_int8="q_int8_out", q_scale="q_scale_out", weights="weights_out")
        results = {n: got[out] for n, out in names.items()} | {n: got[n] for n in before}
        judge_indexer_prolog(given, results, before)

    return Case("lightning_indexer_prolog_quant", tensors, [None, None], 1, judge)


def mla_indexer(seed, first, second):
    a, b = mla(seed, **first), indexer(seed + 1, t=first["t"], **second)
    caches = dict(ip_k_cache=b.tensors["k_cache"], ip_k_scale_cache=b.tensors["k_scale_cache"])
    tensors = {n: a.tensors[n] for n in MLA + MLA_CACHES} | {n: b.tensors[n] for n in INDEXER_OWN} | caches
    outs = ["query_nope_out", "query_rope_out"]
    tensors |= {n: a.tensors[n] for n in outs} | {f"{n}_out": a.tensors[n] for n in MLA_CACHES}
    tensors |= {n: b.tensors[n] for n in ("q_int8_out", "q_scale_out")}
    tensors |= {f"{n}_out": v for n, v in caches.items()} | {"weights_out": b.tensors["weights_out"]}

    def judge(got):
        """The first half has its q_norm from the operator, which is judged with it."""
        names = [*(f"{n}_out" for n in MLA_CACHES), *outs]
        halves = a.run(dsakit)
        a.judge(halves | {n: got[n] for n in names})
        b_inputs = {n: got[n] for n in INDEXER_OWN} | dict(x=got["token_x"], cos=got["cos"], sin=got["sin"])
        b_inputs |= dict(q_norm=halves["q_norm_out"], q_norm_scale=halves["q_norm_scale_out"])
        b_inputs["k_cache_index"] = got["cache_index"]
        results = {n: got[f"{n}_out"] for n in ("q_int8", "q_scale", "weights")}
        results |= dict(k_cache=got["ip_k_cache"], k_scale_cache=got["ip_k_scale_cache"])
        judge_indexer_prolog(b_inputs, results, {n: b.tensors[n] for n in ("k_cache", "k_scale_cache")})

    return Case("mla_indexer_prolog_quant", tensors, [1e-5, 1e-5, "PA_BSND", None, None, None, None], 3, judge)


def attention(seed, int8, b, s1, nq=5, dv=64, dr=8, tiles=4, topk=24, longest=60, block_size=4):
    """Rows that no list names hold NaN, and pages without a listed row are gone."""
    rng = generator(seed)
    act = rng.integers(topk // 2, longest + 1, b).astype(np.int32)
    act[b // 2] = min(act[b // 2], s1 // 2 + 1)  # a sequence whose first rows see nothing
    rows = b * s1
    q, q_rope = uniform(rng, (rows, nq, dv)), uniform(rng, (rows, nq, dr))
    latents = [codes(rng, (n, dv)) if int8 else uniform(rng, (n, dv)) for n in act]
    scales = [(rng.random((n, tiles)) / 64).astype(F) for n in act]
    ropes = [uniform(rng, (n, dr)) for n in act]
    lists = np.full((rows, topk + 1), -1, np.int32)
    listed, used = [], [set() for _ in act]
    scale = float((dv + dr) ** -0.5)
    for r in range(rows):
        seq = r // s1
        count = min(max(int(act[seq]) - s1 + 1 + r % s1, 0), topk)
        chosen = rng.permutation(int(act[seq]))[:count]
        lists[r, :count] = chosen
        used[seq].update(chosen.tolist())
        latent = latents[seq][chosen].astype(np.float64)
        if int8:
            latent = latent * np.repeat(scales[seq][chosen].astype(np.float64), dv // tiles, axis=1)
        listed.append(
            (q[r].astype(np.float64), q_rope[r].astype(np.float64), latent, ropes[seq][chosen].astype(np.float64))
        )
    table, pages = page_table(rng, act, block_size)
    for seq, keep in enumerate(used):
        rest = [j for j in range(act[seq]) if j not in keep]
        ropes[seq][rest] = scales[seq][rest] = np.nan
        for page in range(-(-int(act[seq]) // block_size)):
            if not keep & set(range(page * block_size, (page + 1) * block_size)):
                table[seq, page] = -1
    flat = lambda parts, value: paged(table, pages, parts, block_size, value).reshape(pages * block_size, -1)
    tensors = dict(
        query_nope=q.reshape(-1, dv),
        query_rope=q_rope.reshape(rows * nq, dr),
        key_nope_2d=flat(latents, 127 if int8 else np.nan),
        key_rope_2d=flat(ropes, np.nan),
        k_nope_scales=flat(scales, np.nan) if int8 else np.zeros(0, F),
        topk_indices=lists,
        block_table=table,
        kv_act_seqs=act,
        attention_out=np.full((b, s1, nq, dv), 7, BF16),
    )

    def judge(got):
        exact, plain = (np.array([f(*row, scale) for row in listed]) for f in (attend, attend_plain))
        out = got["attention_out"].astype(np.float64).reshape(exact.shape)
        check_output(out, exact, plain, "attention_out")
        for row, (_, _, latent, _) in enumerate(listed):
            assert len(latent) or not out[row].any()

    tail = [nq, 1, scale, topk, block_size, table.shape[1], None]
    return Case("sparse_flash_attention_quant", tensors, tail, 6, judge)


def case(which, t, seed=1):
    """A small case of t tokens; caches are their own outputs."""
    blocks = dict(blocks=t // 4 + 2)
    if which == "mla_indexer":
        return mla_indexer(seed, dict(t=t, **SMALL, **blocks), SMALL_INDEXER | blocks)
    if which == "indexer":
        return indexer(seed, t=t, **SMALL_INDEXER, **blocks)
    if which.startswith("attention"):
        b, s1 = {1: (1, 1), 7: (7, 1), 8: (2, 4), 32: (4, 8), 45: (5, 9)}[t]
        return attention(seed, which.endswith("int8"), b, s1)
    return mla(seed, which == "mla_int8", t=t, **SMALL, **blocks)


@contextlib.contextmanager
def same_products():
    """bf16 products by fma, in programs and in operators."""
    dsakit._core.set_same_products(True)
    try:
        with pypto.configure(gemm="fma"):
            yield
    finally:
        dsakit._core.set_same_products(False)


def assert_equal(c, module=dsakit):
    result = pypto.compare(getattr(programs, c.name), getattr(module, c.name), *c.arguments)
    assert result.verdict == "equal", f"\n{result}"


def assert_same_tensors(got, wanted):
    assert got.keys() == wanted.keys()
    for name in wanted:
        assert_same(got[name], wanted[name], name)


levels = pytest.mark.parametrize("level", ["portable", "strict"])
unrolls = pytest.mark.parametrize("unroll_list", UNROLL_LISTS, ids=str)
tokens = pytest.mark.parametrize("t", TOKENS)
everyone = pytest.mark.parametrize("which", PROLOGS + ATTENTIONS)


@levels
@unrolls
@tokens
@pytest.mark.parametrize("which", PROLOGS)
def test_prologs_equal_the_operators_where_products_are_the_same(which, t, unroll_list, level):
    with same_products(), pypto.configure(level=level):
        assert_equal(case(which, t).unrolled(unroll_list))


@pytest.mark.parametrize("which", PROLOGS)
@tokens
def test_prologs_equal_the_operators_with_the_fast_products_too(which, t):
    """The same kernels, in which a row of a product does not depend on the other rows."""
    assert_equal(case(which, t, 2))


@pytest.mark.parametrize("which", PROLOGS)
@tokens
def test_prologs_against_the_formulas_and_the_references(which, t):
    c = case(which, t, 3)
    c.judge(c.run())
    result = pypto.compare(getattr(programs, c.name), getattr(dsakit.reference, c.name), *c.arguments)
    assert result.verdict != "wrong", f"\n{result}"


@levels
@unrolls
@tokens
@pytest.mark.parametrize("which", ATTENTIONS)
def test_attention(which, t, unroll_list, level):
    c = case(which, t).unrolled(unroll_list)
    with pypto.configure(level=level):
        c.judge(c.run())


@tokens
@pytest.mark.parametrize("module", [dsakit, dsakit.reference], ids=["operator", "reference"])
@pytest.mark.parametrize("which", ATTENTIONS)
def test_attention_beside_the_operator(which, module, t):
    c = case(which, t, 2)
    result = pypto.compare(getattr(programs, c.name), getattr(module, c.name), *c.arguments)
    assert result.verdict != "wrong", f"\n{result}"
    assert all(line.verdict == "equal" for line in result if line.name != "attention_out")


# ---- stages


def wide(a):
    return np.asarray(a).astype(F)


def normed(c, gamma, epsilon=1e-5):
    r = inverse_rms(wide(c).astype(np.float64), epsilon)[:, None].astype(F)
    return (wide(gamma) * (wide(c) * r)).astype(BF16)


def quantised(x):
    m, _ = multiplier(np.abs(wide(x)).max(axis=-1, keepdims=True))
    return np.rint(wide(x) * m).astype(np.int8), F(1) / m


def rotated(v, cos, sin, layout):
    turn = rope if layout == "interleaved_to_half" else rope_first
    return turn(v.astype(np.float64), wide(cos)[:, None], wide(sin)[:, None], layout).astype(BF16)


@pytest.mark.parametrize("gemm", ["fast", "fma"])
def test_stages_of_mla_prolog_quant(gemm):
    """Each from what the program had before: equal."""
    c = mla(5, t=6, **SMALL)
    g = types.SimpleNamespace(**c.tensors)
    n, d, latent, t = SMALL["n"], SMALL["d"], SMALL["latent"], 6

    def dequantised(before):
        scale = quantised(before["Norm_q"])[1]
        return deq(before["Up_q"].astype(np.float64), scale, g.dequant_scale.reshape(1, -1)).astype(BF16)

    heads = lambda before: before["Dequant_q"].reshape(t, n, -1)
    kv = lambda before: before["Down_kv"]
    stages = {
        "Norm_q": lambda before: normed(before["Down_q"], g.gamma_cq),
        "Quant_q": lambda before: quantised(before["Norm_q"])[0],
        "Up_q": lambda before: before["Quant_q"].astype(np.int32) @ g.w_uq_qr.astype(np.int32),
        "Dequant_q": dequantised,
        "Rope_q": lambda before: rotated(heads(before)[..., d:], g.cos, g.sin, "interleaved_to_half"),
        "Rope_k": lambda before: rotated(kv(before)[:, None, latent:], g.cos, g.sin, "interleaved_to_half"),
        "Norm_kv": lambda before: normed(kv(before)[:, :latent], g.gamma_ckv),
        "Quant_kv": lambda before: quantised(before["Norm_kv"].reshape(t, 4, -1))[0],
    }
    c = c.unrolled((6,))
    with pypto.configure(gemm=gemm):
        result = pypto.compare(programs.mla_prolog_quant, dsakit.mla_prolog_quant, *c.arguments, stages=stages)
    assert {line.name: line.verdict for line in result if line.name in stages} == dict.fromkeys(stages, "equal"), (
        f"\n{result}"
    )


@pytest.mark.parametrize("gemm", ["fast", "fma"])
def test_stages_of_lightning_indexer_prolog_quant(gemm):
    c = indexer(6, t=6, **SMALL_INDEXER).unrolled((6,))
    g = types.SimpleNamespace(**c.tensors)
    n, di = SMALL_INDEXER["n"], SMALL_INDEXER["di"]

    def dequantised(before):
        return deq(before["Up_iq"].astype(np.float64), g.q_norm_scale, g.w_qb_scale.reshape(1, -1)).astype(BF16)

    stages = {
        "Up_iq": lambda before: g.q_norm.astype(np.int32) @ g.w_qb.astype(np.int32),
        "Dequant_iq": dequantised,
        "Rope_iq": lambda before: rotated(before["Dequant_iq"].reshape(6, n, di), g.cos, g.sin, "half"),
        "Quant_iq": lambda before: quantised(before["Hadamard_iq"].reshape(6, n, di))[1].astype(np.float16),
        "Rope_ik": lambda before: rotated(before["Norm_ik"][:, None], g.cos, g.sin, "half"),
        "Quant_ik": lambda before: quantised(before["Hadamard_ik"][:, None])[0],
    }
    with pypto.configure(gemm=gemm):
        operator = dsakit.lightning_indexer_prolog_quant
        result = pypto.compare(programs.lightning_indexer_prolog_quant, operator, *c.arguments, stages=stages)
    assert {line.name: line.verdict for line in result if line.name in stages} == dict.fromkeys(stages, "equal"), (
        f"\n{result}"
    )


# ---- what changes no bit


@everyone
def test_unroll_lists_and_threads(which):
    c = case(which, 45, 4)
    wanted = c.run()
    for unroll_list in ((16,), [3, 7], {64, 5}):
        assert_same_tensors(c.unrolled(unroll_list).run(), wanted)
    for got in per_thread_count(c.run):
        assert_same_tensors(got, wanted)


@everyone
def test_tile_sizes_and_options(which, monkeypatch):
    c = case(which, 8, 5)
    wanted = c.run()
    rng = np.random.default_rng(5)
    set_vec, set_cube = pypto.set_vec_tile_shapes, pypto.set_cube_tile_shapes
    sizes = lambda count: [int(n) for n in 16 * rng.integers(1, 5) * np.array([1, *[rng.integers(1, 4)] * (count - 1)])]
    monkeypatch.setattr(
        pypto, "set_vec_tile_shapes", lambda *n: set_vec(*(int(v) for v in rng.integers(1, 300, len(n))))
    )
    monkeypatch.setattr(
        pypto, "set_cube_tile_shapes", lambda m, k, n: set_cube(sizes(2), sizes(3), sizes(2), bool(rng.integers(2)))
    )
    with pypto.options(
        pass_options=dict(vec_nbuffer_setting={-1: 2}, cube_l1_reuse_setting={0: 4}),
        runtime_options=dict(stitch_function_max_num=256),
    ):
        for _ in range(3):
            assert_same_tensors(c.run(), wanted)
    options = dict(pass_options=dict(cube_nbuffer_setting={0: 2}), runtime_options=dict(device_sched_mode=1))
    kernel = pypto.frontend.jit(getattr(programs, c.name).function, **options)
    assert_same_tensors(c.run(types.SimpleNamespace(**{c.name: kernel})), wanted)


@pytest.mark.parametrize("which", PROLOGS)
def test_packed_weights(which):
    c = case(which, 7, 6)
    wanted, own = c.run(), c.copy()
    weights = own.tensors.keys() & {"w_dq", "w_uq_qr", "w_uk", "w_dkv_kr", "w_qb", "wk", "w_proj"}
    own.tensors |= {n: pypto.prepack(own.tensors[n]) for n in weights}
    for _ in range(2):  # packed, then met again
        getattr(programs, c.name)(*own.arguments)
        for name in wanted.keys() - weights:
            assert_same(own.tensors[name], wanted[name], name)


def test_a_copy_of_windows_of_a_packed_weight_is_read_anew():
    """Copies of different windows may lie at one address, one after the other."""

    @pypto.frontend.jit
    def windows(x: pypto.Tensor(), w: pypto.Tensor(), y: pypto.Tensor()):
        for i in range(4):
            part = pypto.reshape(w[:, 64 * i : 64 * i + 64], [32, 128])
            pypto.assemble(pypto.matmul(x, part, pypto.DT_BF16), [4 * i, 0], y)

    rng = generator(14)
    x, w = uniform(rng, (4, 32)), uniform(rng, (64, 256))
    wanted, got = np.zeros((16, 128), BF16), np.zeros((16, 128), BF16)
    windows(x, w, wanted)
    windows(x, pypto.prepack(w), got)
    assert_same(got, wanted)


@everyone
def test_torch_tensors(which):
    c = case(which, 7, 10)
    made = {}
    tensors = {n: made.setdefault(id(v), to_torch(v)) for n, v in c.tensors.items()}
    getattr(programs, c.name)(*tensors.values(), *c.tail)
    assert_same_tensors({n: to_numpy(v) for n, v in tensors.items()}, c.run())


@everyone
def test_debugging_finds_no_fault(which):
    c = case(which, 7)
    wanted = c.run()
    with pypto.debug.check():
        assert_same_tensors(c.run(), wanted)


@pytest.mark.parametrize("which", PROLOGS)
def test_no_tokens(which):
    assert_equal(case(which, 0))


# ---- caches


@pytest.mark.parametrize("which", PROLOGS)
def test_caches_written_into_other_memory(which):
    """The program writes its input too, and then copies all of it; the operator spares its input."""
    c = case(which, 8, 7)
    in_place, wanted = c.run(), c.copy()
    caches = {n for n, v in c.tensors.items() if n.endswith("cache") and v.size}
    apart = c.copy()
    for name, value in c.tensors.items():
        if any(value is c.tensors[n] for n in caches) and name not in caches:
            apart.tensors[name] = np.zeros_like(value)
    got = apart.run()
    assert_same_tensors(got, in_place)
    by_operator = apart.run(dsakit)
    for name in got:
        assert_same(by_operator[name], (wanted.tensors if name in caches else got)[name], name)


@pytest.mark.parametrize("which", PROLOGS)
def test_tokens_without_a_slot_leave_the_caches_alone(which):
    c = case(which, 7, 8)
    index = "k_cache_index" if which == "indexer" else "cache_index"
    wanted = c.run()
    c.tensors[index] = np.full(7, -1)
    got = c.run()
    caches = {n for n in got if "cache" in n or n in ("k_int8_out", "k_scale_out")} - {index}
    for name in got.keys() - {index}:
        assert_same(got[name], (c.tensors if name in caches else wanted)[name], name)


@pytest.mark.parametrize("which", PROLOGS)
@pytest.mark.parametrize("unroll_list", [(8,), (1,)], ids=str)
def test_an_error_restores_all_arguments(which, unroll_list):
    c = case(which, 8, 9).unrolled(unroll_list)
    index = "k_cache_index" if which == "indexer" else "cache_index"
    c.tensors[index] = np.array([0, 1, 2, 3, 4, 5, 6, 10_000])
    own = c.copy()
    with pytest.raises(IndexError, match="pypto.scatter_update: index.* is 10000, wanted below"):
        getattr(programs, c.name)(*own.arguments)
    assert_same_tensors(own.tensors, c.tensors)
    with pypto.configure(on_error="keep"), pytest.raises(IndexError):
        getattr(programs, c.name)(*own.arguments)
    assert (unroll_list == (8,)) == all(
        own.tensors[n].tobytes() == c.tensors[n].tobytes() for n in c.tensors if "cache" in n
    )


@pytest.mark.parametrize("which", ATTENTIONS)
@pytest.mark.parametrize("fault", ["page", "position"])
def test_an_error_in_attention_restores_the_output(which, fault):
    c = case(which, 32, 9)
    sequence = 3
    if fault == "page":
        c.tensors["block_table"][sequence] = -1
        message = r"block_table\[0\]\[\d+\] is -1"
    else:
        c.tensors["topk_indices"][-1, 0] = -1
        message = r"indices\[0\]\[0\] is -1"
    own = c.copy()
    with pytest.raises(IndexError, match=message):
        programs.sparse_flash_attention_quant(*own.arguments)
    assert_same_tensors(own.tensors, c.tensors)


def test_what_the_programs_do_not_do_is_refused():
    c = case("indexer", 1)
    c.tail[0] = types.SimpleNamespace(rope_layout="interleaved")
    with pytest.raises(NotImplementedError, match="half"):
        c.run()
    for which in ("mla_int8", "mla_indexer"):
        c = case(which, 1)
        c.tail[2] = "PA_NZ"
        with pytest.raises(NotImplementedError, match="PA_BSND"):
            c.run()


@pytest.mark.parametrize("which", ["indexer", "mla_indexer"])
def test_attributes_reach_the_layer_norm(which):
    c = case(which, 7)
    plain = c.run()
    c.tail[{"indexer": 0, "mla_indexer": 4}[which]] = dsakit.forms.IndexerPrologQuantAttr(eps=0.1)
    assert_equal(c)
    cache = "k_cache" if which == "indexer" else "ip_k_cache"
    assert c.run()[cache].tobytes() != plain[cache].tobytes()


@pytest.mark.parametrize("which", ["mla_int8", "mla_bf16", "mla_indexer"])
def test_epsilons_reach_the_norms(which):
    c = case(which, 7)
    plain = c.run()
    c.tail[:2] = [0.3, 0.7]
    assert_equal(c)
    for name in ("query_nope_out", "kv_cache"):
        assert c.run()[name].tobytes() != plain[name].tobytes()


# ---- DeepSeek-V3.2


def test_strict_takes_model_sizes():
    """mla_indexer_prolog_quant has all stages of the prologs."""
    c = mla_indexer(11, dict(t=35, **V32), V32_INDEXER)
    with pypto.configure(level="strict"):
        got = c.run()
    assert_same_tensors(got, c.run(dsakit))


@pytest.mark.parametrize("which", ["mla_bf16", "indexer"])
def test_strict_takes_model_sizes_of_the_halves(which):
    c = mla(12, False, t=3, **V32) if which == "mla_bf16" else indexer(12, t=3, **V32_INDEXER)
    with pypto.configure(level="strict"):
        got = c.run()
    assert_same_tensors(got, c.run(dsakit))


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "bf16"])
def test_strict_takes_model_sizes_of_attention(int8):
    c = attention(11, int8, 2, 2, nq=128, dv=512, dr=64, topk=2048, longest=2600, block_size=128)
    assert c.tensors["kv_act_seqs"][0] > 2048
    with pypto.configure(level="strict"):
        c.judge(c.run())
