# SPDX-License-Identifier: Apache-2.0
"""The operators as Python functions, made from the library's own lists of parameters."""

import functools
import inspect
import numbers

from . import _core, pypto
from .errors import raise_error, shown

_DOCS = {
    "dynamic_block_quant": "Quantise blocks of each row symmetrically to int8 -> (y, scale).",
    "dynamic_quant": "Quantise each row symmetrically to int8 or int4 -> (y, scale).",
    "fused_infer_attention_score_v2": "Attention over dense or paged keys and values -> (attention_out, softmax_lse).",
    "interleave_rope": "Rotate rows: pairs in, halves out -> y.",
    "kv_quant_sparse_flash_attention": "Attention over the listed positions of packed int8 rows -> attention_out,\n"
    "with return_softmax_lse -> (attention_out, softmax_max, softmax_sum).",
    "lightning_indexer": "The sparse_count best keys of each query row, bf16 or fp16\n"
    "-> (sparse_indices, sparse_values).",
    "lightning_indexer_prolog_quant": "Index query, index key and head weights of new tokens\n"
    "-> (q_int8, q_scale, k_cache, k_scale_cache, weights).",
    "mla_indexer_prolog_quant": "mla_prolog_quant and lightning_indexer_prolog_quant in one call\n"
    "-> (query_nope, query_rope, "
    "kv_cache, kr_cache, k_scale_cache, q_int8, q_scale, ip_k_cache, ip_k_scale_cache, weights).",
    "mla_prolog_quant": "Queries and cache rows of new tokens\n"
    "-> (q_norm, q_norm_scale, query_nope, query_rope, kv_cache, kr_cache, k_scale_cache).",
    "mla_prolog_v2": "Queries and cache rows of new tokens, the mode told by the dtypes\n"
    "-> (query, query_rope, kv_cache_out, kr_cache_out, dequant_scale_q_nope).",
    "mla_prolog_v3": "Queries and cache rows of new tokens, caches in place\n"
    "-> (query, query_rope, dequant_scale_q_nope, query_norm, dequant_scale_q_norm).",
    "mla_prolog_v3_functional": "mla_prolog_v3 on copies of the caches\n"
    "-> (query, query_rope, dequant_scale_q_nope, query_norm, dequant_scale_q_norm, kv_cache_out, kr_cache_out).",
    "pack_kv_rows": "Codes, rope values and scales into packed cache rows -> rows.",
    "quant_lightning_indexer": "The sparse_count best keys of each query row, int8 -> sparse_indices.",
    "quantize": "Quantise with given scales, per tensor or along an axis -> y.",
    "rotary_mul": "x * r1 + rot(x) * r2 -> y.",
    "sparse_flash_attention": "Attention over the listed positions of latent and rope rows\n"
    "-> (attention_out, softmax_max, softmax_sum).",
    "sparse_flash_attention_quant": "Attention over the listed positions of paged latent caches -> attention_out.",
    "unpack_kv_rows": "Packed cache rows into codes, rope values and scales -> (codes, rope, scales).",
}
# Attributes that have no default, and parameters that only this binding knows: reserved ones must stay None,
# scheduling hints are without effect by contract.
_WITHOUT_DEFAULT = {
    "kv_quant_sparse_flash_attention": {"scale_value", "key_quant_mode", "value_quant_mode"},
    "mla_prolog_v3": {"kr_cache"},
    "mla_prolog_v3_functional": {"kr_cache"},
    "quantize": {"zero_points", "dtype"},
    "sparse_flash_attention": {"scale_value"},
    "sparse_flash_attention_quant": {"b", "s1", "nq", "softmax_scale", "topk", "block_size"},
}
_PROLOG_DTYPES = [t + "_dtype" for t in ("token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr", "kv_cache")]
_RESERVED = {
    "fused_infer_attention_score_v2": [
        name + "_dtype"
        for name in (
            *("query", "key", "value", "query_rope", "key_rope", "key_shared_prefix", "value_shared_prefix"),
            *("dequant_scale_query", "dequant_scale_key", "dequant_scale_value", "dequant_scale_key_rope"),
        )
    ]
    + ["learnable_sink", "quant_scale_p", "out_dtype"],
    "kv_quant_sparse_flash_attention": ["key_dtype", "value_dtype"],
    "mla_prolog_v3": _PROLOG_DTYPES,
    "mla_prolog_v3_functional": _PROLOG_DTYPES,
    "quant_lightning_indexer": ["query_dtype", "key_dtype"],
}
_HINTS = {"mla_prolog_quant": ["tile_config", "rope_cfg"]}
# Keywords that the documents do not have and callers pass: with None accepted, in portable.
_TOLERATED = dict.fromkeys(("mla_prolog_v3", "mla_prolog_v3_functional"), ["k_pe_clip_alpha"])
# What happens to the result of the library, `result`.
_ENDINGS = {
    "fused_infer_attention_score_v2": [
        "if not return_softmax_lse and softmax_lse is None: result[1][...] = 0",
        "return result",
    ],
    "kv_quant_sparse_flash_attention": ["return result if return_softmax_lse else result[0]"],
}
_ABSENT = object()


def _refuse_reserved(operator, name, value):
    raise_error("UNSUPPORTED", operator, name, "", f"is {shown(value)}", "None (reserved)")


