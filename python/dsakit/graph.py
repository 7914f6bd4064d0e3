# SPDX-License-Identifier: Apache-2.0
"""The operators as torch sees them: `torch.ops.dsakit.<name>`, with declared mutation and with shapes for fake tensors.

Registered at the first call with a torch tensor. `dsakit.<name>` goes there while torch records calls (compiling, exporting,
under a mode, with fake or meta tensors) and straight to the library otherwise. Everything is made from the library's own
descriptions: a schema from the parameters, a fake implementation from `infer`.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any

from . import _core
from .errors import Error, raise_error

# Inputs that an operator updates in place unless it is given the result beside them.
IN_PLACE = {"mla_prolog_quant": ("kv_cache", "kr_cache", "k_scale_cache")}
INDEX_ERRORS = ("INVALID_SEQLEN", "INVALID_BLOCK", "INVALID_SLOT", "INVALID_INDEX")
MEMBERLESS = ("reserved", "tolerated", "hint")


class Form:
    """One operator under one name, as torch.library wants it.

    inputs    its parameters but for the memory of results: name -> description
    fresh     results that are new tensors
    returned  result -> the input that it is
    written   inputs that are updated in place
    """

    def __init__(self, operator: str, spelling: str, description: dict[str, Any]):
        self.operator, self.spelling = operator, spelling
        fields = [f for f in description["fields"] if f["role"] not in MEMBERLESS]
        by_name = {f["name"]: f for f in fields}
        self.values = tuple(by_name)
        self.inputs = {n: f for n, f in by_name.items() if f["role"] != "out"}
        in_place = IN_PLACE.get(operator, ())
        self.returned = {n: n.removesuffix("_out") for n in description["results"] if by_name[n]["role"] != "out"}
        written = [n for n, f in by_name.items() if f["role"].startswith("inout")] + list(in_place)
        self.returned |= {n + "_out": n for n in written if n + "_out" in description["results"]}
        self.results = tuple(description["results"])
        self.fresh = tuple(n for n in self.results if n not in self.returned)
        self.written = [n for n in self.inputs if n in written]
        positional = {f["name"] for f in description["fields"][: description["positional"]]}
        self.positional = tuple(n for n in self.inputs if n in positional)
        self.keywords = tuple(n for n in self.inputs if n not in positional)
        self.defaults = {n: f["default"] for n, f in self.inputs.items()}
        self.recorded: Any = None  # the operator that returns no argument
        self.name = "_" + spelling if self.returned else spelling

    def schema(self, name: str, results: Iterable[str]) -> str:
        """What torch.library defines."""
        letters = dict(zip(self.written, "abcdefgh"))
        words = []
        for n in (*self.positional, *self.keywords):
            if n in self.keywords[:1]:
                words.append("*")
            f = self.inputs[n]
            words.append(_type(f, letters.get(n)) + " " + n + _default(f))
        types = [f"Tensor({letters[self.returned[n]]}!)" if n in self.returned else "Tensor" for n in results]
        returns = types[0] if len(types) == 1 else f"({', '.join(types)})"
        return f"{name}({', '.join(words)}) -> {returns}"

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a call of the schema."""
        given = dict(zip(self.positional, args)) | kwargs
        return self.defaults | {n: v for n, v in given.items() if v is not None or self.defaults[n] is None}

    def straight(self, /, *args: Any, **kwargs: Any) -> Any:
        """The kernel: the library."""
        given = self.given(args, kwargs)
        results = getattr(_core, self.operator + "_straight")(tuple(map(given.get, self.values)), self.spelling)
        if len(self.results) > 1:
            results = tuple(r for n, r in zip(self.results, results) if n in self.fresh)
            return results[0] if len(results) == 1 else results
        return results if self.fresh else None

    def fake(self, /, *args: Any, **kwargs: Any) -> Any:
        """The shapes and dtypes of the results, as the library infers them."""
        import torch

        given = self.given(args, kwargs)
        like = tensors(given)[0]
        made = [like.new_empty(shape, dtype=dtype) for shape, dtype in shapes(self, given)]
        return made[0] if len(made) == 1 else tuple(made) if made else None

    def composed(self, /, *args: Any, **kwargs: Any) -> Any:
        """The operator whose results are arguments too, over the one that returns none of them."""
        given = self.given(args, kwargs)
        new = self.recorded(*args, **kwargs)
        new = iter((new,) if len(self.fresh) == 1 else new or ())
        results = tuple(given[self.returned[n]] if n in self.returned else next(new) for n in self.results)
        return results[0] if len(results) == 1 else results


