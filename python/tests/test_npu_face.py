# SPDX-License-Identifier: Apache-2.0
"""dsakit.npu: names, calls, refusals, devices, formats; what is installed is taken away again."""

import pathlib
import re
import subprocess
import sys
import threading
import unittest.mock

import pytest

torch = pytest.importorskip("torch", minversion="2.13")

import dsakit  # noqa: E402
import dsakit.npu  # noqa: E402
from dsakit.npu import fia, forms, inventory  # noqa: E402
from oracle.calls import CALLS, STRICT  # noqa: E402
from oracle.harness import assert_same, to_numpy, to_torch  # noqa: E402


@pytest.fixture
def npu():
    dsakit.npu.install()
    import torch_npu

    yield torch_npu
    dsakit.npu.uninstall()


ROLES = {name: {f["name"]: f["role"] for f in d["fields"]} for name, d in dsakit._core.describe().items()}


def inputs(id):
    """Inputs as torch_npu knows them, without NaN in unused rows."""
    call = CALLS[id]
    args = {k: v for k, v in call.make().items() if ROLES[call.operator][k] != "out"}
    args = torch.utils._pytree.tree_map(to_torch, args)
    return mapped(lambda v: torch.nan_to_num(v) if v.is_floating_point() else v, args)


def mapped(change, args):
    """The arguments with every tensor changed, those of lists too."""
    return torch.utils._pytree.tree_map(lambda v: change(v) if isinstance(v, torch.Tensor) else v, args)


def results_of(results):
    return results if isinstance(results, (tuple, list)) else () if results is None else (results,)


def test_sentences(npu):
    with pytest.raises(AttributeError) as caught:
        npu.npu_fusion_attention  # noqa: B018
    assert str(caught.value) == (
        "torch_npu: npu_fusion_attention is not computed, wanted npu_fused_infer_attention_score_v2 (dense attention)"
    )
    with pytest.raises(AttributeError) as caught:
        torch.ops._C_ascend.npu_lightning_indxer  # noqa: B018
    assert str(caught.value) == (
        "torch.ops._C_ascend: npu_lightning_indxer is unknown, wanted npu_lightning_indexer (nearest name)"
    )
    with pytest.raises(ImportError):
        from torch_npu import npu_fusion_attention  # noqa: F401


def test_every_page_exists(npu):
    root = pathlib.Path(__file__).parent.parent.parent / "docs" / "operators"
    for name in dsakit.npu.names():
        assert name.nearest if name.state == "refused" else (root / f"{name.page}.md").exists(), name


