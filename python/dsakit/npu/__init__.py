# SPDX-License-Identifier: Apache-2.0
"""torch_npu that computes on the CPU: after `dsakit.npu.install()`, `import torch_npu` and the operators that engines look for
in torch.ops give dsakit's."""

from __future__ import annotations

import sys
import threading
from typing import Any

from ..errors import raise_error, shown

_lock = threading.RLock()
_installed = False
_defined: dict[tuple[str, str], tuple[str, Any]] = {}  # namespace and name -> schema, library; outlive uninstall()
_kernels: dict[str, Any] = {}  # namespace -> library of the kernels; gone after uninstall()

_beside_libraries: list[Any] = []


def _need_torch() -> None:
    import torch

    version = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 13):
        raise_error("UNSUPPORTED", "dsakit.npu", "torch", "", f"is {torch.__version__}", "2.13 or later")


def install(
    *,
    level: str = "portable",
    soc: str = "A2",
    vllm_ascend: str | None = None,
    devices: int = 1,
    host_copies: bool = True,
    force: bool = False,
) -> bool:
    """Puts the face in place, or changes its options. False: a real torch_npu is there, and is left alone (`force` registers
    kernels for CPU tensors beside it).

    level          "strict" refuses what Atlas A2/A3 would
    soc            "A2" or "A3": what torch.npu reports
    vllm_ascend    the release of vllm-ascend whose forms are offered, "0.11" .. "main"; None: the installed one
    devices        how many devices there are
    host_copies    x.cpu() copies, so that snapshots do not follow caches
    """
    global _installed
    _need_torch()
    with _lock:
        real = sys.modules.get("torch_npu")
        if real is not None and not _installed:
            if force:
                _beside()
            return False
        from . import device, forms, inventory, modules, releases, runtime
        from .levels import check, set_installed

        if soc not in runtime.SOC_VERSIONS:
            known = isinstance(soc, str) and soc.startswith(("310", "950", "A5"))
            status = "UNSUPPORTED" if known else "INVALID_ARGUMENT"
            raise_error(status, "dsakit.npu", "soc", "", f"is {shown(soc)}", '"A2" or "A3"')
        if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
            raise_error("INVALID_ARGUMENT", "dsakit.npu", "devices", "", f"is {shown(devices)}", "a number >= 1")
        row = releases.release(vllm_ascend)
        check(level)
        if _installed:
            uninstall()
        set_installed(level)
        runtime.count, runtime.soc = devices, soc
        npu = modules.npu_module()
        try:
            device.install(npu, host_copies)
            top = modules.install(npu, soc)
            inventory.offered.clear()
            inventory.offered["torch_npu"] = {"Format": "fractal_nz"}
            inventory.offered["torch_npu._C"] = {"_weak_ref_tensor": "spellings"}
            for form in forms.all_forms(row):
                _offer(form, top)
            device.warn_of_earlier_kernels()
        except BaseException:
            _remove()
            raise
        _installed = True
        return True


def _offer(form: Any, top: Any) -> None:
    """A form in every namespace that has it."""
    from . import forms, inventory

    for space in form.spaces:
        made = _define(space, form)
        if not form.page:
            continue
        inventory.offered.setdefault(f"torch.ops.{space}", {})[form.name] = form.page
        if space in forms.IN_TORCH_NPU and form.name not in (forms.NOT_IN_TORCH_NPU, *vars(top)):
            setattr(top, form.name, made)
            inventory.offered["torch_npu"][form.name] = form.page


def _register(space: str, name: str, schema: str, function: Any) -> None:
    """One operator of torch: a schema, and a kernel that calls the function for every key. torch keeps the schema after
    uninstall(), which takes the kernel away: other threads may hold the operator, and inductor looks up every operator that
    has a kernel of this key."""
    import torch

    before, library = _defined.get((space, name), ("", None))
    if before != schema:
        if library is not None:
            library._destroy()
        library = torch.library.Library(space, "FRAGMENT")
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _defined[space, name] = schema, library
    if space not in _kernels:
        _kernels[space] = torch.library.Library(space, "FRAGMENT")
    _kernels[space].impl(name, function, "CompositeImplicitAutograd")


