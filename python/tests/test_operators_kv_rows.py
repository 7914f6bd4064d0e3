# SPDX-License-Identifier: Apache-2.0
"""pack_kv_rows and unpack_kv_rows: the packed cache row, byte for byte."""

import numpy as np
import pytest

from oracle.cases import BF16, F, codes, generator, old_cache, uniform
from oracle.harness import assert_same, both, operator, refused, seeds, to_numpy, to_torch
from oracle.mla_prolog_v3 import join_rows, packed_width, split_rows


def parts(seed):
    rng = generator(seed)
    tile, tiles, dr = int(rng.choice([1, 7, 16, 128])), int(rng.integers(1, 5)), int(rng.choice([0, 2, 64, 66]))
    lead = tuple(int(v) for v in rng.integers(0 if seed % 8 == 7 else 1, 6, rng.integers(1, 4)))
    dtype = [BF16, np.float16][seed % 2]
    old = lambda shape, kind: old_cache(rng, shape, kind)
    return codes(rng, (*lead, tile * tiles)), old((*lead, dr), dtype), old((*lead, tiles), F), tile


@both
@seeds(30)
def test_random(seed, impl):
    latent, rope, scales, tile = parts(seed)
    lead, dr = latent.shape[:-1], rope.shape[-1]
    flat = [
        v.reshape(-1, v.shape[-1]) if v.size else v.reshape(int(np.prod(lead)), v.shape[-1])
        for v in (latent, rope, scales)
    ]
    rows = operator("pack_kv_rows", impl)(latent, rope, scales)
    want = np.concatenate([flat[0], flat[1].view(np.int8).reshape(len(flat[0]), 2 * dr), flat[2].view(np.int8)], axis=1)
    assert_same(rows, want.reshape(*lead, packed_width(latent.shape[-1], dr, tile)), "rows")
    got = operator("unpack_kv_rows", impl)(rows, rope_head_dim=dr, tile_size=tile, rope_dtype=rope.dtype.name)
    for name, g, w in zip(("codes", "rope", "scales"), got, (latent, rope, scales)):
        assert_same(g, w, name)


@both
def test_the_documented_row(impl):
    """E7: 656 bytes; rope value 3 at byte 518, the scale of tile 1 at byte 644."""
    torch = pytest.importorskip("torch")
    rng = generator(1)
    latent, rope, scales = (
        codes(rng, (3, 128, 1, 512)),
        uniform(rng, (3, 128, 1, 64)),
        rng.random((3, 128, 1, 4)).astype(F),
    )
    rope[2, 45, 0, 3], scales[2, 45, 0, 1] = -2.5, F(3) * (F(1) / F(127))
    rows = operator("pack_kv_rows", impl)(latent, rope, scales)
    flat = rows.reshape(-1).view(np.uint8)
    assert rows.shape == (3, 128, 1, 656) and flat[197456 + 130] == latent.view(np.uint8)[2, 45, 0, 130]
    assert flat[197456 + 518 :][:2].tolist() == [0x20, 0xC0]
    assert flat[197456 + 644 :][:4].tolist() == [0x06, 0x83, 0xC1, 0x3C]
    for g, w in zip(operator("unpack_kv_rows", impl)(rows), (latent, rope, scales)):
        assert_same(g, w)
    torch_rows = operator("pack_kv_rows", impl)(*map(to_torch, (latent, rope, scales)))
    assert isinstance(torch_rows, torch.Tensor)
    assert_same(to_numpy(torch_rows), rows)
    for g, w in zip(operator("unpack_kv_rows", impl)(torch_rows), (latent, rope, scales)):
        assert_same(to_numpy(g), w)
    assert_same(join_rows(*split_rows(rows.reshape(-1, 656), 512, 64)), rows.reshape(-1, 656))


CODES, ROPE, SCALES = np.ones((4, 16), np.int8), np.ones((4, 4), BF16), np.ones((4, 2), F)
PACK = dict(codes=CODES, rope=ROPE, scales=SCALES)
UNPACK = dict(rows=np.ones((4, 32), np.int8), rope_head_dim=4, tile_size=8)
SHAPE = {"INVALID_SHAPE", "INVALID_ARGUMENT"}
REFUSED = {
    "codes uint8": ("pack", dict(codes=CODES.astype(np.uint8)), "INVALID_DTYPE", "codes"),
    "rope fp32": ("pack", dict(rope=ROPE.astype(F)), "INVALID_DTYPE", "rope"),
    "scales fp16": ("pack", dict(scales=SCALES.astype(np.float16)), "INVALID_DTYPE", "scales"),
    "rows of rope": ("pack", dict(rope=ROPE[:3]), "INVALID_SHAPE", "rope"),
    "rows of scales": ("pack", dict(scales=SCALES[:3]), "INVALID_SHAPE", "scales"),
    "scales that do not divide": ("pack", dict(scales=np.ones((4, 3), F)), "INVALID_SHAPE", {"scales", "codes"}),
    "scales missing": ("pack", dict(scales=None), "INVALID_ARGUMENT", "scales"),
    "rows bf16": ("unpack", dict(rows=np.ones((4, 32), BF16)), "INVALID_DTYPE", "rows"),
    "no such width": ("unpack", dict(rows=np.ones((4, 33), np.int8)), SHAPE, {"rows", "tile_size"}),
    "tile 0": ("unpack", dict(tile_size=0), SHAPE, "tile_size"),
    "rope negative": ("unpack", dict(rope_head_dim=-1), SHAPE, "rope_head_dim"),
    "rope fills the row": ("unpack", dict(rope_head_dim=16), SHAPE, {"rows", "rope_head_dim"}),
    "rope_dtype": ("unpack", dict(rope_dtype="float32"), {"INVALID_ARGUMENT", "INVALID_DTYPE"}, "rope_dtype"),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    which, change, status, parameter = REFUSED[name]
    good = PACK if which == "pack" else UNPACK
    operator(f"{which}_kv_rows", impl)(**good)
    refused(lambda: operator(f"{which}_kv_rows", impl)(**good | change), f"{which}_kv_rows", status, parameter)
