# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face transformers with their attention, and on request their MLPs, computed by dsakit.

    from dsakit import hf
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    hf.accelerate(model)
    model.generate(...)

DeepSeek-V3.2, GLM-5 and DeepSeek-V3 (docs/hf.md). Importing this also registers the attention implementation
"dsakit_indices".
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import transformers
from transformers.integrations.moe import ExpertsInterface
from transformers.masking_utils import causal_mask_function, sdpa_mask

from ..errors import shown
from .attention import Attention, kind_of, layer_of
from .cache import PagedLayer
from .experts import compute, experts_in, give_back, take
from .indices import attend_to_indices
from .mlps import Mlp, mlps_in
from .refusals import refuse

__all__ = ["PagedLayer", "Report", "accelerate", "restore"]


class Report(NamedTuple):
    """What `accelerate` has done. Bytes: of the weights as dsakit keeps them, and of those it took out of the model."""

    layers: int
    experts: int  # layers whose routed experts are ours
    mlps: int  # dense MLPs and shared experts that are
    mode: str
    page_size: int
    weight_bytes: int
    released_bytes: int


class _Change(NamedTuple):
    implementations: tuple[str, str]  # that the model had before: attention's, experts'
    configs: list[Any]
    replaced: list[tuple[str, Any, Any]]  # name, ours, what was there (None: released)
    experts: list[Any]


_changes: weakref.WeakKeyDictionary[Any, _Change] = weakref.WeakKeyDictionary()


def accelerate(
    model: Any,
    mode: str | None = None,
    page_size: int = 128,
    keep_weights: bool = False,
    experts: bool = False,
    mlps: bool = False,
) -> Report:
    """Replaces the attention of every layer of `model`; call its `generate` and `forward` as ever.

    mode           one of those of dsakit.Model; None: "sparse_bf16", without indexers "dense_bf16"
    page_size      tokens in a page of the caches
    keep_weights   leave the weights in the model, so that it can be saved, and restored by `restore`
    experts        compute its routed experts too
    mlps           compute its dense MLPs and shared experts too
    """
    layers = {name: module for name, module in model.named_modules() if hasattr(module, "self_attn")}
    if any(isinstance(layer.self_attn, Attention) for layer in layers.values()):
        refuse("CONFLICT", "model", "is accelerated already", "one that is not, or restore(model) first")
    if not layers:
        refuse("UNSUPPORTED", "model", f"is a {type(model).__name__}", "a model with layers that have self_attn")
    kinds = {name: kind_of(layer.self_attn) for name, layer in layers.items()}
    mixtures = experts_in(model) if experts else {}
    dense = mlps_in(model) if mlps else []
    if mode is None:
        has_indexer = any(getattr(layer.self_attn, "indexer", None) is not None for layer in layers.values())
        mode = "sparse_bf16" if has_indexer else "dense_bf16"
    replaced, released, weight_bytes = [], 0, 0

    def put(name: str, ours: Any) -> None:
        nonlocal released
        original = model.get_submodule(name)
        if not keep_weights:
            released += sum(p.nbytes for p in original.parameters())
        model.set_submodule(name, ours)
        replaced.append((name, ours, original if keep_weights else None))

    for name, kind in kinds.items():
        child = layers[name].self_attn
        attention = Attention(child, kind, layer_of(child, kind, mode, page_size), mode, keep_weights)
        weight_bytes += attention.layer.weight_bytes
        put(f"{name}.self_attn", attention)
    for name in dense:
        mlp = Mlp(model.get_submodule(name), name, keep_weights)
        weight_bytes += mlp.experts.nbytes
        put(name, mlp)
    configs = [m.config for m in model.modules() if isinstance(m, transformers.PreTrainedModel)]
    for name, module in mixtures.items():
        released += take(module, name, keep_weights)
        weight_bytes += module._dsakit.nbytes
    before = (model.config._attn_implementation, model.config._experts_implementation)
    _changes[model] = _Change(before, configs, replaced, list(mixtures.values()))
    model.set_attn_implementation("dsakit")
    if mixtures:
        model.set_experts_implementation("dsakit")
    return Report(len(layers), len(mixtures), len(dense), mode, page_size, weight_bytes, released)


def restore(model: Any) -> None:
    """Takes `accelerate` back."""
    if model not in _changes:
        refuse("INVALID_ARGUMENT", "model", f"is a {type(model).__name__} as it was", "one that accelerate has changed")
    change = _changes[model]
    if any(original is None for _, _, original in change.replaced):
        refuse("UNSUPPORTED", "model", "has released its weights", "accelerate(model, keep_weights=True)")
    for name, ours, original in change.replaced:
        original.train(ours.training)
        model.set_submodule(name, original)
    for module in change.experts:
        give_back(module)
    del _changes[model]
    attention, experts = change.implementations
    model.set_attn_implementation(attention)
    if change.experts:
        model.set_experts_implementation(experts)


def _padding_mask(
    *, mask_function: Any = causal_mask_function, attention_mask: Any = None, config: Any = None, **rest: Any
) -> Any:
    """The mask of implementation "dsakit": the padding mask [B, columns], or None."""
    if not any(config is known for change in _changes.values() for known in change.configs):
        _refuse_unchanged()
    if mask_function is not causal_mask_function:
        name = getattr(mask_function, "__qualname__", repr(mask_function)).split(".")[0]
        wanted = "causal_mask_function (packed sequences and overlays are not computed)"
        refuse("UNSUPPORTED", "mask_function", f"is {shown(name)}", wanted)
    return attention_mask


def _refuse_unchanged(*args: Any, **kwargs: Any) -> Any:
    refuse("UNSUPPORTED", "attn_implementation", 'is "dsakit"', "a call of dsakit.hf.accelerate(model) first")


transformers.AttentionMaskInterface.register("dsakit", _padding_mask)
transformers.AttentionInterface.register("dsakit", _refuse_unchanged)
ExpertsInterface.register("dsakit", compute)
transformers.AttentionMaskInterface.register("dsakit_indices", sdpa_mask)
transformers.AttentionInterface.register("dsakit_indices", attend_to_indices)