def _define(space: str, form: Any) -> Any:
    """The object that stands under a form's name."""
    import torch

    from . import fia, packet

    if form.out:
        _register(space, form.name + ".out", *form.out)
    _register(space, form.name, form.schema, form.function)
    namespace = getattr(torch.ops, space)
    if not hasattr(type(namespace), "dsakit"):
        namespace.__class__ = _refusing(type(namespace))
    made = packet.packet(space, form.name, form.function)
    if form.out:
        made.__dict__["out"] = fia.out_call(made.out, form.out[1])
    vars(namespace)[form.name] = made
    return made


def _refusing(namespace: type) -> type:
    """The class of a namespace of torch.ops that points to the nearest name."""
    from . import inventory

    class Namespace(namespace):  # type: ignore[misc]
        dsakit = True

        def __getattr__(self, name: str) -> Any:
            ours = (self.name, name) in _defined
            try:
                if not ours:
                    return super().__getattr__(name)
            except AttributeError:
                if name.startswith("__") or not _installed:
                    raise
            if not _installed:
                raise AttributeError(f"'_OpNamespace' '{self.name}' object has no attribute '{name}'")
            inventory.refuse(f"torch.ops.{self.name}", name)

    return Namespace


def uninstall() -> None:
    """Takes the face away, and kernels beside a real torch_npu. The device name "npu" stays known to torch."""
    global _installed
    with _lock:
        while _beside_libraries:
            _beside_libraries.pop()._destroy()
        if _installed:
            _remove()
        _installed = False


def _remove() -> None:
    from . import device, inventory, modules

    modules.remove()
    import torch

    for space, name in _defined:
        vars(getattr(torch.ops, space)).pop(name, None)
    for space in {space for space, _ in _defined}:
        names = getattr(torch.ops, space)._dir  # that torch has met: torch.export and inductor look all of them up
        names[:] = [name for name in names if (space, name) not in _defined]
    while _kernels:
        _kernels.popitem()[1]._destroy()
    device.restore()
    inventory.offered.clear()


def _beside() -> None:
    """Kernels for CPU tensors of a real torch_npu's operators, where ours take what its schemas say."""
    import warnings

    import torch

    from . import forms, releases

    uninstall()
    library = torch.library.Library("npu", "FRAGMENT")
    _beside_libraries.append(library)
    other = []
    for form in forms.all_forms(releases.release(None)):
        if "npu" not in form.spaces or not hasattr(torch.ops.npu, form.name):
            continue
        if _takes(torch._C.parse_schema(form.schema), getattr(torch.ops.npu, form.name).default._schema):
            library.impl(form.name, form.function, "CPU")
        else:
            other.append(form.name)
    if other:
        warnings.warn(f"dsakit.npu: torch_npu has other schemas of {', '.join(other)}", stacklevel=3)


def _takes(ours: Any, theirs: Any) -> bool:
    """Whether a call of their schema is one of ours: their positional parameters are our first ones (the very first may have
    another name), we have their keywords, need no others, and give as many results. Defaults are equal: torch leaves out an
    argument that is the default."""

    def parameters(schema: Any) -> list[Any]:
        names = [""] + [a.name for a in schema.arguments[1:]]
        return [(n, a.kwarg_only, a.has_default_value(), a.default_value) for n, a in zip(names, schema.arguments)]

    mine, other = parameters(ours), parameters(theirs)
    positional = [a for a in other if not a[1]]
    known = positional == [a for a in mine if not a[1]][: len(positional)] and all(a in mine for a in other)
    return known and all(a[2] or a in other for a in mine) and len(ours.returns) == len(theirs.returns)


def installed() -> bool:
    """Whether the face is in place."""
    return _installed


def names() -> list[Any]:
    """Every name, with its state ("computed" or "refused"), its page, and the nearest name that is computed."""
    from . import inventory

    with _lock:
        if _installed:
            return inventory.all_names()
        install()
        try:
            return inventory.all_names()
        finally:
            uninstall()


def level(level: str) -> Any:
    """A context in which calls of this thread run at `level`."""
    from .levels import level as at

    return at(level)


__all__ = ["install", "installed", "level", "names", "uninstall"]
