# SPDX-License-Identifier: Apache-2.0
"""Every name that dsakit.npu offers, called once in every spelling: eager, fake and compiled; every name that it knows and
refuses; a published call; the tests of vllm-ascend."""

import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", minversion="2.13")

import dsakit  # noqa: E402
import dsakit.npu  # noqa: E402
from dsakit.npu import fia, inventory  # noqa: E402
from oracle.calls import CALLS  # noqa: E402
from oracle.harness import assert_same, to_numpy  # noqa: E402
from oracle.npu_calls import inputs, mapped, results_of  # noqa: E402


# ---- the names


class Row(NamedTuple):
    names: str
    spaces: str  # of torch.ops, torch_npu, torch_npu._C
    page: str


PLAIN = "torch_npu npu"  # a name without a prefix
FIA = "fused_infer_attention_score_v2"
COMPUTED = [
    Row("npu_mla_prolog_v3 npu_mla_prolog_v3_functional npu_mla_prolog_v2 npu_mla_prolog", PLAIN, "mla_prolog"),
    Row("npu_lightning_indexer npu_quant_lightning_indexer", PLAIN, "lightning_indexer"),
    Row("lightning_indexer", "npu", "lightning_indexer"),
    Row("npu_lightning_indexer", "custom _C_ascend", "lightning_indexer"),
    Row("npu_quant_lightning_indexer", "custom", "lightning_indexer"),
    Row("npu_lightning_indexer_quant", "torch_npu custom _C_ascend", "lightning_indexer"),
    Row("npu_sparse_flash_attention npu_kv_quant_sparse_flash_attention", PLAIN, "sparse_flash_attention"),
    Row("npu_sparse_flash_attention npu_kv_quant_sparse_flash_attention", "custom _C_ascend", "sparse_flash_attention"),
    Row("npu_lightning_indexer_prolog_pto", "custom_pypto", "lightning_indexer_prolog_quant"),
    Row("npu_lightning_indexer_pto", "custom_pypto", "lightning_indexer"),
    Row(f"npu_{FIA} _npu_{FIA}_get_max_workspace _npu_{FIA}_infer_output", PLAIN, FIA),
    Row(f"{fia.V1} _{fia.V1}_get_max_workspace _{fia.V1}_infer_output", PLAIN, FIA),
    Row("npu_attention_update", PLAIN, "attention_update"),
    Row("npu_dynamic_quant", PLAIN, "dynamic_quant"),
    Row("npu_dynamic_block_quant", PLAIN, "dynamic_block_quant"),
    Row("npu_quantize", PLAIN, "quantize"),
    Row("npu_quant_matmul", PLAIN, "quant_matmul"),
    Row("npu_rms_norm npu_add_rms_norm", PLAIN, "rms_norm"),
    Row("npu_add_rms_norm_bias", "_C_ascend", "rms_norm"),
    Row("npu_interleave_rope npu_rotary_mul", PLAIN, "rope"),
    Row("npu_kv_rmsnorm_rope_cache npu_kv_rmsnorm_rope_cache_v2", PLAIN, "kv_rmsnorm_rope_cache"),
    Row("npu_kv_rmsnorm_rope_cache_v2_functional", PLAIN, "kv_rmsnorm_rope_cache"),
    Row("npu_scatter_nd_update_ npu_scatter_nd_update", PLAIN, "scatter_nd_update"),
    Row("npu_scatter_pa_kv_cache npu_scatter_pa_kv_cache_functional", PLAIN, "scatter_pa_kv_cache"),
    Row("npu_gather_pa_kv_cache npu_gather_pa_kv_cache_functional", PLAIN, "gather_pa_kv_cache"),
    Row("store_kv_block_metadata store_kv_block", "_C_ascend", "store_kv_block"),
    Row("npu_transpose_batchmatmul", PLAIN, "transpose_batchmatmul"),
    Row("batch_matmul_transpose", "_C_ascend", "transpose_batchmatmul"),
    Row("npu_swiglu", PLAIN, "swiglu"),
    Row("npu_format_cast npu_format_cast_ _npu_format_cast get_npu_format empty_with_format", PLAIN, "fractal_nz"),
    Row("empty_with_swapped_memory", PLAIN, "fractal_nz"),
    Row("Format", "torch_npu", "fractal_nz"),
    Row("npu_prefetch npu_dtype_cast", PLAIN, "spellings"),
    Row("_weak_ref_tensor", "torch_npu._C", "spellings"),
]
OPERATORS = [(s, n) for row in COMPUTED for n in row.names.split() for s in row.spaces.split() if "torch_npu" not in s]