def test_keywords_are_upstreams(npu):
    x = torch.ones(1, 1, 1, 8)
    for keyword in ("level", "y", "nothing"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
            npu.npu_rotary_mul(x, x, x, **{keyword: "strict"})
    with pytest.raises(TypeError, match="positional"):
        npu.npu_rotary_mul(x, x, x, "half", None, "portable")
    with pytest.raises(TypeError, match="unexpected keyword argument 'return_softmax_lse'"):
        npu.npu_kv_quant_sparse_flash_attention(x, x, x, x, 1, 2, 2, return_softmax_lse=True)


def test_level_is_a_threads(npu):
    x = torch.ones(1, 1, 1, 1024, dtype=torch.bfloat16)
    npu.npu_rotary_mul(x, x, x)
    seen = []
    with dsakit.npu.level("strict"):
        with pytest.raises(dsakit.Error, match="strict: Atlas A2/A3"):
            npu.npu_rotary_mul(x, x, x)
        thread = threading.Thread(target=lambda: seen.append(npu.npu_rotary_mul(x, x, x)))
        thread.start()
        thread.join()
    assert len(seen) == 1
    npu.npu_rotary_mul(x, x, x)
    dsakit.npu.install(level="strict")
    with pytest.raises(dsakit.Error, match="strict: Atlas A2/A3"):
        torch.ops.npu.npu_rotary_mul(x, x, x)


def test_dtypes_are_numbers_too(npu):
    x, scales = torch.tensor([[1.0, -2.0, 3.5, 300.0]]), torch.tensor([1.0])
    want = npu.npu_quantize(x, scales, None, torch.qint8, -1)
    for dtype in (12, "qint8"):
        assert torch.equal(npu.npu_quantize(x, scales, None, dtype, -1), want)
    with pytest.raises(NotImplementedError):
        npu.npu_quantize(x, scales, None, 290, -1)
    with pytest.raises(ValueError):
        npu.npu_quantize(x, scales, None, 99, -1)
    assert npu.npu_dtype_cast(x, 5).dtype == torch.float16


def test_patched_attributes_come_back(npu):
    original = npu.npu_rotary_mul
    with unittest.mock.patch("torch_npu.npu_rotary_mul", return_value=7):
        assert npu.npu_rotary_mul() == 7
    assert npu.npu_rotary_mul is original
    with unittest.mock.patch.object(torch.ops.npu, "npu_rotary_mul", return_value=8):
        assert torch.ops.npu.npu_rotary_mul() == 8
    assert torch.ops.npu.npu_rotary_mul is original


# ---- dense attention


def dense():
    args = inputs("fia")
    back = {v: k for k, v in fia.RENAMED.items()}
    return args, {back.get(k, k): v for k, v in args.items()}


def test_the_first_version_is_the_second_renamed(npu):
    v2, v1 = dense()
    want = npu.npu_fused_infer_attention_score_v2(**v2)
    got = npu.npu_fused_infer_attention_score(**v1)
    assert all(torch.equal(a, b) for a, b in zip(got, want))
    in_lists = npu.npu_fused_infer_attention_score(**v1 | dict(key=[v1["key"]], value=[v1["value"]]))
    assert torch.equal(in_lists[0], want[0])
    for name in fia.RESERVED:
        with pytest.raises(NotImplementedError, match=f"npu_fused_infer_attention_score: {name}"):
            npu.npu_fused_infer_attention_score(**v1 | {name: torch.ones(1)})
    with pytest.raises(dsakit.Error, match="npu_fused_infer_attention_score: num_heads"):
        npu.npu_fused_infer_attention_score(**v1 | dict(num_heads=0))


# ---- engines


def test_attention_of_engines(npu):
    """attention_mode is 2, three results; a sixth positional argument asks for one."""
    args = inputs("sfa")
    want = dsakit.sparse_flash_attention(**args)
    del args["attention_mode"], args["sinks"]
    want = dsakit.sparse_flash_attention(**args, attention_mode=2)
    names = ("query", "key", "value", "sparse_indices", "scale_value")
    given = [args.pop(n) for n in names]
    got = torch.ops._C_ascend.npu_sparse_flash_attention(*given, **args)
    assert len(got) == 3 and all(torch.equal(a, b) for a, b in zip(got, want))
    assert torch.equal(torch.ops._C_ascend.npu_sparse_flash_attention(*given, 1, **args), want[0])
    assert torch.equal(dsakit.ops._C_ascend.npu_sparse_flash_attention(*given, **args)[0], want[0])


def test_strict_takes_the_lse_of_pages_from_engines_only(npu):
    args = {k: to_torch(v) for k, v in STRICT["sfa strict"].make().items() if k not in ("level", "sinks", "attention_out")}
    args = mapped(lambda v: torch.nan_to_num(v) if v.is_floating_point() else v, args) | dict(return_softmax_lse=True)
    assert args["layout_kv"] == "PA_BSND"
    want = dsakit.sparse_flash_attention(**args)
    heads = {n: args[n].repeat(1, 3, 1)[:, :3].contiguous() for n in ("query", "query_rope")}  # three: portable only
    with dsakit.npu.level("strict"):
        got = torch.ops._C_ascend.npu_sparse_flash_attention(**args)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)) and len(got[1]) > 0
        for function, change, name in (
            (npu.npu_sparse_flash_attention, {}, "return_softmax_lse"),
            (torch.ops._C_ascend.npu_sparse_flash_attention, heads, "query"),
        ):
            with pytest.raises(dsakit.Error, match=f"npu_sparse_flash_attention: {name} .*strict: Atlas"):
                function(**args | change)


