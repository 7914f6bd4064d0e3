# SPDX-License-Identifier: Apache-2.0
"""Options and tile sizes: their names, types and ranges are checked; none changes a value."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import shown
from . import names
from .state import refuse, state

BIG = 2147483647
Check = Callable[[Any], str]  # "" or what was wanted


def _integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def integer(low: int, high: int, kind: Any = None) -> Check:
    def check(value: Any) -> str:
        if kind is not None and isinstance(value, kind):
            return ""
        good = _integer(value) and low <= value <= high
        return "" if good else f"an integer in {low}..{high}" + (f" or a {kind.__name__}" if kind else "")

    return check


def of(kind: type, word: str) -> Check:
    return lambda value: "" if isinstance(value, kind) else word


def one_of(*known: str) -> Check:
    return lambda value: "" if value in known else " or ".join(repr(k) for k in known)


def items(kind: type, word: str, count: int | None = None) -> Check:
    def check(value: Any) -> str:
        good = isinstance(value, (list, tuple)) and all(isinstance(v, kind) for v in value)
        return "" if good and count in (None, len(value)) else word

    return check


def mapping(lowest_key: int, lowest_value: int, sides: bool = False) -> Check:
    def good_value(v: Any) -> bool:
        if sides and isinstance(v, (tuple, list)) and len(v) == 2:
            return v[1] in ("auto", "left", "right") and _integer(v[0]) and v[0] >= lowest_value
        return _integer(v) and v >= lowest_value

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return "a dict"
        for k, v in value.items():
            if not (isinstance(k, str) or (_integer(k) and k >= lowest_key)) or not good_value(v):
                return (
                    f"keys that are str or ints from {lowest_key} on, values from {lowest_value} on, not {k!r}: {v!r}"
                )
        return ""

    return check


def _scope(value: Any) -> str:
    if _integer(value) and -1 <= value <= BIG:
        return ""
    good = isinstance(value, (tuple, list)) and len(value) == 3 and _integer(value[0])
    return "" if good and all(isinstance(v, bool) for v in value[1:]) else "an integer from -1 on, or (int, bool, bool)"


boolean, text = of(bool, "True or False"), of(str, "a string")
_of_names = mapping(0, 0)

# Group -> option -> what it may be. Those of OWN_ONLY stand in jit's dict and not in set_*_options.
OPTIONS: dict[str, dict[str, Check]] = {
    "host_options": {
        "compile_stage": integer(0, 5, names.CompStage),
        "compile_monitor_enable": integer(0, 2),
        "compile_timeout": integer(0, BIG),
        "compile_timeout_stage": integer(-1, BIG),
        "compile_monitor_print_interval": integer(0, BIG),
    },
    "runtime_options": {
        "device_sched_mode": integer(0, 3),
        "stitch_function_max_num": integer(1, 1024),
        "run_mode": integer(0, 1, names.RunMode),
        "valid_shape_optimize": integer(0, 1),
        "ready_on_host_tensors": items(str, "a list of strings"),
        "device_sched_parallelism": integer(1, 8),
        "launch_sched_aicpu_num": integer(1, 7),
        "launch_early_mode": integer(0, 2),
        "max_workspace_kb": integer(0, BIG),
    },
    "codegen_options": {
        "support_dynamic_aligned": boolean,
        "soc_version": text,
        "enable_pmu_trace": boolean,
        "vf_options": text,
        "vf_compiler": boolean,
    },
    "pass_options": {
        "vec_nbuffer_setting": mapping(-2, 0),
        "cube_l1_reuse_setting": mapping(-1, 0, sides=True),
        "cube_nbuffer_setting": mapping(-1, 1),
        "sg_set_scope": _scope,
        "sg_set_ooo_scope": integer(-BIG - 1, BIG),
        "ooo_sched_mode": one_of("", "GAPMIN", "HLF"),
        "auto_mix_partition": integer(0, 1),
        "sg_set_tunevf_mode": integer(0, 2),
        "pg_parallel_lower_bound": integer(0, BIG),
        "pg_lower_bound": integer(0, BIG),
        "pg_partition_algorithm": one_of("Iso", "OspSarkar", "OspBsp"),
        "mg_copyin_upper_bound": integer(0, BIG),
        "mg_vec_parallel_lb": integer(1, 48),
        "copyout_resolve_coalescing": integer(0, 1000000),
        "enable_slice": boolean,
        "ooo_sort_mode_aic": text,
        "ooo_sort_mode_aiv": text,
        "vec_nbuffer_setting_by_func": _of_names,
        "vec_nbuffer_setting_by_label": _of_names,
        "cube_l1_reuse_setting_by_func": _of_names,
        "cube_l1_reuse_setting_by_label": _of_names,
        "cube_nbuffer_setting_by_func": _of_names,
        "cube_nbuffer_setting_by_label": _of_names,
    },
    "verify_options": {
        "enable_pass_verify": boolean,
        "pass_verify_save_tensor": boolean,
        "pass_verify_save_tensor_dir": text,
        "pass_verify_pass_filter": items(str, "a list of strings"),
        "pass_verify_error_tol": items((float, int), "[rtol, atol]", 2),
    },
    "debug_options": {
        "compile_debug_mode": integer(0, 2),
        "runtime_debug_mode": integer(0, 4),
        "dump_pass_graph": items(str, "a list of strings"),
    },
    "operation_options": {"combine_axis": boolean},
    "print_options": {
        "edgeitems": integer(0, BIG),
        "precision": integer(0, BIG),
        "threshold": integer(0, BIG),
        "linewidth": integer(0, BIG),
    },
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "host_options": dict(compile_stage=0, compile_monitor_enable=0, compile_timeout=600, compile_timeout_stage=-1,
                         compile_monitor_print_interval=60),
    "runtime_options": dict(device_sched_mode=0, stitch_function_max_num=128, run_mode=1, valid_shape_optimize=0,
                            ready_on_host_tensors=[], device_sched_parallelism=1, launch_sched_aicpu_num=7,
                            launch_early_mode=0),
    "codegen_options": dict(support_dynamic_aligned=False, soc_version="", enable_pmu_trace=False, vf_options=""),
    "pass_options": dict(vec_nbuffer_setting={}, cube_l1_reuse_setting={}, cube_nbuffer_setting={-1: 1},
                         sg_set_scope=(-1, False, False), sg_set_ooo_scope=-1, ooo_sched_mode="", auto_mix_partition=0,
                         sg_set_tunevf_mode=0),
    "verify_options": dict(enable_pass_verify=False, pass_verify_save_tensor=False, pass_verify_save_tensor_dir="",
                           pass_verify_pass_filter=[], pass_verify_error_tol=[0.001, 0.001]),
    "debug_options": dict(compile_debug_mode=0, runtime_debug_mode=0),
    "operation_options": dict(combine_axis=True),
    "print_options": dict(edgeitems=3, precision=4, threshold=10, linewidth=10),
}  # fmt: skip
_current: dict[str, dict[str, Any]] = {group: dict(values) for group, values in DEFAULTS.items()}


def check_group(name: str, group: str, given: Any) -> dict[str, Any]:
    """A dict of options of a group, or None."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        refuse("INVALID_DTYPE", name, group, f"is {shown(given)}", "a dict or None")
    for option, value in given.items():
        check = OPTIONS[group].get(option)
        if check is None:
            known = ", ".join(OPTIONS[group])
            refuse("INVALID_ARGUMENT", name, group, f"has {shown(option)}", f"some of {known}")
        wanted = check(value)
        if wanted:
            refuse("INVALID_ARGUMENT", name, option, f"is {shown(value)}", wanted)
    return dict(given)


