# SPDX-License-Identifier: Apache-2.0
"""Decoding through packed cache rows: mla_prolog_v3, quant_lightning_indexer and kv_quant_sparse_flash_attention, each fed
with what the one before made, against one evaluation in float64."""

import numpy as np
import pytest

import dsakit
from oracle import indexer
from oracle.cases import BF16, F, codes, generator, page_table, uniform
from oracle.harness import assert_same, both, operator
from oracle.mla_prolog_v3 import ROWS, judge_mla_prolog_v3, split_rows
from oracle.mla_prolog_v3_cases import mla_prolog_v3
from oracle.sparse_attention import attend, attend_plain, check_output

PAGE, LENGTHS, NEW = 16, [70, 1, 37, 129], [2, 1, 4, 3]
N, LATENT, DR, TILE, NI, DI, K = 4, 256, 32, 64, 8, 32, 24
SIZE = dict(he=96, hcq=64, n=N, d=24, dr=DR, latent=LATENT, tile=TILE)


def history(row, table, impl):
    """The caches with every token but the new ones: rows written by one call, index keys of random codes."""
    slots = lambda b, first, last: [int(table[b, j // PAGE]) * PAGE + j % PAGE for j in range(first, last)]
    old = [s for b, n in enumerate(LENGTHS) for s in slots(b, 0, n - NEW[b])]
    new = [s for b, n in enumerate(LENGTHS) for s in slots(b, n - NEW[b], n)]
    pages = int(table.max()) + 1
    cache = np.full((pages, PAGE, 1, LATENT + 2 * DR + 4 * (LATENT // TILE)), -1, np.int8)
    given, _ = mla_prolog_v3(31, row, lengths=[len(old)], **SIZE)
    before = cache.copy()
    run = dict(given, cache_index=np.array(old), kv_cache=cache, kr_cache=np.zeros(0, BF16))
    results = operator("mla_prolog_v3", impl)(**run)
    names = ("query", "query_rope", "dequant_scale_q_nope", "query_norm", "dequant_scale_q_norm")
    got = dict(zip(names, results), kv_cache=cache, kr_cache=None)
    judge_mla_prolog_v3(ROWS[row], run, got, dict(kv_cache=before, kr_cache=np.zeros(0, BF16)))
    return cache, new


@both
@pytest.mark.parametrize("row", [7, 4])
def test_decode_through_packed_rows(row, impl):
    rng = generator(32)
    table, _ = page_table(rng, LENGTHS, PAGE, spare=0)
    table = np.where(np.abs(table.astype(np.int64)) < 10**6, table, -1).astype(np.int32)
    cache, new = history(row, table, impl)
    given, _ = mla_prolog_v3(31, row, lengths=[sum(NEW)], **SIZE)  # the same weights, other tokens
    rest = mla_prolog_v3(33, row, lengths=[sum(NEW)], **SIZE)[0]
    names = ("token_x", "dequant_scale_x", "rope_sin", "rope_cos")
    given |= {n: rest[n] for n in names if n in rest}
    before = cache.copy()
    call = dict(given, cache_index=np.array(new), kv_cache=cache, kr_cache=np.zeros(0, BF16))
    results = operator("mla_prolog_v3", impl)(**call)
    got = dict(zip(("query", "query_rope", "dequant_scale_q_nope", "query_norm", "dequant_scale_q_norm"), results))
    judge_mla_prolog_v3(ROWS[row], call, got | dict(kv_cache=cache, kr_cache=None),
                        dict(kv_cache=before, kr_cache=np.zeros(0, BF16)))  # fmt: skip

    # the index query is the low-rank one times int8 weights, in the order of deq; its keys are random
    ends = np.cumsum(NEW).astype(np.int32)
    w_qb, w_scale = codes(rng, (SIZE["hcq"], NI * DI)), (rng.random((1, NI * DI)) * 1e-3).astype(F)
    acc = got["query_norm"].astype(np.int64) @ w_qb.astype(np.int64)
    q_index = ((acc.astype(F) * got["dequant_scale_q_norm"]) * w_scale).reshape(-1, NI, DI).astype(BF16)
    q8, q_scale = operator("dynamic_quant", impl)(q_index)
    weights = uniform(rng, (sum(NEW), NI), 1, np.float16)
    index_keys, key_scale = codes(rng, (len(cache), PAGE, 1, DI)), rng.random((len(cache), PAGE, 1)).astype(np.float16)
    lengths = dict(actual_seq_lengths_query=ends, block_table=table, layout_query="TND")
    selection = operator("quant_lightning_indexer", impl)(
        q8, index_keys, weights, q_scale, key_scale, actual_seq_lengths_key=LENGTHS, layout_key="PA_BSND", sparse_count=K, **lengths
    )  # fmt: skip
    attend_args = dict(
        value=cache, sparse_indices=selection, scale_value=0.1, key_quant_mode=2, value_quant_mode=2, actual_seq_lengths_kv=LENGTHS,
        layout_kv="PA_BSND", attention_mode=2, tile_size=TILE, rope_head_dim=DR, **lengths,
    )  # fmt: skip
    query = np.concatenate([got["query"], got["query_rope"]], axis=2)
    out = operator("kv_quant_sparse_flash_attention", impl)(query, cache, **attend_args)

    # float64 over the packed rows, taken apart here
    row_codes, row_rope, row_scales = split_rows(cache.reshape(len(cache) * PAGE, -1), LATENT, DR)
    latent = row_codes * np.repeat(row_scales.astype(np.float64), TILE, axis=1)
    exact, plain = [], []
    for t in range(sum(NEW)):
        b = int(np.searchsorted(ends, t, side="right"))
        seen = LENGTHS[b] - (int(ends[b]) - t) + 1
        flat = [int(table[b, j // PAGE]) * PAGE + j % PAGE for j in range(LENGTHS[b])]
        scores = indexer.quant_scores(
            q8[t], index_keys.reshape(-1, DI)[flat[:seen]], weights[t], q_scale[t], key_scale.reshape(-1)[flat[:seen]]
        )
        chosen = indexer.select(scores, K)
        assert_same(selection[t, 0], chosen, f"selection of token {t}")
        places = [flat[j] for j in chosen if j >= 0]
        args = (query[t, :, :LATENT].astype(np.float64), query[t, :, LATENT:].astype(np.float64), latent[places],
                row_rope[places].astype(np.float64), 0.1)  # fmt: skip
        exact.append(attend(*args))
        plain.append(attend_plain(*args))
    check_output(out, np.array(exact), np.array(plain), "attention_out")

    unpacked = dsakit.unpack_kv_rows(cache, rope_head_dim=DR, tile_size=TILE)
    for ours, theirs in zip((row_codes, row_rope, row_scales), unpacked):
        assert_same(theirs.reshape(ours.shape), ours)
    other = dsakit.sparse_flash_attention_quant(  # the same rows in three caches
        got["query"][:2], got["query_rope"][:2], *unpacked, selection[:2], table[:1], LENGTHS[:1],
        b=1, s1=2, nq=N, softmax_scale=0.1, topk=K, block_size=PAGE,
    )  # fmt: skip
    if impl == "fast":
        assert_same(other[0], out[:2], "packed rows and separate caches")
