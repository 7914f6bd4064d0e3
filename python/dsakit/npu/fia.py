# SPDX-License-Identifier: Apache-2.0
"""npu_fused_infer_attention_score: the first version is the second with other names; and the forms of both that engines use to
capture graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from ..errors import raise_error, shown
from .packet import recorded

V1, V2 = "npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"
RENAMED = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "key_antiquant_scale": "dequant_scale_key",
    "key_antiquant_offset": "dequant_offset_key",
    "value_antiquant_scale": "dequant_scale_value",
    "value_antiquant_offset": "dequant_offset_value",
    "key_antiquant_mode": "key_quant_mode",
    "value_antiquant_mode": "value_quant_mode",
    "quant_scale2": "quant_scale_out",
    "quant_offset2": "quant_offset_out",
    "num_heads": "num_query_heads",
    "num_key_value_heads": "num_key_value_heads",
    "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
}
# Parameters of the first version that only None (0) is taken for.
RESERVED = (
    "antiquant_scale antiquant_offset dequant_scale1 quant_scale1 dequant_scale2 query_padding_size kv_padding_size "
    "key_shared_prefix value_shared_prefix actual_shared_prefix_len key_rope_antiquant_scale"
).split()
SCHEMA_V1 = (
    "Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? atten_mask=None, "
    "SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, "
    "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, "
    "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? block_table=None, "
    "Tensor? query_padding_size=None, Tensor? kv_padding_size=None, Tensor? key_antiquant_scale=None, "
    "Tensor? key_antiquant_offset=None, Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, "
    "Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, SymInt[]? actual_shared_prefix_len=None, "
    "Tensor? query_rope=None, Tensor? key_rope=None, Tensor? key_rope_antiquant_scale=None, int num_heads=1, "
    'float scale=1.0, int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH", '
    "int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, int antiquant_mode=0, "
    "bool softmax_lse_flag=False, int key_antiquant_mode=0, int value_antiquant_mode=0"
)
NAMES_V1 = [word.split("=")[0].split()[-1] for word in SCHEMA_V1.split(", ") if word != "*"]


def first(v2: Any) -> Any:
    """The first version over the second."""

    def npu_fused_infer_attention_score(query: Any, key: Any, value: Any, **given: Any) -> Any:
        """npu_fused_infer_attention_score_v2 under the names of the first version; key and value may be lists of one."""
        call = {"query": query, "key": one(V1, "key", key), "value": one(V1, "value", value)}
        for name, v in given.items():
            if name in RESERVED or name == "antiquant_mode":
                if v is not None and not (name == "antiquant_mode" and v == 0):
                    raise_error("UNSUPPORTED", V1, name, "", f"is {shown(v)}", "None (reserved)")
            elif name not in NAMES_V1:
                raise TypeError(f"{V1}() got an unexpected keyword argument {name!r}")
            else:
                call[RENAMED.get(name, name)] = v
        return under_names_of(V1, v2, call)

    return npu_fused_infer_attention_score


def under_names_of(spelling: str, function: Any, call: dict[str, Any]) -> Any:
    """A refusal with the parameter as the caller wrote it."""
    from ..errors import Error

    try:
        return function(**call)
    except Error as error:
        back = {v: k for k, v in RENAMED.items()}
        name = back.get(error.parameter, error.parameter)
        raise_error(error.status, spelling, name, error.position, error.got, error.wanted, error.reason)


def one(operator: str, name: str, value: Any) -> Any:
    """A tensor, or a list of one."""
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) != 1:
        raise_error("UNSUPPORTED", operator, name, "", f"is a list of {len(value)}", "a tensor, or a list of one")
    return value[0]


OUT = "Tensor? workspace=None, Tensor(a!) attention_out, Tensor(b!) softmax_lse"


def out_form(function: Any, flag: str) -> Any:
    """Results in given memory, softmax_lse with the flag only. `workspace` is unused."""

    def call(*args: Any, workspace: Any = None, attention_out: Any, softmax_lse: Any, **kwargs: Any) -> Any:
        results = function(*args, **kwargs)
        given = [("attention_out", attention_out, results[0]), ("softmax_lse", softmax_lse, results[1])]
        given = given[: 2 if kwargs.get(flag) else 1]
        for name, memory, result in given:
            if memory.shape != result.shape:
                got, wanted = f"has shape {list(memory.shape)}", str(list(result.shape))
                raise_error("INVALID_SHAPE", function.__name__, name, "", got, wanted)
            if memory.dtype != result.dtype:
                dtypes = [str(t.dtype).removeprefix("torch.") for t in (memory, result)]
                raise_error("INVALID_DTYPE", function.__name__, name, "", f"has dtype {dtypes[0]}", dtypes[1])
        for _, memory, result in given:
            memory.copy_(result)
        return attention_out, softmax_lse

    return call


class Out(OpOverload):
    """What stands under `.out`: memory as a list in the order of the schema, `out=`, or by name."""

    straight: Any

    def __call__(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        names = (self._opname, "out", "")
        if out is not None:
            if len(out) != 2:
                raise_error("INVALID_ARGUMENT", *names, f"has {len(out)} tensors", "[attention_out, softmax_lse]")
            kwargs |= dict(attention_out=out[0], softmax_lse=out[1])
        if kwargs.get("attention_out") is None or kwargs.get("softmax_lse") is None:
            raise_error("INVALID_ARGUMENT", *names, "is missing", "[attention_out, softmax_lse]")
        return super().__call__(*args, **kwargs) if recorded() else self.straight(*args, **kwargs)


def out_call(overload: Any, straight: Any) -> Out:
    made = Out.__new__(Out)
    made.__dict__.update(overload.__dict__, straight=straight)
    return made


def max_workspace_form(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        """The call is checked; its workspace is the library's own."""
        if not recorded():
            to_meta = lambda v: v.to("meta") if isinstance(v, torch.Tensor) else v
            args, kwargs = tuple(map(to_meta, args)), {k: to_meta(v) for k, v in kwargs.items()}
        function(*args, **kwargs)
        return torch.empty(0, dtype=torch.uint8)

    return call


def infer_output_form(flag: str, scale_out: str) -> Any:
    def call(query: torch.Tensor, value: Any, *, input_layout: str = "BSH", num_heads: int = 1, num_query_heads: int = 1,
             num_key_value_heads: int = 0, block_table: Any = None, query_rope: Any = None, **given: Any) -> Any:  # fmt: skip
        """Two uninitialised tensors in the shapes of the results."""
        value = one("_npu_fused_infer_attention_score_infer_output", "value", value)
        heads = max(num_heads, num_query_heads)
        kv_heads = num_key_value_heads or heads
        layout, _, answer = input_layout.partition("_")
        axes = {"B": 1, "N": heads, **dict(zip(layout, query.shape))}
        if "H" in axes:
            axes["D"] = axes.pop("H") // heads
        paged = block_table is not None
        width = value.shape[-1]
        if value.dim() == 3 and (paged or layout == "BSH"):
            width //= kv_heads
        elif paged and value.dim() == 5:
            width *= value.shape[2]
        axes |= {"D": width, "H": width * axes["N"]}
        dtype = torch.int8 if given.get(scale_out) is not None else query.dtype
        if query.dtype == torch.int8:
            dtype = torch.bfloat16
        out = query.new_empty([axes[a] for a in answer or layout], dtype=dtype)
        rows = [axes["T"], axes["N"], 1] if "T" in axes else [axes["B"], axes["N"], axes.get("S", 1), 1]
        return out, query.new_empty(rows if given.get(flag) else [1], dtype=torch.float32)

    return call