def _setter(name: str, group: str) -> tuple[Any, Any]:
    own = list(DEFAULTS[group])

    def set_them(**given: Any) -> None:
        for option in given:
            if option not in own:
                refuse("INVALID_ARGUMENT", name, "options", f"has {shown(option)}", f"some of {', '.join(own)}")
        given = {k: v for k, v in given.items() if v is not None}
        _current[group] |= check_group(name, group, given)

    def get_them() -> dict[str, Any]:
        return dict(_current[group])

    keywords = [inspect.Parameter(o, inspect.Parameter.KEYWORD_ONLY, default=None) for o in own]
    set_them.__signature__ = inspect.Signature(keywords)
    set_them.__name__ = set_them.__qualname__ = name
    set_them.__doc__ = f"Options of the programs to come, by keyword: {', '.join(own)}. No effect on values."
    get_them.__name__ = get_them.__qualname__ = name.replace("set_", "get_", 1)
    get_them.__doc__ = f"What {name} has set."
    return set_them, get_them


set_pass_options, get_pass_options = _setter("set_pass_options", "pass_options")
set_host_options, get_host_options = _setter("set_host_options", "host_options")
set_codegen_options, get_codegen_options = _setter("set_codegen_options", "codegen_options")
set_verify_options, get_verify_options = _setter("set_verify_options", "verify_options")
set_debug_options, get_debug_options = _setter("set_debug_options", "debug_options")
set_operation_options, get_operation_options = _setter("set_operation_options", "operation_options")
set_print_options, _ = _setter("set_print_options", "print_options")

