# SPDX-License-Identifier: Apache-2.0
"""The calling forms of the PyPTO documents: output tensors and configuration objects as arguments, and no result.

The three prologs take theirs under all of their names, told apart by what follows the inputs; the entries of
sparse_flash_attention_quant (`_d`, `_p`, ...) have no other form.
"""

import functools
import numbers

from . import _core
from .errors import raise_error


@functools.cache
def _parameters(operator):
    """What the library takes, in its order."""
    fields = _core.describe()[operator]["fields"]
    return [f["name"] for f in fields if f["role"] not in ("reserved", "hint", "tolerated")]


def _is_absent(scale):
    return scale is None or 0 in getattr(scale, "shape", ())


class _Form:
    """How the arguments behind the inputs map onto an operator.

    outputs     their name -> ours, in their order
    caches      those of ours that the operator updates in place: separate memory receives a copy first
    attributes  ours that may follow by position
    objects     their configuration objects, which follow last
    fields      field of such an object -> the attribute of ours that it sets; without, objects are hints, of no effect
    renamed     their other names of inputs -> ours
    scales      outputs that are None where the mode without dequant_scale leaves them alone
    """

    def __init__(self, operator, outputs, caches=(), attributes=(), objects=(), fields=None, renamed=None, scales=()):
        self.operator, self.outputs, self.caches, self.attributes = operator, outputs, caches, attributes
        self.objects, self.fields, self.renamed, self.scales = objects, fields or {}, renamed or {}, scales

    def __call__(self, core, values, spelling, more, other):
        """`values`: what core takes, in its order; `more` and `other`: what stood behind the inputs."""
        values = dict(zip(_parameters(self.operator), values, strict=True))
        given = dict(zip(self.outputs, more))
        rest = list(more[len(self.outputs) :])
        for attribute in self.attributes:
            if rest and isinstance(rest[0], (numbers.Number, str)):  # numpy's scalars are Numbers
                values[attribute] = rest.pop(0)
        if len(rest) > len(self.objects):
            raise TypeError(f"{spelling}() got {len(rest) - len(self.objects)} arguments too many")
        objects = dict(zip(self.objects, rest))
        for name, value in other.items():
            place = given if name in self.outputs else objects if name in self.objects else None
            if name in self.renamed:
                values[self.renamed[name]] = value
            elif place is None:
                raise TypeError(f"{spelling}() got an unexpected keyword argument {name!r}")
            elif name in place:
                raise TypeError(f"{spelling}() got multiple values for argument {name!r}")
            else:
                place[name] = value
        for name, value in objects.items():
            self._configure(values, spelling, name, value)
        copies = []
        for name, ours in self.outputs.items():
            if given.get(name) is None:
                if name in self.scales and _is_absent(values["dequant_scale"]):
                    continue
                raise_error("INVALID_ARGUMENT", spelling, name, "", "is missing", "a tensor")
            if ours in self.caches and _core.separate(spelling, ours, values[ours], name, given[name]):
                copies.append((values[ours], given[name]))
            values[ours] = given[name]
        slots = tuple(values.values())
        if copies:
            getattr(_core, self.operator + "_check")(slots, spelling)  # nothing is written while something may be refused
            for source, target in copies:
                _core.copy(source, target)
        core(slots, spelling)

    def _configure(self, values, spelling, name, value):
        if value is None or not self.fields:
            return
        plain = isinstance(value, (numbers.Number, str, bytes, list, tuple)) and not hasattr(value, "_fields")
        if plain or hasattr(value, "__dlpack__"):
            got = f"is a {type(value).__name__}"
            raise_error("INVALID_DTYPE", spelling, name, "", got, "a configuration object or None")
        for field, attribute in self.fields.items():
            found = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
            if found is not None:
                values[attribute] = found


_FIELDS = {"eps": "layernorm_epsilon_k", "layernorm_epsilon_k": "layernorm_epsilon_k"}
FORMS = {
    form.operator: form
    for form in (
        _Form(
            "mla_prolog_quant",
            {
                name: name
                for name in (
                    "q_norm_out",
                    "q_norm_scale_out",
                    "query_nope_out",
                    "query_rope_out",
                    "kv_cache_out",
                    "kr_cache_out",
                    "k_scale_cache_out",
                )
            },
            attributes=("epsilon_cq", "epsilon_ckv", "cache_mode"),
            objects=("tile_config", "rope_cfg"),
            scales=("q_norm_scale_out", "k_scale_cache_out"),
        ),
        _Form(
            "lightning_indexer_prolog_quant",
            {
                "q_int8_out": "q_int8",
                "q_scale_out": "q_scale",
                "k_int8_out": "k_cache",
                "k_scale_out": "k_scale_cache",
                "weights_out": "weights",
            },
            caches=("k_cache", "k_scale_cache"),
            objects=("attrs", "configs"),
            fields=_FIELDS
            | {
                "rope_layout": "rope_layout",
                "layout_query": "layout_query",
                "layerout_query": "layout_query",
                "layout_key": "layout_key",
                "layerout_key": "layout_key",
            },
            renamed={"k_int8_in": "k_cache", "k_scale_in": "k_scale_cache"},
        ),
        _Form(
            "mla_indexer_prolog_quant",
            {
                name + "_out": name
                for name in (
                    "query_nope",
                    "query_rope",
                    "kv_cache",
                    "kr_cache",
                    "k_scale_cache",
                    "q_int8",
                    "q_scale",
                    "ip_k_cache",
                    "ip_k_scale_cache",
                    "weights",
                )
            },
            caches=("kv_cache", "kr_cache", "k_scale_cache", "ip_k_cache", "ip_k_scale_cache"),
            attributes=("epsilon_cq", "epsilon_ckv", "cache_mode"),
            objects=("tile_config", "attrs", "configs", "rope_cfg"),
            fields=_FIELDS | {"rope_layout": "rope_layout_indexer"},
        ),
    )
}


def quantised_mode_only(spelling, dequant_scale):
    if _is_absent(dequant_scale):
        wanted = "the scales of w_uq_qr (mla_prolog_quant and mla_prolog_quant_d have a mode without)"
        raise_error("INVALID_ARGUMENT", spelling, "dequant_scale", "", "is empty", wanted)


# ---- the entries of sparse_flash_attention_quant


def one_of_two(spelling, **named):
    """The value of a parameter that the documents also spell otherwise."""
    (ours, value), (theirs, other) = named.items()
    if value is not None and other is not None:
        wanted = "one of the two spellings"
        raise_error("INVALID_ARGUMENT", spelling, theirs, "", f"is given beside {ours}", wanted)
    return value if other is None else other


def sizes_of(spelling, attention_out, b, s1):
    """b and s1, which the output says where the caller does not."""
    if attention_out is None:
        raise_error("INVALID_ARGUMENT", spelling, "attention_out", "", "is missing", "a tensor")
    shape = tuple(getattr(attention_out, "shape", ()))
    if len(shape) != 4:
        raise_error("INVALID_SHAPE", spelling, "attention_out", "", f"has shape {list(shape)}", "[b, s1, nq, Dv]")
    return shape[0] if b is None else b, shape[1] if s1 is None else s1


def check_columns(spelling, block_table, max_blocknum_perbatch):
    shape = tuple(getattr(block_table, "shape", ()))
    if max_blocknum_perbatch is not None and len(shape) == 2 and max_blocknum_perbatch != shape[1]:
        got, wanted = f"is {max_blocknum_perbatch}", f"{shape[1]} (columns of block_table)"
        raise_error("INVALID_ARGUMENT", spelling, "max_blocknum_perbatch", "", got, wanted)
