# SPDX-License-Identifier: Apache-2.0
"""Cases from what other tools wrote. Nothing is evaluated: pickles are read as tensors and plain values, or refused."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from ..errors import raise_error, shown
from ..whole_files import write_whole
from .case import GROUPS, Case

_NUMPY = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
_PLAIN = (bool, int, float, str, type(None))


def _refuse(path: Any, got: str, wanted: str) -> NoReturn:
    raise_error("INVALID_FILE", "import", pathlib.Path(path).name, "", got, wanted, "IMPORT")


def import_cases(path: str | pathlib.Path, call: str = "", names: Mapping[str, str] | None = None) -> list[Case]:
    """The cases of a .pt file, a folder of .npy and .bin files, or a dump of msprobe (which names its calls itself).

    `call` is the spelling that was called; `names` gives positions and names of the source other names.
    """
    path, names = pathlib.Path(path), dict(names or {})
    if path.is_file():
        return [_from_pt(path, call, names)]
    dumps = sorted(path.rglob("dump.json"))
    if dumps:
        return [case for dump in dumps for case in _from_msprobe(dump)]
    return [_from_folder(path, call, names)]


def _put(case: Case, group: str, name: str, value: Any, path: Any) -> None:
    """A tensor of the group, or an attribute."""
    if hasattr(value, "__dlpack__") or isinstance(value, np.ndarray):
        case[f"{group}.{name}"] = value
    elif isinstance(value, (list, tuple)) and value and all(hasattr(v, "__dlpack__") for v in value):
        for i, v in enumerate(value):
            case[f"{group}.{name}.{i}"] = v
    elif group == "in" and (isinstance(value, _PLAIN) or isinstance(value, (list, tuple))):
        case.attributes[name] = list(value) if isinstance(value, tuple) else value
    elif value is not None:
        _refuse(path, f"has {shown(value)} for {group}.{name}", "a tensor, a number, a string or a list of integers")


def _items(values: Any) -> Iterable[tuple[str, Any]]:
    """By name, or by position."""
    if isinstance(values, Mapping):
        return ((str(k), v) for k, v in values.items())
    return ((str(i), v) for i, v in enumerate(values if isinstance(values, (list, tuple)) else [values]))


def _from_pt(path: pathlib.Path, call: str, names: Mapping[str, str]) -> Case:
    import pickle

    import torch

    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        _refuse(path, "holds more than tensors and plain values", "tensors saved as x.cpu(), in a dict or a list")
    case = Case(call)
    parts = [("in", value)]
    if isinstance(value, Mapping) and "args" in value and set(value) <= {"args", "kwargs", "outputs"}:
        parts = [("in", value["args"]), ("in", value.get("kwargs", {})), ("out", value.get("outputs", []))]
    for group, values in parts:
        for name, one in _items(values):
            own = names.get(name, name) if group == "in" else name
            _put(case, group, own, one.detach() if isinstance(one, torch.Tensor) else one, path)
    case.check()
    return case


def _from_folder(path: pathlib.Path, call: str, names: Mapping[str, str]) -> Case:
    """<group>.<name>.npy, or .bin with its dtype and shape in case.json; a name alone is an argument."""
    about = json.loads((path / "case.json").read_text()) if (path / "case.json").exists() else {}
    dtypes, shapes, layouts = about.pop("dtypes", {}), about.pop("shapes", {}), about.pop("layouts", {})
    case = Case(call or about.pop("call", ""), about.pop("attributes", {}))
    about.pop("call", None)
    for file in sorted(path.iterdir()):
        if file.suffix not in (".npy", ".bin"):
            continue
        group, _, name = file.stem.partition(".") if file.stem.partition(".")[0] in GROUPS else ("in", "", file.stem)
        dtype = dtypes.get(file.stem)
        if file.suffix == ".bin" and (dtype is None or file.stem not in shapes):
            _refuse(file, "is raw bytes", "its entries in dtypes and shapes of case.json")
        numpy = np.dtype(_NUMPY.get(dtype, dtype)) if dtype else None
        array = np.load(file, allow_pickle=False) if file.suffix == ".npy" else np.fromfile(file, numpy)
        if numpy is not None and array.dtype != numpy:
            array = array.view(numpy)
        if file.stem in shapes:
            array = array.reshape(shapes[file.stem])
        case[f"{group}.{names.get(name, name)}"] = array
    for key, fields in layouts.items():
        case.set_layout(key, **fields)
    for key, value in about.items():
        case.set_metadata(
            key, value if isinstance(value, str) and key in ("producer", "versions", "nan") else json.dumps(value)
        )
    case.check()
    return case


def _from_msprobe(dump: pathlib.Path) -> list[Case]:
    """A case for each forward call of a known operator, in the order of the dump."""
    import torch

    from .case import spellings

    known, cases = spellings(), []
    text = json.loads(dump.read_text())
    folder = dump.parent / "dump_tensor_data"
    step, rank = (_number(part, word) for part, word in zip(dump.parts[-3:-1], ("step", "rank"), strict=True))

    def value_of(entry: Any) -> Any:
        if not isinstance(entry, Mapping):
            return None
        if "data_name" not in entry:
            return entry.get("value")
        file = folder / pathlib.PurePath(entry["data_name"]).name
        return torch.load(file, map_location="cpu", weights_only=True) if file.suffix == ".pt" else np.load(file)

    for key, entry in text.get("data", {}).items():
        api, _, direction = key.rpartition(".")
        parts = api.split(".")
        spelling = {"NPU": "torch_npu."}.get(parts[0], parts[0] + ".") + ".".join(parts[1:-1])
        if direction != "forward" or spelling not in known:
            continue
        case = Case(spelling)
        for i, one in enumerate(entry.get("input_args", [])):
            _put(case, "in", str(i), value_of(one), dump)
        for name, one in entry.get("input_kwargs", {}).items():
            _put(case, "in", name, value_of(one), dump)
        for i, one in enumerate(entry.get("output", [])):
            _put(case, "out", str(i), value_of(one), dump)
        where = {"sequence": len(cases) + 1} | {k: v for k, v in (("step", step), ("rank", rank)) if v is not None}
        case.set_metadata("where", json.dumps(where))
        case.set_metadata("producer", "msprobe")
        case.check()
        cases.append(case)
    return cases


def _number(part: str, word: str) -> int | None:
    digits = part.removeprefix(word)
    return int(digits) if part.startswith(word) and digits.isdigit() else None


def export_case(case: Case, folder: str | pathlib.Path) -> None:
    """As a folder of .npy files that import_cases reads, weights that lie beside the case with it.

    Partly stored tensors and FRACTAL_NZ are written as they are stored; `layouts` of case.json says how.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"call": case.call, "attributes": dict(case.attributes), "dtypes": {}, "layouts": {}}
    for key, text in case.metadata.items():
        about[key] = text if key in ("producer", "versions", "nan") else json.loads(text)
    for key in case.keys():
        layout = case.layout(key)
        kept = ("pages", "full") if "pages" in layout else ("format", "shape") if layout.get("format") == "NZ" else ()
        if "of" in layout and "pages" in case.layout(layout["of"]):  # as partly stored as what it is a view of
            about["layouts"][key] = {"of": layout["of"]}
            continue
        if kept:
            about["layouts"][key] = {field: layout[field] for field in kept}
        array = case[key]
        if array.dtype.kind == "V" or array.dtype.name in _NUMPY:
            about["dtypes"][key] = array.dtype.name
            array = array.view(f"u{array.dtype.itemsize}")
        write_whole(folder / f"{key}.npy", functools.partial(np.save, arr=array), "export")
    text = json.dumps(about, indent=1).encode()
    write_whole(folder / "case.json", lambda file: file.write(text), "export")