_TILES = {"vec_tile_shapes", "cube_tile_shapes", "matrix_size"}


def set_options(**given: Any) -> None:
    """Groups of options by keyword: codegen_options, host_options, .., vec_tile_shapes, cube_tile_shapes, matrix_size."""
    for group, value in given.items():
        if value is None:
            continue
        if group == "vec_tile_shapes":
            set_vec_tile_shapes(*value)
        elif group == "cube_tile_shapes":
            set_cube_tile_shapes(*(value if isinstance(value, (list, tuple)) else value.sizes()))
        elif group == "matrix_size":
            set_matrix_size(value)
        elif group == "conv_tile_shapes":
            names.refuse("pypto", "set_conv_tile_shapes")
        elif group in OPTIONS and group != "print_options":
            _current[group] |= check_group("set_options", group, value)
        else:
            raise TypeError(f"set_options() got an unexpected keyword argument {group!r}")


@contextlib.contextmanager
def options(name: str = "", **given: Any) -> Iterator[None]:
    """set_options for the time of the `with`."""
    before = {group: dict(values) for group, values in _current.items()}
    tiles = state.vec_tile, state.cube_tile
    set_options(**given)
    try:
        yield
    finally:
        _current.update(before)
        state.vec_tile, state.cube_tile = tiles


def reset_options() -> None:
    """As at first."""
    _current.update({group: dict(values) for group, values in DEFAULTS.items()})
    state.vec_tile, state.cube_tile = (), None


# ---- tiles


def set_vec_tile_shapes(*shapes: Any) -> None:
    """Tile sizes of vector operations, one for each axis (1 to 4); kept to the end of the kernel. No effect on values."""
    if not 1 <= len(shapes) <= 4:
        refuse("INVALID_ARGUMENT", "set_vec_tile_shapes", "shapes", f"has {len(shapes)} sizes", "1 to 4")
    for place, n in enumerate(shapes):
        _check_tile("set_vec_tile_shapes", "shapes", n, f"[{place}]")
    state.vec_tile = tuple(int(n) for n in shapes)


def get_vec_tile_shapes() -> list[int]:
    """What set_vec_tile_shapes has set."""
    return list(state.vec_tile)


def _check_tile(name: str, parameter: str, n: Any, position: str) -> None:
    if not _integer(n) or n <= 0:
        refuse("INVALID_ARGUMENT", name, parameter, f"is {shown(n)}", "an integer of 1 or more", position)


