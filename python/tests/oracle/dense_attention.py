# SPDX-License-Identifier: Apache-2.0
"""Dense attention in float64, from one array per sequence: heads, rows, width."""

import numpy as np


def visible(mode, rows, keys, pre, nxt, mask):
    """Which keys each row sees; mask: None, or True where hidden."""
    q, k = np.ogrid[:rows, :keys]
    delta = keys - rows
    if mode == 2:
        return k <= q
    if mode == 3:
        return k <= q + delta
    if mode == 4:
        return (k - delta >= q - pre) & (k - delta <= q + nxt)
    seen = np.ones((rows, keys), bool)
    if mask is None:
        return seen
    seen &= ~mask[:rows, :keys]
    return seen & (k >= q - pre) & (k <= q + nxt) if mode == 0 else seen


def attend(query, key, value, scale, seen, bias=None):
    """-> out (heads, rows, value width), lse (heads, rows); rows without a key: 0 and +inf."""
    group = len(query) // len(key)
    out = np.zeros(query.shape[:2] + value.shape[2:])
    lse = np.full(query.shape[:2], np.inf)
    for h in range(len(query)):
        for i in range(query.shape[1]):
            chosen = np.flatnonzero(seen[i])
            if not len(chosen):
                continue
            s = key[h // group][chosen].astype(np.float64) @ query[h, i].astype(np.float64) * scale
            if bias is not None:
                s = s + bias[h, i, chosen]
            e = np.exp(s - s.max())
            out[h, i] = e @ value[h // group][chosen].astype(np.float64) / e.sum()
            lse[h, i] = s.max() + np.log(e.sum())
    return out, lse


def fold(arrays, layout, longest, poison):
    """One array (heads, rows, width) per sequence as the layout has them; padding holds `poison`."""
    if layout in ("TND", "NTD"):
        rows = np.concatenate(arrays, axis=1)
        return np.ascontiguousarray(rows.transpose(1, 0, 2) if layout == "TND" else rows)
    heads, _, width = arrays[0].shape
    all_rows = np.full((len(arrays), heads, longest, width), poison, arrays[0].dtype)
    for at, a in zip(all_rows, arrays):
        at[:, : a.shape[1]] = a
    return arrange(all_rows, layout)


def arrange(rows, layout):
    """(B, N, S, D) as the layout has it."""
    b, n, s, d = rows.shape
    return np.ascontiguousarray(
        {
            "BNSD": lambda: rows,
            "BSND": lambda: rows.transpose(0, 2, 1, 3),
            "BSH": lambda: rows.transpose(0, 2, 1, 3).reshape(b, s, n * d),
            "NBSD": lambda: rows.transpose(1, 0, 2, 3),
            "NSD": lambda: rows[0],
        }[layout]()
    )


def pages(arrays, block_size, rank, rng, poison, columns=0):
    """Pools of pages of rank 3, 4 or 5, and the page table: pages shuffled, one that nobody owns, -1 in the tails."""
    heads, _, width = arrays[0].shape
    used = [-(-a.shape[1] // block_size) for a in arrays]
    order = iter(rng.permutation(sum(used) + 1))
    table = np.full((len(arrays), max(used + [columns]) + 1), -1, np.int32)
    pool = np.full((sum(used) + 1, heads, block_size, width), poison, arrays[0].dtype)
    for b, a in enumerate(arrays):
        for i in range(used[b]):
            table[b, i] = next(order)
            part = a[:, i * block_size : (i + 1) * block_size]
            pool[table[b, i], :, : part.shape[1]] = part
    return ranked(pool, rank), table


def ranked(pool, rank):
    """(pages, heads, rows, width) in the documented rank."""
    n, heads, rows, width = pool.shape
    if rank == 3:
        return np.ascontiguousarray(pool.transpose(0, 2, 1, 3).reshape(n, rows, heads * width))
    if rank == 4:
        return pool
    c = 32 // pool.dtype.itemsize
    return np.ascontiguousarray(pool.reshape(n, heads, rows, width // c, c).transpose(0, 1, 3, 2, 4))


def pack_int4(codes):
    """Eight codes of -8..7 to an int32, the first in the lowest bits."""
    words = (codes.astype(np.int64) & 15).reshape(codes.shape[:-1] + (-1, 8)) << (4 * np.arange(8))
    return words.sum(-1).astype(np.uint32).view(np.int32)
