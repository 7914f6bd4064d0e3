# SPDX-License-Identifier: Apache-2.0
"""Attention implementation "dsakit_indices", for models that hand the selection to theirs."""

from __future__ import annotations

from typing import Any

import torch

from .refusals import refuse

GATHERED = 1 << 24  # elements of keys and values that lie gathered at once


def attend_to_indices(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    indices: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(scaling * query . key) value over the listed keys that the mask, bool [B, 1, S, T], lets be seen.
    query [B, N, S, D], key, value [B, N, T, *], indices [B, S, K]; the result [B, S, N, Dv]. Only the gathered rows are
    touched: no matrix S x T but the mask and what the model itself makes."""
    if indices is None:
        refuse("UNSUPPORTED", "indices", "is absent", "a model whose indexer selects keys")
    if dropout:
        refuse("UNSUPPORTED", "dropout", f"is {dropout}", "0")
    batch, heads, rows, width = query.shape
    out = query.new_empty(batch, rows, heads, value.shape[-1])
    step = max(1, GATHERED // (heads * indices.shape[-1] * (width + value.shape[-1])))
    for b in range(batch):
        for first in range(0, rows, step):
            some = slice(first, first + step)
            listed = indices[b, some].long()
            scores = torch.einsum("nsd,nskd->nsk", query[b, :, some], key[b][:, listed]) * scaling
            if attention_mask is not None:
                visible = attention_mask[b % len(attention_mask), 0, some].gather(-1, listed)
                scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
            shares = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
            out[b, some] = torch.einsum("nsk,nskd->snd", shares, value[b][:, listed])
    return out, None