def test_names(npu):
    space = lambda s: s if s.startswith("torch_npu") else "torch.ops." + s
    want = {(f"{space(s)}.{n}", row.page) for row in COMPUTED for n in row.names.split() for s in row.spaces.split()}
    names = dsakit.npu.names()
    got = [(n.name, n.page) for n in names if n.state == "computed"]
    assert set(got) == want and len(got) == len(want)
    for row in COMPUTED:
        if "torch_npu" in row.spaces.split():
            for name in row.names.split():
                others = [s for s in row.spaces.split() if s in ("npu", "custom")]
                assert all(getattr(npu, name) is getattr(getattr(torch.ops, s), name) for s in others), name


# ---- a call of each


def first_version(args):
    back = {v: k for k, v in fia.RENAMED.items()}
    return {back.get(k, k): v for k, v in args.items()}


def of_output(args, *names):
    return {n: args[n] for n in ("query", "value", "input_layout", "num_key_value_heads", *names)}


def recipe():
    """lightning_indexer_prolog_quant as the recipes call it."""
    args = inputs("lip")
    ours = [f["name"] for f in dsakit._core.describe()["lightning_indexer_prolog_quant"]["fields"]]
    theirs = (
        "token_x q_norm q_norm_scale wq_b wq_b_scale wk weights_proj ln_gamma_k ln_beta_k cos_idx_rope sin_idx_rope "
        "hadamard_q hadamard_k idx_k_cache idx_k_scale_cache idx_k_cache_index"
    )
    return {name: args[our] for name, our in zip(theirs.split(), ours)} | dict(layernorm_epsilon_k=1e-6)


def recipe_wanted(layernorm_epsilon_k, **args):
    results = dsakit.lightning_indexer_prolog_quant(*args.values(), layernorm_epsilon_k=layernorm_epsilon_k)
    return results[0], results[1], results[4]


def pages(*shape):
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


def scatter():
    """Slots 2, -1 and 0 of three rows."""
    return dict(self=pages(3, 2), indices=torch.tensor([[2], [-1], [0]]), updates=-1 - pages(3, 2))


def scattered(self, indices, updates):
    self[2], self[0] = updates[0], updates[2]
    return self


def paged_rows():
    """Two tokens into pages of two rows: the last slot, and none."""
    caches = dict(key_cache=pages(3, 2, 1, 4), value_cache=pages(3, 2, 1, 2))
    how = dict(slot_mapping=torch.tensor([5, -1]), cache_mode="Norm")
    return dict(key=-pages(2, 1, 4), value=-pages(2, 1, 2)) | caches | how


def scatter_wanted(key, value, key_cache, value_cache, slot_mapping, cache_mode):
    key_cache[2, 1], value_cache[2, 1] = key[0], value[0]


def gather():
    """Pages of two rows, table [2, 0], three rows from the second on."""
    made = dict(key_cache=pages(3, 2, 1, 4), value_cache=pages(3, 2, 1, 2), block_tables=torch.tensor([[2, 0]]).int())
    made |= dict(seq_lens=torch.tensor([3]).int(), key=torch.zeros(3, 1, 4), value=torch.zeros(3, 1, 2))
    return made | dict(seq_offset=torch.tensor([1]).int())


