# SPDX-License-Identifier: Apache-2.0
"""Cases from what other tools wrote. Nothing is evaluated: pickles are read as tensors and plain values, or refused."""

from __future__ import annotations

import functools
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from ..errors import Error, printable, raise_error, shown
from ..whole_files import write_whole
from .case import GROUPS, Case

_NUMPY = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
_PLAIN = (bool, int, float, str, type(None))
_OWN = ("call", "attributes", "dtypes", "shapes", "layouts")  # of case.json; all else there is metadata
_JSON = ("undefined", "where", "status", "recipe")  # metadata that is JSON, and not text in itself


def _refuse(path: Any, got: str, wanted: str, operation: str = "import") -> NoReturn:
    name = printable(pathlib.Path(path).name)
    raise_error("INVALID_FILE", operation, name, "", got, wanted, operation.upper())


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no number")


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _no_number(text)


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(members)) < len(members):
        raise ValueError("a name stands twice in an object")
    return found


def _object(path: pathlib.Path, constant: Callable[[str], Any] = _no_number) -> dict[str, Any]:
    """Of a JSON file; `constant` is for NaN and Infinity, which JSON has not."""
    try:
        text = path.read_bytes().decode()
        value = json.loads(text, parse_constant=constant, parse_float=_finite, object_pairs_hook=_once)
        json.dumps(value, ensure_ascii=False).encode()  # no half of a surrogate pair
    except (ValueError, RecursionError) as e:
        _refuse(path, f"is not JSON ({printable(str(e))})", "one object by RFC 8259")
    if not isinstance(value, dict):
        _refuse(path, f"is {shown(value)}", "a JSON object")
    return value


def _member(path: pathlib.Path, of: dict[str, Any], name: str, kind: type) -> Any:
    """Taken out of it; nothing of its kind, if it is not there."""
    value = of.pop(name, kind())
    if not isinstance(value, kind):
        wanted = {str: "a string", dict: "an object", list: "a list"}[kind]
        _refuse(path, f"has {shown(value)} for {printable(name)}", wanted)
    return value


def _read(file: pathlib.Path, read: Callable[[], Any], wanted: str) -> Any:
    """Whatever numpy and torch say of bytes that are none of theirs is a refusal."""
    try:
        return read()
    except (OSError, Error):
        raise
    except Exception as e:
        _refuse(file, f"cannot be read ({printable(str(e))})", wanted)


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
    import torch

    value = _tensors(path)
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


def _tensors(path: pathlib.Path) -> Any:
    import pickle

    import torch

    wanted = "tensors saved as x.cpu(), in a dict or a list"

    def load() -> Any:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            _refuse(path, "holds more than tensors and plain values", wanted)

    return _read(path, load, wanted)


def _array(file: pathlib.Path, dtype: Any, shape: Any) -> np.ndarray:
    """As dtype and shape say it, where they are given."""
    numpy = np.dtype(_NUMPY.get(dtype, dtype)) if dtype is not None else None
    array = np.load(file, allow_pickle=False) if file.suffix == ".npy" else np.fromfile(file, numpy)
    if numpy is not None and array.dtype != numpy:
        array = array.view(numpy)
    return array if shape is None else array.reshape(shape)


def _from_folder(path: pathlib.Path, call: str, names: Mapping[str, str]) -> Case:
    """<group>.<name>.npy, or .bin with its dtype and shape in case.json; a name alone is an argument."""
    about_file = path / "case.json"
    about = _object(about_file) if about_file.exists() else {}
    own = {name: _member(about_file, about, name, str if name == "call" else dict) for name in _OWN}
    dtypes, shapes = own["dtypes"], own["shapes"]
    case = Case(call or own["call"], own["attributes"])
    for file in sorted(path.iterdir()):
        if file.suffix not in (".npy", ".bin"):
            continue
        group, _, name = file.stem.partition(".") if file.stem.partition(".")[0] in GROUPS else ("in", "", file.stem)
        dtype, shape = dtypes.get(file.stem), shapes.get(file.stem)
        if file.suffix == ".bin" and (dtype is None or shape is None):
            _refuse(file, "is raw bytes", "its entries in dtypes and shapes of case.json")
        array = _read(file, functools.partial(_array, file, dtype, shape), "an array of its dtype and shape")
        case[f"{group}.{names.get(name, name)}"] = array
    for key in list(own["layouts"]):
        case.set_layout(key, **_member(about_file, own["layouts"], key, dict))
    for key, value in about.items():
        text = value if isinstance(value, str) and key not in _JSON else json.dumps(value, separators=(",", ":"))
        case.set_metadata(key, text)
    case.check()
    return case


def _from_msprobe(dump: pathlib.Path) -> list[Case]:
    """A case for each forward call of a known operator, in the order of the dump."""
    from .case import spellings

    known, cases = spellings(), []
    text = _object(dump, constant=float)  # statistics of tensors: not always numbers
    folder = dump.parent / "dump_tensor_data"
    step, rank = (_number(part, word) for part, word in zip(dump.parts[-3:-1], ("step", "rank"), strict=True))

    def value_of(entry: Any) -> Any:
        if not isinstance(entry, Mapping):
            return None
        if "data_name" not in entry:
            return entry.get("value")
        file = folder / pathlib.PurePath(str(entry["data_name"])).name
        return _tensors(file) if file.suffix == ".pt" else _read(file, lambda: _array(file, None, None), "an array")

    data = _member(dump, text, "data", dict)
    for key in list(data):
        api, _, direction = key.rpartition(".")
        parts = api.split(".")
        spelling = {"NPU": "torch_npu."}.get(parts[0], parts[0] + ".") + ".".join(parts[1:-1])
        if direction != "forward" or spelling not in known:
            continue
        entry, case = _member(dump, data, key, dict), Case(spelling)
        for i, one in enumerate(_member(dump, entry, "input_args", list)):
            _put(case, "in", str(i), value_of(one), dump)
        for name, one in _member(dump, entry, "input_kwargs", dict).items():
            _put(case, "in", name, value_of(one), dump)
        for i, one in enumerate(_member(dump, entry, "output", list)):
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


def _json_value(value: Any) -> Any:
    """What JSON has no number for, by the name that cases have for it; -0.0 is -0.0."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "-" * (math.copysign(1, value) < 0) + ("NaN" if math.isnan(value) else "Infinity")


def export_case(case: Case, folder: str | pathlib.Path) -> None:
    """As a folder of .npy files that import_cases reads, weights that lie beside the case with it.

    Partly stored tensors and FRACTAL_NZ are written as they are stored; `layouts` of case.json says how.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    attributes = {name: _json_value(value) for name, value in case.attributes.items()}
    about: dict[str, Any] = {"call": case.call, "attributes": attributes, "dtypes": {}, "layouts": {}}
    for key, text in case.metadata.items():
        if key in _OWN:
            _refuse(case.name, f"has metadata {key}", "another name (case.json has a field of this one)", "export")
        try:
            about[key] = json.loads(text, parse_float=_finite) if key in _JSON else text
        except (ValueError, RecursionError) as e:
            _refuse(case.name, f"has metadata {key} that is no JSON ({printable(str(e))})", "JSON", "export")
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
    text = json.dumps(about, indent=1, allow_nan=False).encode()
    write_whole(folder / "case.json", lambda file: file.write(text), "export")