@pytest.mark.parametrize("release, space, suffix, several, pre", [
    ("0.11", "custom", "", False, False),
    ("0.13", "_C_ascend", "_custom", False, False),
    ("0.14", "_C_ascend", "_custom", False, False),
    ("0.18", "_C_ascend", "", False, False),
    ("0.20", "_C_ascend", "", False, False),
    ("0.21", "_C_ascend", "", True, True),
    ("v0.22.1", "_C_ascend", "", True, True),
    ("0.23", "_C_ascend", "", True, False),
    ("main", "_C_ascend", "", True, False),
])  # fmt: skip
def test_releases(npu, release, space, suffix, several, pre):
    dsakit.npu.install(vllm_ascend=release)
    space = getattr(torch.ops, space)
    sfa, li = (getattr(space, name + suffix) for name in ("npu_sparse_flash_attention", "npu_lightning_indexer"))
    args = inputs("sfa")
    del args["sinks"], args["attention_mode"]  # 2 is meant
    want = dsakit.sparse_flash_attention(**args, attention_mode=2)
    got = results_of(sfa(**args))
    assert len(got) == (3 if several else 1) and torch.equal(got[0], want[0])
    dispatched = results_of(sfa.default(**args))
    assert len(dispatched) == len(got) and torch.equal(dispatched[0], want[0])
    first = [args.pop(n) for n in ("query", "key", "value", "sparse_indices", "scale_value")]
    assert torch.equal(sfa(*first, 1, **args), want[0])  # sparse_block_size: one result in every release
    got = results_of(li(**inputs("li")))
    assert len(got) == (2 if several else 1) and torch.equal(got[0], dsakit.lightning_indexer(**inputs("li"))[0])
    assert hasattr(torch.ops._C_ascend, "store_kv_block_pre") == pre
    if pre:
        arrays = torch.ops._C_ascend.store_kv_block_pre(torch.tensor([2, 3, 4, 5, -1, 9]).int(), [], 4)
        assert [a[:3].tolist() for a in arrays] == [[2, 2, 1], [0, 2, 5], [2, 4, 9]]


def test_recipes(npu):
    args, want_args = inputs("lip"), inputs("lip")
    want = dsakit.lightning_indexer_prolog_quant(**want_args)
    names = list(ROLES["lightning_indexer_prolog_quant"])[:16]
    rest = {k: v for k, v in args.items() if k not in names and k.startswith("layout")}
    prolog = torch.ops.custom_pypto.npu_lightning_indexer_prolog_pto
    got = prolog(*(args[n] for n in names), args.get("layernorm_epsilon_k", 1e-6), **rest)
    for a, b in zip(got, (want[0], want[1], want[4])):
        assert torch.equal(a, b)
    assert torch.equal(args["k_cache"], want_args["k_cache"])
    call = inputs("li")
    want = dsakit.lightning_indexer(**call)[0]
    del call["layout_key"]
    assert torch.equal(torch.ops.custom_pypto.npu_lightning_indexer_pto(**call), want)


# ---- devices


def test_devices(npu):
    assert torch.zeros(2, device="npu").device.type == "cpu"
    assert torch.tensor([1, 2], device="npu:0").tolist() == [1, 2]
    assert torch.arange(3, device=torch.device("npu")).tolist() == [0, 1, 2]
    x = torch.ones(3)
    for moved in (x.npu(), x.to("npu"), x.cpu(), x.to("cpu"), x.to(device="npu:0"), x.to("npu", torch.float64)):
        assert moved.data_ptr() != x.data_ptr() and moved.tolist() == [1, 1, 1] and moved.is_npu
    sparse = torch.eye(2).to_sparse()
    assert sparse.cpu() is not sparse and sparse.cpu().to_dense().equal(torch.eye(2))
    assert x.to(torch.float32) is x and x.to(torch.float16).dtype == torch.float16
    with torch.device("npu"):
        assert torch.nn.Linear(2, 3).weight.shape == (3, 2)
    assert torch.nn.Linear(2, 2).npu().weight.is_npu
    for bad in ("npu:1", 1, torch.device("npu", 3)):
        with pytest.raises(dsakit.Error, match="npu:0..0"):
            x.to(bad)
        with pytest.raises((dsakit.Error, RuntimeError)):
            torch.zeros(2, device=bad if not isinstance(bad, int) else f"npu:{bad}")
    dsakit.npu.install(devices=2, host_copies=False)
    assert x.to("npu:1").shape == (3,) and torch.npu.device_count() == 2 and x.cpu() is x
    torch.npu.set_device(1)
    assert torch.npu.current_device() == 1
    torch.npu.set_device("npu:0")