def gathered(key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset):
    for rows, cache in ((key, key_cache), (value, value_cache)):
        rows[0], rows[1], rows[2] = cache[2, 1], cache[0, 0], cache[0, 1]


def functional(update, *caches):
    def wanted(**args):
        copies = {n: args[n].clone() for n in caches}
        update(**args | copies)
        return tuple(copies.values())

    return wanted


GROUPS = dict(group_len=[2, 2, 1, 0, 0, 0], group_key_idx=[0, 2, 5, 0, 0, 0], group_key_cache_idx=[2, 4, 9, 0, 0, 0])


def metadata():
    arrays = {n: torch.full((6,), 7, dtype=torch.int32) for n in GROUPS}
    return dict(slot_mapping=torch.tensor([2, 3, 4, 5, -1, 9]).int()) | arrays | dict(block_size=4)


def metadata_wanted(slot_mapping, block_size, **arrays):
    for name, array in arrays.items():
        array.copy_(torch.tensor(GROUPS[name]))


def block():
    groups = {n: torch.tensor(v).int() for n, v in GROUPS.items()}
    return dict(key_in=-1 - pages(6, 1, 2), key_cache_in=pages(12, 1, 2)) | groups | dict(block_size=4)


def block_wanted(key_in, key_cache_in, **groups):
    key_cache_in[2:6], key_cache_in[9] = key_in[:4], key_in[5]


def attention_2(**args):
    return dsakit.sparse_flash_attention(**args, attention_mode=2)


def latest(**args):
    return dsakit.npu_fused_infer_attention_score_v2(**{fia.RENAMED.get(k, k): v for k, v in args.items()})


def none(**args):
    return torch.empty(0, dtype=torch.uint8)


ENGINE_SFA = lambda: inputs("sfa", "sinks attention_mode"), attention_2
ENGINE_KVSFA = lambda: inputs("kvsfa"), dsakit.kv_quant_sparse_flash_attention
ENGINE_QLI = lambda: inputs("qli"), dsakit.quant_lightning_indexer
NZ_PAIR = (lambda: dict(self=pages(2, 3), acl_format=29)), lambda self, acl_format: self
# What a call is given, and what it does; the other names are the package's own, called as in CALLS.
EXAMPLES = {
    "npu_mla_prolog": (lambda: inputs("v2"), lambda **args: dsakit.npu_mla_prolog_v2(**args)[:4]),
    "lightning_indexer": (lambda: inputs("li"), lambda **args: dsakit.lightning_indexer(**args)[0]),
    ("custom", "npu_quant_lightning_indexer"): ENGINE_QLI,
    "npu_lightning_indexer_quant": ENGINE_QLI,
    ("npu", "npu_kv_quant_sparse_flash_attention"): (
        lambda: inputs("kvsfa", "return_softmax_lse"), dsakit.npu_kv_quant_sparse_flash_attention,
    ),
    ("custom", "npu_sparse_flash_attention"): ENGINE_SFA,
    ("_C_ascend", "npu_sparse_flash_attention"): ENGINE_SFA,
    ("custom", "npu_kv_quant_sparse_flash_attention"): ENGINE_KVSFA,
    ("_C_ascend", "npu_kv_quant_sparse_flash_attention"): ENGINE_KVSFA,
    "npu_lightning_indexer_prolog_pto": (recipe, recipe_wanted),
    "npu_lightning_indexer_pto": (
        lambda: inputs("li", "layout_key"), lambda **args: dsakit.lightning_indexer(**args, layout_key="PA_BSND")[0],
    ),
    fia.V1: (lambda: first_version(inputs("fia")), latest),
    f"_{fia.V1}_get_max_workspace": (lambda: first_version(inputs("fia")), none),
    f"_{fia.V2}_get_max_workspace": (lambda: inputs("fia"), none),
    f"_{fia.V1}_infer_output": (
        lambda: of_output(first_version(inputs("fia")), "num_heads", "softmax_lse_flag"),
        lambda **args: latest(**first_version(inputs("fia"))),
    ),
    f"_{fia.V2}_infer_output": (
        lambda: of_output(inputs("fia"), "num_query_heads", "return_softmax_lse"), lambda **args: latest(**inputs("fia")),
    ),
    "npu_scatter_nd_update_": (scatter, scattered),
    "npu_scatter_nd_update": (scatter, lambda self, **args: scattered(self.clone(), **args)),
    "npu_scatter_pa_kv_cache": (paged_rows, scatter_wanted),
    "npu_scatter_pa_kv_cache_functional": (paged_rows, functional(scatter_wanted, "key_cache", "value_cache")),
    "npu_gather_pa_kv_cache": (gather, gathered),
    "npu_gather_pa_kv_cache_functional": (gather, functional(gathered, "key", "value")),
    "store_kv_block_metadata": (metadata, metadata_wanted),
    "store_kv_block": (block, block_wanted),
    "npu_format_cast": NZ_PAIR,
    "npu_format_cast_": NZ_PAIR,
    "_npu_format_cast": NZ_PAIR,
    "get_npu_format": (lambda: dict(self=pages(2, 3)), lambda self: 2),
    "empty_with_format": (lambda: dict(size=[2, 3], acl_format=29), lambda **args: torch.empty(2, 3)),
    "empty_with_swapped_memory": (lambda: dict(size=[2, 3]), lambda **args: torch.empty(2, 3)),
    "npu_prefetch": (lambda: dict(self=pages(2, 3), dependency=None, max_size=16), lambda **args: None),
    "npu_dtype_cast": (lambda: dict(self=pages(2, 3), dtype=torch.int32), lambda self, dtype: self.to(dtype)),
}  # fmt: skip


