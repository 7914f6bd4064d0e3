# SPDX-License-Identifier: Apache-2.0
"""Every name that the face offers: the function behind it and the schema under which torch knows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

import dsakit


from ..errors import raise_error, shown
from . import fia, formats, inventory, releases
from .levels import current
from .packet import Documented, descriptions, dtype_of


class Form(NamedTuple):
    spaces: tuple[str, ...]  # of torch.ops
    name: str
    schema: str
    function: Callable[..., Any]
    page: str
    out: tuple[str, Callable[..., Any]] | None = None  # the overload .out


NPU, C, CUSTOM, PYPTO = "npu", "_C_ascend", "custom", "custom_pypto"
IN_TORCH_NPU = (NPU, CUSTOM)  # whose names torch_npu has too
NOT_IN_TORCH_NPU = "lightning_indexer"  # of an older package of kernels


# Parameters that the package has and torch_npu has not under this name.
WITHOUT = {"npu_kv_quant_sparse_flash_attention": ("return_softmax_lse",)}


def documented(name: str, **defaults: Any) -> Documented:
    """A function of dsakit under the same name."""
    return Documented(getattr(dsakit, name), operator_of(name), defaults, WITHOUT.get(name, ()))


def operator_of(name: str) -> str:
    described = descriptions()
    name = name.removeprefix("npu_")
    name = {"lightning_indexer_quant": "quant_lightning_indexer"}.get(name, name)
    return name if name in described else name.rstrip("_")


# Where it is not one new tensor for each result: the others go with return_softmax_lse, and one returns its argument.
RETURNS = {"npu_kv_quant_sparse_flash_attention": "Tensor", "npu_scatter_nd_update_": "Tensor(a!)"}


def same() -> Iterator[Form]:
    """Names that are the package's own."""
    for names, page in inventory.SAME:
        for name in names.split():
            function = documented(name)
            yield Form((NPU,), name, function.schema(name, RETURNS.get(name)), function, page)
    for name, ours, page in inventory.SAME_C:
        function = documented(ours)
        yield Form((C,), name, function.schema(name), function, page)


def attention() -> Iterator[Form]:
    """FIA in both versions, and deprecated names of the prolog."""
    page = "fused_infer_attention_score_v2"
    v2 = documented(fia.V2)
    v1 = fia.first(v2)
    v2_words = v2.schema("").split(" -> ")[0][1:-1]
    for name, function, words, flag, scale in (
        (fia.V1, v1, fia.SCHEMA_V1, "softmax_lse_flag", "quant_scale2"),
        (fia.V2, v2, v2_words, "return_softmax_lse", "quant_scale_out"),
    ):
        out = f"{name}.out({words}, {fia.OUT}) -> (Tensor(a!), Tensor(b!))", fia.out_form(function, flag)
        yield Form((NPU,), name, f"{name}({words}) -> (Tensor, Tensor)", function, page, out)
        new = f"_{name}_get_max_workspace"
        yield Form((NPU,), new, f"{new}({words}) -> Tensor", fia.max_workspace_form(function), page)
        new = f"_{name}_infer_output"
        rest = [w for w in words.split(", ") if w not in ("Tensor query", "Tensor key", "Tensor value", "*")]
        words = ", ".join(["Tensor query", "Tensor value", "*", *rest])
        yield Form((NPU,), new, f"{new}({words}) -> (Tensor, Tensor)", fia.infer_output_form(flag, scale), page)
    prolog = documented("npu_mla_prolog_v2")

    def npu_mla_prolog(*args: Any, **kwargs: Any) -> Any:
        """npu_mla_prolog_v2 without its last result; token_x is bfloat16."""
        token_x = args[0] if args else kwargs.get("token_x")
        if isinstance(token_x, torch.Tensor) and token_x.dtype == torch.int8:
            raise_error("INVALID_DTYPE", "npu_mla_prolog", "token_x", "", "has dtype int8", "bfloat16")
        return prolog(*args, **kwargs)[:4]

    returns = "(Tensor, Tensor, Tensor(a!), Tensor(b!))"
    yield Form((NPU,), "npu_mla_prolog", prolog.schema("npu_mla_prolog", returns), npu_mla_prolog, "mla_prolog")


def engines() -> Iterator[Form]:
    """What vllm-ascend and the recipes have beside torch_npu, but for what depends on their release."""
    older = Documented(dsakit.ops.npu.lightning_indexer, "lightning_indexer")
    yield Form((NPU,), "lightning_indexer", older.schema("lightning_indexer", "Tensor"), older, "lightning_indexer")
    kv = Documented(dsakit.ops._C_ascend.npu_kv_quant_sparse_flash_attention, "kv_quant_sparse_flash_attention")
    name = "npu_kv_quant_sparse_flash_attention"
    yield Form((C, CUSTOM), name, kv.schema(name), kv, "sparse_flash_attention")
    quantised = Documented(dsakit.ops.custom.npu_lightning_indexer_quant, "quant_lightning_indexer")
    name = "npu_lightning_indexer_quant"
    yield Form((C, CUSTOM), name, quantised.schema(name, "Tensor"), quantised, "lightning_indexer")
    recipe = Documented(dsakit.ops.custom.npu_quant_lightning_indexer, "quant_lightning_indexer")

    def npu_quant_lightning_indexer(*args: Any, return_value: Any = None, metadata: Any = None, cmp_ratio: Any = None,
                                    **kwargs: Any) -> Any:  # fmt: skip
        """Indices, and an empty tensor where return_value is given."""
        for parameter, value, wanted in (
            ("metadata", metadata, (None,)),
            ("cmp_ratio", cmp_ratio, (None, 1)),
            ("return_value", return_value, (None, False)),
        ):
            if value not in wanted:
                words = " or ".join(map(str, wanted[:1] if parameter == "metadata" else wanted[1:]))
                raise_error("UNSUPPORTED", "npu_quant_lightning_indexer", parameter, "", f"is {shown(value)}", words)
        indices = recipe(*args, **kwargs)
        return indices if return_value is None else (indices, torch.empty(0))

    name = "npu_quant_lightning_indexer"
    schema = recipe.schema(name, "Tensor")
    yield Form((CUSTOM,), name, schema, npu_quant_lightning_indexer, "lightning_indexer")
    for name in ("bgmv_expand", "sgmv_expand"):
        schema = f"{name}(Tensor x, Tensor weight, Tensor indices, Tensor(a!) y, int slice_offset, int slice_size) -> Tensor"
        yield Form((C,), name, schema, refusing(name), "")