FACTORIES = {
    "zeros": [(2, 3)], "ones": [(2, 3)], "full": [(2,), 3.5], "arange": [5], "linspace": [0, 1, 4], "eye": [3],
    "tensor": [[1, 2]], "as_tensor": [[1, 2]], "asarray": [[1, 2]], "tril_indices": [3, 4], "triu_indices": [3, 4],
    "zeros_like": [torch.ones(3)], "full_like": [torch.ones(3), 2], "hann_window": [4], "scalar_tensor": [2.5],
    "rand": [3], "randn": [3], "randint": [5, (3,)], "randperm": [5], "rand_like": [torch.ones(3)], "logspace": [0, 1, 3],
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("device", ["npu", "npu:1", torch.device("cpu"), None])
def test_factories(npu, name, device):
    """The tensor of the CPU, random ones too; the same with the device of a context or by default."""
    dsakit.npu.install(devices=2)
    torch.manual_seed(3)
    want = getattr(torch, name)(*FACTORIES[name])
    torch.manual_seed(3)
    if device is None:
        with torch.device("npu:1"):
            got = getattr(torch, name)(*FACTORIES[name])
    else:
        got = getattr(torch, name)(*FACTORIES[name], device=device)
    assert got.device.type == "cpu" and got.dtype == want.dtype and torch.equal(got, want)


def test_new_tensors_modules_and_threads(npu):
    x, made = torch.ones(3), []
    for new in (x.new_zeros(2, device="npu"), x.new_full((2,), 0.0, device="npu:0"), x.new_tensor([0.0, 0.0], device="npu")):
        assert new.tolist() == [0, 0] and new.device.type == "cpu"
    torch.set_default_device("npu")
    try:
        assert torch.nn.Linear(2, 3).weight.is_npu and torch.zeros(2).tolist() == [0, 0]
    finally:
        torch.set_default_device(None)
    module = torch.nn.Linear(2, 3).to("npu", torch.bfloat16)
    assert module.weight.dtype == torch.bfloat16 and module.weight.device.type == "cpu"
    thread = threading.Thread(target=lambda: made.append(torch.zeros(2, device="npu")))
    thread.start()
    thread.join()
    assert made[0].tolist() == [0, 0]


def test_kernels_for_the_device_serve_cpu_tensors(npu):
    mine = torch.library.Library("npu_face_test", "DEF")
    mine.define("double(Tensor x) -> Tensor")
    mine.impl("double", lambda x: x + x, "PrivateUse1")
    triple = torch.library.custom_op("npu_face_test::triple", lambda x: x * 3, mutates_args=(), device_types="npu",
                                     schema="(Tensor x) -> Tensor")  # fmt: skip
    assert torch.ops.npu_face_test.double(torch.ones(1)) == 2 and triple(torch.ones(1)) == 3
    mine._destroy()
    triple._lib._destroy()


ANSWERS = {
    "is_available()": True, "is_initialized()": True, "device_count()": 2, "current_device()": 0, "synchronize()": None,
    "empty_cache()": None, "ipc_collect()": None, "set_option({})": None, "set_compile_mode(jit_compile=False)": None,
    "reset_peak_memory_stats()": None, "Stream().query()": True, "Event().query()": True, "Stream().synchronize()": None,
    "Event().wait()": None, "Event().record()": None, "Event().reset()": None, "ExternalStream(3).npu_stream": 3,
    "ExternalEvent().query()": True, "get_soc_version()": 220, "get_device_name()": "Ascend910B1 (dsakit)",
    "get_device_properties().cube_core_num": 24, "get_device_properties(1).vector_core_num": 48,
    "config.allow_internal_format": True, "manual_seed(3)": None, "manual_seed_all(3)": None,
    "set_rng_state(npu.get_rng_state())": None, "is_current_stream_capturing()": False,
    "default_stream() is npu.current_stream()": True, "Stream() == npu.Stream()": False,
    "max_memory_allocated() >= 0 < npu.memory_reserved()": True, "memory_stats()['allocated_bytes.all.peak'] > 0": True,
    "autocast()": NotImplementedError, "NPUGraph()": NotImplementedError, "graph(None)": NotImplementedError,
    "graph_task_group_begin(None)": NotImplementedError, "graph_task_update_end(None)": NotImplementedError,
    "npugraph_ex()": NotImplementedError, "set_device(2)": ValueError, "device(-1)": ValueError, "no_name": AttributeError,
}  # fmt: skip


@pytest.mark.parametrize("asked", ANSWERS)
def test_torch_npu_answers(npu, asked):
    dsakit.npu.install(devices=2)
    answer = ANSWERS[asked]
    if isinstance(answer, type):
        with pytest.raises(answer):
            eval("npu." + asked, {"npu": torch.npu})
    else:
        assert eval("npu." + asked, {"npu": torch.npu}) == answer


def test_scopes_and_tags_of_torchair(npu):
    import torchair

    with torchair.scope.npu_stream_switch("a"), torchair.scope.limit_core_num(1, 2), torchair.scope.any_other():
        assert torchair.ops.npu_wait_tensor(1, 2) == 1 and torchair.ops.npu_tagged_event_record("a") is None
    assert torchair.patch_for_hcom() is None
    for refused in (torchair.register_fx_node_ge_converter, torchair.inference.cache_compile):
        with pytest.raises(NotImplementedError):
            refused(None)


def test_pinned_memory_is_memory(npu):
    x = torch.ones(3)
    assert x.pin_memory().data_ptr() != x.data_ptr() and not x.is_pinned()
    assert torch.zeros(2, device="npu", pin_memory=True).tolist() == [0, 0]


def test_torch_npu_module(npu):
    assert torch.npu is npu.npu and torch.npu.is_available()
    assert torch.npu.get_soc_version() == 220 and "dsakit" in torch.npu.get_device_name()
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    end.record()
    assert start.elapsed_time(end) >= 0 and end.query()
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() is stream
    assert torch.npu.current_stream() is torch.npu.default_stream()
    torch.npu.synchronize()
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total and torch.npu.memory_allocated() > 0
    with pytest.raises(NotImplementedError):
        torch.npu.NPUGraph()
    with pytest.raises(AttributeError, match="torch_npu.npu: nothing_like_it is unknown"):
        torch.npu.nothing_like_it  # noqa: B018
    import torch_npu.profiler
    import torchair

    with pytest.warns(UserWarning, match="nothing is recorded"), torch_npu.profiler.profile():
        pass
    backend = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())
    assert torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1)) == 2
    dsakit.npu.install(soc="A3")
    assert torch.npu.get_soc_version() == 250
    with pytest.raises(NotImplementedError):
        dsakit.npu.install(soc="310P")


