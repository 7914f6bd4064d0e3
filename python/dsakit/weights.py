# SPDX-License-Identifier: Apache-2.0
"""Weights in FRACTAL_NZ, the tiled format of Ascend matrix units."""

from __future__ import annotations

import functools
import numbers
import operator
import sys
from typing import TYPE_CHECKING

import numpy as np

from .errors import raise_error, shown

if TYPE_CHECKING:
    from .calling import Array, Result

ND, NZ = 2, 29


class FractalNZ:
    """A matrix [..., K, N] in FRACTAL_NZ order: `storage` [..., ceil(N/c0), ceil(K/16), 16, c0], padded with zeros; c0
    elements are 32 bytes. Accepted wherever a weight is; converting it to a numpy array yields row-major order.

    Made by format_cast, or from storage and the logical shape. Over numpy it is immutable. Over torch it is a
    torch.Tensor of the logical shape, which computes like any other: its memory stays row-major, the format is a tag
    that clones, casts and parameters of it keep and other results do not, and `storage` is made when asked for.
    """

    __slots__ = ()
    format = NZ

    def __new__(cls, storage, logical_shape):
        shape = tuple(operator.index(n) for n in logical_shape)
        _check_array(storage, "storage")
        _check_rank(shape, "logical_shape")
        wanted = _storage_shape(shape, storage)
        if int(np.prod(tuple(storage.shape))) != int(np.prod(wanted)) or not _contiguous(storage):
            raise_error(
                "INVALID_SHAPE",
                "format_cast",
                "storage",
                "",
                f"has shape {list(storage.shape)}",
                f"{list(wanted)}, contiguous (FRACTAL_NZ of {list(shape)})",
            )
        if not isinstance(storage, np.ndarray):
            return _like(storage, _to_nd(_bits(storage), shape)).as_subclass(_tensor_class())
        self = object.__new__(_Array)
        object.__setattr__(self, "storage", storage)
        object.__setattr__(self, "logical_shape", shape)
        return self

    def __repr__(self):
        return f"FractalNZ(shape={self.logical_shape}, dtype={self.dtype})"


class _Array(FractalNZ):
    """FractalNZ over numpy."""

    __slots__ = ("storage", "logical_shape")

    def __setattr__(self, name, value):
        raise AttributeError("a FractalNZ is immutable")

    shape = property(lambda self: self.logical_shape)
    dtype = property(lambda self: self.storage.dtype)

    def nd(self):
        """Row-major."""
        return _to_nd(self.storage, self.logical_shape)

    def __array__(self, dtype=None, copy=None):
        return self.nd() if dtype is None else self.nd().astype(dtype)

    def __reduce__(self):
        return FractalNZ, (self.storage, self.logical_shape)


@functools.cache
def _tensor_class():
    """FractalNZ over torch; asked for once there is a tensor, so torch is there."""
    import torch

    tensor, base = torch.Tensor, torch._C.TensorBase
    keeps = {base.detach, base.clone, base.to, base.contiguous, base.cpu, base.half, base.bfloat16}
    keeps |= {base.float, base.data.__get__, torch.clone, torch.detach}

    class FractalNZTensor(FractalNZ, tensor):
        logical_shape = property(lambda self: tuple(self.shape))
        storage = property(lambda self: _like(self, _to_nz(_bits(self))))

        def nd(self):
            """Row-major, a plain tensor of its own."""
            return self.detach().clone().as_subclass(tensor)

        def __array__(self, dtype=None, copy=None):
            import ml_dtypes

            name = str(self.dtype).removeprefix("torch.")
            plain = _bits(self.nd()).view(getattr(ml_dtypes, name, name))
            return plain if dtype is None else plain.astype(dtype)

        def __deepcopy__(self, memo):
            copy = memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
            copy.__dict__.update(self.__dict__)
            return copy

        def __reduce_ex__(self, protocol):
            return format_cast, (self.nd(), NZ)

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                result = function(*args, **(kwargs or {}))
            # torch says what Tensor has now, and dsakit.npu patches these two.
            kept = function in keeps or function in (tensor.to, tensor.cpu)
            return result.as_subclass(cls) if kept and type(result) is tensor else result

    return FractalNZTensor


