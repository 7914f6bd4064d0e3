# SPDX-License-Identifier: Apache-2.0
"""The device "npu": memory of the CPU. Factories and copies that name it give CPU tensors; what is patched is put back."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from . import formats, runtime

_once = False  # torch takes a backend's name, guard and hooks once for a process
_library: Any = None
_patched: list[tuple[Any, str, Any]] = []
MISSING = object()
OF_TORCH = ("aten", "fsdp", "c10d", "_c10d_functional", "symm_mem", "inductor")  # namespaces with CPU kernels of their own


def patch(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute and remembers what was there."""
    _patched.append((owner, name, vars(owner).get(name, MISSING)))
    setattr(owner, name, value)


def restore() -> None:
    global _library
    while _patched:
        owner, name, before = _patched.pop()
        if before is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    if _library is not None:
        _library._destroy()
        _library = None


def is_npu(device: Any) -> bool:
    if isinstance(device, str):
        return device == "npu" or device.startswith("npu:")
    return isinstance(device, torch.device) and device.type == "npu"


def install(module: Any, host_copies: bool) -> None:
    """`module`: torch.npu."""
    global _once
    if not _once:
        torch.utils.rename_privateuse1_backend("npu")
        torch._C._acc.register_python_privateuseone_hook(_Hook())
        torch._C._acc.register_python_privateuseone_device_guard(_Guard())
        _once = True
    _patched.append((torch, "npu", vars(torch).get("npu", _absent())))
    torch.npu = module  # type: ignore[attr-defined]
    _kernels()
    _tensors(host_copies)
    _groups()


def _absent() -> Any:
    """torch.npu behind the face: torch keeps the device's name, and torch.compile asks whether there is one."""
    module = types.ModuleType("torch.npu")
    module.is_available = lambda: False  # type: ignore[attr-defined]
    module.device_count = lambda: 0  # type: ignore[attr-defined]
    return module


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


class _Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def _kernels() -> None:
    """Factories that name the device."""
    global _library
    _library = torch.library.Library("aten", "IMPL")

    def empty(size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
              memory_format: Any = None) -> torch.Tensor:  # fmt: skip
        runtime.index_of(device)
        return torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format or torch.contiguous_format)

    def strided(size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
                pin_memory: Any = None) -> torch.Tensor:  # fmt: skip
        runtime.index_of(device)
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")

    def indices(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def kernel(row: int, col: int, offset: int = 0, *, dtype: Any = None, layout: Any = None, device: Any = None,
                   pin_memory: Any = None) -> torch.Tensor:  # fmt: skip
            runtime.index_of(device)
            return function(row, col, offset, dtype=dtype or torch.int64, device="cpu")

        return kernel

    _library.impl("empty.memory_format", empty, "PrivateUse1")
    _library.impl("empty_strided", strided, "PrivateUse1")
    _library.impl("tril_indices", indices(torch.tril_indices), "PrivateUse1")
    _library.impl("triu_indices", indices(torch.triu_indices), "PrivateUse1")


def _copied(x: torch.Tensor) -> torch.Tensor:
    """A copy in the same format."""
    copy = x.clone()
    if x.layout == torch.strided and getattr(x.untyped_storage(), formats.TAG, None) is not None:
        setattr(copy.untyped_storage(), formats.TAG, int(formats.get_npu_format(x)))
    return copy


def _tensors(host_copies: bool) -> None:
    """What tensors and modules say of devices."""
    tensor = torch.Tensor
    to, cpu, library_impl = tensor.to, tensor.cpu, torch.library.Library.impl

    def patched_to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device = args[0] if args else kwargs.get("device")
        if device is None or isinstance(device, (torch.dtype, torch.Tensor)):
            return to(self, *args, **kwargs)
        if device == "cpu" and host_copies and self.is_cpu and len(args) == 1 and not kwargs:
            return _copied(self)
        if is_npu(device) or (isinstance(device, int) and not isinstance(device, bool)):
            runtime.index_of(device)
        elif not (host_copies and str(device) == "cpu") or self.device.type != "cpu":
            return to(self, *args, **kwargs)
        if args:
            args = ("cpu", *args[1:])
        else:
            kwargs = kwargs | {"device": "cpu"}
        moved = to(self, *args, **kwargs)
        return _copied(moved) if moved is self else moved

    def npu(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any) -> torch.Tensor:
        runtime.index_of(device)
        return _copied(self)

    def patched_cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return _copied(self) if self.is_cpu else cpu(self, *args, **kwargs)

    patch(tensor, "to", patched_to)
    if host_copies:
        patch(tensor, "cpu", patched_cpu)
    patch(tensor, "npu", npu)
    patch(tensor, "is_npu", property(lambda self: self.device.type == "cpu"))
    patch(tensor, "pin_memory", lambda self, device=None: _copied(self))
    patch(tensor, "is_pinned", lambda self, device=None: False)
    patch(tensor, "record_stream", lambda self, stream: None)

    def module_npu(self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        return self._apply(lambda t: t.npu(device))

    patch(torch.nn.Module, "npu", module_npu)
    patch(torch.accelerator, "synchronize", lambda *a, **k: None)
    patch(torch.accelerator, "empty_cache", lambda: None)

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> Any:
        result = library_impl(self, op_name, fn, dispatch_key, **kwargs)
        if dispatch_key == "PrivateUse1" and self.ns not in OF_TORCH:
            library_impl(self, op_name, fn, "CPU", **kwargs)
        return result

    patch(torch.library.Library, "impl", impl)


def _groups() -> None:
    """Process groups: "hccl" is gloo."""
    if not torch.distributed.is_available():
        return
    for name in ("init_process_group", "new_group"):
        original = getattr(torch.distributed, name)

        @functools.wraps(original)
        def group(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            args = tuple("gloo" if isinstance(a, str) and "hccl" in a else a for a in args)
            if "hccl" in str(kwargs.get("backend")):
                kwargs["backend"] = "gloo"
            if "HCCL" in type(kwargs.get("pg_options")).__qualname__:
                kwargs["pg_options"] = None
            return _original(*args, **kwargs)

        patch(torch.distributed, name, group)
        patch(torch.distributed.distributed_c10d, name, group)


def warn_of_earlier_kernels() -> None:
    """Python kernels that others registered for the device before this moment stay where they are."""
    keys = [k for k in getattr(torch.library, "_impls", ()) if k.endswith("/PrivateUse1")]
    keys = [k for k in keys if k.partition("/")[0] not in OF_TORCH]
    if keys:
        names = ", ".join(sorted(keys))
        warnings.warn(f"dsakit.npu: kernels registered before install() stay on PrivateUse1: {names}", stacklevel=3)