def every_call():
    for space, name in OPERATORS:
        found = EXAMPLES.get((space, name), EXAMPLES.get(name))
        if found:
            yield pytest.param(space, name, *found, id=f"{space}.{name}")
            continue
        ids = [id for id, call in CALLS.items() if call.operator == name.removeprefix("npu_")]
        assert ids, name
        for id in ids if space == "npu" else ids[:1]:
            yield pytest.param(space, name, lambda id=id: inputs(id), getattr(dsakit, name), id=f"{space}.{name} {id}")


CASES = list(every_call())


def complete(function, args):
    """As the schema has it: what is required there, and None here, is said."""
    return {a.name: None for a in function.default._schema.arguments if not a.has_default_value()} | args


def check_results(name, got, want):
    got, want = results_of(got), results_of(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        if not isinstance(b, torch.Tensor):
            assert a == b
        elif name in WITHOUT_ELEMENTS:
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
        else:
            assert_same(to_numpy(a), to_numpy(b))


@pytest.mark.parametrize("space, name, make, wanted", CASES)
def test_eager_fake_and_compiled(npu, space, name, make, wanted):
    function = getattr(getattr(torch.ops, space), name)
    want_args = make()
    want = wanted(**want_args)
    torch._dynamo.reset()
    compiled = torch.compile(lambda **k: function(**k), backend="aot_eager", fullgraph=True)
    calls = [(function, make()), (function.default, complete(function, make())), (compiled, complete(function, make()))]
    for call, args in calls[: 2 if name == "get_npu_format" else 3]:  # no graph has a number as result
        check_results(name, call(**args), want)
        for key, value in want_args.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(args[key], value), key
    with torch._subclasses.FakeTensorMode() as mode:
        fake = results_of(function(**mapped(mode.from_tensor, complete(function, make()))))
    kinds = lambda results: [(r.shape, r.dtype) if isinstance(r, torch.Tensor) else r for r in results]
    assert kinds(fake) == kinds(results_of(want))
    assert all(isinstance(r, torch._subclasses.FakeTensor) for r in fake if isinstance(r, torch.Tensor))


def arguments(overload, args):
    """Positional ones and those by keyword."""
    schema = overload._schema.arguments
    given = {a.name: args.pop(a.name, a.default_value) for a in schema if not a.kwarg_only}
    return tuple(given.values()), args


# Of memory that nobody writes: opcheck compares what lies in it, so there is none.
WITHOUT_ELEMENTS = {
    "empty_with_format": dict(size=[0, 3]),
    "empty_with_swapped_memory": dict(size=[0, 3]),
    f"_{fia.V1}_infer_output": dict(query=torch.empty(0, 3, 4, 16)),
    f"_{fia.V2}_infer_output": dict(query=torch.empty(0, 3, 4, 16)),
}


@pytest.mark.parametrize("space, name, make, wanted", CASES)
def test_opcheck(npu, space, name, make, wanted):
    overload = getattr(getattr(torch.ops, space), name).default
    torch.library.opcheck(overload, *arguments(overload, make() | WITHOUT_ELEMENTS.get(name, {})))


# ---- memory for results


@pytest.mark.parametrize("name, change", [(fia.V1, first_version), (fia.V2, dict)], ids=["1", "2"])
def test_out(npu, name, change):
    function, args = getattr(npu, name), change(inputs("fia"))
    flag = "softmax_lse_flag" if name == fia.V1 else "return_softmax_lse"
    want = function(**args)
    assert set(function.overloads()) == {"default", "out"}

    def compiled(**given):
        torch._dynamo.reset()
        return torch.compile(lambda **k: function.out(**k), backend="aot_eager", fullgraph=True)(**given)

    for call in (function.out, compiled):
        out = [torch.empty_like(r) for r in want]
        got = call(**args, workspace=torch.empty(0), out=out)
        assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(out, want, got))
        one, other = torch.empty_like(want[0]), torch.full((5,), 7, dtype=torch.bfloat16)
        call(**args | {flag: False}, attention_out=one, softmax_lse=other)
        assert torch.equal(one, want[0]) and other.tolist() == [7] * 5
    assert function.out(**args, out=out)[0] is out[0]
    for bad, status in (([torch.empty(3), out[1]], "SHAPE"), ([out[0].half(), out[1]], "DTYPE"), (out[:1], "ARGUMENT")):
        with pytest.raises(dsakit.Error) as caught:
            function.out(**args, out=bad)
        assert caught.value.status == "INVALID_" + status
    given = args | dict(attention_out=torch.empty_like(want[0]), softmax_lse=torch.empty_like(want[1]))
    torch.library.opcheck(function.out, *arguments(function.out, given))


