# SPDX-License-Identifier: Apache-2.0
"""Quantisation to mxfp8 is reserved; its name says so."""

from typing import Any, NoReturn

from .errors import raise_error


def _refuse(operator: str) -> NoReturn:
    wanted = "dynamic_quant or dynamic_block_quant (mxfp8 is reserved)"
    raise_error("UNSUPPORTED", operator, "dst_type", "", "is an mxfp8 type", wanted)


def dynamic_mx_quant(*args: Any, **kwargs: Any) -> NoReturn:
    """Reserved: mxfp8 is refused by name."""
    _refuse("dynamic_mx_quant")


def npu_dynamic_mx_quant(*args: Any, **kwargs: Any) -> NoReturn:
    """Reserved: mxfp8 is refused by name."""
    _refuse("npu_dynamic_mx_quant")