def _type(field: dict[str, Any], letter: str | None) -> str:
    """torch's word for the type of a parameter."""
    if field["role"] == "attribute":
        if field["kind"] == "axes":
            return "int[]?"
        scalar = field["kind"] == "dtype" and field["dtypes"] != "int"
        word = "ScalarType" if scalar else field["dtypes"]
        return word + "?" * (scalar and not field["required"])
    word = "Tensor[]" if field["list"] else f"Tensor({letter}!)" if letter else "Tensor"
    return word + "?" * (field["role"].endswith("_opt"))


def _default(field: dict[str, Any]) -> str:
    """A default as a schema has it."""
    default = field["default"]
    if field["kind"] == "axes":  # an optional list has no other default there; None is the documented order
        return "=None"
    if field["required"] or (field["kind"] == "dtype" and isinstance(default, str)):  # a ScalarType has no name there
        return "" if field["required"] else "=None"
    if default is None and field["role"] == "in":
        return ""
    return "=" + f'"{default}"' if isinstance(default, str) else f"={default!r}"


# ---- shapes


def tensors(given: dict[str, Any]) -> list[Any]:
    """The tensors of a call, those in lists too."""
    import torch

    values = [v if isinstance(v, (list, tuple)) else [v] for v in given.values()]
    return [v for part in values for v in part if isinstance(v, torch.Tensor)]


def shapes(form: Form, given: dict[str, Any]) -> list[tuple[list[Any], Any]]:
    """Shape and dtype of each fresh result. A symbolic size is found by asking the library at several sizes."""
    import torch

    sizes = [n for v in tensors(given) for n in v.shape if isinstance(n, torch.SymInt)]
    symbols = _symbols(sizes)
    base = {s: hint for s, (_, hint) in symbols.items()}
    known = _inferred(form, given, base)
    shapes = [list(shape) for shape, _ in known]
    if symbols:
        _recover(form, given, symbols, base, shapes)
    return [(shape, getattr(torch, dtype)) for shape, (_, dtype) in zip(shapes, known)]


def _symbols(sizes: list[Any]) -> dict[Any, tuple[Any, int]]:
    """The free symbols of sizes: symbol -> (a SymInt of it, a number to try)."""
    found: dict[Any, tuple[Any, int]] = {}
    for size in sizes:
        for symbol in size.node.expr.free_symbols:
            if symbol not in found:
                env = size.node.shape_env
                hint = env.backed_var_to_val.get(symbol, 8) if hasattr(env, "backed_var_to_val") else 8
                found[symbol] = (env.create_symintnode(symbol, hint=int(hint)), int(hint))
    return found


