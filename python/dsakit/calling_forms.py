# SPDX-License-Identifier: Apache-2.0
"""The calling forms of the PyPTO documents: output tensors and configuration objects as arguments, and no result.

The operators take theirs under all of their names, told apart by what follows the inputs, and with the documented names
of every argument; the entries of sparse_flash_attention_quant (`_d`, `_p`, ...) have no other form. The objects are
forms.py's. A refusal has the name that the caller wrote.
"""

import contextlib
import functools
import numbers

from . import _core
from .errors import Error, raise_error, shown


@contextlib.contextmanager
def as_written(names):
    """Refusals of a parameter of ours have the name that the caller wrote for it."""
    try:
        yield
    except Error as e:
        written = names.get(e.parameter, e.parameter)
        if written == e.parameter:
            raise
        ours = f"{e.operator}: {e.parameter}"
        sentence = f"{e.operator}: {written}{str(e).removeprefix(ours)}"
        raise_error(e.status, e.operator, written, e.position, e.got, e.wanted, e.reason, sentence)


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
    fixed       field of such an object -> the only value it may have here
    renamed     their other names of inputs and attributes -> ours
    synonyms    their other names of outputs and objects -> those above
    scales      outputs that are None where the mode without dequant_scale leaves them alone
    """

    def __init__(self, operator, outputs, caches=(), attributes=(), objects=(), fields=None, renamed=None, scales=(),
                 fixed=None, synonyms=None):  # fmt: skip
        self.operator, self.outputs, self.caches, self.attributes = operator, outputs, caches, attributes
        self.objects, self.fields, self.renamed, self.scales = objects, fields or {}, renamed or {}, scales
        self.fixed, self.synonyms = fixed or {}, synonyms or {}

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
        written = {ours: name for name, ours in self.outputs.items() if ours not in self.caches}
        for spelled, value in other.items():
            name = self.synonyms.get(spelled, spelled)
            place = given if name in self.outputs else objects if name in self.objects else None
            if name in self.renamed:
                ours = self.renamed[name]
                if values[ours] is not None and ours in self.inputs():
                    raise TypeError(f"{spelling}() got multiple values for argument {spelled!r}")
                values[ours], written[ours] = value, spelled
            elif place is None:
                raise TypeError(f"{spelling}() got an unexpected keyword argument {spelled!r}")
            elif name in place:
                raise TypeError(f"{spelling}() got multiple values for argument {spelled!r}")
            else:
                place[name] = value
                if place is given and self.outputs[name] not in self.caches:
                    written[self.outputs[name]] = spelled
        for name, value in objects.items():
            self._configure(values, spelling, name, value, written)
        with as_written(written):
            self._run(core, values, spelling, given)

    @functools.cache  # noqa: B019 (there is one form for each operator)
    def inputs(self):
        fields = _core.describe()[self.operator]["fields"]
        return {f["name"] for f in fields if f["role"].startswith("in")}

    def _run(self, core, values, spelling, given):
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

    def _configure(self, values, spelling, name, value, written):
        if value is None or not self.fields:
            return
        plain = isinstance(value, (numbers.Number, str, bytes, list, tuple)) and not hasattr(value, "_fields")
        if plain or hasattr(value, "__dlpack__"):
            got = f"is a {type(value).__name__}"
            raise_error("INVALID_DTYPE", spelling, name, "", got, "a configuration object or None")
        field_of = value.get if isinstance(value, dict) else lambda field: getattr(value, field, None)
        for field, attribute in self.fields.items():
            found = field_of(field)
            if found is not None:
                values[attribute] = found
                if field.startswith("layerout"):
                    written[attribute] = field
        for field, wanted in self.fixed.items():
            found = field_of(field)
            if found is not None and found != wanted:
                raise_error("INVALID_ARGUMENT", spelling, field, "", f"is {shown(found)}", f"{wanted!r} (field of {name})")


_FIELDS = {"eps": "layernorm_epsilon_k", "layernorm_epsilon_k": "layernorm_epsilon_k"}
_INDEXER_INPUTS = {
    "w_qb_in": "w_qb",
    "wq_b_in": "w_qb",  # one document has both
    "w_qb_scale_in": "w_qb_scale",
    "wk_in": "wk",
    "w_proj_in": "w_proj",
    "ln_gamma_k_in": "ln_gamma_k",
    "ln_beta_k_in": "ln_beta_k",
    "hadamard_q_in": "hadamard_q",
    "hadamard_k_in": "hadamard_k",
}
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
            renamed=_INDEXER_INPUTS
            | {
                "x_in": "x",
                "q_norm_in": "q_norm",
                "q_norm_scale_in": "q_norm_scale",
                "cos_idx_rope_in": "cos",
                "sin_idx_rope_in": "sin",
                "k_int8_in": "k_cache",
                "k_scale_in": "k_scale_cache",
                "k_cache_index_in": "k_cache_index",
            },
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
            fixed={
                "layout_query": "TND",
                "layerout_query": "TND",
                "layout_key": "PA_BSND",
                "layerout_key": "PA_BSND",
            },
            renamed={"ip_" + theirs: ours for theirs, ours in _INDEXER_INPUTS.items()}
            | {
                "mla_" + name: name
                for name in (
                    "w_dq",
                    "w_uq_qr",
                    "dequant_scale",
                    "w_uk",
                    "w_dkv_kr",
                    "gamma_cq",
                    "gamma_ckv",
                    "kv_cache",
                    "kr_cache",
                    "k_scale_cache",
                    "epsilon_cq",
                    "epsilon_ckv",
                    "cache_mode",
                )
            }
            | {"ip_k_cache_scale": "ip_k_scale_cache"},
            synonyms={"mla_" + name: name for name in ("tile_config",)}
            | {f"mla_{n}_out": f"{n}_out" for n in ("query_nope", "query_rope", "kv_cache", "kr_cache", "k_scale_cache")}
            | {f"ip_{name}_out": f"{name}_out" for name in ("q_int8", "q_scale", "weights")}
            | {"ip_k_int8_out": "ip_k_cache_out", "ip_k_scale_out": "ip_k_scale_cache_out"}
            | {"ip_attrs": "attrs", "ip_configs": "configs"},
        ),
    )
}


def quantised_mode_only(spelling, dequant_scale):
    if _is_absent(dequant_scale):
        wanted = "the scales of w_uq_qr (mla_prolog_quant and mla_prolog_quant_d have a mode without)"
        raise_error("INVALID_ARGUMENT", spelling, "dequant_scale", "", "is empty", wanted)


# ---- sparse_flash_attention_quant


def attention(core, values, spelling, more, other):
    """The published form under the operator's own name: what follows the inputs, in place of its own keywords."""
    values = dict(zip(_parameters("sparse_flash_attention_quant"), values, strict=True))
    names = ("attention_out", "nq", "n_kv", "softmax_scale", "topk", "block_size", "max_blocknum_perbatch", "tile_config")
    if len(more) > len(names):
        raise TypeError(f"{spelling}() got {len(more) - len(names)} arguments too many")
    given = dict(zip(names, more))
    written = {}
    for name, value in other.items():
        if name == "topk_indcies":
            values["topk_indices"] = one_of_two(spelling, topk_indices=values["topk_indices"], topk_indcies=value)
            written["topk_indices"] = name
        elif name not in names[-2:]:
            raise TypeError(f"{spelling}() got an unexpected keyword argument {name!r}")
        elif name in given:
            raise TypeError(f"{spelling}() got multiple values for argument {name!r}")
        else:
            given[name] = value
    check_columns(spelling, values["block_table"], given.pop("max_blocknum_perbatch", None))
    given.pop("tile_config", None)  # a hint
    values |= given
    values["b"], values["s1"] = sizes_of(spelling, values["attention_out"], values["b"], values["s1"])
    with as_written(written):
        core(tuple(values.values()), spelling)


def is_published_attention(more, other, attention_out, b, s1):
    return more or other or (attention_out is not None and b is None and s1 is None)


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