# ---- what is known and refused

REFUSED = [
    ("mla_preprocess npu_mla_preprocess", "npu_mla_prolog_v3"),
    ("npu_fusion_attention npu_fusion_attention_v2 npu_prompt_flash_attention npu_incre_flash_attention", fia.V2),
    ("_npu_flash_attention _npu_flash_attention_qlens _npu_paged_attention _npu_paged_attention_splitfuse", fia.V2),
    ("_npu_paged_attention_mla npu_multi_head_latent_attention npu_ring_mla", fia.V2),
    ("_npu_reshape_and_cache _npu_reshape_and_cache_siso", "npu_scatter_pa_kv_cache"),
    ("npu_paged_cache_load", "npu_gather_pa_kv_cache"),
    ("npu_gather_selection_kv_cache dsa_plan dsa_serve dsa_install", "attention on whole caches"),
    ("npu_dynamic_mx_quant npu_grouped_dynamic_mx_quant npu_dynamic_dual_level_mx_quant", "npu_dynamic_quant"),
    ("npu_dynamic_quant_asymmetric npu_dynamic_block_fp8_quant", "npu_dynamic_quant"),
    ("npu_add_rms_norm_quant npu_rms_norm_quant npu_add_rms_norm_dynamic_quant", "npu_rms_norm, then npu_dynamic_quant"),
    ("npu_gemma_rms_norm npu_add_rms_norm_v2 npu_add_rms_norm_cast", "npu_rms_norm, then npu_dynamic_quant"),
    ("npu_apply_rotary_pos_emb npu_mrope inplace_partial_rotary_mul", "npu_rotary_mul"),
    ("npu_grouped_matmul npu_grouped_matmul_swiglu_quant npu_moe_gating_top_k", "npu_quant_matmul, npu_swiglu"),
    ("npu_dequant_swiglu_quant dispatch_ffn_combine npu_weight_quant_batchmatmul", "npu_quant_matmul, npu_swiglu"),
    ("npu_convert_weight_to_int4pack", "npu_quant_matmul, npu_swiglu"),
    ("npu_mm_all_reduce_base npu_mm_reduce_scatter_base", "torch.distributed + npu_quant_matmul"),
    ("npu_all_gather_base_mm matmul_allreduce_add_rmsnorm npu_alltoallv_gmm", "torch.distributed + npu_quant_matmul"),
    ("npu_sparse_attn_sharedkv compressor npu_kv_epilog npu_vllm_quant_lightning_indexer", "the V3.2 operators"),
    ("npu_scatter_nd_update_v2", "the V3.2 operators"),
    ("npu_lightning_indexer_grad npu_rms_norm_backward npu_sparse_lightning_indexer_kl_loss", "none: inference only"),
]


