# SPDX-License-Identifier: Apache-2.0
"""The cache of one layer, in the place of transformers' own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import cache_utils

from .._core import BatchCache, TensorLayer
from .refusals import refuse

REPLACED = (
    cache_utils.DynamicLayer,
    cache_utils.DynamicIndexedLayer,
    cache_utils.StaticLayer,
    cache_utils.StaticIndexedLayer,
)


class PagedLayer(cache_utils.CacheLayerMixin):
    """Rows of a batch in pages that they share: real tokens only, in order. What transformers counts are columns, the
    padding between the tokens included."""

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, layer: TensorLayer, mode: str, max_cache_len: int = -1) -> None:
        super().__init__()
        self.layer, self.mode, self.max_cache_len = layer, mode, max_cache_len
        self.rows = BatchCache(layer)
        self.columns = 0
        self.seen: torch.Tensor | None = None  # bool [B, columns]: which hold a token; None: all
        self.is_initialized = True

    def __repr__(self) -> str:
        return f"PagedLayer(mode={self.mode!r}, tokens={self.rows.lengths}, pages={self.rows.pages})"

    def __deepcopy__(self, memo: dict[int, Any]) -> PagedLayer:
        """A copy shares the pages until it goes its own way."""
        other = copy.copy(self)
        other.rows = copy.copy(self.rows)
        return other

    @property
    def batch_size(self) -> int:
        return len(self.rows.lengths)

    @property
    def pages(self) -> int:
        """In use, each counted once."""
        return self.rows.pages

    @property
    def nbytes(self) -> int:
        """Of all pages, used or kept for later."""
        return self.rows.nbytes

    def ready_for(self, batch: int) -> None:
        if self.columns == 0 and self.batch_size != batch:
            self.rows.select([0] * batch)
        if self.batch_size != batch:
            refuse(
                "INVALID_SHAPE", "past_key_values", f"is of {self.batch_size} rows", f"{batch} (those of hidden_states)"
            )

    def new_tokens(self, mask: torch.Tensor | None, batch: int, count: int) -> torch.Tensor | None:
        """Which of the `count` columns to come hold a token, bool [B, count]; None: all."""
        if mask is not None:
            if mask.shape[0] != batch or mask.shape[1] < self.columns + count:
                wanted = f"[{batch}, {self.columns + count}] or more columns"
                refuse("INVALID_SHAPE", "attention_mask", f"has shape {list(mask.shape)}", wanted)
            mask = mask.bool()
        older = mask is None or bool(mask[:, : self.columns].all())
        if (older and self.seen is not None) or (
            not older and (self.seen is None or not torch.equal(mask[:, : self.columns], self.seen))
        ):
            refuse("CONFLICT", "attention_mask", "changes columns that are in the cache", "what it was for them")
        new = None if mask is None else mask[:, self.columns : self.columns + count]
        return None if new is None or bool(new.all()) else new

    def grown(self, new: torch.Tensor | None, count: int) -> None:
        """The rows have taken the tokens that `new` tells."""
        if new is not None or self.seen is not None:
            parts = [(self.seen, self.columns), (new, count)]
            shape = self.batch_size
            self.seen = torch.cat([torch.ones(shape, n, dtype=torch.bool) if t is None else t for t, n in parts], 1)
        self.columns += count

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        refuse("UNSUPPORTED", "past_key_values", "is written by another attention", "one that accelerate has replaced")

    def offload(self) -> None:
        refuse("UNSUPPORTED", "past_key_values", "is offloaded", "a cache that stays")

    prefetch = offload

    def get_seq_length(self) -> int:
        return self.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_max_length(self) -> int:
        return self.max_cache_len

    def reset(self) -> None:
        self.rows.crop(self.rows.lengths)
        self.columns, self.seen = 0, None

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.columns > 0:
            rows = torch.arange(self.batch_size)[indices.cpu()]
            self.rows.select(rows.tolist())
            if self.seen is not None:
                self.seen = self.seen[rows]

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): wanted a negative number, of columns to take away")
        count = min(-tokens_to_remove, self.columns)
        if count == 0:
            return
        kept = self.columns - count
        dropped = torch.full((self.batch_size,), count) if self.seen is None else self.seen[:, kept:].sum(1)
        self.rows.crop(dropped.tolist())
        self.columns = kept
        if self.seen is not None:
            self.seen = None if bool(self.seen[:, :kept].all()) else self.seen[:, :kept]


def paged_layer(past_key_values: Any, index: int, layer: TensorLayer, mode: str) -> PagedLayer:
    """That of layer `index`; a fresh one of transformers gives way to it."""
    if not isinstance(past_key_values, cache_utils.Cache) or not hasattr(past_key_values, "layers"):
        refuse(
            "UNSUPPORTED", "past_key_values", f"is a {type(past_key_values).__name__}", "a DynamicCache or StaticCache"
        )
    if past_key_values.offloading:
        refuse("UNSUPPORTED", "past_key_values", "is offloaded", "a cache that stays")
    layers, replicate = past_key_values.layers, past_key_values.layer_class_to_replicate
    while len(layers) <= index and replicate is not None:
        layers.append(replicate())
    if len(layers) <= index:
        refuse("INVALID_ARGUMENT", "past_key_values", f"has {len(layers)} layers", f"at least {index + 1}")
    held, position = layers[index], f"[{index}]"
    if isinstance(held, PagedLayer):
        if held.layer is layer:
            return held
        if held.columns > 0:
            got = f"holds {held.columns} tokens of PagedLayer ({held.mode}) of another layer"
            refuse("INVALID_ARGUMENT", "past_key_values.layers", got, "an empty cache", position)
    elif type(held) not in REPLACED:
        wanted = "a DynamicLayer, DynamicIndexedLayer, StaticLayer or StaticIndexedLayer"
        refuse("UNSUPPORTED", "past_key_values.layers", f"is a {type(held).__name__}", wanted, position)
    elif (tokens := int(held.get_seq_length())) > 0:
        got = f"holds {tokens} tokens of {type(held).__name__}"
        refuse("INVALID_ARGUMENT", "past_key_values.layers", got, "an empty cache", position)
    layers[index] = PagedLayer(layer, mode, held.get_max_length())
    return layers[index]
