# SPDX-License-Identifier: Apache-2.0
"""Fresh random cases of the operators' own tests, for as long as wanted:

    DSAKIT_ISA=avx2 python stress.py SECONDS [FIRST_SEED [OPERATOR ...]]

Every failure prints its operator and seed; `python stress.py 0 SEED OPERATOR` is that case alone."""

import sys
import time

import numpy as np

import dsakit
import test_operators_dynamic_block_quant as block_quant
import test_operators_mla_prolog_v3 as prolog
import test_operators_quantize as quantize
import test_operators_rope as rope
import test_operators_sparse_flash_attention as sparse
from oracle.cases import generator
from oracle.harness import assert_same
from oracle.mla_prolog_v3 import ROWS, judge_mla_prolog_v3
from oracle.sparse_cases import check_case, sparse_case


def mla_prolog_v3(seed):
    """Also the same tokens in two calls, and weights in NZ. Every eighth case: more tokens than a tile has."""
    row, exact, (given, before) = prolog.random_case(seed)
    if seed % 8 == 0:
        rng = generator(seed + 10**8)
        size = prolog.random_size(rng) | dict(lengths=(int(rng.choice([33, 64, 127, 129, 300])),), n=1, spare=1)
        size |= dict(he=min(size["he"], 65), latent=size["tile"] * 2, dr=32)
        exact, row = False, seed // 8 % 7 + 1
        given, before = prolog.mla_prolog_v3(seed, row, **size, **prolog.random_options(rng, row))
    got = {}
    for impl in ("fast", "reference"):
        got[impl] = prolog.run(given, before, impl)
        judge_mla_prolog_v3(ROWS[row], given, got[impl], before, exact)
    nz = {n: prolog.to_nz(given[n], padding=99) for n in prolog.WEIGHTS}
    prolog.assert_results(prolog.run(given, before, **nz), got["fast"], what="NZ")
    t = len(given["token_x"])
    if given["cache_mode"] == "PA_BSND" and given["token_x"].ndim == 2 and t > 1:
        names, caches, parts = ("token_x", "rope_sin", "rope_cos", "cache_index", "dequant_scale_x"), before, []
        cut = 1 + seed % (t - 1)
        for tokens in (slice(0, cut), slice(cut, t)):
            part = prolog.run({k: v[tokens] if k in names else v for k, v in given.items()}, caches)
            caches = {k: part[k] for k in caches}
            parts.append(part)
        for name in prolog.RESULTS:
            if got["fast"][name].size:
                assert_same(np.concatenate([p[name] for p in parts]), got["fast"][name], f"split {name}")
        prolog.assert_results(caches, got["fast"], tuple(before), "split")


def attention(name):
    def run(seed):
        rng = generator(seed + 10**7)
        longest = int([20, 90, 300, 700, 2300][rng.choice(5, p=[0.2, 0.4, 0.25, 0.1, 0.05])])
        more = dict(heads=int(rng.choice([1, 2, 5])), dv=64, tile=32) if longest > 300 else {}
        queries = int(rng.integers(1, 3 if longest > 300 else 7))
        c = sparse_case(seed, quantised=name == sparse.KVSFA, longest=longest, queries=queries, **more)
        got = sparse.triple(name, c.args)
        check_case(c, *got)
        check_case(c, *sparse.triple(name, c.args, "reference"))
        for threads in (1, 3):
            dsakit.set_num_threads(threads)
            for again, first in zip(sparse.triple(name, c.args), got):
                assert_same(again, first, f"{threads} threads")
        dsakit.set_num_threads(2)

    return run


def both(test):
    return lambda seed: [test(seed, impl) for impl in ("fast", "reference")]


def quantised(seed):
    args = quantize.case(seed)
    for impl in ("fast", "reference"):
        assert_same(quantize.operator(quantize.NAME, impl)(*args), quantize.quantize(*args))


CASES = dict(
    mla_prolog_v3=mla_prolog_v3,
    sparse_flash_attention=attention(sparse.SFA),
    kv_quant_sparse_flash_attention=attention(sparse.KVSFA),
    quantize=quantised,
    dynamic_block_quant=both(block_quant.test_random),
    interleave_rope=both(rope.test_interleave_rope),
    rotary_mul=both(rope.test_rotary_mul),
)


def main(seconds, first=10**6, *names):
    end, seed, failures = time.time() + float(seconds), int(first), 0
    names = names or CASES
    while True:
        for name in names:
            try:
                CASES[name](seed)
            except Exception as error:  # a refusal of a good call is a finding like any other
                failures += 1
                print(f"{name} {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        seed += 1
        if time.time() >= end:
            break
    print(f"{dsakit.info()['isa']}: {seed - int(first)} cases of each of {len(names)} operators, {failures} failures")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