def _tolerate(operator, name, value, level):
    if value is not None or level == "strict":
        got = f"is {shown(value)}" if value is not None else "is given"
        why = "no parameter of this operator" + ("; portable accepts None" if value is None else "")
        raise_error("INVALID_ARGUMENT", operator, name, "", got, f"absent ({why})")


def _torch_integer(value):
    """dst_type of dynamic_block_quant: the documents have an integer, 1 for int8."""
    if value is None or isinstance(value, numbers.Integral):
        return value
    name = _core.dtype_name(value)
    if name in ("int8", "qint8"):
        return 1
    known = name.startswith(("float", "hifloat", "bfloat", "int", "uint", "qu", "qint"))
    status = "UNSUPPORTED" if known else "INVALID_ARGUMENT"
    wanted = "1 (int8; other types are reserved)"
    raise_error(status, "dynamic_block_quant", "dst_type", "", f"is {name!r:.120}", wanted)


def make(name, reference=False, ending=None):
    """The function `name`: its body hands the arguments to the library in the order of the library's list.

    A tensor that is required has None for a hidden default, so that leaving it out is refused like any other argument.
    """
    positional, fields = _core.operators[name]
    names = [field[0] for field in fields]
    reserved, tolerated = _RESERVED.get(name, []), _TOLERATED.get(name, [])
    rounded = reference and hasattr(_core, name + "_rounded")
    extras = {extra: None for extra in reserved + _HINTS.get(name, [])} | ({"p_rounding": "none"} if rounded else {})
    scope = {
        "defaults": {field[0]: field[2] for field in fields} | extras,
        "absent": _ABSENT,
        "refuse_reserved": _refuse_reserved,
        "tolerate": _tolerate,
        "torch_integer": _torch_integer,
        "core": getattr(_core, name + ("_rounded" if rounded else "_reference" if reference else "")),
        "form": pypto.FORMS.get(name),
        "check": getattr(_core, name + "_check", None),
    }
    for field in _WITHOUT_DEFAULT.get(name, ()):
        scope["defaults"][field] = None

    arguments = [f"{n}=defaults[{n!r}]" for n in names + list(extras)]
    second = name in pypto.FORMS
    arguments += [f"{n}=absent" for n in tolerated]
    arguments.insert(positional, "*more" if second else "*")
    if second:
        arguments.append("**other")
    by_name = ", ".join(f"{n!r}: {n}" for n in names)
    lines = [f"def {name}({', '.join(arguments)}):"]
    if second:
        lines.append(f"    if more or other: return form(core, check, {{{by_name}}}, more, other)")
    for parameter in reserved:
        lines.append(f"    if {parameter} is not None: refuse_reserved({name!r}, {parameter!r}, {parameter})")
    for parameter in tolerated:
        lines.append(f"    if {parameter} is not absent: tolerate({name!r}, {parameter!r}, {parameter}, level)")
    if name == "dynamic_block_quant":
        lines.append("    dst_type = torch_integer(dst_type)")
    lines.append(f"    result = core(({', '.join(names)}){', p_rounding' if rounded else ''})")
    lines += ["    " + line for line in ending or _ENDINGS.get(name, ["return result"])]
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


def _dynamic_mx_quant(*args, **kwargs):
    """Refused by name: mxfp8 is reserved."""
    wanted = "dynamic_quant or dynamic_block_quant (mxfp8 is reserved)"
    raise_error("UNSUPPORTED", "dynamic_mx_quant", "dst_type", "", "is an mxfp8 type", wanted)


# Operators that torch_npu has; the others are of the PyPTO family, or ours.
_TORCH_NPU = (
    "dynamic_block_quant",
    "dynamic_mx_quant",
    "dynamic_quant",
    "fused_infer_attention_score_v2",
    "interleave_rope",
    "kv_quant_sparse_flash_attention",
    "lightning_indexer",
    "mla_prolog_v2",
    "mla_prolog_v3",
    "mla_prolog_v3_functional",
    "quant_lightning_indexer",
    "quantize",
    "rotary_mul",
    "sparse_flash_attention",
)


def _modes_given(operator):
    """In strict the quant modes of the torch_npu spelling have no default."""

    @functools.wraps(operator)
    def npu_quant_lightning_indexer(*args, **kwargs):
        if kwargs.get("level") == "strict":
            for place, name in ((5, "query_quant_mode"), (6, "key_quant_mode")):
                if len(args) <= place and name not in kwargs:
                    wanted = "0 (per token and head) [strict: Atlas A2/A3]"
                    raise_error("INVALID_ARGUMENT", "quant_lightning_indexer", name, "", "is missing", wanted)
        return operator(*args, **kwargs)

    return npu_quant_lightning_indexer


def _torch_npu(operators):
    """The spellings of torch_npu, and of the recipes for the quantised indexer."""
    names = {"npu_" + name: function for name, function in operators.items() if name in _TORCH_NPU}
    quantised = operators["quant_lightning_indexer"]
    return names | {
        "npu_quant_lightning_indexer": _modes_given(quantised),
        "npu_lightning_indexer_quant": quantised,
    }


def namespace(reference=False):
    """All operators, and the other names that the documents have for them."""
    operators = {name: make(name, reference) for name in _core.operators} | {"dynamic_mx_quant": _dynamic_mx_quant}
    return operators | _torch_npu(operators) | pypto.entries(operators)


operators = namespace()
torch_npu = {name: function for name, function in operators.items() if name.startswith("npu_")}
globals().update(operators)
__all__ = list(operators)
