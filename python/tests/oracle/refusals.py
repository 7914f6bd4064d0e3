# SPDX-License-Identifier: Apache-2.0
"""Calls with one thing wrong: each is made from a small good call of calls.py and from what `dsakit describe` says of the
operator's parameters. Ids are those of robustness_cases.tsv."""

from dataclasses import dataclass, replace
from typing import Any, Callable

import numpy as np

import dsakit
import dsakit.debug
from dsakit import _core

from .calls import CALLS, STRICT
from .capsule import capsule
from .cases import BF16, F
from .harness import CLASSES


def arrays(args):
    values = [v if isinstance(v, (list, tuple)) else [v] for v in args.values()]
    return [v for part in values for v in part if isinstance(v, np.ndarray) and not v.dtype.hasobject]


# Good calls: small ones, and those of the chip's sizes whose memory can be looked at before and after each refusal.
GOOD = CALLS | {name: call for name, call in STRICT.items() if sum(v.nbytes for v in arrays(call.make())) < 2**20}
TAG = "[strict: Atlas A2/A3]"
as_strided = np.lib.stride_tricks.as_strided
BEYOND = "beyond its buffer"
INT32_MAX = 2**31 - 1
SHAPE = {"INVALID_SHAPE"}
SHAPE_OR_LENGTH = SHAPE | {"INVALID_SEQLEN"}
VALUE = {"INVALID_ARGUMENT"}
DTYPE = {"INVALID_DTYPE"}
INDEX = {"INVALID_SLOT", "INVALID_INDEX", "INVALID_SEQLEN"}
SCALES = {"epsilon", "scale_value", "softmax_scale"}  # in the name of a number that is finite
NOT_ABOVE_0 = (0.0, -0.0, -1e-5, 1e-60)  # 1e-60: as float32
FIELDS = {name: {f["name"]: f for f in d["fields"]} for name, d in _core.describe().items()}
FAMILY = {name: d["family"] for name, d in _core.describe().items()}
MOVES = ("scatter_", "gather_", "store_")  # rows of any dtype, the same in all tensors
# Where the plain rule does not fit.
ANY_RANK = {"quant_scale_out"}  # one element, as a scalar too
# Slots that are not looked at: no pages, no cache.
UNREAD = {("v3 batched", "cache_index"), ("v3 TND", "cache_index"), ("store runs", "slot_mapping")}
UNUSED = {("mla bf16", "k_scale_cache")}  # left alone, as its page says
PARTNERS = {  # a tensor that asks for another one, or for other shapes
    "block_table": {"num_key_value_heads"},
    "quant_offset_out": {"quant_scale_out"},
    "query_rope": {"key_rope"},
    "key_rope": {"query_rope"},
    "dequant_scale": {"k_scale_cache"},
    "pertoken_scale": {"output_dtype"},
}
RUNS = {"group_len", "group_key_idx", "group_key_cache_idx"}


@dataclass
class Break:
    """What is wrong (`what`, after an id of the table), how a good call gets it, and the answer that is due.

    position    subscript form; "[" for any element; None for any
    views       can be said of torch tensors as well; else of arrays and capsules alone
    level       to ask for, if any; then the answer may be that of the chip, which its sentence says, or that to the good call
    """

    id: str
    what: str
    call: str
    change: Callable[[dict[str, Any]], Any]
    statuses: set[str]
    parameters: set[str]
    position: str | None = ""
    says: tuple[str, ...] = ()
    views: bool = True
    level: str = ""

    @property
    def operator(self):
        return GOOD[self.call].operator

    @property
    def field(self):
        return self.what.split()[0]

    def __str__(self):
        return f"{self.call}: {self.id} {self.what}" + (f" in {self.level}" if self.level else "")


def spread(v):
    """The same numbers with innermost stride 2."""
    buffer = np.zeros((*v.shape[:-1], v.shape[-1] * 2), v.dtype)
    buffer[..., ::2] = v
    return buffer[..., ::2]


def misaligned(v):
    buffer = np.zeros(v.nbytes + v.itemsize, np.uint8)
    view = buffer[1 : 1 + v.nbytes].view(v.dtype).reshape(v.shape)
    view[...] = v
    return view


