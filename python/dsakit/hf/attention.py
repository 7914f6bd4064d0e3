# SPDX-License-Identifier: Apache-2.0
"""The attention module that takes the place of transformers' own."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from .._core import BatchCache, TensorLayer
from .cache import PagedLayer, paged_layer
from .refusals import refuse


class Kind(NamedTuple):
    """How a class of transformers computes."""

    interleaved: bool | None  # pairs of the rotation lie beside each other; None: as config.rope_interleave says
    index_interleaved: bool
    hands_on: bool  # its selection is a result, for layers without an indexer


KINDS = {
    "transformers.models.deepseek_v32.modeling_deepseek_v32.DeepseekV32Attention": Kind(True, False, False),
    "transformers.models.glm_moe_dsa.modeling_glm_moe_dsa.GlmMoeDsaAttention": Kind(True, True, True),
    "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention": Kind(None, False, False),
}
LINEAR = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
INDEX_LINEAR = ("wq_b", "wk", "weights_proj")


def kind_of(module: Any) -> Kind:
    """Refuses, by name, what is not exactly the module that a class of KINDS makes."""
    cls = type(module)
    kind = KINDS.get(f"{cls.__module__}.{cls.__qualname__}")
    where = f"layers[{getattr(module, 'layer_idx', '?')}].self_attn"
    if kind is None:
        names = ", ".join(name.rsplit(".")[-1] for name in KINDS)
        refuse("UNSUPPORTED", where, f"is a {cls.__name__}", f"one of transformers' own: {names}")
    if module.config.num_key_value_heads != module.num_heads:
        got = f"is {module.config.num_key_value_heads}"
        refuse("UNSUPPORTED", "config.num_key_value_heads", got, f"{module.num_heads} (num_attention_heads)")
    if module.q_lora_rank is None:
        refuse("UNSUPPORTED", "config.q_lora_rank", "is None", "a number")
    indexer = getattr(module, "indexer", None)
    projections = {name: getattr(module, name) for name in LINEAR}
    if indexer is not None:
        projections |= {"indexer." + name: getattr(indexer, name) for name in INDEX_LINEAR}
    for name, projection in projections.items():
        if type(projection) is not nn.Linear:
            refuse("UNSUPPORTED", f"{where}.{name}", f"is a {type(projection).__name__}", "a plain nn.Linear")
        if projection.bias is not None:
            refuse("UNSUPPORTED", f"{where}.{name}", "has a bias", "none")
    check_parameters(where, module)
    return kind


def check_parameters(where: str, module: Any) -> None:
    for name, parameter in module.named_parameters():
        if parameter.device.type != "cpu":
            refuse("INVALID_DEVICE", f"{where}.{name}", f"is on {parameter.device}", "cpu")
        if parameter.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            got = f"is {str(parameter.dtype).removeprefix('torch.')}"
            refuse("INVALID_DTYPE", f"{where}.{name}", got, "bfloat16, float16 or float32")


def layer_of(module: Any, kind: Kind, mode: str, page_size: int) -> TensorLayer:
    config, indexer = module.config, getattr(module, "indexer", None)
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "hidden_size")
    sizes = {name: int(getattr(module, name)) for name in names}
    sizes |= {name: int(getattr(config, name, 0)) for name in ("index_n_heads", "index_head_dim", "index_topk")}
    sizes["num_attention_heads"] = module.num_heads
    sizes["rope_interleave"] = config.rope_interleave if kind.interleaved is None else kind.interleaved
    sizes["indexer_rope_interleave"] = kind.index_interleaved
    sizes["indexer"] = indexer is not None
    if indexer is not None:
        sizes["index_topk"] = indexer.index_topk
    epsilons = (
        module.q_a_layernorm.variance_epsilon,
        module.kv_a_layernorm.variance_epsilon,
        1e-6 if indexer is None else indexer.k_norm.eps,
    )
    sizes = {name: int(size) for name, size in sizes.items()}
    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return TensorLayer(sizes, weights, mode, page_size, module.scaling, epsilons)


class WithoutGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, name: str, compute: Any) -> torch.Tensor:
        ctx.name = name
        return compute(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        refuse("UNSUPPORTED", ctx.name, "is asked for gradients", "inference, or dsakit.hf.restore(model)")


class Attention(nn.Module):
    """The attention of one layer, from normalised hidden states to what is added to the residual."""

    def __init__(self, original: Any, kind: Kind, layer: TensorLayer, mode: str, keep_weights: bool) -> None:
        super().__init__()
        self.layer, self.mode, self.hands_on = layer, mode, kind.hands_on
        self.config, self.layer_idx, self.scaling = original.config, original.layer_idx, original.scaling
        self.has_indexer = getattr(original, "indexer", None) is not None
        self.index_topk = original.indexer.index_topk if self.has_indexer else getattr(self.config, "index_topk", 0)
        if keep_weights:
            for name, child in original.named_children():
                self.add_module(name, child)
        else:
            self.register_state_dict_pre_hook(refuse_to_save)
        self.train(original.training)

    def extra_repr(self) -> str:
        return f"dsakit, mode={self.mode!r}"

    @torch.compiler.disable  # under torch.compile: a break of the graph
    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        position_ids: torch.Tensor | None = None,
        prev_topk_indices: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        """As that of transformers. The selection, where it is handed on: int32 [B, S, index_topk], positions among the
        real tokens of a row, then -1."""
        self._check(attention_mask, kwargs)
        batch, count, _ = hidden_states.shape
        if past_key_values is None:
            cache = PagedLayer(self.layer, self.mode)
        else:
            cache = paged_layer(past_key_values, self.layer_idx, self.layer, self.mode)
        cache.ready_for(batch)
        new = cache.new_tokens(attention_mask, batch, count)
        if 0 <= cache.max_cache_len < cache.columns + count:
            got = f"would hold {cache.columns + count} columns"
            refuse("INVALID_SEQLEN", "past_key_values", got, f"at most {cache.max_cache_len} (max_cache_len)")
        selection = self._selection(prev_topk_indices, batch, count, new)

        def compute(hidden: torch.Tensor) -> torch.Tensor:
            return self._attend(hidden, position_embeddings, cache.rows, new, selection)

        if torch.is_grad_enabled() and hidden_states.requires_grad:
            out = WithoutGradient.apply(hidden_states, f"layers[{self.layer_idx}].self_attn", compute)
        else:
            out = compute(hidden_states)
        cache.grown(new, count)
        if not self.hands_on:
            return out, None
        return out, None, None if selection is None else _unfolded(selection, batch, count, new, -1)

    def _check(self, attention_mask: torch.Tensor | None, kwargs: dict[str, Any]) -> None:
        if self.training:
            refuse("UNSUPPORTED", "model", "is in training mode", "model.eval()")
        if kwargs.get("output_attentions") or getattr(self.config, "output_attentions", False):
            refuse("UNSUPPORTED", "output_attentions", "is True", "False (the weights of attention are not kept)")
        if attention_mask is not None and attention_mask.ndim != 2:
            got = f"has {attention_mask.ndim} axes"
            refuse("UNSUPPORTED", "attention_mask", got, "a padding mask [B, columns], or None")

    def _selection(
        self, given: torch.Tensor | None, batch: int, count: int, new: torch.Tensor | None
    ) -> torch.Tensor | None:
        """int32 [rows, index_topk]: to be written, or to be read by a layer without an indexer."""
        if self.mode == "dense_bf16" or not self.hands_on:
            return None
        if self.has_indexer:
            rows = batch * count if new is None else int(new.sum())
            return torch.full((rows, self.index_topk), -1, dtype=torch.int32)
        if given is None:
            wanted = "the selection of a layer with an indexer"
            refuse("INVALID_ARGUMENT", "prev_topk_indices", "is absent", wanted)
        return _folded(given, new)

    def _attend(
        self,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        rows: BatchCache,
        new: torch.Tensor | None,
        selection: torch.Tensor | None,
    ) -> torch.Tensor:
        batch, count, _ = hidden.shape
        x, cos, sin = (_folded(t, new) for t in (hidden.detach(), *(t.expand(batch, -1, -1) for t in angles)))
        counts = [count] * batch if new is None else new.sum(1).tolist()
        return _unfolded(self._compute(x, cos, sin, rows, counts, selection), batch, count, new, 0)

    def _compute(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        rows: BatchCache,
        counts: list[int],
        selection: torch.Tensor | None,
    ) -> torch.Tensor:
        """[tokens, hidden_size] of counts[i] tokens that row i of the batch grows by, one row after the other."""
        out = torch.empty(x.shape, dtype=torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32)
        hidden, cos, sin = (t.to(torch.bfloat16) for t in (x, cos, sin))
        self.layer.forward(hidden, out, cos, sin, rows, counts, selection)
        return out.to(x.dtype)


def _folded(t: torch.Tensor, new: torch.Tensor | None) -> torch.Tensor:
    """[B, S, *] -> [rows, *]: the tokens one row of the batch after the other, without padding."""
    return t.reshape(-1, t.shape[-1]).contiguous() if new is None else t[new]


def _unfolded(t: torch.Tensor, batch: int, count: int, new: torch.Tensor | None, padding: int) -> torch.Tensor:
    if new is None:
        return t.reshape(batch, count, -1)
    whole = t.new_full((batch, count, t.shape[-1]), padding)
    whole[new] = t
    return whole


def refuse_to_save(module: Any, prefix: str, keep_vars: bool) -> None:
    wanted = "restore(model), after accelerate(model, keep_weights=True)"
    refuse("UNSUPPORTED", prefix.removesuffix("."), "has released its weights", wanted)
