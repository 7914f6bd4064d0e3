# SPDX-License-Identifier: Apache-2.0
"""The operators written to be read: same names, arguments, results and in-place caches, far slower, float64 where the
documents leave the arithmetic free."""

from .operators import namespace as _namespace

_operators = _namespace(reference=True)
globals().update(_operators)
__all__ = list(_operators)