def format_cast(x: Array | FractalNZ, format: int, *dtypes: None) -> Result:
    """`x` in another memory format: 29 is FRACTAL_NZ, 2 is ND (row-major). Already there: `x` itself.

    The dtype integers that some spellings append are reserved: None only.
    """
    return _cast("format_cast", x, format, dtypes)


def npu_format_cast(x: Array | FractalNZ, format: int, *dtypes: None) -> Result:
    """`x` in another memory format: 29 is FRACTAL_NZ, 2 is ND (row-major). Already there: `x` itself.

    The dtype integers that some spellings append are reserved: None only.
    """
    return _cast("npu_format_cast", x, format, dtypes)


def _cast(spelling, x, format, dtypes):
    if not isinstance(format, numbers.Integral) or format not in (ND, NZ):
        raise_error("INVALID_ARGUMENT", spelling, "format", "", f"is {shown(format)}", "2 (ND) or 29 (FRACTAL_NZ)")
    for i, dtype in enumerate(dtypes):
        if dtype is not None:
            raise_error("UNSUPPORTED", spelling, "dtypes", f"[{i}]", f"is {shown(dtype)}", "None (reserved)")
    if isinstance(x, FractalNZ):
        return x if format == NZ else x.nd()
    _check_array(x, "x", spelling)
    if format == ND:
        return x
    _check_rank(tuple(x.shape), "x", spelling)
    if isinstance(x, np.ndarray):
        return FractalNZ(_to_nz(x), x.shape)
    import torch  # x is one of its tensors

    return x.detach().clone(memory_format=torch.contiguous_format).as_subclass(_tensor_class())


def is_tensor(x):
    """A tensor of torch, which need not be there."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _check_array(x, name, spelling="format_cast"):
    if not isinstance(x, np.ndarray) and not is_tensor(x):
        got = f"is {type(x).__name__!r:.120}"
        raise_error("INVALID_DTYPE", spelling, name, "", got, "a numpy array or a torch tensor")


def _check_rank(shape, name, spelling="format_cast"):
    if len(shape) < 2:
        raise_error("INVALID_SHAPE", spelling, name, "", f"has shape {list(shape)}", "rank 2 or more")


def _storage_shape(shape, array):
    *batch, k, n = shape
    c0 = 32 // array.dtype.itemsize
    return (*batch, -(-n // c0), -(-k // 16), 16, c0)


def _to_nz(plain):
    *batch, tiles, rows, _, c0 = _storage_shape(plain.shape, plain)
    padded = np.zeros((*batch, rows * 16, tiles * c0), plain.dtype)
    padded[..., : plain.shape[-2], : plain.shape[-1]] = plain
    return np.ascontiguousarray(np.moveaxis(padded.reshape(*batch, rows, 16, tiles, c0), -2, -4))


def _to_nd(storage, shape):
    *batch, tiles, rows, sixteen, c0 = _storage_shape(shape, storage)
    matrix = np.moveaxis(storage.reshape(*batch, tiles, rows, sixteen, c0), -4, -2).reshape(
        *batch, rows * 16, tiles * c0
    )
    return np.ascontiguousarray(matrix[..., : shape[-2], : shape[-1]])


def _contiguous(array):
    return array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous()


def _bits(x):
    """A numpy array, or a torch tensor seen as one of integers: numpy has not all of its dtypes."""
    if isinstance(x, np.ndarray):
        return x
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
    return x.detach().as_subclass(torch.Tensor).view(integers).numpy()


def _like(kind, bits):
    """`bits` in the kind and dtype of `kind`."""
    if isinstance(kind, np.ndarray):
        return bits
    import torch

    return torch.from_numpy(bits).view(kind.dtype)
