# SPDX-License-Identifier: Apache-2.0
"""Formats of tensors. A tensor's values never depend on its format: a tag on its storage says it, so parameters, views and
transposes of a tensor in FRACTAL_NZ report it, and it goes with the storage."""

from __future__ import annotations

import enum
import warnings
from typing import Any

import torch

from ..errors import raise_error, shown
from ..weights import NZ, FractalNZ, _tensor_class


class Format(enum.IntEnum):
    """torch_npu's formats; ND and FRACTAL_NZ are offered."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    NC = 35
    NCL = 47
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51


class Config:
    """torch.npu.config: what it says of formats."""

    allow_internal_format = True


config = Config()
TAG = "_dsakit_format"


def get_npu_format(self: torch.Tensor) -> Format:
    """FRACTAL_NZ or ND."""
    if isinstance(self, FractalNZ) or getattr(self.untyped_storage(), TAG, None) == NZ:
        return Format.FRACTAL_NZ
    return Format.ND


def tagged(x: Any) -> Any:
    """A weight as the library knows its format."""
    if type(x) in (torch.Tensor, torch.nn.Parameter) and get_npu_format(x) == Format.FRACTAL_NZ:
        return x.detach().as_subclass(_tensor_class())
    return x


def npu_format_cast(self: torch.Tensor, acl_format: Any, customize_dtype: Any = None, input_dtype: Any = None) -> torch.Tensor:
    """`self` in another format: 2 (ND) or 29 (FRACTAL_NZ), a Format, or the format of a tensor. Already there: `self`."""
    wanted = _wanted("npu_format_cast", self, acl_format, customize_dtype, input_dtype)
    if wanted == get_npu_format(self):
        return self
    plain = self.as_subclass(torch.Tensor) if isinstance(self, FractalNZ) else self
    copy = plain.detach().clone(memory_format=torch.contiguous_format)
    if wanted == Format.FRACTAL_NZ:
        setattr(copy.untyped_storage(), TAG, NZ)
    return copy


def npu_format_cast_(self: torch.Tensor, acl_format: Any) -> torch.Tensor:
    """The same in place."""
    wanted = _wanted("npu_format_cast_", self, acl_format, None, None)
    setattr(self.untyped_storage(), TAG, int(wanted))
    return self


def empty_with_format(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, acl_format: Any = 2
) -> torch.Tensor:
    """torch.empty with a format."""
    made = torch.empty(size, dtype=dtype)
    return made if acl_format == Format.ND else npu_format_cast_(made, acl_format)


def empty_with_swapped_memory(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    """torch.empty: all memory is the host's."""
    return torch.empty(size, dtype=dtype)


def _wanted(operator: str, x: Any, acl_format: Any, *dtypes: Any) -> Format:
    if not isinstance(x, torch.Tensor):
        raise_error("INVALID_DTYPE", operator, "self", "", f"is {type(x).__name__!r:.120}", "a torch tensor")
    for name, dtype in zip(("customize_dtype", "input_dtype"), dtypes):
        if dtype is not None:
            raise_error("UNSUPPORTED", operator, name, "", f"is {shown(dtype)}", "None (reserved)")
    if isinstance(acl_format, torch.Tensor):
        return get_npu_format(acl_format)
    if acl_format not in (Format.ND, Format.FRACTAL_NZ):
        status = "UNSUPPORTED" if acl_format in list(Format) else "INVALID_ARGUMENT"
        raise_error(status, operator, "acl_format", "", f"is {shown(acl_format)}", "2 (ND) or 29 (FRACTAL_NZ)")
    if acl_format == Format.FRACTAL_NZ and x.dim() < 2:
        raise_error("INVALID_SHAPE", operator, "self", "", f"has shape {list(x.shape)}", "rank 2 or more")
    if acl_format == Format.FRACTAL_NZ and not config.allow_internal_format:
        warnings.warn("torch_npu: allow_internal_format is False: the tensor stays ND", stacklevel=4)
        return Format.ND
    return Format(acl_format)
