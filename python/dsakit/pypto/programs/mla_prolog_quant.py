# SPDX-License-Identifier: Apache-2.0
"""mla_prolog_quant: absorbed and rotated queries and the cache rows of new tokens, quantised where dequant_scale has
elements. The stages are functions, which the programs beside this one use too."""

from typing import Any

from dsakit import pypto

BF16, FP16, FP32 = pypto.DT_BF16, pypto.DT_FP16, pypto.DT_FP32
INT8, INT32, INT64 = pypto.DT_INT8, pypto.DT_INT32, pypto.DT_INT64
RINT, ROUND, TRUNC = pypto.CastMode.CAST_RINT, pypto.CastMode.CAST_ROUND, pypto.CastMode.CAST_TRUNC
DYNAMIC, STATIC = pypto.DYNAMIC, pypto.STATIC
TOKENS, WEIGHT, CACHE = [DYNAMIC, STATIC], [STATIC, STATIC], [DYNAMIC, STATIC, 1, STATIC]
UNROLL_LIST = (32, 16, 8, 4, 2, 1)
Tensor = pypto.Tensor


@pypto.frontend.function
def down(label: str, x: Tensor, weight: Tensor) -> Tensor:
    # bf16(x weight), one sum over all of x
    pypto.set_semantic_label(label)
    pypto.set_cube_tile_shapes([32, 32], [128, 512], [128, 256])
    return pypto.matmul(x, weight, BF16)


@pypto.frontend.function
def down_in_halves(label: str, x: Tensor, weight: Tensor) -> Tensor:
    # bf16(s1 + s2), s1 the fp32 sum over the first half of x, s2 over the rest
    pypto.set_semantic_label(label)
    pypto.set_cube_tile_shapes([32, 32], [128, 512], [128, 256])
    pypto.set_vec_tile_shapes(8, 512)
    half = x.shape[1] // 2
    s1 = pypto.matmul(x[:, :half], weight[:half], FP32)
    s2 = pypto.matmul(x[:, half:], weight[half:], FP32)
    return pypto.cast(s1 + s2, BF16)


