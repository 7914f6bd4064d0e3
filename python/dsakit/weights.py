# SPDX-License-Identifier: Apache-2.0
"""Weights in FRACTAL_NZ, the tiled format of Ascend matrix units."""

import numpy as np

from .errors import raise_error

ND, NZ = 2, 29


class FractalNZ:
    """A matrix [..., K, N] in FRACTAL_NZ order: `storage` [..., ceil(N/c0), ceil(K/16), 16, c0], padded with zeros; c0
    elements are 32 bytes. Accepted wherever a weight is; converting it to a numpy array yields row-major order.
    """

    __slots__ = ("storage", "logical_shape")
    format = NZ

    def __init__(self, storage, logical_shape):
        shape = tuple(int(n) for n in logical_shape)
        wanted = _storage_shape(shape, storage)
        count = int(np.prod(wanted))
        if int(np.prod(tuple(storage.shape))) != count or not _contiguous(storage):
            raise_error(
                "INVALID_SHAPE",
                "format_cast",
                "storage",
                "",
                f"has shape {list(storage.shape)}",
                f"{list(wanted)}, contiguous (FRACTAL_NZ of {list(shape)})",
            )
        object.__setattr__(self, "storage", storage)
        object.__setattr__(self, "logical_shape", shape)

    def __setattr__(self, name, value):
        raise AttributeError("a FractalNZ is immutable")

    shape = property(lambda self: self.logical_shape)
    dtype = property(lambda self: self.storage.dtype)

    def nd(self):
        """Row-major, in the kind of the storage."""
        return _like(self.storage, _to_nd(_as_numpy(self.storage), self.logical_shape))

    def __array__(self, dtype=None, copy=None):
        plain = _to_nd(_as_numpy(self.storage), self.logical_shape)
        return plain if dtype is None else plain.astype(dtype)

    def __repr__(self):
        return f"FractalNZ(shape={self.logical_shape}, dtype={self.dtype})"


def format_cast(x, format):
    """`x` in another memory format: 29 is FRACTAL_NZ, 2 is ND (row-major). Already there: `x` itself."""
    if format not in (ND, NZ) or isinstance(format, bool):
        raise_error("INVALID_ARGUMENT", "format_cast", "format", "", f"is {format!r:.120}", "2 (ND) or 29 (FRACTAL_NZ)")
    if isinstance(x, FractalNZ):
        return x if format == NZ else x.nd()
    if format == ND:
        return x
    if len(x.shape) < 2:
        raise_error("INVALID_SHAPE", "format_cast", "x", "", f"has shape {list(x.shape)}", "rank 2 or more")
    plain = _as_numpy(x)
    *batch, tiles, rows, _, c0 = _storage_shape(plain.shape, plain)
    padded = np.zeros((*batch, rows * 16, tiles * c0), plain.dtype)
    padded[..., : plain.shape[-2], : plain.shape[-1]] = plain
    storage = np.ascontiguousarray(np.moveaxis(padded.reshape(*batch, rows, 16, tiles, c0), -2, -4))
    return FractalNZ(_like(x, storage), plain.shape)


npu_format_cast = format_cast  # the name that torch_npu has for it


def _storage_shape(shape, storage):
    itemsize = storage.dtype.itemsize
    *batch, k, n = shape
    c0 = 32 // itemsize
    return (*batch, -(-n // c0), -(-k // 16), 16, c0)


def _to_nd(storage, shape):
    *batch, tiles, rows, sixteen, c0 = _storage_shape(shape, storage)
    matrix = np.moveaxis(storage.reshape(*batch, tiles, rows, sixteen, c0), -4, -2).reshape(
        *batch, rows * 16, tiles * c0
    )
    return np.ascontiguousarray(matrix[..., : shape[-2], : shape[-1]])


def _contiguous(array):
    return array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous()


def _as_numpy(x):
    """A numpy array, or a torch tensor seen as one."""
    if isinstance(x, np.ndarray):
        return x
    import ml_dtypes
    import torch  # x is one of its tensors

    x = x.detach()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def _like(kind, array):
    """`array` in the kind of `kind`."""
    if isinstance(kind, np.ndarray):
        return array
    import torch

    bf16 = array.dtype.name == "bfloat16"
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if bf16 else torch.from_numpy(array)