def _inferred(form: Form, given: dict[str, Any], at: dict[Any, int]) -> list[tuple[tuple[int, ...], str]]:
    """infer, with numbers for the symbols."""
    import torch

    def number(n: Any) -> int:
        return int(n.node.expr.xreplace(at)) if isinstance(n, torch.SymInt) else n

    def described(name: str, rows: Any, v: Any) -> Any:
        if isinstance(v, (list, tuple)) and form.inputs[name]["list"]:
            return [described(name, rows, part) for part in v]
        if not isinstance(v, torch.Tensor):
            return v
        shape, dtype = tuple(map(number, v.shape)), str(v.dtype).removeprefix("torch.")
        kind, fill = form.inputs[name]["kind"], None
        if kind in ("index", "table", "lengths") and dtype in ("int32", "int64"):
            lengths = [n for n, f in form.inputs.items() if f["kind"] == "lengths"]
            fill = rows[0] if kind != "lengths" else rows[1] if name == lengths[0] else rows[2]
            dtype = "int32" if kind == "lengths" else dtype
        return shape, tuple(map(number, v.stride())), dtype, fill

    def rows(v: torch.Tensor) -> int:
        return math.prod(map(number, v.shape[:-1]))

    first, second, *_ = [rows(v) for v in tensors(given)] + [0, 0]
    # Integers of indices, of the first lengths and of others: infer checks them as a call would, and one of these is
    # right for every operator: nothing stored and no key, or running totals that end where the rows do.
    fills = ((-1, 0, 0), (0, 0, 0), (-1, first, 0), (-1, first, second), (first, 0, 0))
    for fill in fills:
        values = tuple(described(n, fill, given.get(n)) for n in form.values)
        try:
            results = getattr(_core, form.operator + "_shapes")(values, form.spelling)
        except Error as error:
            if fill == fills[-1] or error.status not in INDEX_ERRORS:
                raise
        else:
            break
    return [r for n, r in zip(form.results, results) if n in form.fresh]


