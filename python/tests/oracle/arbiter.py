# SPDX-License-Identifier: Apache-2.0
"""The arbiter: y is right iff y == r(x), or x lies within E of a rounding boundary and y is on the other side of it.

Roundings that no output shows are handled by trying both sides of those next to a boundary."""

import itertools

import numpy as np

from .rounding import U

MOST_FLIPS = 0.002
MOST_FLIPS_HIDDEN = 0.01


class Ration:
    """Counts how often the licence is used. A handful is granted to cases too small for a share to mean anything."""

    def __init__(self, share):
        self.share, self.used, self.seen = share, 0, 0

    def count(self, used, seen):
        self.used += int(used)
        self.seen += int(seen)

    def check(self, what):
        limit = self.share * self.seen if self.seen >= 10000 else max(4, 2 * self.share * self.seen)
        assert self.used <= limit, f"{what}: {self.used} of {self.seen} elements differ from the rounded exact value"


def dot(a, b, exact=False):
    """a [M, K] times b [K, N] in float64, with E of an fp32 sum of the K products in any order."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    x = a @ b
    if exact or a.shape[1] == 0:
        return x, np.zeros_like(x)
    k = a.shape[1]
    bound = np.empty_like(x)
    for row in range(a.shape[0]):
        terms = a[row][:, None] * b
        natural = np.abs(np.cumsum(terms, axis=0)).max(axis=0)
        padded = np.zeros((-(-k // 16) * 16, b.shape[1]))
        padded[:k] = terms
        lanes = np.abs(np.cumsum(padded.reshape(-1, 16, b.shape[1]), axis=0)).max(axis=0).sum(axis=0) / 4
        bound[row] = 2 * U * np.sqrt(k) * np.maximum(natural, lanes)
        small = (terms != 0) & (np.abs(terms) < 2.0**-120)
        if small.any():
            bound[row] += np.where(small.any(axis=0), 2.0**-126 * (np.abs(a[row]).sum() + np.abs(b).sum(axis=0) + k), 0)
    return x, bound


def judge(y, x, e, rounding, what, ration=None):
    """Element-wise. `rounding` is monotone: it may stand for a chain of roundings after x."""
    y = np.asarray(y, np.float64)
    want = np.asarray(rounding(x), np.float64)
    assert y.shape == want.shape, f"{what}: shape {y.shape}, wanted {want.shape}"
    low, high = np.asarray(rounding(x - e), np.float64), np.asarray(rounding(x + e), np.float64)
    low, high = np.minimum(low, high), np.maximum(low, high)
    wrong = ~((y == want) | ((y >= low) & (y <= high)))
    if wrong.any():
        at = tuple(int(v) for v in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}{list(at)}: {y[at]!r}, wanted {want[at]!r} (exact {x[at]!r}, E {np.broadcast_to(e, x.shape)[at]!r})"
            f", {int(wrong.sum())} of {y.size} wrong"
        )
    own = ration or Ration(MOST_FLIPS)
    own.count((y != want).sum(), y.size)
    if ration is None:
        own.check(what)


def bounds(x, e, rounding):
    return rounding(x), rounding(x - e), rounding(x + e)


def alternatives(x, e, rounding, limit):
    """Rows that one row x may have been rounded to: every combination over the `limit` elements nearest to a boundary,
    fewest flips first."""
    base, low, high = bounds(x, e, rounding)
    ambiguous = np.flatnonzero(low != high)
    other = np.where(base == low, high, low)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        distance = np.abs(x - (base + other) / 2) / np.maximum(e, 1e-300)
    nearest = ambiguous[np.argsort(distance[ambiguous], kind="stable")][:limit]
    rows = []
    for flips in range(len(nearest) + 1):
        for chosen in itertools.combinations(nearest, flips):
            row = base.copy()
            row[list(chosen)] = other[list(chosen)]
            rows.append(row)
    return np.array(rows)


def search(x, e, rounding, mismatches, what, hidden):
    """Finds a hidden row near x that explains the output.

    mismatches(rows [C, n]) -> per row (elements not explained, elements that needed a licence), and elements in all."""
    for limit in (0, 5, 10):
        wrong, flips, seen = mismatches(alternatives(x, e, rounding, limit))
        best = np.lexsort((flips, wrong))[0]
        if wrong[best] == 0:
            hidden.count(flips[best], seen)
            return
    raise AssertionError(
        f"{what}: no choice of the hidden values next to a boundary gives this row ({int(wrong[best])} of {seen} wrong)"
    )
