# SPDX-License-Identifier: Apache-2.0
"""Four operators as programs for the PyPTO tensor front end. Each takes the arguments of the operator of its name in the
form with output tensors. `unroll_list` of its tile_config (of the indexer's prolog: configs) says how many tokens a body
takes."""

from .lightning_indexer_prolog_quant import lightning_indexer_prolog_quant
from .mla_indexer_prolog_quant import mla_indexer_prolog_quant
from .mla_prolog_quant import mla_prolog_quant
from .sparse_flash_attention_quant import sparse_flash_attention_quant

__all__ = [
    "lightning_indexer_prolog_quant",
    "mla_indexer_prolog_quant",
    "mla_prolog_quant",
    "sparse_flash_attention_quant",
]