@pytest.mark.parametrize("names, nearest", REFUSED)
def test_refused_names_point_to_the_nearest(npu, names, nearest):
    for name in names.split():
        for space in (npu, torch.ops.npu, torch.ops._C_ascend, torch.ops.custom):
            assert not hasattr(space, name)
            with pytest.raises(dsakit.Error, match=f"{name} is not computed") as caught:
                getattr(space, name)
            assert isinstance(caught.value, NotImplementedError) and isinstance(caught.value, AttributeError)
            assert caught.value.status == "UNSUPPORTED" and caught.value.wanted.startswith(nearest), caught.value


def test_refused_names_are_listed(npu):
    rows = {n.name: n.nearest for n in dsakit.npu.names() if n.state == "refused"}
    assert rows == {p: nearest for patterns, nearest in inventory.REFUSED for p in patterns.split()}
    assert all(rows.values())


def test_names_of_one_space_only(npu):
    with pytest.raises(dsakit.Error, match="is not computed, wanted the V3.2 operators"):
        torch.ops._C_ascend.npu_quant_lightning_indexer  # noqa: B018
    assert torch.ops.custom.npu_quant_lightning_indexer is not npu.npu_quant_lightning_indexer
    for name in ("bgmv_expand", "sgmv_expand"):  # declared, so that Meta kernels can be added
        x = torch.zeros(1, 1)
        with pytest.raises(dsakit.Error, match=f"{name} is not computed, wanted none"):
            getattr(torch.ops._C_ascend, name)(x, x, x, x, 0, 1)


# ---- the call of the published note

