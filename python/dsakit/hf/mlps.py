# SPDX-License-Identifier: Apache-2.0
"""The MLPs that every token goes through: those of dense layers, and the shared experts beside routed ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from .._core import TensorExperts
from .attention import check_parameters, refuse_to_save
from .experts import through
from .refusals import refuse

CLASSES = (
    "transformers.models.deepseek_v32.modeling_deepseek_v32.DeepseekV32MLP",
    "transformers.models.glm_moe_dsa.modeling_glm_moe_dsa.GlmMoeDsaMLP",
    "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3MLP",
)
LINEAR = ("gate_proj", "up_proj", "down_proj")


def mlps_in(model: Any) -> list[str]:
    """Their names. Refuses what is not exactly a module that a class of CLASSES makes."""
    found = {name: m for name, m in model.named_modules() if name.rsplit(".")[-1] in ("mlp", "shared_experts")}
    found = {name: module for name, module in found.items() if not hasattr(module, "experts")}
    if not found:
        refuse("INVALID_ARGUMENT", "mlps", "is True", "False (no layer has an MLP)")
    for name, module in found.items():
        cls = type(module)
        if f"{cls.__module__}.{cls.__qualname__}" not in CLASSES:
            names = ", ".join(known.rsplit(".")[-1] for known in CLASSES)
            refuse("UNSUPPORTED", name, f"is a {cls.__name__}", f"one of transformers' own: {names}")
        for projection in LINEAR:
            linear = getattr(module, projection)
            if type(linear) is not nn.Linear:
                refuse("UNSUPPORTED", f"{name}.{projection}", f"is a {type(linear).__name__}", "a plain nn.Linear")
            if linear.bias is not None:
                refuse("UNSUPPORTED", f"{name}.{projection}", "has a bias", "none")
        if type(module.act_fn) is not type(ACT2FN["silu"]):
            refuse("UNSUPPORTED", f"{name}.act_fn", f"is a {type(module.act_fn).__name__}", 'that of hidden_act "silu"')
        check_parameters(name, module)
    return list(found)


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, original: Any, name: str, keep_weights: bool) -> None:
        super().__init__()
        self.name = name
        self.experts = TensorExperts(*(getattr(original, projection).weight.detach()[None] for projection in LINEAR))
        if keep_weights:
            for child_name, child in original.named_children():
                self.add_module(child_name, child)
        else:
            self.register_state_dict_pre_hook(refuse_to_save)
        self.train(original.training)

    def extra_repr(self) -> str:
        return "dsakit"

    @torch.compiler.disable  # under torch.compile: a break of the graph
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        everybody = torch.zeros(len(rows), 1, dtype=torch.int32), torch.ones(len(rows), 1)
        return through(self.experts, self, self.name, rows, *everybody).view(x.shape)
