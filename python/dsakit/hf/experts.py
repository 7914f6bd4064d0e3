# SPDX-License-Identifier: Apache-2.0
"""Experts implementation "dsakit": the routed experts, for the tokens that transformers' router sends them."""

from __future__ import annotations

from typing import Any

import torch
from transformers.activations import ACT2FN

from .._core import TensorExperts
from .attention import WithoutGradient, check_parameters, refuse_to_save
from .refusals import refuse

CLASSES = (
    "transformers.models.deepseek_v32.modeling_deepseek_v32.DeepseekV32Experts",
    "transformers.models.glm_moe_dsa.modeling_glm_moe_dsa.GlmMoeDsaExperts",
    "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Experts",
)
WEIGHTS = ("gate_up_proj", "down_proj")


def experts_in(model: Any) -> dict[str, Any]:
    """By name. Refuses what is not exactly a module that a class of CLASSES makes."""
    found = {name: module for name, module in model.named_modules() if name.rsplit(".")[-1] == "experts"}
    if not found:
        refuse("INVALID_ARGUMENT", "experts", "is True", "False (no layer has experts)")
    for name, module in found.items():
        cls = type(module)
        if f"{cls.__module__}.{cls.__qualname__}" not in CLASSES:
            names = ", ".join(known.rsplit(".")[-1] for known in CLASSES)
            refuse("UNSUPPORTED", name, f"is a {cls.__name__}", f"one of transformers' own: {names}")
        if [weight for weight, _ in module.named_parameters()] != list(WEIGHTS):
            refuse(
                "UNSUPPORTED", name, f"has parameters {[n for n, _ in module.named_parameters()]}", f"{list(WEIGHTS)}"
            )
        if type(module.act_fn) is not type(ACT2FN["silu"]):
            refuse("UNSUPPORTED", f"{name}.act_fn", f"is a {type(module.act_fn).__name__}", 'that of hidden_act "silu"')
        check_parameters(name, module)
    return found


def take(module: Any, name: str, keep_weights: bool) -> int:
    """Makes `module` compute with dsakit; the bytes that it has released."""
    gate, up = module.gate_up_proj.detach().chunk(2, 1)
    module._dsakit = TensorExperts(gate, up, module.down_proj.detach())
    module._dsakit_name = name
    if keep_weights:
        return 0
    released = sum(weight.nbytes for weight in module.parameters())
    for weight in WEIGHTS:
        delattr(module, weight)
    module.register_state_dict_pre_hook(refuse_to_save)
    return released


def give_back(module: Any) -> None:
    del module._dsakit, module._dsakit_name


@torch.compiler.disable
def compute(module: Any, hidden: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """Sum of weight * expert for each row of hidden [T, hidden_size], with top_k_index, top_k_weights [T, k]."""
    if not hasattr(module, "_dsakit"):
        refuse("UNSUPPORTED", "experts_implementation", 'is "dsakit"', "accelerate(model, experts=True) first")
    return through(module._dsakit, module, module._dsakit_name, hidden, top_k_index, top_k_weights)


def through(
    experts: TensorExperts, module: Any, name: str, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """What `module`, called `name`, does with rows [T, hidden_size]; index and weights [T, k]."""
    if module.training:
        refuse("UNSUPPORTED", "model", "is in training mode", "model.eval()")

    def run(hidden: torch.Tensor) -> torch.Tensor:
        x = hidden.detach().float().contiguous()
        out = torch.empty_like(x)
        experts.forward(x, index.to(torch.int32).contiguous(), weights.detach().float().contiguous(), out)
        return out.to(hidden.dtype)

    if torch.is_grad_enabled() and (hidden.requires_grad or weights.requires_grad):
        return WithoutGradient.apply(hidden, name, run)
    return run(hidden)
