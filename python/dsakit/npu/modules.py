# SPDX-License-Identifier: Apache-2.0
"""The modules that engines import: torch_npu and what hangs below it, torchair, and the engines' own libraries."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import raise_error
from . import formats, inventory, runtime

_given: list[str] = []  # names of ours in sys.modules


class Module(types.ModuleType):
    """A module that refuses names which it does not have."""

    def __init__(self, name: str, doc: str = "", **members: Any):
        super().__init__(name, doc)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__dict__.update(members)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        inventory.refuse(self.__name__, name)


def add(name: str, module: types.ModuleType) -> None:
    """A module of ours, below its parent where there is one."""
    sys.modules[name] = module
    _given.append(name)
    parent, _, child = name.rpartition(".")
    if parent in _given:
        setattr(sys.modules[parent], child, module)


def remove() -> None:
    while _given:
        sys.modules.pop(_given.pop(), None)


def refused(operator: str, wanted: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise_error("UNSUPPORTED", operator, "call", "", "is not offered", wanted)

    return refuse


# ---- torch_npu.profiler


class _Words(types.SimpleNamespace):
    """Enumerations of which any member will do."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class profile:
    """Runs and records nothing."""

    _warned = False

    def __init__(self, *args: Any, **kwargs: Any):
        if not profile._warned:
            profile._warned = True
            warnings.warn("torch_npu.profiler: nothing is recorded here", stacklevel=2)

    def __enter__(self) -> profile:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    start = stop = step = export_chrome_trace = add_metadata = add_metadata_json = _nothing


def _profiler() -> Module:
    words = "ProfilerActivity ProfilerLevel AiCMetrics ExportType HostSystem GatherSource".split()
    members: dict[str, Any] = {w: _Words() for w in words}
    members |= dict(
        profile=profile,
        schedule=lambda **kwargs: lambda step: None,
        tensorboard_trace_handler=lambda *args, **kwargs: lambda profiler: None,
        supported_activities=lambda: set(),
        _ExperimentalConfig=lambda **kwargs: types.SimpleNamespace(**kwargs),
    )
    return Module("torch_npu.profiler", **members)


# ---- torchair


def _torchair() -> dict[str, Module]:
    @contextlib.contextmanager
    def scope(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    class Config(types.SimpleNamespace):
        """Any option, of no effect."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            child = Config()
            setattr(self, name, child)
            return child

    def get_npu_backend(*args: Any, **kwargs: Any) -> Any:
        return lambda graph, inputs, **more: graph.forward

    class Scopes(Module):
        """Every scope is one without effect."""

        def __getattr__(self, name: str) -> Any:
            return super().__getattr__(name) if name.startswith("_") else scope

    class Ops(Module):
        """Tags are without effect, and scopes stand here too."""

        def __getattr__(self, name: str) -> Any:
            if "tagged" in name:
                return lambda *args, **kwargs: None
            return scope if name in ("npu_stream_switch", "super_kernel", "limit_core_num") else super().__getattr__(name)

    eager = "eager calls"
    top = Module(
        "torchair",
        CompilerConfig=Config,
        get_npu_backend=get_npu_backend,
        get_compiler=lambda config=None: lambda graph, inputs: graph.forward,
        patch_for_hcom=lambda: None,
        register_fx_node_ge_converter=refused("torchair.register_fx_node_ge_converter", eager),
        logger=__import__("logging").getLogger("torchair"),
    )
    made = {"torchair": top, "torchair.scope": Scopes("torchair.scope")}
    made["torchair.ops"] = Ops("torchair.ops", npu_wait_tensor=lambda x, y: x)
    made["torchair.configs"] = Module("torchair.configs")
    made["torchair.configs.compiler_config"] = Module("torchair.configs.compiler_config", CompilerConfig=Config)
    made["torchair.inference"] = Module("torchair.inference", cache_compile=refused("torchair.cache_compile", eager))
    return made


# ---- all of them


def npu_module() -> types.ModuleType:
    """torch.npu, which is torch_npu.npu."""
    members = {n: v for n, v in vars(runtime).items() if not n.startswith("__") and n not in ("torch", "annotations")}
    module = Module("torch_npu.npu", "torch.npu, on the CPU.", **members)
    module.__dict__["utils"] = Module("torch_npu.npu.utils", get_soc_version=runtime.get_soc_version)
    return module


def _distributed() -> Module:
    class ProcessGroupHCCL:
        class Options(types.SimpleNamespace):
            def __init__(self, *args: Any, **kwargs: Any):
                super().__init__(hccl_config={}, **kwargs)

            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return None

    return Module("torch_npu._C._distributed_c10d", ProcessGroupHCCL=ProcessGroupHCCL)


def install(npu: types.ModuleType, soc: str) -> Module:
    """Everything into sys.modules; answers torch_npu."""
    top = Module(
        "torch_npu",
        "dsakit as torch_npu.",
        __version__=torch.__version__.split("+")[0] + ".dsakit",
        Format=formats.Format,
        hifloat8=290,
        float8_e8m0fnu=293,
        float4_e2m1fn_x2=296,
    )
    add("torch_npu", top)
    add("torch_npu.npu", npu)
    add("torch.npu", npu)
    add("torch_npu.npu.utils", npu.utils)
    profiler = _profiler()
    add("torch_npu.profiler", profiler)
    nothing = lambda *args, **kwargs: None
    members = dict.fromkeys(("init", "start", "step", "stop", "start_dump", "stop_dump"), nothing)
    add("torch_npu.profiler.dynamic_profile", Module("torch_npu.profiler.dynamic_profile", **members))
    add("torch_npu._C", Module("torch_npu._C", _weak_ref_tensor=lambda tensor: tensor.detach()))
    add("torch_npu._C._distributed_c10d", _distributed())
    for name in "torch_npu._inductor torch_npu.op_plugin torch_npu.op_plugin.atb torch_npu.op_plugin.atb._atb_ops".split():
        add(name, Module(name))
    add("torch_npu.utils", Module("torch_npu.utils"))
    for name, module in _torchair().items():
        add(name, module)
    add("custom_ops", Module("custom_ops"))
    add("custom_pypto", Module("custom_pypto"))
    _vllm_ascend(soc)
    return top


def _vllm_ascend(soc: str) -> None:
    """What a build of vllm-ascend leaves beside its sources, where a checkout lacks it."""
    try:
        spec = importlib.util.find_spec("vllm_ascend")
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return
    for name, members in (("vllm_ascend_C", {}), ("_build_info", {"__device_type__": soc})):
        place = spec.submodule_search_locations or []
        if importlib.machinery.PathFinder.find_spec(f"vllm_ascend.{name}", list(place)) is None:
            add(f"vllm_ascend.{name}", Module(f"vllm_ascend.{name}", **members))