def test_formats(npu):
    x = torch.rand(48, 32)
    w = npu.npu_format_cast(x, 29)
    nz = npu.Format.FRACTAL_NZ
    assert type(w) is torch.Tensor and torch.equal(w, x) and w.data_ptr() != x.data_ptr()
    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.data = npu.npu_format_cast(x, npu.Format.FRACTAL_NZ)
    for same in (w, w.t(), w[:16], torch.nn.Parameter(w), parameter, npu.npu_format_cast(x, w), w.npu()):
        assert npu.get_npu_format(same) == nz
    for other in (x, w + 1, npu.npu_format_cast(w, 2)):
        assert npu.get_npu_format(other) == npu.Format.ND
    assert npu.npu_format_cast(w, 29) is w
    npu.npu_format_cast_(x, 29)
    assert npu.get_npu_format(x) == nz
    with pytest.raises(NotImplementedError):
        npu.npu_format_cast(torch.rand(2, 2), npu.Format.FRACTAL_Z)
    with pytest.raises(ValueError):
        npu.npu_format_cast(torch.rand(2, 2), 77)
    npu.npu.config.allow_internal_format = False
    try:
        with pytest.warns(UserWarning, match="stays ND"):
            assert npu.get_npu_format(npu.npu_format_cast(torch.rand(2, 2), 29)) == npu.Format.ND
    finally:
        npu.npu.config.allow_internal_format = True


def test_prefetch(npu):
    x = torch.zeros(4)
    assert npu.npu_prefetch(x, None, 16) is None
    for bad in (dict(max_size=0), dict(max_size=1, offset=16), dict(max_size=1, offset=-1)):
        with pytest.raises(ValueError):
            npu.npu_prefetch(x, x, **bad)


