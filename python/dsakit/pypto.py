# SPDX-License-Identifier: Apache-2.0
"""The calling forms of the PyPTO documents: output tensors and configuration objects as arguments, and no result.

The three prologs take theirs under their own names, told apart by what follows the inputs. The other entry names of the
documents (`_p`, `_d`, ...) are made here.
"""

import numbers

from . import _core
from .errors import raise_error


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

    def __call__(self, core, check, values, more, other):
        values = {name: value for name, value in values.items()}
        given = dict(zip(self.outputs, more))
        rest = list(more[len(self.outputs) :])
        for attribute in self.attributes:
            if rest and isinstance(rest[0], (numbers.Number, str)):  # numpy's scalars are Numbers
                values[attribute] = rest.pop(0)
        if len(rest) > len(self.objects):
            raise TypeError(f"{self.operator}() got {len(rest) - len(self.objects)} arguments too many")
        objects = dict(zip(self.objects, rest))
        for name, value in other.items():
            place = given if name in self.outputs else objects if name in self.objects else None
            if name in self.renamed:
                values[self.renamed[name]] = value
            elif place is None:
                raise TypeError(f"{self.operator}() got an unexpected keyword argument {name!r}")
            elif name in place:
                raise TypeError(f"{self.operator}() got multiple values for argument {name!r}")
            else:
                place[name] = value
        for name, value in objects.items():
            self._configure(values, name, value)
        copies = []
        for name, ours in self.outputs.items():
            if given.get(name) is None:
                if name in self.scales and _is_absent(values["dequant_scale"]):
                    continue
                raise_error("INVALID_ARGUMENT", self.operator, name, "", "is missing", "a tensor")
            if ours in self.caches and _core.separate(self.operator, ours, values[ours], name, given[name]):
                copies.append((values[ours], given[name]))
            values[ours] = given[name]
        slots = tuple(values.values())
        if copies:
            check(slots)  # nothing is written while something may be refused
            for source, target in copies:
                _core.copy(source, target)
        core(slots)

    def _configure(self, values, name, value):
        if value is None or not self.fields:
            return
        plain = isinstance(value, (numbers.Number, str, bytes, list, tuple)) and not hasattr(value, "_fields")
        if plain or hasattr(value, "__dlpack__"):
            raise_error(
                "INVALID_DTYPE",
                self.operator,
                name,
                "",
                f"is a {type(value).__name__}",
                "a configuration object or None",
            )
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


def entries(operators):
    """The other names under which the documents call these operators: name -> function."""
    prolog, both, attention = (
        operators[name] for name in ("mla_prolog_quant", "mla_indexer_prolog_quant", "sparse_flash_attention_quant")
    )

    def mla_prolog_quant_p(*args, **kwargs):
        """mla_prolog_quant in its quantised mode only."""
        scale = args[3] if len(args) > 3 else kwargs.get("dequant_scale")
        if _is_absent(scale):
            raise_error(
                "INVALID_ARGUMENT",
                "mla_prolog_quant_p",
                "dequant_scale",
                "",
                "is empty",
                "the scales of w_uq_qr (mla_prolog_quant and mla_prolog_quant_d have a mode without)",
            )
        return prolog(*args, **kwargs)

    def compute(
        query_nope=None,
        query_rope=None,
        key_nope_2d=None,
        key_rope_2d=None,
        k_nope_scales=None,
        topk_indices=None,
        block_table=None,
        kv_act_seqs=None,
        attention_out=None,
        nq=None,
        n_kv=1,
        softmax_scale=None,
        topk=None,
        block_size=None,
        max_blocknum_perbatch=None,
        tile_config=None,
        *,
        topk_indcies=None,
        b=None,
        s1=None,
        level="portable",
    ):
        """sparse_flash_attention_quant into attention_out [b, s1, nq, Dv]; tile_config has no effect."""
        operator = "sparse_flash_attention_quant"
        if topk_indcies is not None:
            if topk_indices is not None:
                raise_error(
                    "INVALID_ARGUMENT",
                    operator,
                    "topk_indcies",
                    "",
                    "is given beside topk_indices",
                    "one of the two spellings",
                )
            topk_indices = topk_indcies
        if attention_out is None:
            raise_error("INVALID_ARGUMENT", operator, "attention_out", "", "is missing", "a tensor")
        shape = tuple(getattr(attention_out, "shape", ()))
        if len(shape) != 4:
            raise_error("INVALID_SHAPE", operator, "attention_out", "", f"has shape {list(shape)}", "[b, s1, nq, Dv]")
        columns = tuple(getattr(block_table, "shape", ()))
        if max_blocknum_perbatch is not None and len(columns) == 2 and max_blocknum_perbatch != columns[1]:
            raise_error(
                "INVALID_ARGUMENT",
                operator,
                "max_blocknum_perbatch",
                "",
                f"is {max_blocknum_perbatch}",
                f"{columns[1]} (columns of block_table)",
            )
        attention(
            query_nope,
            query_rope,
            key_nope_2d,
            key_rope_2d,
            k_nope_scales,
            topk_indices,
            block_table,
            kv_act_seqs,
            b=shape[0] if b is None else b,
            s1=shape[1] if s1 is None else s1,
            nq=nq,
            n_kv=n_kv,
            softmax_scale=softmax_scale,
            topk=topk,
            block_size=block_size,
            level=level,
            attention_out=attention_out,
        )

    return {
        "mla_prolog_quant_d": prolog,
        "mla_prolog_quant_p": mla_prolog_quant_p,
        "mla_indexer_prolog_quant_d": both,
        "mla_indexer_prolog_quant_p": both,
        **{"sparse_flash_attention_quant_" + suffix: compute for suffix in ("d", "p", "d_950", "compute")},
    }
