# SPDX-License-Identifier: Apache-2.0
"""The configuration objects of the PyPTO documents. Any object with their fields is taken in their place.

Tiling says how a device cuts its work: it is accepted, of any fields (releases differ), and without effect. A layout or
an epsilon is honoured by every entry that is handed one.
"""

import dataclasses
import types
from typing import Any


class _Tiling(types.SimpleNamespace):
    """Fields by name, as many as the release has."""


class MlaTileConfig(_Tiling):
    """Tiles of mla_prolog_quant and of sparse_flash_attention_quant."""


class RopeTileShapeConfig(_Tiling):
    """Tiles of the rotary embedding."""


class IndexerPrologQuantConfigs(_Tiling):
    """Tiles of lightning_indexer_prolog_quant."""


@dataclasses.dataclass
class IndexerPrologQuantAttr:
    """What lightning_indexer_prolog_quant computes with."""

    eps: float = 1e-6
    layerout_query: str = "TND"
    layerout_key: str = "PA_BSND"


@dataclasses.dataclass
class MlaQuantInputs:
    """The scales of a quantised prolog."""

    dequant_scale_x: Any = None
    dequant_scale_w_dq: Any = None
    dequant_scale_w_uq_qr: Any = None
    dequant_scale_w_dkv_kr: Any = None
    quant_scale_ckv: Any = None
    quant_scale_ckr: Any = None
    smooth_scales_cq: Any = None
