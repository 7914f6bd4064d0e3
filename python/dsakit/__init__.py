# SPDX-License-Identifier: Apache-2.0
"""Operators of DeepSeek Sparse Attention on ordinary machines.

Arrays are numpy arrays (bfloat16 as ml_dtypes.bfloat16), torch CPU tensors or anything with DLPack; they are read where
they lie, caches are updated in place, and results come in the kind of the first tensor argument. `dsakit.reference` has
the readable twins of the operators under the same names.
"""

import typing

from . import forms, operators, ops
from ._core import (
    Layer,
    Model,
    PackedWeight,
    Session,
    __version__,
    get_num_threads,
    info,
    load_safetensors,
    pack_weight,
    set_num_threads,
    set_same_products,
    step,
)
from .errors import Error
from .kv_rows import empty_kv_rows
from .operators import *  # noqa: F403
from .recording import capture, mark
from .weights import FractalNZ, format_cast, npu_format_cast

__all__ = [
    "Error",
    "FractalNZ",
    "Layer",
    "Model",
    "PackedWeight",
    "Session",
    "__version__",
    "capture",
    "debug",
    "empty_kv_rows",
    "forms",
    "format_cast",
    "get_num_threads",
    "info",
    "load_safetensors",
    "mark",
    "npu_format_cast",
    "ops",
    "pack_weight",
    "pypto",
    "reference",
    "set_num_threads",
    "set_same_products",
    "step",
]
__all__ += operators.__all__

if typing.TYPE_CHECKING:
    from . import debug, pypto, reference
else:

    def __getattr__(name):
        """`dsakit.reference`, `dsakit.pypto` and `dsakit.debug`, when they are asked for: most programs never do."""
        if name in ("debug", "pypto", "reference"):
            import importlib

            return importlib.import_module("." + name, __name__)
        raise AttributeError(f"module 'dsakit' has no attribute {name!r}")