NOTE = """
import warnings
import torch, torch_npu, dsakit, dsakit.npu

T, HE, HCQ, N, D, LATENT, DR, PAGE = 3, 1024, 1536, 2, 128, 512, 64, 16
torch.manual_seed(1)
int8 = lambda *shape: torch.randint(-127, 128, shape, dtype=torch.int8)
bf16 = lambda *shape: (torch.rand(shape) - 0.5).to(torch.bfloat16)
scale = lambda *shape: torch.rand(shape) * 1e-3
cast = lambda w: torch_npu.npu_format_cast(w, 29)
dequant_scale_w_dkv_kr = scale(1, LATENT + DR)
merged = torch.cat([bf16(4, 1, PAGE, LATENT), bf16(4, 1, PAGE, DR)], -1)
printed = dict(
    token_x=int8(T, HE), weight_dq=cast(int8(HE, HCQ)), weight_uq_qr=cast(int8(HCQ, N * (D + DR))),
    weight_uk=bf16(N, D, LATENT), weight_dkv_kr=cast(int8(HE, LATENT + DR)), kv_cache=merged, kr_cache=merged,
    cache_index=torch.tensor([0, 17, -1]), dequant_scale_x=scale(T, 1), dequant_scale_w_dq=scale(1, HCQ),
    dequant_scale_w_uq_qr=scale(1, N * (D + DR)), dequant_scale_w_dkv_kr=dequant_scale_w_dkv_kr,
    quant_scale_ckv=dequant_scale_w_dkv_kr[:, :LATENT].contiguous(), quant_scale_ckr=None, smooth_scales_cq=None,
    actual_seq_len=None, k_nope_clip_alpha=None, k_pe_clip_alpha=None, cache_mode="PA_BSND", query_norm_flag=True,
    weight_quant_mode=2, kv_cache_quant_mode=3, query_quant_mode=0, ckvkr_repo_mode=1, quant_scale_repo_mode=1,
    tile_size=128, qc_qr_scale=1.0, kc_scale=1.0,
)
left_out = dict(rmsnorm_gamma_cq=bf16(HCQ), rmsnorm_gamma_ckv=bf16(LATENT), rope_sin=bf16(T, DR), rope_cos=bf16(T, DR))


def refused(parameter, words, **given):
    for function in (torch_npu.npu_mla_prolog_v3, torch.ops.npu.npu_mla_prolog_v3):
        try:
            function(**given)
        except dsakit.Error as error:
            assert error.parameter == parameter and words in str(error), error
        else:
            raise SystemExit(f"{parameter} is not refused")


refused("rmsnorm_gamma_cq", "is missing", **printed)
refused("kv_cache", "pack_kv_rows", **printed, **left_out)

rows = int8(4, PAGE, 1, LATENT + 2 * DR + 16)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        cache = rows.clone()
        given = printed | left_out | dict(kv_cache=cache, kr_cache=cache)
        results = torch_npu.npu_mla_prolog_v3(**given)
assert len(caught) == 1 and "quant_scale_ckv" in str(caught[0].message), [str(w.message) for w in caught]

right = {k: v for k, v in given.items() if k not in ("quant_scale_ckv", "k_pe_clip_alpha")}
right |= dict(kv_cache=rows.clone(), kr_cache=torch.empty(0, dtype=torch.bfloat16), k_nope_clip_alpha=torch.ones(1))
with dsakit.npu.level("strict"):
    refused("k_pe_clip_alpha", "portable accepts None", **right | dict(k_pe_clip_alpha=None))
    wanted = torch_npu.npu_mla_prolog_v3(**right)
for a, b in zip((*results, cache), (*wanted, right["kv_cache"]), strict=True):
    assert a.dtype == b.dtype and torch.equal(a, b)
assert cache.ne(rows).any(-1).flatten().nonzero().flatten().tolist() == [0, 17]
"""


def test_the_published_note(tmp_path):
    script = tmp_path / "note.py"
    script.write_text(NOTE)
    done = subprocess.run([sys.executable, "-m", "dsakit.npu", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- the tests of vllm-ascend, where there is a checkout

CHECKOUT = os.environ.get("DSAKIT_VLLM_ASCEND")
THEIRS = (
    "test_sfa_v1_precision test_sfa_v1 test_mla_precision test_pa_kv_cache_ops test_store_kv_block test_add_rms_norm_bias "
    "test_kv_quant_sparse_flash_attention"
)
REPORTED = "test_batch_matmul_transpose"  # its golden is a product of the host: the last bit


@pytest.mark.skipif(not CHECKOUT, reason="DSAKIT_VLLM_ASCEND names no checkout of vllm-ascend")
@pytest.mark.parametrize("name", [*THEIRS.split(), REPORTED])
def test_of_vllm_ascend(name):
    files = sorted(pathlib.Path(CHECKOUT, "tests").rglob(name + ".py"))
    if not files:
        pytest.skip(f"{CHECKOUT} has no {name}.py")
    command = [sys.executable, "-m", "dsakit.npu", "-m", "pytest", "-q", *files]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    if name == REPORTED and done.returncode:
        pytest.xfail(done.stdout[-200:])
    assert done.returncode == 0
