# SPDX-License-Identifier: Apache-2.0
import numpy as np


def to_nz(matrix, padding=0):
    """FRACTAL_NZ storage [ceil(N/c0), ceil(K/16), 16, c0] of a [K, N] matrix."""
    k, n = matrix.shape
    c0 = 32 // matrix.dtype.itemsize
    panels, rows = -(-n // c0), -(-k // 16) * 16
    full = np.full((rows, panels * c0), padding, matrix.dtype)
    full[:k, :n] = matrix
    return np.ascontiguousarray(full.reshape(rows, panels, c0).transpose(1, 0, 2)).reshape(panels, rows // 16, 16, c0)


def nz_offset(k_rows, c0, k, n):
    padded = -(-k_rows // 16) * 16
    return (n // c0) * padded * c0 + k * c0 + n % c0
