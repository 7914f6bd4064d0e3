# SPDX-License-Identifier: Apache-2.0
"""Random arguments by seed, from a counter-based generator: the same seed is the same case on every machine."""

import ml_dtypes
import numpy as np

from .rows import F, sylvester

BF16 = ml_dtypes.bfloat16


def generator(seed):
    return np.random.Generator(np.random.Philox(key=seed))


def uniform(rng, shape, scale=1.0, dtype=BF16):
    return ((rng.random(shape) * 2 - 1) * scale).astype(dtype)


def small_integers(rng, shape, largest=3, scale=1.0, dtype=BF16):
    return (rng.integers(-largest, largest + 1, shape) * scale).astype(dtype)


def codes(rng, shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def rotations(rng, t, dr, true_angles=True):
    """cos, sin [t, dr]; without true angles both halves are independent numbers."""
    if true_angles:
        angle = rng.random((t, dr // 2)) * 6.28
        return tuple(np.concatenate([f(angle), f(angle)], axis=1).astype(BF16) for f in (np.cos, np.sin))
    return uniform(rng, (t, dr)), uniform(rng, (t, dr))


def slots_for(rng, t, slots, plain=False):
    """cache_index: some slots in random order; among four or more tokens one is skipped and one slot is named twice."""
    index = rng.permutation(slots)[:t].astype(np.int64)
    if t >= 4 and not plain:
        index[1] = -1 if rng.integers(2) else np.iinfo(np.int64).min
        index[0] = index[3]
    return index


def old_cache(rng, shape, dtype):
    """Recognisable bytes, NaN patterns among them: what a call must leave alone."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return rng.integers(0, 256, size).astype(np.uint8).view(dtype).reshape(shape)


def page_table(rng, lengths, block_size, spare=2):
    """(block_table with garbage behind the used entries, number of pages), pages in random order."""
    used = [-(-int(n) // block_size) for n in lengths]
    pages = sum(used) + spare
    order = list(rng.permutation(pages).astype(np.int32))
    garbage = np.array([np.iinfo(np.int32).min, -1, np.iinfo(np.int32).max], np.int32)
    table = rng.choice(garbage, (len(used), max(used, default=0) + 1)).astype(np.int32)
    for row, count in enumerate(used):
        table[row, :count] = [order.pop() for _ in range(count)]
    return table, pages


def paged(table, pages, sequences, block_size, poison):
    """Sequences of rows as a paged tensor [pages, block_size, ...]; every row that no token owns holds `poison`.
    Tokens of a page that the table does not have (-1) are nowhere."""
    cache = np.full((pages, block_size) + sequences[0].shape[1:], poison, sequences[0].dtype)
    for row, tokens in enumerate(sequences):
        for j in range(len(tokens)):
            if table[row, j // block_size] < 0:
                continue
            cache[table[row, j // block_size], j % block_size] = tokens[j]
    return cache


def lay_out(layout_query, layout_key, lq, lk, query_side, key_side, *, page_rng, block_size, longest, pad):
    """Per-sequence rows as the tensors of a call: name -> (list of [rows, ...], what fills rows that no token owns)."""
    lq, lk = np.asarray(lq), np.asarray(lk)
    args = dict(layout_query=layout_query, layout_key=layout_key)
    args["actual_seq_lengths_query"] = (np.cumsum(lq) if layout_query == "TND" else lq).astype(np.int32)
    args["actual_seq_lengths_key"] = (np.cumsum(lk) if layout_key == "TND" else lk).astype(np.int32)

    def folded(parts, poison, rows):
        return np.concatenate(parts + [np.full((rows,) + parts[0].shape[1:], poison, parts[0].dtype)])

    def batched(parts, poison, rows):
        out = np.full((len(parts), rows) + parts[0].shape[1:], poison, parts[0].dtype)
        for b, part in enumerate(parts):
            out[b, : len(part)] = part
        return out

    for name, (parts, poison) in query_side.items():
        args[name] = (
            folded(parts, poison, 2 * int(pad))
            if layout_query == "TND"
            else batched(parts, poison, int(lq.max()) + int(pad))
        )
    if layout_key == "PA_BSND":
        args["block_table"], pages = page_table(page_rng, lk, block_size)
    for name, (parts, poison) in key_side.items():
        if layout_key == "PA_BSND":
            args[name] = paged(args["block_table"], pages, parts, block_size, poison)[:, :, None]
        elif layout_key == "TND":
            args[name] = folded(parts, poison, 3)[:, None]
        else:
            args[name] = batched(parts, poison, longest + 1)[:, :, None]
    return args


def mla_prolog(
    seed,
    *,
    t,
    he,
    hcq,
    n,
    d,
    dr,
    latent,
    groups,
    quantised=True,
    blocks=3,
    block_size=5,
    exact=False,
    random_rope=False,
):
    """Arguments by name of mla_prolog_quant (row-major weights, no out tensors), and its caches as they are before."""
    rng = generator(seed)
    fill = (
        (lambda shape, scale=1.0: small_integers(rng, shape, 2))
        if exact
        else (lambda shape, scale=1.0: uniform(rng, shape, scale))
    )
    wide = n * (d + dr)
    given = dict(token_x=fill((t, he)), w_dq=fill((he, hcq), he**-0.5))
    given["w_uq_qr"] = codes(rng, (hcq, wide)) if quantised else fill((hcq, wide), hcq**-0.5)
    given["dequant_scale"] = (rng.random((wide, 1)) * 1e-3 + 1e-4).astype(F) if quantised else None
    given.update(w_uk=fill((n, d, latent), d**-0.5), w_dkv_kr=fill((he, latent + dr), he**-0.5))
    given.update(gamma_cq=uniform(rng, hcq, 2), gamma_ckv=uniform(rng, latent, 2))
    given["cos"], given["sin"] = rotations(rng, t, dr, not random_rope)
    given["cache_index"] = slots_for(rng, t, blocks * block_size)
    kind = np.int8 if quantised else BF16
    before = dict(
        kv_cache=old_cache(rng, (blocks, block_size, 1, latent), kind),
        kr_cache=old_cache(rng, (blocks, block_size, 1, dr), BF16),
    )
    if quantised:
        before["k_scale_cache"] = old_cache(rng, (blocks, block_size, 1, groups), F)
    return given, before


def indexer_prolog(
    seed,
    *,
    t,
    he,
    hcq,
    n,
    di,
    dr,
    blocks=3,
    block_size=5,
    rope_layout="half",
    hadamard="random",
    scale_dtype=np.float16,
    gamma_dtype=BF16,
    exact=False,
    random_rope=False,
):
    """Arguments by name of lightning_indexer_prolog_quant, and its caches as they are before."""
    rng = generator(seed)
    fill = (
        (lambda shape, scale=1.0: small_integers(rng, shape, 2))
        if exact
        else (lambda shape, scale=1.0: uniform(rng, shape, scale))
    )
    given = dict(
        x=fill((t, he)), q_norm=codes(rng, (t, hcq)), q_norm_scale=(rng.random((t, 1)) * 0.02 - 0.005).astype(F)
    )
    given.update(w_qb=codes(rng, (hcq, n * di)), w_qb_scale=(rng.random((n * di, 1)) * 1e-3).astype(F))
    given.update(wk=fill((he, di), he**-0.5), w_proj=fill((he, n), he**-0.5))
    given.update(ln_gamma_k=uniform(rng, di, 2, gamma_dtype), ln_beta_k=uniform(rng, di, 0.5, gamma_dtype))
    given["cos"], given["sin"] = rotations(rng, t, dr, not random_rope)
    for name in ("hadamard_q", "hadamard_k"):
        given[name] = {
            "random": lambda: uniform(rng, (di, di), di**-0.5),
            "none": lambda: None,
            "sylvester": lambda: sylvester(di, di**-0.5).astype(BF16),
        }[hadamard]()
    given.update(k_cache_index=slots_for(rng, t, blocks * block_size), rope_layout=rope_layout)
    before = dict(
        k_cache=old_cache(rng, (blocks, block_size, 1, di), np.int8),
        k_scale_cache=old_cache(rng, (blocks, block_size, 1, 1), scale_dtype),
    )
    return given, before
