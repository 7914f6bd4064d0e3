#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the operators of the Python package as plain functions: python/dsakit/_generated/, operators.py, reference.py and
ops/*.py. What a parameter is and means comes from include/dsakit/<operator>.hpp, as the built module describes it; here
stands what is Python's own: the names of an operator, the parameters that each name takes and what it returns.

    .venv/bin/pip install . && .venv/bin/python scripts/generate_python.py
"""

import importlib.util
import json
import pathlib
import re
import sys
import textwrap
from dataclasses import dataclass, field, replace

PACKAGE = pathlib.Path(__file__).parent.parent / "python" / "dsakit"
WIDTH = 96  # of a docstring, which help() indents by 4 more


@dataclass(frozen=True)
class Spelling:
    """One function: a name under which documents call an operator."""

    name: str
    operator: str
    note: str = ""  # what is particular to it
    without: tuple = ()  # parameters that it does not have
    keywords: tuple = ()  # positional parameters that it takes by name only
    defaults: dict = field(default_factory=dict)  # its own, as Python text
    statements: tuple = ()  # in front of the call; {name}: the spelling
    result: str = "result"  # what it returns of the result of the library
    nullable: tuple = ()  # attributes that may be None too
    published: bool = False  # takes the published form of calling_forms.py too
    core: str = ""  # the function of the library, if it is not the operator
    rounded: bool = False  # that one takes p_rounding
    like: str = ""  # the function whose docstring it shares
    title: str = ""  # in front of that


# ---- the names

NORM_BY_NONE = dict(
    nullable=("cache_mode",), statements=('cache_mode = "Norm" if cache_mode is None else cache_mode',)
)
PARTICULAR = {
    "fused_infer_attention_score_v2": dict(
        statements=('one_tensor("{name}", key=key, value=value)',),
        note="Without return_softmax_lse, softmax_lse is [0.0].",
        result="without_lse(result) if not return_softmax_lse and softmax_lse is None else result",
    ),
    "kv_quant_sparse_flash_attention": dict(
        note="Returns attention_out alone; all three with return_softmax_lse.",
        result="result if return_softmax_lse else result[0]",
    ),
    "lightning_indexer_prolog_quant": dict(
        published=True,
        note="In the published form the output tensors q_int8_out, q_scale_out, k_int8_out, k_scale_out, weights_out follow "
        "the positional parameters, then the objects attrs, configs; it returns None.",
    ),
    "mla_prolog_quant": dict(
        published=True,
        note="In the published form the seven output tensors follow the positional parameters, then epsilon_cq, "
        "epsilon_ckv, cache_mode, tile_config, rope_cfg; it returns None. By keyword: where q_norm_out, query_nope_out and "
        "query_rope_out are given.",
        result="result if q_norm_out is None or query_nope_out is None or query_rope_out is None else None",
    ),
    "sparse_flash_attention_quant": dict(
        published=True,
        note="In the published form attention_out follows the positional parameters, then nq, n_kv, softmax_scale, topk, "
        "block_size, max_blocknum_perbatch, tile_config; topk_indcies is topk_indices as the documents spell it; b and s1 are "
        "left out; it returns None.",
    ),
    "mla_indexer_prolog_quant": dict(
        published=True,
        note="In the published form the ten output tensors (query_nope_out .. weights_out) follow the positional "
        "parameters, then epsilon_cq, epsilon_ckv, cache_mode, tile_config, attrs, configs, rope_cfg; it returns None.",
    ),
    "scatter_nd_update_": dict(note="Returns self.", result="self"),
    "scatter_pa_kv_cache": NORM_BY_NONE,
    "scatter_pa_kv_cache_functional": NORM_BY_NONE,
}
MODES = ("query_quant_mode", "key_quant_mode")
STRICT_MODES = dict(
    defaults=dict.fromkeys(MODES, "ABSENT"),
    statements=tuple(f'{m} = zero_in_portable("{{name}}", level, {m}={m})' for m in MODES),
    note="In strict both quant modes must be given; in portable they default to 0.",
)


def spellings(name, family):
    """The names at the top of the package that an operator has, but for those of attention in calling_forms.py's form."""
    own = Spelling(name, name, **PARTICULAR.get(name, {}))
    entry = replace(own, like=name, title=f"{name} as the documents call it too.")
    yield own
    if family == "torch_npu":
        yield replace(own, name="npu_" + name, **(STRICT_MODES if name == "quant_lightning_indexer" else {}))
    if name == "quant_lightning_indexer":  # as the recipes call it
        yield replace(own, name="npu_lightning_indexer_quant")
    if name in ("mla_prolog_quant", "lightning_indexer_prolog_quant"):
        yield replace(entry, name=name + "_compute")
    if name in ("mla_prolog_quant", "mla_indexer_prolog_quant"):
        only = dict(
            statements=('calling_forms.quantised_mode_only("{name}", dequant_scale)',),
            title="mla_prolog_quant in its quantised mode only.",
        )
        yield replace(entry, name=name + "_d")
        yield replace(entry, name=name + "_p", **(only if name == "mla_prolog_quant" else {}))


# dsakit.ops.<module>: what it takes from the top of the package, and forms of its own.
OPS = {
    "npu": [
        Spelling(
            "lightning_indexer",
            "lightning_indexer",
            note="The form of older kernel packages: returns sparse_indices alone.",
            without=("pre_tokens", "next_tokens", "return_value"),
            result="result[0]",
        )
    ],
    "custom": [
        Spelling(name, "quant_lightning_indexer", without=("pre_tokens", "next_tokens", "query_dtype", "key_dtype"))
        for name in ("npu_quant_lightning_indexer", "npu_lightning_indexer_quant")
    ],
    "_C_ascend": [
        Spelling(
            "npu_sparse_flash_attention",
            "sparse_flash_attention",
            note="attention_mode defaults to 2, the only one.",
            without=("sinks",),
            defaults={"attention_mode": "2"},
        ),
        Spelling(
            "npu_kv_quant_sparse_flash_attention",
            "kv_quant_sparse_flash_attention",
            note="The default of the quant modes is not legal: give 2. Returns all three results.",
            keywords=("key_quant_mode", "value_quant_mode"),
            defaults={"key_quant_mode": "1", "value_quant_mode": "1"},
        ),
    ],
}


def twin(s, description):
    """The same function over the reference."""
    rounded = description[s.operator]["rounded"]
    core = s.operator + ("_rounded" if rounded else "_reference")
    title = f"The readable twin of dsakit.{s.name}."
    return replace(s, core=core, rounded=rounded, like=f"fast.{s.name}", title=title)


# ---- one function


def fields_of(s, description):
    """Its parameters: those that may be given by position, and the others."""
    d = description[s.operator]
    fields = [f for f in d["fields"] if f["name"] not in s.without]
    by_position = [f for f in fields[: d["positional"]] if f["name"] not in s.keywords]
    return by_position, [f for f in fields if f not in by_position]


def default_of(f, s):
    """As Python text; "" where there is none."""
    if f["name"] in s.defaults:
        return s.defaults[f["name"]]
    if f["role"] == "tolerated":
        return "ABSENT"
    if f["required"]:
        return ""
    return json.dumps(f["default"]) if isinstance(f["default"], str) else repr(f["default"])


def annotation(f, nullable=()):
    role = f["role"]
    if role in ("reserved", "tolerated", "hint"):
        return "Any" if role == "hint" else "None"
    if role == "attribute":
        if f["kind"] == "axes":
            return "Axes"
        kind = "DType" if f["kind"] == "dtype" else f["dtypes"]
        optional = f["name"] in nullable or not (f["required"] or f["default"] is not None)
        return kind + " | None" if optional else kind
    kind = "ArrayList" if f["list"] else {"weight": "Weight", "lengths": "Lengths"}.get(f["kind"], "Array")
    return kind if role in ("in", "inout") else kind + " | None"


def parameter(f, s):
    default = default_of(f, s)
    return f"{f['name']}: {annotation(f, s.nullable)}" + (f" = {default}" if default else "")


def signature(s, description):
    by_position, by_name = fields_of(s, description)
    lines = [parameter(f, s) for f in by_position]
    lines += ["*more: Any" if s.published else "*"]
    lines += [parameter(f, s) for f in by_name]
    lines += ['p_rounding: str = "none"'] if s.rounded else []
    lines += ["**other: Any"] if s.published else []
    return lines


def returns(s, description):
    """Its annotation: "Result" also where the number of results depends on the call."""
    count = len(description[s.operator]["results"])
    if count == 0:
        return "Result" if s.result != "result" else "None"
    return "Result" if s.published or count == 1 or "result[0]" in s.result else f"tuple[{', '.join(['Result'] * count)}]"


def filled(words, between=", ", indent=4):
    return textwrap.fill(between.join(words), 112, initial_indent=" " * indent, subsequent_indent=" " * indent)


def body(s, description):
    fields = [f for part in fields_of(s, description) for f in part]
    lines = [statement.format(name=s.name) for statement in s.statements]
    reserved = [f["name"] for f in fields if f["role"] == "reserved"]
    if reserved:  # asked here: a call by keywords for what nearly nobody passes costs half a microsecond
        lines += ["if not (", filled([*reserved, "None"], " is "), "):  # fmt: skip", f'    only_none("{s.name}",']
        lines += [filled([f"{name}={name}" for name in reserved], indent=8) + ")"]
    for f in fields:
        name = f["name"]
        if f["role"] == "tolerated":
            lines += [f"if {name} is not ABSENT:", f'    tolerate("{s.name}", level, {name}={name})']
        if f["kind"] == "dtype" and f["dtypes"] == "int":
            lines.append(f'{name} = dtype_integer("{s.name}", {name}={name})')
    own = [f for f in description[s.operator]["fields"] if f["role"] not in ("reserved", "tolerated", "hint")]
    values = [f["name"] if f in fields else repr(f["default"]) for f in own]
    lines += ["values = (", filled(values) + ",", ")  # fmt: skip"]
    core = "_core." + (s.core or s.operator)
    if s.operator == ATTENTION:
        lines += ["if calling_forms.is_published_attention(more, other, attention_out, b, s1):"]
        plain = f"_core.{s.operator}_reference" if s.rounded else core
        lines += [f'    return calling_forms.attention({plain}, values, "{s.name}", more, other)']
    elif s.published:
        lines += ["if more or other:", f'    form = calling_forms.FORMS["{s.operator}"]']
        lines += [f'    return form({core}, values, "{s.name}", more, other)']
    call = f'run("{s.operator}", values, "{s.name}")'
    if s.core:
        call = f'{core}(values{", p_rounding" if s.rounded else ""}, "{s.name}")'
    if not description[s.operator]["results"]:
        lines += [call] + [f"return {s.result}"] * (s.result != "result")
    else:
        lines += [f"return {call}"] if s.result == "result" else [f"result = {call}", f"return {s.result}"]
    return [line for lines_ in lines for line in lines_.split("\n")]


def entry(name, text, width):
    """One line of a list, name first, and as many more as the text needs."""
    lines = textwrap.wrap(text, WIDTH - width - 4, break_long_words=False) or [""]
    head = f"    {name:<{width}}"
    return [head + lines[0], *(" " * len(head) + line for line in lines[1:])]


def wrapped(line):
    """An indented line, which keeps its inner spaces if it fits."""
    return textwrap.wrap(line, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)


def about(f, s):
    """What the docstring says of one parameter or result."""
    if f["role"] == "attribute":
        default = default_of(f, s)
        words = f"{f['dtypes']}, "
        words += "required in strict" if default == "ABSENT" else f"default {default}" if default else "required"
        words += f" ({f['shape']})" if f["shape"] else ""
    elif f["dtypes"] or f["shape"]:
        words = " ".join(t for t in (f["shape"], f"({f['dtypes']})" if f["dtypes"] else "") if t)
        if f["role"].endswith("_opt"):
            words += ", or None" if f["required"] else ", optional"
        words += ", updated in place" * f["role"].startswith("inout")
    else:
        words = "without effect" if f["role"] == "hint" else "None"
    return f"{words}: {f['meaning']}" if f["meaning"] else words


def docstring(s, description):
    d = description[s.operator]
    fields = [f for part in fields_of(s, description) for f in part]
    width = max(len(f["name"]) for f in fields) + 2
    lines = textwrap.wrap(d["summary"] + ". " + s.note, WIDTH)
    if d["formula"]:
        lines += ["", *(part for line in d["formula"].splitlines() for part in wrapped(line))]
    lines += ["", "Parameters:"]
    for f in fields:
        if f["role"] not in ("out", "reserved"):
            lines += entry(f["name"], about(f, s), width)
    reserved = [f["name"] for f in fields if f["role"] == "reserved"]
    if reserved:
        lines += ["", *textwrap.wrap("Reserved, only None: " + ", ".join(reserved), WIDTH, subsequent_indent="    ")]
    if d["results"]:
        lines += ["", "Results" + ", or by keyword the memory for them:" * any(f["role"] == "out" for f in fields)]
    by_name = {f["name"]: f for f in d["fields"]}
    for name in d["results"]:
        lines += entry(name, about(by_name[name], s), width)
    lines += ["", "Errors:"]
    for line in d["errors"].splitlines():
        lines += wrapped(line)
    lines += ["", *textwrap.wrap(f"Source: {d['source']}. More: docs/operators/{d['page']}", WIDTH)]
    return ['"""' + lines[0], *lines[1:], '"""']


def function(s, description):
    documentation = [f'"""{s.title}"""'] if s.like else docstring(s, description)
    lines = ["@operator", *([f"@documented_by({s.like})"] if s.like else []), f"def {s.name}("]
    lines += [f"    {line}," for line in signature(s, description)]
    lines += [f") -> {returns(s, description)}:"]
    lines += [("    " + line).rstrip() for line in documentation + body(s, description)]
    return "\n".join(lines) + "\n"


ATTENTION = "sparse_flash_attention_quant"


def attention_entries(description, like, call):
    """The entries of the PyPTO documents for attention, which write into attention_out."""
    fields = {f["name"]: f for f in description[ATTENTION]["fields"]}
    inputs = [n for n, f in fields.items() if f["role"] in ("in", "in_opt")]
    note = "The entry of the PyPTO documents, which writes into attention_out. topk_indcies is topk_indices as they spell it; "
    note += "max_blocknum_perbatch says how many columns block_table has; tile_config has no effect."
    for suffix in ("d", "p", "d_950", "compute"):
        name = f"{ATTENTION}_{suffix}"
        lines = [
            "@operator",
            f"@documented_by({like})",
            f"def {name}(",
            *(f"    {n}: {annotation(fields[n]).removesuffix(' | None')} | None = None," for n in inputs),
            "    attention_out: Array | None = None,",
            "    nq: int | None = None,",
            "    n_kv: int = 1,",
            "    softmax_scale: float | None = None,",
            "    topk: int | None = None,",
            "    block_size: int | None = None,",
            "    max_blocknum_perbatch: int | None = None,",
            "    tile_config: Any = None,",
            "    *,",
            "    topk_indcies: Array | None = None,",
            "    b: int | None = None,",
            "    s1: int | None = None,",
            '    numerics: str = "exact",',
            '    level: str = "portable",',
            ") -> None:",
            textwrap.indent('"""' + textwrap.fill(note, WIDTH), "    "),
            '    """',
            '    written = {"topk_indices": "topk_indcies"} if topk_indices is None else {}',
            f'    topk_indices = calling_forms.one_of_two("{name}", topk_indices=topk_indices, topk_indcies=topk_indcies)',
            f'    b, s1 = calling_forms.sizes_of("{name}", attention_out, b, s1)',
            f'    calling_forms.check_columns("{name}", block_table, max_blocknum_perbatch)',
            "    values = (",
            textwrap.indent(filled(fields), "    ") + ",",
            "    )  # fmt: skip",
            "    with calling_forms.as_written(written):",
            f'        {call}values, "{name}")',
        ]
        yield "\n".join(lines) + "\n"


# ---- the files

HEADER = '''# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""{}"""

from __future__ import annotations

'''
CALLING = """ABSENT Array ArrayList Axes DType Lengths Result Weight documented_by dtype_integer one_tensor only_none operator run
tolerate without_lse
zero_in_portable""".split()


def described():
    """The descriptions, by the installed module alone: the package around it may be about to change."""
    module = sys.modules.get("dsakit._core")
    if not module:
        folder = importlib.util.find_spec("dsakit").submodule_search_locations[0]
        (path,) = pathlib.Path(folder).glob("_core*.so")
        spec = importlib.util.spec_from_file_location("dsakit._core", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    description = module.describe()
    for name, d in description.items():
        d["rounded"] = hasattr(module, name + "_rounded")
    return description


def listed(names):
    return "".join(f"    {name},\n" for name in names)


def offered(names):
    return "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"


def module(doc, dots, functions, imports="", names=()):
    """A file with functions, `dots` away from the package; `imports` brings `names`, which it offers too."""
    text = "\n\n".join(functions)
    used = [n for n in CALLING if re.search(rf"\b{n}\b" if n != "run" else r"\brun\(", text)]
    package = ", ".join(n for n in ("_core", "calling_forms") if n + "." in text)
    head = "from typing import Any\n\n" if "Any" in text else ""
    head += f"from {dots} import {package}\n" if package else ""
    head += f"{imports}from {dots}calling import (\n{listed(used)})\n\n"
    return HEADER.format(doc) + head + offered([*names, *re.findall(r"^def (\w+)", text, re.M)]) + "\n\n" + text


def gathered(folder, names):
    """Imports: module -> its functions."""
    return "".join(f"from {folder}.{module} import (\n{listed(given)})\n" for module, given in names.items())


def files(description):
    """Path within the package -> text."""
    texts, names = {}, {}
    for name, d in description.items():
        own = list(spellings(name, d["family"]))
        fast = [function(s, description) for s in own]
        slow = [function(twin(s, description), description) for s in own]
        if name == ATTENTION:
            fast += attention_entries(description, name, f'run("{name}", ')
            slow += attention_entries(description, "fast." + name, f"_core.{name}_reference(")
        names[name] = re.findall(r"^def (\w+)", "".join(fast), re.M)
        texts[f"_generated/{name}.py"] = module(d["summary"] + ".", "..", fast)
        imports = f"from .. import {name} as fast\n"
        texts[f"_generated/reference/{name}.py"] = module(f"The readable twins of {name}.", "...", slow, imports)

    mxfp8 = ["dynamic_mx_quant", "npu_dynamic_mx_quant"]
    everything = [n for given in names.values() for n in given] + mxfp8
    doc = "The operators, under all their names."
    imports = gathered("._generated", names) + f"from .mxfp8 import {', '.join(mxfp8)}\n\n"
    texts["operators.py"] = HEADER.format(doc) + imports + offered(everything)
    doc = "The operators written to be read: same names, arguments, results and in-place caches, far slower, float64 where\n"
    doc += "the documents leave the arithmetic free."
    imports = imports.replace("_generated.", "_generated.reference.")
    texts["reference.py"] = HEADER.format(doc) + imports + offered(everything)

    theirs = [n for n in everything if n.startswith("npu_")]
    ascend = ["npu_add_rms_norm_bias", "npu_lightning_indexer"]
    ascend += [name for name, d in description.items() if d["family"] == "vllm-ascend"]
    imports = {
        "npu": (f"from ..operators import (\n{listed(theirs)})\n", theirs),
        "custom": ("", []),
        "_C_ascend": (
            f"from ..operators import (\n{listed(ascend)})\nfrom .custom import npu_lightning_indexer_quant\n",
            [*ascend, "npu_lightning_indexer_quant"],
        ),
    }
    for space, forms in OPS.items():
        functions = [function(s, description) for s in forms]
        texts[f"ops/{space}.py"] = module(f"What engines find in torch.ops.{space}.", "..", functions, *imports[space])
    return texts


if __name__ == "__main__":
    for path, text in files(described()).items():
        (PACKAGE / path).parent.mkdir(parents=True, exist_ok=True)
        (PACKAGE / path).write_text(text)
