# SPDX-License-Identifier: Apache-2.0
"""dsakit.npu: sentences, arguments, levels, releases; what is installed is taken away again."""

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
from dsakit.npu import fia, forms  # noqa: E402
from oracle.calls import STRICT  # noqa: E402
from oracle.npu_calls import inputs, results_of, tensors_of  # noqa: E402


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
    args = tensors_of(STRICT["sfa strict"].make()) | dict(return_softmax_lse=True)
    del args["level"], args["attention_out"]
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
        torch.export.default_decompositions().keys()  # which asks for all of them
        dsakit.npu.uninstall()
        if later:
            dsakit.npu.install(**later)
        torch.export.default_decompositions().keys()
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
assert sys.modules["torch_npu"] is real and not [name for name in vars(real) if not name.startswith("__")]
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


TAGGED = """
import torch
import dsakit.npu
dsakit.npu.install()
nz = dsakit.format_cast(torch.zeros(16, 32, dtype=torch.bfloat16), 29)
while_there = nz.to(torch.float32), nz.cpu()
dsakit.npu.uninstall()
for one in (*while_there, nz.to(torch.float32), nz.cpu()):
    assert isinstance(one, dsakit.FractalNZ), type(one)
"""


def test_a_weight_that_is_made_under_the_face_keeps_its_tag():
    done = subprocess.run([sys.executable, "-c", TAGGED], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


AFTERWARDS = """
import torch
import dsakit.npu
dsakit.npu.install()
dsakit.npu.uninstall()
assert not torch.accelerator.is_available() and torch.npu.device_count() == 0
doubled = torch.compile(lambda x: x + x, backend="eager")(torch.ones(3))
assert doubled.tolist() == [2, 2, 2]
"""


def test_torch_compiles_when_the_face_is_gone():
    done = subprocess.run([sys.executable, "-c", AFTERWARDS], capture_output=True, text=True)
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
