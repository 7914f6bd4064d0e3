# SPDX-License-Identifier: Apache-2.0
"""Random arguments of mla_prolog_v3 by seed."""

import numpy as np

from .cases import BF16, F, codes, generator, old_cache, rotations, slots_for, small_integers, uniform
from .mla_prolog_v3 import ROWS, packed_width

SMALL = dict(he=256, hcq=96, n=3, d=48, dr=32, latent=128, tile=32, block_size=5)


def cache_places(rng, mode, lengths, block_size, spare, batched):
    """(cache_index or None, leading dims of a cache). PA_BLK: some page of -1, in a long call."""
    t = sum(lengths)
    if mode == "TND":
        return None, (t,)
    if mode == "BSND":
        return None, (len(lengths), lengths[0] if lengths else 0)
    if not mode.startswith("PA_BLK"):
        blocks = -(-t // block_size) + spare
        index = slots_for(rng, t, blocks * block_size)
        return index.reshape(len(lengths), -1) if batched else index, (blocks, block_size)
    pages = sum(-(-n // block_size) for n in lengths)
    blocks = pages + spare
    index = rng.permutation(blocks)[:pages].astype(np.int64)
    if pages >= 3:
        index[rng.integers(pages)] = -1
    return index.reshape(len(lengths), -1) if batched else index, (blocks, block_size)


def mla_prolog_v3(
    seed,
    row,
    *,
    cache_mode="PA_BSND",
    lengths=(3, 0, 7, 1),
    batched=False,
    he=256,
    hcq=96,
    n=3,
    d=48,
    dr=32,
    latent=128,
    tile=32,
    block_size=5,
    spare=2,
    exact=False,
    random_rope=False,
    smooth=False,
    **more,
):
    """Arguments by name (row-major weights, query_norm asked for), and the caches as they are before. batched: all
    sequences as long as the first."""
    rng, row = generator(seed), ROWS[row]
    lengths = [lengths[0]] * len(lengths) if batched else list(lengths)
    t = sum(lengths)
    lead = (len(lengths), lengths[0] if lengths else 0) if batched else (t,)
    wide = n * (d + dr)

    def fill(shape, scale=1.0):
        return small_integers(rng, shape, 2) if exact else uniform(rng, shape, scale)

    positive = lambda shape, scale: ((rng.random(shape) + 0.05) * scale).astype(F)
    given = dict(row.arguments)
    if row.int8_tokens:
        given.update(token_x=codes(rng, (*lead, he)), weight_dq=codes(rng, (he, hcq)))
        given.update(weight_dkv_kr=codes(rng, (he, latent + dr)))
        given.update(dequant_scale_x=positive((t, 1), 0.02), dequant_scale_w_dq=positive((1, hcq), 0.01))
        given.update(dequant_scale_w_dkv_kr=positive((1, latent + dr), 0.01))
    else:
        given.update(token_x=fill((*lead, he)), weight_dq=fill((he, hcq), he**-0.5))
        given.update(weight_dkv_kr=fill((he, latent + dr), he**-0.5))
    given["weight_uq_qr"] = codes(rng, (hcq, wide)) if row.weights_int8 else fill((hcq, wide), hcq**-0.5)
    if row.weights_int8:
        given["dequant_scale_w_uq_qr"] = positive((1, wide), 0.02 * hcq**-0.5)
    given["weight_uk"] = fill((n, d, latent), d**-0.5)
    given.update(rmsnorm_gamma_cq=uniform(rng, hcq, 2), rmsnorm_gamma_ckv=uniform(rng, latent, 2))
    cos, sin = rotations(rng, t, dr, not random_rope)
    given.update(rope_sin=sin.reshape(*lead, dr), rope_cos=cos.reshape(*lead, dr))
    if smooth:
        given["smooth_scales_cq"] = positive((1, hcq), 2)
    if row.static_rows:
        given.update(quant_scale_ckv=positive((1, latent), 60), quant_scale_ckr=positive((1, dr), 80))
    if row.int8_query:
        given["quant_scale_ckv"] = positive((1,), 60)
    if row.packed:
        given.update(k_nope_clip_alpha=np.array([1], F), tile_size=tile)
    given.update(cache_mode=cache_mode, query_norm_flag=True)
    index, places = cache_places(rng, cache_mode, lengths, block_size, spare, batched)
    if index is not None:
        given["cache_index"] = index
    if cache_mode.startswith("PA_BLK") and not batched:
        given["actual_seq_len"] = np.cumsum(lengths).astype(np.int32)
    given.update(more)
    width = packed_width(latent, dr, tile) if row.packed else latent
    before = dict(kv_cache=old_cache(rng, (*places, 1, width), row.kv))
    before["kr_cache"] = np.zeros((0,), BF16) if row.packed else old_cache(rng, (*places, 1, dr), row.kr)
    return given, before