def backwards(v):
    flip = (slice(None, None, -1),) * v.ndim
    return np.ascontiguousarray(v[flip])[flip]


def frozen(v):
    v.flags.writeable = False
    return v


def share(a, b):
    """Copies in one buffer: the last bytes of the first are the first bytes of the second."""
    start = (a.nbytes - 1) // 64 * 64
    buffer = np.zeros(max(a.nbytes, start + b.nbytes) + 64, np.uint8)
    first = buffer[: a.nbytes].view(a.dtype).reshape(a.shape)
    second = buffer[start : start + b.nbytes].view(b.dtype).reshape(b.shape)
    second[...] = b
    first[...] = a  # which keeps its numbers
    return first, second


def doubled(v):
    """float64, of the same numbers."""
    with np.errstate(invalid="ignore"):  # NaN in unused rows
        return (v.astype(F) if v.dtype == BF16 else v).astype(np.float64)


def with_entry(v, at, value):
    v = v.copy() if isinstance(v, np.ndarray) else list(v)
    v[at] = value
    return v


def breaks(name):
    """All of one good call."""
    call, good = GOOD[name], GOOD[name].make()
    for field, f in FIELDS[call.operator].items():
        value = good.get(field)
        if f["role"] in ("attribute", "reserved"):
            yield from of_attribute(name, field, f, good)
        elif f["list"]:
            yield from of_tensor(name, field, f, value[1], 1)
        elif isinstance(value, np.ndarray):
            yield from of_tensor(name, field, f, value)
            if f["role"] != "out":
                yield from of_numbers(name, field, f, value)
        elif f["kind"] == "lengths" and value is not None:
            yield from of_numbers(name, field, f, value)
        elif f["role"] == "in_opt" and value is None and (name, field) not in UNUSED:
            odd = lambda args, field=field: args.update({field: np.zeros((1, 2, 1, 2, 1), np.int16)})
            statuses = VALUE | SHAPE | DTYPE | {"UNSUPPORTED"}
            yield Break("T17", field, name, odd, statuses, {field} | PARTNERS.get(field, set()))
    for written in call.written:
        for other in call.tensors():
            if other != written and good[other].nbytes and good[written].nbytes:

                def overlap(args, other=other, written=written):
                    args[other], args[written] = share(args[other], args[written])

                id, both = "A02" if other in call.written else "A01", {written, other}
                yield Break(id, f"{written} {other}", name, overlap, {"ALIASED"}, both, says=("overlaps",))