# ---- coming and going


def test_uninstall_restores_everything():
    distributed = (torch.distributed, torch.distributed.distributed_c10d)
    owners = (torch, torch.Tensor, torch.nn.Module, torch.accelerator, torch.library.Library, *distributed)
    identities = lambda: [{name: id(value) for name, value in vars(o).items()} for o in owners]
    dsakit.npu.install()
    dsakit.npu.uninstall()  # what torch makes at the first access is there now
    before = identities()
    modules = set(sys.modules)
    dsakit.npu.install()
    assert dsakit.npu.installed() and identities() != before
    dsakit.npu.uninstall()
    assert not dsakit.npu.installed() and identities() == before
    assert not (set(sys.modules) - modules) and "torch_npu" not in sys.modules
    assert not hasattr(torch.ops.npu, "npu_rotary_mul")


@pytest.mark.parametrize("later", [None, {"vllm_ascend": "0.11"}])
def test_torch_finds_every_kernel_that_it_lists(later):
    """inductor and torch.export look up every operator that has a decomposition."""
    dsakit.npu.install(vllm_ascend="main")
    try:
        torch.export.default_decompositions()
        dsakit.npu.uninstall()
        if later:
            dsakit.npu.install(**later)
        torch.export.default_decompositions()
    finally:
        dsakit.npu.uninstall()


def test_threads_call_while_another_installs():
    x = torch.rand(1, 2, 3, 8)
    want, wrong, right, stop = dsakit.rotary_mul(x, x, x), [], [0] * 8, threading.Event()

    def call(i):
        while not (stop.is_set() and right[i]):
            try:
                if torch.equal(torch.ops.npu.npu_rotary_mul(x, x, x), want):
                    right[i] += 1
                else:
                    wrong.append("result")
            except AttributeError:
                pass
            except Exception as error:
                wrong.append(repr(error))
                return

    threads = [threading.Thread(target=call, args=[i]) for i in range(8)]
    dsakit.npu.install()
    dsakit.npu.uninstall()
    for thread in threads:
        thread.start()
    for _ in range(3):
        dsakit.npu.install()
        dsakit.npu.uninstall()
    dsakit.npu.install()
    stop.set()
    for thread in threads:
        thread.join()
    dsakit.npu.uninstall()
    assert not wrong, wrong[:3]


def test_a_real_torch_npu_is_left_alone(monkeypatch):
    real = type(sys)("torch_npu")
    monkeypatch.setitem(sys.modules, "torch_npu", real)
    assert dsakit.npu.install() is False and sys.modules["torch_npu"] is real and not dsakit.npu.installed()


BESIDE = """
import sys, types, warnings
import torch
real = types.ModuleType("torch_npu")
sys.modules["torch_npu"] = real
theirs = torch.library.Library("npu", "DEF")
theirs.define("npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor")
theirs.define("npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-05) -> (Tensor, Tensor)")
theirs.define("npu_swiglu(Tensor self, int dim=-1, int more=0) -> Tensor")
theirs.define("npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None) -> Tensor")
before, patched = dict(vars(torch)), torch.Tensor.to
import dsakit.npu
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        assert dsakit.npu.install(force=True) is False
said = {str(w.message) for w in caught}
print(said)
assert said == {"dsakit.npu: torch_npu has other schemas of npu_dynamic_quant, npu_rms_norm, npu_swiglu"}
assert sys.modules["torch_npu"] is real and not vars(real).keys() - {"__doc__", "__loader__", "__name__", "__package__", "__spec__"}
assert torch.Tensor.to is patched and not dsakit.npu.installed() and not hasattr(torch, "npu")
x = torch.rand(1, 2, 3, 8)
assert torch.equal(torch.ops.npu.npu_rotary_mul(x, x, x, "interleave"), dsakit.rotary_mul(x, x, x, "interleave"))
for name, args in (("npu_rms_norm", (x, x[0, 0, 0])), ("npu_swiglu", (x,))):
    try:
        getattr(torch.ops.npu, name)(*args)
        raise SystemExit(name)
    except NotImplementedError:
        pass
dsakit.npu.uninstall()
try:
    torch.ops.npu.npu_rotary_mul(x, x, x)
    raise SystemExit("after uninstall()")
except NotImplementedError:
    pass
"""