@pypto.frontend.function
def norm(label: str, x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    # bf16(gamma * (x * r)), r = 1 / sqrt(sum(x * x * (1 / n)) + epsilon)
    pypto.set_semantic_label(label)
    pypto.set_vec_tile_shapes(4, 2048)
    n = gamma.shape[0]
    wide = pypto.cast(x, FP32)
    r = 1.0 / pypto.sqrt(pypto.sum(wide * wide * (1 / n), -1, keepdim=True) + epsilon)
    return pypto.cast(pypto.cast(pypto.reshape(gamma, [1, n]), FP32) * (wide * r), BF16)


@pypto.frontend.function
def quant(label: str, x: Tensor) -> tuple[Tensor, Tensor]:
    # m = 127 / max |x| of the last axis, scale = 1 / m, codes = rint(x * m)
    pypto.set_semantic_label(label)
    pypto.set_vec_tile_shapes(*[4] * (len(x.shape) - 1), 2048)
    wide = pypto.cast(x, FP32)
    m = 127.0 / pypto.amax(pypto.abs(wide), -1, keepdim=True)
    scale = 1.0 / m
    codes = pypto.cast(pypto.cast(wide * m, INT32, RINT), FP16, ROUND)
    return pypto.cast(codes, INT8, TRUNC, satmode=pypto.SaturationMode.ON), scale


@pypto.frontend.function
def up(labels: tuple[str, str], codes: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    # acc = codes weight, exact in int32
    pypto.set_semantic_label(labels[0])
    pypto.set_cube_tile_shapes([32, 32], [256, 1024], [128, 256])
    acc = pypto.matmul(codes, weight, INT32)
    # bf16((acc * scale of the token) * scale of the column)
    pypto.set_semantic_label(labels[1])
    pypto.set_vec_tile_shapes(4, 2048)
    return pypto.cast(pypto.cast(acc, FP32) * scale * pypto.reshape(weight_scale, [1, acc.shape[1]]), BF16)


@pypto.frontend.function
def absorb(q: Tensor, w_uk: Tensor) -> Tensor:
    # bf16(q[h] w_uk[h]) for each head h
    pypto.set_semantic_label("Absorb")
    pypto.set_cube_tile_shapes([32, 32], [128, 128], [128, 512])
    return pypto.experimental.transposed_batchmatmul(q, w_uk, BF16)


@pypto.frontend.function
def turned(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # bf16 of [a * cos - b * sin, b * cos + a * sin], with the first half of cos and sin and with the second
    tokens, m = a.shape[0], a.shape[2]
    pypto.set_vec_tile_shapes(4, 32, 64)
    cos = pypto.cast(pypto.reshape(cos, [tokens, 1, 2 * m]), FP32)
    sin = pypto.cast(pypto.reshape(sin, [tokens, 1, 2 * m]), FP32)
    low = a * cos[:, :, :m] - b * sin[:, :, :m]
    high = b * cos[:, :, m:] + a * sin[:, :, m:]
    return pypto.cast(pypto.concat([low, high], -1), BF16)


@pypto.frontend.function
def rope(label: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # elements 2j and 2j + 1 turn together; the first of each pair go to the lower half, the others to the upper one
    pypto.set_semantic_label(label)
    pypto.set_vec_tile_shapes(4, 32, 32, 2)
    tokens, n, width = x.shape
    pairs = pypto.transpose(pypto.reshape(pypto.cast(x, FP32), [tokens, n, width // 2, 2]), 2, 3)
    return turned(pairs[:, :, 0], pairs[:, :, 1], cos, sin)


@pypto.frontend.function
def write(rows: Tensor, index: Tensor, cache: Tensor) -> None:
    # row index[t] of the cache := rows[t]; a negative index skips the token
    pypto.set_semantic_label("Write")
    pypto.set_vec_tile_shapes(8, 1, 1, 512)
    tokens = index.shape[0]
    rows = pypto.reshape(rows, [tokens, 1, 1, cache.shape[3]])
    pypto.scatter_update(cache, -2, pypto.reshape(index, [tokens, 1]), rows)


@pypto.frontend.function
def store(first: Any, *results: tuple[Tensor, Tensor]) -> None:
    # rows first, first + 1, .. of each output
    pypto.set_semantic_label("Write")
    for rows, out in results:
        pypto.assemble(rows, [first, 0, 0][: len(rows.shape)], out)


@pypto.frontend.function
def heads(q: Tensor, cos: Tensor, sin: Tensor, w_uk: Tensor) -> tuple[Tensor, Tensor]:
    n, d = w_uk.shape[:2]
    q = pypto.reshape(q, [q.shape[0], n, q.shape[1] // n])
    return absorb(q[:, :, :d], w_uk), rope("Rope_q", q[:, :, d:], cos, sin)


@pypto.frontend.function
def key(x: Tensor, cos: Tensor, sin: Tensor, w_dkv_kr: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    latent, tokens = gamma.shape[0], x.shape[0]
    kv = down("Down_kv", x, w_dkv_kr)
    kr = rope("Rope_k", pypto.reshape(kv[:, latent:], [tokens, 1, kv.shape[1] - latent]), cos, sin)
    return norm("Norm_kv", kv[:, :latent], gamma, epsilon), kr


@pypto.frontend.function
def write_key(k: Tensor, kr: Tensor, index: Tensor, kv_cache: Tensor, kr_cache: Tensor, k_scale_cache: Tensor) -> None:
    groups = k_scale_cache.shape[3]
    codes, scale = quant("Quant_kv", pypto.reshape(k, [k.shape[0], groups, k.shape[1] // groups]))
    for rows, cache in ((codes, kv_cache), (kr, kr_cache), (scale, k_scale_cache)):
        write(rows, index, cache)


@pypto.frontend.jit
def mla_prolog_quant(
    token_x: Tensor(TOKENS, BF16),
    w_dq: Tensor(WEIGHT, BF16),
    w_uq_qr: Tensor(),
    dequant_scale: Tensor(),
    w_uk: Tensor([STATIC, STATIC, STATIC], BF16),
    w_dkv_kr: Tensor(WEIGHT, BF16),
    gamma_cq: Tensor([STATIC], BF16),
    gamma_ckv: Tensor([STATIC], BF16),
    cos: Tensor(TOKENS, BF16),
    sin: Tensor(TOKENS, BF16),
    cache_index: Tensor([DYNAMIC], INT64),
    kv_cache: Tensor(),
    kr_cache: Tensor(CACHE, BF16),
    k_scale_cache: Tensor(),
    q_norm_out: Tensor(),
    q_norm_scale_out: Tensor(),
    query_nope_out: Tensor([DYNAMIC, STATIC, STATIC], BF16),
    query_rope_out: Tensor([DYNAMIC, STATIC, STATIC], BF16),
    kv_cache_out: Tensor(),
    kr_cache_out: Tensor(CACHE, BF16),
    k_scale_cache_out: Tensor(),
    epsilon_cq: float = 1e-5,
    epsilon_ckv: float = 1e-5,
    cache_mode: str = "PA_BSND",
    tile_config: Any = None,
    rope_cfg: Any = None,
):
    if cache_mode != "PA_BSND":
        raise NotImplementedError('caches of this program lie as "PA_BSND"')
    quantised = 0 not in dequant_scale.shape
    unroll_list = list(getattr(tile_config, "unroll_list", UNROLL_LIST))
    for t, p in pypto.loop_unroll(0, token_x.shape[0], name="tokens", idx_name="t", unroll_list=unroll_list):
        x, c, s, index = token_x[t : t + p], cos[t : t + p], sin[t : t + p], cache_index[t : t + p]
        q_norm = norm("Norm_q", down_in_halves("Down_q", x, w_dq), gamma_cq, epsilon_cq)
        if quantised:
            q_norm, scale = quant("Quant_q", q_norm)
            q = up(("Up_q", "Dequant_q"), q_norm, scale, w_uq_qr, dequant_scale)
        else:
            q = down("Up_q", q_norm, w_uq_qr)
        nope, rotated = heads(q, c, s, w_uk)
        k, kr = key(x, c, s, w_dkv_kr, gamma_ckv, epsilon_ckv)
        store(t, (q_norm, q_norm_out), (nope, query_nope_out), (rotated, query_rope_out))
        if quantised:
            store(t, (scale, q_norm_scale_out))
            write_key(k, kr, index, kv_cache, kr_cache, k_scale_cache)
        else:
            write(k, index, kv_cache)
            write(kr, index, kr_cache)
    kv_cache_out[:], kr_cache_out[:] = kv_cache, kr_cache
    if quantised:
        k_scale_cache_out[:] = k_scale_cache