def refusing(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> None:
        inventory.refuse("torch.ops._C_ascend", name)

    return call


PROLOG_PTO = (
    "token_x q_norm q_norm_scale wq_b wq_b_scale wk weights_proj ln_gamma_k ln_beta_k cos_idx_rope sin_idx_rope "
    "hadamard_q hadamard_k idx_k_cache idx_k_scale_cache idx_k_cache_index"
).split()


def recipes() -> Iterator[Form]:
    """torch.ops.custom_pypto."""

    def prolog(*args: Any, **kwargs: Any) -> Any:
        """(query, scale, weights) of lightning_indexer_prolog_quant; both caches are updated in place."""
        call = dict(zip([*PROLOG_PTO, "layernorm_epsilon_k"], args)) | kwargs
        values = [call.pop(n) for n in PROLOG_PTO]
        results = dsakit.lightning_indexer_prolog_quant(*values, **call, level=current())
        return results[0], results[1], results[4]

    letters = {"idx_k_cache": "(a!)", "idx_k_scale_cache": "(b!)", "hadamard_q": "?", "hadamard_k": "?"}
    words = ", ".join(f"Tensor{letters.get(n, '')} {n}" for n in PROLOG_PTO)
    words += ', float layernorm_epsilon_k, *, str layout_query="TND", str layout_key="PA_BSND"'
    name = "npu_lightning_indexer_prolog_pto"
    yield Form((PYPTO,), name, f"{name}({words}) -> (Tensor, Tensor, Tensor)", prolog, "lightning_indexer_prolog_quant")
    indexer = documented("npu_lightning_indexer", layout_key="PA_BSND")

    def select(*args: Any, **kwargs: Any) -> torch.Tensor:
        """The indices of npu_lightning_indexer."""
        return indexer(*args, **kwargs)[0]

    name = "npu_lightning_indexer_pto"
    yield Form((PYPTO,), name, indexer.schema(name, "Tensor"), select, "lightning_indexer")


def memory() -> Iterator[Form]:
    """Formats, and names without work here."""

    def npu_prefetch(self: torch.Tensor, dependency: Any, max_size: int, offset: int = 0) -> None:
        """Nothing."""
        size = self.numel() * self.element_size()
        for name, value, legal, wanted in (
            ("max_size", max_size, max_size > 0, "> 0"),
            ("offset", offset, 0 <= offset < max(size, 1), f"0..{size - 1} (bytes of self)"),
        ):
            if not legal:
                raise_error("INVALID_ARGUMENT", "npu_prefetch", name, "", f"is {value}", wanted)

    def npu_dtype_cast(self: torch.Tensor, dtype: Any, input_dtype: Any = None) -> torch.Tensor:
        """x.to(dtype)"""
        if input_dtype is not None:
            raise_error("UNSUPPORTED", "npu_dtype_cast", "input_dtype", "", f"is {shown(input_dtype)}", "None (reserved)")
        return self.to(dtype_of("npu_dtype_cast", "dtype", dtype), copy=True)

    schema = "npu_prefetch(Tensor self, Tensor? dependency, int max_size, int offset=0) -> ()"
    yield Form((NPU,), "npu_prefetch", schema, npu_prefetch, "spellings")
    schema = "npu_dtype_cast(Tensor self, ScalarType dtype, int? input_dtype=None) -> Tensor"
    yield Form((NPU,), "npu_dtype_cast", schema, npu_dtype_cast, "spellings")
    for name, schema, function in (
        ("npu_format_cast", f"({CAST}) -> Tensor", formats.npu_format_cast),
        ("_npu_format_cast", f"({CAST}) -> Tensor", formats.npu_format_cast),
        ("npu_format_cast_", "(Tensor(a!) self, int acl_format) -> Tensor(a!)", formats.npu_format_cast_),
        ("get_npu_format", "(Tensor self) -> int", formats.get_npu_format),
        ("empty_with_format", f"(SymInt[] size, {EMPTY}, int acl_format=2) -> Tensor", formats.empty_with_format),
        ("empty_with_swapped_memory", f"(SymInt[] size, {EMPTY}) -> Tensor", formats.empty_with_swapped_memory),
    ):
        yield Form((NPU,), name, name + schema, function, "fractal_nz")


CAST = "Tensor self, int acl_format, int? customize_dtype=None, int? input_dtype=None"
EMPTY = "ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None"


def all_forms(release: str) -> list[Form]:
    parts = (same(), attention(), engines(), recipes(), memory(), releases.forms(release))
    return [form for part in parts for form in part]


__all__ = ["Form", "all_forms"]