def test_kernels_beside_a_real_torch_npu():
    """Its module and device stay; schemas that ours take have kernels for CPU tensors, the others are named."""
    done = subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hccl_groups_are_gloo(npu):
    from torch_npu._C._distributed_c10d import ProcessGroupHCCL

    torch.distributed.init_process_group("hccl", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        assert torch.distributed.get_backend() == "gloo"
        options = ProcessGroupHCCL.Options()
        options.hccl_config = {"hccl_buffer_size": 200}
        group = torch.distributed.new_group([0], backend="hccl", pg_options=options)
        assert torch.distributed.get_backend(group) == "gloo" and options.hccl_config == {"hccl_buffer_size": 200}
        x = torch.tensor([1.0, 2.0], device="npu")
        torch.distributed.all_reduce(x, group=group)
        assert x.tolist() == [1, 2]
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("built", [False, True])
def test_what_a_build_of_vllm_ascend_leaves(monkeypatch, tmp_path, built):
    """A checkout lacks its library and what was said of the device; a build has its own."""
    package = tmp_path / "vllm_ascend"
    package.mkdir()
    (package / "__init__.py").touch()
    if built:
        (package / "_build_info.py").write_text("__device_type__ = 'its own'\n")
    monkeypatch.syspath_prepend(tmp_path)
    dsakit.npu.install(soc="A3")
    try:
        import vllm_ascend.vllm_ascend_C  # noqa: F401
        from vllm_ascend._build_info import __device_type__

        assert __device_type__ == ("its own" if built else "A3")
    finally:
        dsakit.npu.uninstall()
        left = [name for name in sys.modules if name.startswith("vllm_ascend.") and name != "vllm_ascend._build_info"]
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_ascend"]:
            del sys.modules[name]
    assert not left


def test_command(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys, torch, torch_npu\n"
        "assert subprocess.run(['npu-smi'], capture_output=True, text=True).stdout == 'dsakit\\n'\n"
        "x = torch.ones(1, 1, 1, 1024, device='npu')\n"
        "print(sys.argv[1:], torch_npu.npu_rotary_mul(x, x, x).sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-m", "dsakit.npu", str(script), "a"], capture_output=True, text=True)
    assert done.stdout == "['a'] 1024.0\n", done.stderr
    module = [sys.executable, "-m", "dsakit.npu", "--strict", "-m", "script", "-m", "b"]
    done = subprocess.run(module, capture_output=True, text=True, cwd=tmp_path)
    assert "strict: Atlas" in done.stderr, done.stdout
    del module[3]
    done = subprocess.run(module, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "['-m', 'b'] 1024.0\n", done.stderr
    done = subprocess.run([sys.executable, "-m", "dsakit.npu", "names"], capture_output=True, text=True)
    assert "torch_npu.npu_mla_prolog_v3" in done.stdout and "npu_ring_mla" in done.stdout, done.stderr


def test_importing_dsakit_imports_no_torch():
    code = "import sys, dsakit, dsakit.npu; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_schemas_are_well_formed(npu):
    for form in forms.all_forms("main"):
        for space in form.spaces:
            schema = getattr(getattr(torch.ops, space), form.name).default._schema
            assert str(schema).startswith(f"{space}::{form.name}(")


# ---- what the pages show

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.mark.parametrize("page, block", [("docs/npu.md", 0), ("docs/torch.md", 0), ("README.md", 1)])
def test_examples_of_the_pages(page, block, tmp_path):
    code = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)[block]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_kernels_registered_earlier_are_named():
    code = """
import torch, warnings, torch.distributed.fsdp
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
warnings.simplefilter("error")
import dsakit.npu
dsakit.npu.install()
dsakit.npu.uninstall()
mine = torch.library.Library("mine", "DEF")
mine.define("double(Tensor x) -> Tensor")
mine.impl("double", lambda x: x + x, "PrivateUse1")
try:
    dsakit.npu.install()
except UserWarning as warning:
    print(warning)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("stay on PrivateUse1: mine/double/PrivateUse1")