def of_tensor(name, field, f, value, at=None):
    """Rows T; `at`: of one tensor of a list."""
    call = GOOD[name]
    written, twins = field in call.written, {"key", "value"}
    whose = set(call.tensors()) if call.operator.startswith(MOVES) else {field} | (twins if field == "key" else set())

    def row(id, change, statuses, what="", parameters=None, **more):
        def replace(args):
            old = args[field]
            args[field] = change(old) if at is None else [*old[:at], change(old[at]), *old[at + 1 :]]

        position = "" if at is None else f"[{at}]"
        return Break(id, f"{field} {what}".strip(), name, replace, statuses, parameters or {field}, position, **more)

    yield row("T01", lambda v: capsule(v, data=None), VALUE, says=("no memory",), views=False)
    yield row("T03", lambda v: capsule(v, shape=(*v.shape[:-1], -v.shape[-1])), SHAPE_OR_LENGTH, views=False)
    yield row("T04", lambda v: capsule(v, shape=(2**62, 2**62, 0)), SHAPE_OR_LENGTH, "of no elements", views=False)
    if value.ndim > 1:
        yield row("T04", lambda v: capsule(v, shape=(2**62, 8, *v.shape[2:])), SHAPE_OR_LENGTH, views=False)
    if value.itemsize > 1:
        huge = (2**62, *value.shape[1:-1], 1) if value.ndim > 1 else (2**62,)
        yield row("T05", lambda v: capsule(v, shape=huge), SHAPE_OR_LENGTH, views=False)
        yield row("T11", misaligned, {"MISALIGNED"}, says=("aligned",), views=False)
    if field not in ANY_RANK:
        yield row("T06", lambda v: v.reshape(-1)[:1].reshape(()), SHAPE_OR_LENGTH, "rank 0")
    yield row("T06", lambda v: v.reshape((1,) * (9 - v.ndim) + v.shape), SHAPE, "rank 9")
    if value.size > 1:
        yield row("T10", lambda v: capsule(v, strides=(2**61,) * v.ndim), {"INVALID_STRIDE"}, views=False)
    if value.shape[-1] > 1:
        yield row("T13", spread, {"INVALID_STRIDE"}, says=("innermost stride 2",))
        same = lambda v: np.broadcast_to(v[..., :1], v.shape)  # which numpy has read-only
        yield row("T08", same, {"INVALID_STRIDE", "INVALID_DEVICE"}, "innermost", views=False)
        if value.shape[0] > 1 and value.ndim > 1:
            apart = lambda v: as_strided(v, v.shape, (v.strides[0] * 9, *v.strides[1:]))
            yield row("T10", apart, {"INVALID_STRIDE"}, BEYOND, views=False)
    yield row("T14", doubled, DTYPE, "float64", whose, says=("float64",))
    if f["kind"] != "mask":
        yield row("T14", lambda v: np.ones(v.shape, bool), DTYPE, "bool", whose, says=("bool",))
    if value.dtype == np.int32 and f["kind"] in ("table", "index") and f["dtypes"] == "int32":
        yield row("T14", lambda v: v.astype(np.int64), DTYPE, "int64", says=("int64", "wanted int32"))
    if value.dtype == np.int64 and f["dtypes"] == "int64":
        narrow = lambda v: np.clip(v, -1, 99).astype(np.int32)
        yield row("T14", narrow, DTYPE, "int32", says=("int32", "wanted int64"))
    yield row("T15", lambda v: object(), DTYPE, "is no array", says=("object",), views=False)
    for what, dtype in (("order", ">f4"), ("object", object), ("record", [("a", "f4")])):
        yield row("T15", lambda v, dtype=dtype: np.zeros(v.shape, dtype), DTYPE, what, views=False)
    yield row("T16", lambda v: capsule(v, device=2), {"INVALID_DEVICE"}, "device", views=False)
    if written:
        axis = int(np.argmax(np.array(value.shape) > 1))
        shared = (*value.strides[:axis], 0, *value.strides[axis + 1 :])
        one = lambda v: as_strided(v, v.shape, shared)
        yield row("T09", one, {"INVALID_STRIDE"})
        yield row("T16", frozen, {"INVALID_DEVICE"}, "read-only", says=("read-only",), views=False)
        if value.shape[0] > 1:
            yield row("T07", backwards, {"INVALID_STRIDE"}, views=False)
    if f["role"] in ("in", "inout"):
        yield Break("T18", field, name, lambda args: args.update({field: None}), VALUE, {field}, says=("is missing",))
    for what, value in (("lanes", 2), ("bits", 7), ("version", 2)):
        yield row("X03", lambda v, odd={what: value}: capsule(v, **odd), DTYPE, what, views=False)