class CubeTile:
    """Tile sizes of matmul: [L0, L1] of m and n, [L0, L1] or [L0, L1A, L1B] of k."""

    def __init__(self, m: Any, k: Any, n: Any, enable_split_k: bool = False) -> None:
        for word, given, counts in (("m", m, (2,)), ("k", k, (2, 3)), ("n", n, (2,))):
            if not isinstance(given, (list, tuple)) or len(given) not in counts:
                wanted = "[L0, L1]" if word != "k" else "[L0, L1] or [L0, L1A, L1B]"
                refuse("INVALID_ARGUMENT", "set_cube_tile_shapes", word, f"is {shown(given)}", wanted)
            for place, size in enumerate(given):
                _check_tile("set_cube_tile_shapes", word, size, f"[{place}]")
                if size < given[0] or size % given[0]:
                    wanted = f"a multiple of {given[0]} (L0)"
                    refuse("INVALID_ARGUMENT", "set_cube_tile_shapes", word, f"is {size}", wanted, f"[{place}]")
        if not isinstance(enable_split_k, bool):
            wanted = "True or False"
            refuse("INVALID_DTYPE", "set_cube_tile_shapes", "enable_split_k", f"is {shown(enable_split_k)}", wanted)
        self.m, self.k, self.n, self.enable_split_k = list(m), list(k), list(n), enable_split_k

    def sizes(self) -> tuple[Any, ...]:
        return self.m, self.k, self.n, self.enable_split_k


def set_cube_tile_shapes(m: Any, k: Any, n: Any, enable_split_k: bool = False) -> None:
    """Tile sizes of matmul, kept to the end of the kernel. No effect on values."""
    state.cube_tile = CubeTile(m, k, n, enable_split_k)


def get_cube_tile_shapes() -> Any:
    """What set_cube_tile_shapes has set: (m, k, n, enable_split_k), or None."""
    return None if state.cube_tile is None else state.cube_tile.sizes()


def set_matrix_size(size: Any) -> None:
    """[m, k, n] of the products to come. No effect on values."""
    if not isinstance(size, (list, tuple)) or len(size) != 3:
        refuse("INVALID_ARGUMENT", "set_matrix_size", "size", f"is {shown(size)}", "[m, k, n]")
    for place, n in enumerate(size):
        if not _integer(n) or n < 0:
            wanted = "an integer of 0 or more"
            refuse("INVALID_ARGUMENT", "set_matrix_size", "size", f"is {shown(n)}", wanted, f"[{place}]")


def set_semantic_label(label: Any) -> None:
    """The label of the operations that follow."""
    if not isinstance(label, str):
        refuse("INVALID_DTYPE", "set_semantic_label", "label", f"is {shown(label)}", "a string")
    state.label = label


# ---- verifying


def verifying() -> bool:
    frame = state.frame
    own = {} if frame is None else frame.verify
    return bool(own.get("enable_pass_verify", _current["verify_options"]["enable_pass_verify"]))


def verify_option(name: str) -> Any:
    own = {} if state.frame is None else state.frame.verify
    return own.get(name, _current["verify_options"][name])


def pass_verify_print(*values: Any, cond: Any = 1) -> None:
    """Prints tensors and other values, with enable_pass_verify and where cond holds."""
    if verifying() and cond:
        print(*values)


def pass_verify_save(tensor: Any, fname: str, cond: Any = 1, **kwargs: Any) -> None:
    """Saves a tensor as FNAME.npy (bf16 as its bits, uint16) in pass_verify_save_tensor_dir, with enable_pass_verify and
    where cond holds; "$name" in fname is a keyword's value."""
    import os

    from .tensor import check_tensor, values

    check_tensor("pass_verify_save", tensor, "tensor")
    if not (verifying() and cond):
        return
    for key, value in kwargs.items():
        fname = fname.replace("$" + key, str(value))
    folder = verify_option("pass_verify_save_tensor_dir") or "."
    kept = np.zeros(tensor.shape, tensor.dtype.np)
    kept[tensor.region()] = values("pass_verify_save", tensor)[tensor.region()]
    np.save(os.path.join(folder, fname + ("" if fname.endswith(".npy") else ".npy")), kept)


def set_verify_golden_data(in_out_tensors: Any = None, goldens: Any = None) -> None:
    """What the arguments of the next kernels have to equal when they end, with enable_pass_verify: `goldens` in the order of
    the kernel's tensors (or of in_out_tensors), None where nothing is compared."""
    if goldens is not None and not isinstance(goldens, (list, tuple)):
        refuse("INVALID_DTYPE", "set_verify_golden_data", "goldens", f"is {shown(goldens)}", "a list or None")
    global golden
    golden = None if goldens is None else (in_out_tensors, list(goldens))


golden: Any = None