def _recover(
    form: Form, given: dict[str, Any], symbols: dict[Any, tuple[Any, int]], base: dict[Any, int], shapes: list[list[Any]]
) -> None:
    """Writes the symbolic sizes into `shapes`. A size that is a constant, or a multiple of a symbol (plus a constant) or of a
    product of symbols, is recognised by what it becomes when symbols are doubled and tripled. Symbols that can only
    change together are equal, which torch is told; one that decides a size otherwise, or cannot change, keeps its number."""
    import torch

    def sizes(at: dict[Any, int]) -> list[int] | None:
        try:
            return [n for shape, _ in _inferred(form, given, at) for n in shape]
        except RuntimeError:
            return None

    def moved(group: tuple[Any, ...]) -> list[list[int]] | None:
        """The sizes when the group is doubled, and when it is tripled."""
        found = [sizes(base | {s: base[s] * k for s in group}) for k in (2, 3)]
        return None if None in found else found  # type: ignore[return-value]

    start = [n for shape in shapes for n in shape]
    groups: dict[tuple[Any, ...], list[list[int]]] = {}
    left = list(symbols)
    while left:
        s = left.pop(0)
        equal = (s, *(other for other in left if base[other] == base[s]))
        for group in ((s,), equal):  # alone, or with those that have to be the same number
            found = moved(group)
            if found:
                groups[group] = found
                for other in group[1:]:
                    torch._check(symbols[other][0] == symbols[s][0])
                    left.remove(other)
                break
        else:
            int(symbols[s][0])
    answer: list[Any] = list(start)
    for i, n in enumerate(start):
        by = [g for g, (twice, thrice) in groups.items() if (twice[i], thrice[i]) != (n, n)]
        steps = [groups[g][0][i] - n for g in by]
        if len(by) == 1 and groups[by[0]][1][i] - n == 2 * steps[0] and steps[0] % base[by[0][0]] == 0:
            size, times = symbols[by[0][0]][0], steps[0] // base[by[0][0]]
            answer[i] = size * times + (n - steps[0]) if (times, n) != (1, steps[0]) else size
        elif len(by) > 1 and all(groups[g][0][i] == 2 * n and groups[g][1][i] == 3 * n for g in by):
            unit = functools.reduce(lambda a, g: a // base[g[0]], by, n)
            answer[i] = functools.reduce(lambda a, g: a * symbols[g[0]][0], by, unit)
        else:
            for g in by:
                int(symbols[g[0]][0])
    rest = iter(answer)
    for shape in shapes:
        shape[:] = itertools.islice(rest, len(shape))


# ---- registration

_lock = threading.Lock()
_forms: dict[str, Form] = {}
_library: Any = None


def register() -> None:
    """All operators, once."""
    global _library
    with _lock:
        if _library is not None:
            return
        import torch

        described = _core.describe()  # which may be refused memory; torch keeps each Library for good
        library = torch.library.Library("dsakit", "FRAGMENT")
        for operator, d in described.items():
            for spelling in (operator, *(["npu_" + operator] if d["family"] == "torch_npu" else [])):
                _forms[spelling] = add(library, Form(operator, spelling, d))
        _library = library


def add(library: Any, form: Form) -> Form:
    """One operator to a namespace."""
    import torch

    space = getattr(torch.ops, library.ns)
    tags = (torch.Tag.pt2_compliant_tag,)
    library.define(form.schema(form.name, form.fresh), tags=tags)
    library.impl(form.name, form.straight, "CPU")
    library.impl(form.name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"{library.ns}::{form.name}", form.fake, lib=library)
    form.recorded = getattr(space, form.name).default
    if form.returned:
        library.define(form.schema(form.spelling, form.results), tags=tags)
        library.impl(form.spelling, form.composed, "CompositeImplicitAutograd")
    return form


# ---- calls while torch records


def call(operator: str, values: tuple[Any, ...], spelling: str) -> Any:
    """The call of a generated function, through torch's dispatcher. Memory given for results receives them."""
    names, positional, keywords, results, returned, kinds, recorded = _plan(operator, spelling)
    import torch

    given = dict(zip(names, values))
    for name, kind in kinds:
        if kind == "lengths" and isinstance(given[name], (list, tuple)):
            like = given[positional[0]]  # fake if it is; an entry may be symbolic
            parts = [like.new_full((1,), n, dtype=torch.int64) for n in given[name]]
            given[name] = torch.cat(parts) if parts else like.new_empty((0,), dtype=torch.int64)
        elif kind == "dtype" and given[name] is not None:
            given[name] = _torch_dtype(spelling, name, given[name])
    for name in IN_PLACE.get(operator, ()):  # memory of its own for a cache: a copy, updated
        out = given[name + "_out"]
        if out is not None and out is not given[name]:
            out.copy_(given[name])
            given[name] = out
    returned = dict(returned)
    new = getattr(torch.ops.dsakit, recorded)(*[given[n] for n in positional], **{n: given[n] for n in keywords})
    if not isinstance(new, (tuple, list)):
        new = () if new is None else (new,)
    place, answer = 0, []
    for name in results:
        if name in returned:
            result, out = given[returned[name]], given.get(name)
        else:
            result, out = new[place], given.get(name)
            place += 1
        if out is not None and out is not result:
            if out.shape != result.shape or out.dtype != result.dtype:
                got = f"has shape {list(out.shape)} and dtype {out.dtype}"
                raise_error("INVALID_SHAPE", spelling, name, "", got, f"{list(result.shape)}, {result.dtype}")
            out.copy_(result)
            result = out
        answer.append(result)
    return answer[0] if len(answer) == 1 else tuple(answer)


def _constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile calls it while it traces and keeps the result."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant
def _plan(operator: str, spelling: str) -> tuple[Any, ...]:
    register()
    form = _forms.get(spelling) or _forms[operator]
    kinds = tuple(
        (n, f["kind"])
        for n, f in form.inputs.items()
        if f["kind"] == "lengths" or (f["kind"] == "dtype" and f["dtypes"] != "int")
    )
    return form.values, form.positional, form.keywords, form.results, tuple(form.returned.items()), kinds, form.name


@_constant
def _torch_dtype(spelling: str, name: str, dtype: Any) -> Any:
    import torch

    found = dtype if isinstance(dtype, torch.dtype) else getattr(torch, _core.dtype_name(dtype), None)
    if not isinstance(found, torch.dtype):
        raise_error("INVALID_ARGUMENT", spelling, name, "", f"is {dtype!r:.120}", "the name of a dtype")
    return found
