# SPDX-License-Identifier: Apache-2.0
"""The operators as Python functions, made from the library's own lists of parameters."""

import inspect

from . import _core, pypto
from .errors import raise_error

_DOCS = {
    "dynamic_quant": "Quantise each row symmetrically to int8 or int4 -> (y, scale).",
    "lightning_indexer": "The sparse_count best keys of each query row, bf16 or fp16\n"
    "-> (sparse_indices, sparse_values).",
    "lightning_indexer_prolog_quant": "Index query, index key and head weights of new tokens\n"
    "-> (q_int8, q_scale, k_cache, k_scale_cache, weights).",
    "mla_indexer_prolog_quant": "mla_prolog_quant and lightning_indexer_prolog_quant in one call\n"
    "-> (query_nope, query_rope, "
    "kv_cache, kr_cache, k_scale_cache, q_int8, q_scale, ip_k_cache, ip_k_scale_cache, weights).",
    "mla_prolog_quant": "Queries and cache rows of new tokens\n"
    "-> (q_norm, q_norm_scale, query_nope, query_rope, kv_cache, kr_cache, k_scale_cache).",
    "quant_lightning_indexer": "The sparse_count best keys of each query row, int8 -> sparse_indices.",
    "sparse_flash_attention_quant": "Attention over the listed positions of paged latent caches -> attention_out.",
}
# Attributes that have no default, and parameters that only this binding knows: reserved ones must stay None,
# scheduling hints are without effect by contract.
_WITHOUT_DEFAULT = {"sparse_flash_attention_quant": {"b", "s1", "nq", "softmax_scale", "topk", "block_size"}}
_RESERVED = {"quant_lightning_indexer": ["query_dtype", "key_dtype"]}
_HINTS = {"mla_prolog_quant": ["tile_config", "rope_cfg"]}


def _refuse_reserved(operator, name, value):
    raise_error("UNSUPPORTED", operator, name, "", f"is {value!r:.120}", "None (reserved)")


def make(name, reference=False):
    """The function `name`: its body hands the arguments to the library in the order of the library's list.

    A tensor that is required has None for a hidden default, so that leaving it out is refused like any other argument.
    """
    positional, fields = _core.operators[name]
    names = [field[0] for field in fields]
    reserved = _RESERVED.get(name, [])
    rounded = reference and name == "sparse_flash_attention_quant"
    extras = {extra: None for extra in reserved + _HINTS.get(name, [])} | ({"p_rounding": "none"} if rounded else {})
    scope = {
        "defaults": {field[0]: field[2] for field in fields} | extras,
        "refuse_reserved": _refuse_reserved,
        "core": getattr(_core, name + ("_rounded" if rounded else "_reference" if reference else "")),
        "form": pypto.FORMS.get(name),
        "check": getattr(_core, name + "_check", None),
    }
    for field in _WITHOUT_DEFAULT.get(name, ()):
        scope["defaults"][field] = None

    arguments = [f"{n}=defaults[{n!r}]" for n in names + list(extras)]
    second = name in pypto.FORMS
    arguments.insert(positional, "*more" if second else "*")
    if second:
        arguments.append("**other")
    by_name = ", ".join(f"{n!r}: {n}" for n in names)
    lines = [f"def {name}({', '.join(arguments)}):"]
    if second:
        lines.append(f"    if more or other: return form(core, check, {{{by_name}}}, more, other)")
    for parameter in reserved:
        lines.append(f"    if {parameter} is not None: refuse_reserved({name!r}, {parameter!r}, {parameter})")
    lines.append(f"    return core(({', '.join(names)}){', p_rounding' if rounded else ''})")
    exec("\n".join(lines), scope)
    function = scope[name]

    # As the documents write it: what stands before a required positional parameter has no default either.
    without = set(_WITHOUT_DEFAULT.get(name, ()))
    last = max(index for index, field in enumerate(fields[:positional]) if field[1])
    kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD] * positional + [inspect.Parameter.KEYWORD_ONLY] * (
        len(fields) - positional
    )
    parameters = [
        inspect.Parameter(
            field, kind, default=inspect.Parameter.empty if index <= last or field in without else default
        )
        for index, ((field, _, default), kind) in enumerate(zip(fields, kinds))
    ]
    parameters += [
        inspect.Parameter(extra, inspect.Parameter.KEYWORD_ONLY, default=value) for extra, value in extras.items()
    ]
    function.__signature__ = inspect.Signature(parameters)
    function.__doc__ = ("Readable twin of the operator.\n\n" if reference else "") + _DOCS[name]
    function.__module__ = "dsakit.reference" if reference else "dsakit"
    return function


def namespace(reference=False):
    """All operators, and the other names that the documents have for them."""
    operators = {name: make(name, reference) for name in _core.operators}
    return operators | {"npu_dynamic_quant": operators["dynamic_quant"]} | pypto.entries(operators)


_operators = namespace()
globals().update(_operators)
__all__ = list(_operators)