def of_numbers(name, field, f, value):
    """Rows S, B, C and I: what integer data say."""

    lengths = {n for n, other in FIELDS[GOOD[name].operator].items() if other["kind"] == "lengths"}

    def entry(id, at, new, statuses, position, what="", parameters=None, says=None):
        change = lambda args: args.update({field: with_entry(args[field], at, new)})
        says = (f"is {new}",) if says is None else says
        return Break(id, f"{field} {what}".strip(), name, change, statuses, parameters or {field}, position, says)

    if f["kind"] == "lengths":
        last = len(value) - 1
        for at in sorted({0, last}):
            yield entry("S01", at, -1, {"INVALID_SEQLEN"}, f"[{at}]", f"[{at}]")
        added = dict(parameters=lengths, says=("ends at",)) if field == "seq_offset" else {}
        yield entry("S06", last, INT32_MAX, {"INVALID_SEQLEN"}, f"[{last}]", f"[{last}]", **added)
        if last > 0 and not isinstance(value, list):  # lists may be of another length
            fewer = lambda args: args.update({field: args[field][:-1]})
            yield Break("S07", field, name, fewer, SHAPE_OR_LENGTH, lengths, None)
    elif f["kind"] == "table":
        yield entry("B01", (0, 0), -1, {"INVALID_BLOCK"}, "[0][0]")
        yield entry("B02", (0, 0), INT32_MAX, {"INVALID_BLOCK"}, "[0][0]")
        rows = {"rows": lambda v: v[:1].copy()} if len(value) > 1 else {}
        for what, change in (rows | {"rank": lambda v: v.reshape(-1)}).items():
            replace = lambda args, change=change: args.update({field: change(args[field])})
            yield Break("B09", f"{field} {what}", name, replace, SHAPE, {field} | lengths)
        if f["role"] == "in_opt" and field not in GOOD[name].optional:
            yield Break("B10", field, name, lambda args: args.update({field: None}), VALUE, {field})
    elif f["kind"] == "index" and f["role"] != "inout" and (name, field) not in UNREAD:
        first, listed = (0,) * value.ndim, "sparse_indices" in field or "topk" in field
        at = "".join(f"[{i}]" for i in first)
        large = INT32_MAX if value.dtype == np.int32 else 2**62
        runs = dict(parameters=RUNS, says=(str(large),)) if field in RUNS else {}
        yield entry("I06" if listed else "C01", first, large, INDEX, at if listed else "[", **runs)
        if listed:
            yield entry("I03", first, -2, INDEX, at)


def of_attribute(name, field, f, good):
    """Rows P."""

    def given(id, value, statuses, what, **more):
        change = lambda args: args.update({field: value})
        return Break(id, f"{field} {what}", name, change, statuses, {field}, **more)

    if f["role"] == "reserved":
        yield given("P07", 1, {"UNSUPPORTED"}, "given", says=("reserved",))
        return
    if f["kind"] in ("layout", "mode", "level"):
        unknown, typed = (97, "97") if f["dtypes"] == "int" else ("nonsense", 97)
        yield given("P01", unknown, VALUE | {"UNSUPPORTED"}, "unknown", says=(str(unknown),))
        yield given("P08", typed, DTYPE, "of another type", views=False)
        if f["dtypes"] == "str":
            yield given("P01", "", VALUE, "empty")
            # in bytes it ends within a character after 120
            yield given("P01", "xx" + "é\n" * 5000, VALUE, "long")
    elif f["kind"] == "flag":
        yield given("P08", 1, DTYPE, "an int", views=False)
    elif f["kind"] == "number":
        whole = f["dtypes"] == "int"
        yield given("P08", True, DTYPE, "a bool", views=False)
        yield given("P08", "1", DTYPE, "a string", views=False)
        yield given("P08", 2**63 if whole else 1j, DTYPE, "beyond 64 bits" if whole else "complex", views=False)
        if whole:
            yield given("P08", 2.5, DTYPE, "a float", views=False)
            yield given("P08", -(2**63) - 1, DTYPE, "beneath 64 bits", views=False)
        elif any(word in field for word in SCALES):
            for bad in (float("nan"), float("inf"), -float("inf"), *(NOT_ABOVE_0 if "epsilon" in field else ())):
                yield given("P03", bad, VALUE, str(bad))


def in_strict(b):
    """The same at that level, where there is one to give: it is refused as ever, or for what the chip lacks."""
    levels = "level" in FIELDS[b.operator] and b.field != "level" and b.call not in STRICT
    return replace(b, level="strict") if levels else None


# ---- ways to make a call


def as_torch(value):
    """An array as a tensor of the same memory and strides."""
    import torch

    if isinstance(value, (list, tuple)) and value and isinstance(value[0], np.ndarray):
        return [as_torch(v) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    return (
        torch.from_numpy(value.view(np.int16)).view(torch.bfloat16) if value.dtype == BF16 else torch.from_numpy(value)
    )


class Face:
    """One way of calling: `call(name, args)`, where args are arrays whose memory the call sees.

    takes(b)   whether a break can be said here
    spelling   the name that its sentences begin with
    """

    results = True  # memory for results can be given

    def calls(self):
        """The good calls that it has."""
        return list(GOOD)

    def takes(self, b):
        names = b.what.split()[:2] if b.id in ("A01", "A02") else [b.field]
        return self.results or all(FIELDS[b.operator][n]["role"] != "out" for n in names)

    def says_otherwise(self, b):
        """Whether its sentence has other words than that of arrays."""
        return False

    def spelling(self, operator):
        return operator

    def prepared(self, name, args):
        return args

    def function(self, operator):
        raise NotImplementedError

    def call(self, name, args):
        return self.function(GOOD[name].operator)(**self.prepared(name, args))


class Numpy(Face):
    def __init__(self, module):
        self.module = module

    def function(self, operator):
        return getattr(self.module, operator)


class Spelled(Numpy):
    """npu_ names, which take what the others take."""

    def calls(self):
        return [name for name in CALLS if FAMILY[CALLS[name].operator] == "torch_npu"]

    def spelling(self, operator):
        return "npu_" + operator

    def function(self, operator):
        return getattr(self.module, "npu_" + operator)


class C(Face):
    """dsakit_run of dsakit.h, with a context or the default one."""

    def __init__(self, library, context=None):
        self.library, self.context = library, context

    def takes(self, b):
        # C has neither objects nor buffers whose ends are known, and no capsules
        unsaid = b.id == "T15" or b.what.endswith((BEYOND, "complex", "64 bits", "version"))
        return super().takes(b) and not unsaid

    def says_otherwise(self, b):
        # types and lists by their names in C; what a capsule of Python's is refused for comes to the operator itself
        return (
            b.id in ("P07", "P08", "T01", "T10")
            or (b.id == "T18" and FIELDS[b.operator][b.field]["list"])
            or (b.level and b.id in ("T03", "T04", "T05"))
        )

    def call(self, name, args):
        # results that other ways of calling make where they are not given
        made = {"mla_prolog_v2": {"dequant_scale_q_nope": np.zeros(1, np.float32)}}.get(GOOD[name].operator, {})
        self.library.run(GOOD[name].operator, made | args, self.context)


class Torch(Numpy):
    def takes(self, b):
        return super().takes(b) and b.views

    def prepared(self, name, args):
        return {k: as_torch(v) for k, v in args.items()}


class Dispatched(Torch):
    """torch.ops.dsakit: what its schema refuses never comes to the library."""

    results = False

    def __init__(self):
        from dsakit import graph

        graph.register()
        self.graph = graph

    def takes(self, b):
        return super().takes(b) and b.id not in ("T18", "P07")

    def call(self, name, args):
        import torch

        form, given = self.graph._forms[GOOD[name].operator], {}
        for key, value in self.prepared(name, args).items():
            if key in form.inputs:
                kind = form.inputs[key]["kind"]
                dtype = kind == "dtype" and isinstance(value, str)
                given[key] = getattr(torch, value) if dtype else value
                if kind == "lengths" and isinstance(value, list):
                    given[key] = torch.tensor(value)
        order = [given.pop(n, form.defaults[n]) for n in form.positional]
        return getattr(torch.ops.dsakit, form.spelling)(*order, **given)


class TorchNpu(Torch):
    """torch_npu as dsakit.npu.install() puts it in place, and torch.ops._C_ascend for what stands there."""

    results = False

    def __init__(self):
        import torch

        from dsakit.npu import inventory

        self.spaces = {}
        for names, _ in inventory.SAME:
            self.spaces |= {n.removeprefix("npu_"): (torch.ops.npu, n) for n in names.split()}
        for name, ours, _ in inventory.SAME_C:
            self.spaces[ours.removeprefix("npu_")] = (torch.ops._C_ascend, name)
        self.spaces["fused_infer_attention_score_v2"] = (torch.ops.npu, "npu_fused_infer_attention_score_v2")

    def calls(self):
        return [name for name in CALLS if CALLS[name].operator in self.spaces]

    def takes(self, b):
        # neither the level, which is a thread's, nor required parameters, which the schema has
        space, name = self.spaces[b.operator]
        known = {a.name for a in getattr(space, name).default._schema.arguments}
        copied = b.level and b.id == "T13" and b.field in ("x", "kv")  # as the device does with slices
        return super().takes(b) and b.field in known and b.id != "T18" and not copied

    def spelling(self, operator):
        return self.spaces[operator][1]

    def prepared(self, name, args):
        import torch

        fields = FIELDS[GOOD[name].operator]
        given = {k: v for k, v in super().prepared(name, args).items() if fields[k]["role"] != "out"}
        if GOOD[name].operator == "kv_quant_sparse_flash_attention":
            given.pop("return_softmax_lse", None)
        dtypes = {k: getattr(torch, v) for k, v in given.items() if fields[k]["kind"] == "dtype" and isinstance(v, str)}
        return given | dtypes

    def call(self, name, args):
        import dsakit.npu

        with dsakit.npu.level(args.get("level", "portable")):
            return super().call(name, {k: v for k, v in args.items() if k != "level"})

    def function(self, operator):
        space, name = self.spaces[operator]
        return getattr(space, name)


def bits(value):
    """Of a result: bytes, of lists too."""
    if isinstance(value, (list, tuple)):
        return tuple(bits(v) for v in value)
    if value is None or isinstance(value, np.ndarray):
        return None if value is None else value.tobytes()
    import torch

    return value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""


def good_bits(face, name):
    """What a good call leaves."""
    args = GOOD[name].make()
    result = face.call(name, args)
    return bits(result), bits([args[w] for w in GOOD[name].written])


def case_of(name, args):
    """The call as a case; memory for results is no part of one."""
    operator = GOOD[name].operator
    case = dsakit.debug.Case(f"dsakit.{operator}")
    for key, value in args.items():
        f = FIELDS[operator][key]
        if f["role"] == "out" or value is None:
            continue
        for i, part in enumerate(value if f["list"] else [value]):
            if isinstance(part, np.ndarray):
                case[f"in.{key}.{i}" if f["list"] else f"in.{key}"] = part
            else:
                case.attributes[key] = part
    return case


def said_in_strict(face, name):
    """What the good call is refused for there, where it is one of portable alone; or ""."""
    try:
        face.call(name, GOOD[name].make() | {"level": "strict"})
    except dsakit.Error as error:
        return str(error)
    return ""


def answer(face, b):
    """The sentence of the refusal, and why it is not the one that is due, or ""."""
    args = GOOD[b.call].make()
    before = arrays(args)
    b.change(args)
    if b.level:
        args["level"] = b.level
    guards = before + (arrays(args) if not b.what.endswith(BEYOND) else [])
    kept = [v.tobytes() for v in guards]
    try:
        face.call(b.call, args)
    except dsakit.Error as error:
        caught = error
    except Exception as error:  # whatever else comes is the finding
        return str(error), f"{type(error).__name__}: {str(error)[:200]}"
    else:
        return "", "accepted"
    kept = [v.tobytes() for v in guards] == kept
    return str(caught), fault(face, b, caught) or ("" if kept else f"has written: {caught}")


def fault(face, b, caught):
    """What is wrong with an error as the answer to a break."""
    text = str(caught)
    of_chip = b.level == "strict" and (text.endswith(TAG) or text == said_in_strict(face, b.call))
    if not (of_chip or caught.status in b.statuses) or not isinstance(caught, CLASSES[caught.status]):
        return f"{caught.status}: {text}"
    if caught.operator != face.spelling(b.operator) or not (of_chip or caught.parameter in b.parameters):
        return f"operator {caught.operator}, parameter {caught.parameter}: {text}"
    beginning = b.position == "[" and caught.position.startswith("[")
    if not (of_chip or beginning or b.position in (None, caught.position)):
        return f"position {caught.position!r}, wanted {b.position!r}: {text}"
    where = f"{caught.operator}: {caught.parameter}{caught.position} {caught.got}, wanted {caught.wanted}"
    if not (caught.got and caught.wanted and text.startswith(where) and text.isprintable()):
        return f"{text!r} is no sentence of {where!r}"
    for part in b.says:
        if part not in text and not of_chip:
            return f"{part!r} is not said: {text}"
    return ""
