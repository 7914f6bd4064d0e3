# SPDX-License-Identifier: Apache-2.0
"""npu_quant_lightning_indexer, npu_lightning_indexer: running totals, the chip's sizes, value checking."""

import os
import subprocess
import sys

import numpy as np
import pytest

import dsakit
from oracle import cases

SENTENCE = "lengths in TND are running totals; the last must be the number of rows, 80"


def call(quantised, keys=(40, 80), queries=(2, 4), level="portable", heads=64):
    rng = cases.generator(3)
    lengths = dict(actual_seq_lengths_query=np.array(queries, np.int32), actual_seq_lengths_key=np.array(keys, np.int32))
    lengths |= dict(layout_query="TND", layout_key="TND", sparse_count=16, level=level)
    if not quantised:
        query, key = cases.uniform(rng, (4, heads, 128)), cases.uniform(rng, (80, 1, 128))
        return dsakit.npu_lightning_indexer(query, key, cases.uniform(rng, (4, heads)), **lengths)[0]
    half = lambda *shape: rng.random(shape).astype(np.float16)  # noqa: E731
    query, key = cases.codes(rng, (4, heads, 128)), cases.codes(rng, (80, 1, 128))
    modes = dict(query_quant_mode=0, key_quant_mode=0)
    scales = half(4, heads), half(80, 1)
    return dsakit.npu_quant_lightning_indexer(query, key, half(4, heads), *scales, **modes, **lengths)


both = pytest.mark.parametrize("quantised", [False, True], ids=["lightning_indexer", "quant_lightning_indexer"])


@both
def test_strict_refuses_counts_of_keys(quantised):
    with pytest.raises(dsakit.Error) as caught:
        call(quantised, keys=(40, 40), level="strict")
    assert (caught.value.status, caught.value.parameter) == ("INVALID_SEQLEN", "actual_seq_lengths_key")
    assert SENTENCE in str(caught.value)
    call(quantised, level="strict")
    call(quantised, queries=(2, 2), level="strict")  # padding is legal


@both
def test_portable_warns_once(quantised):
    """In a process of its own: each sentence comes once in the life of one."""
    code = f"""
import warnings
from test_published_indexer import call, SENTENCE
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    call({quantised})
    assert not caught
    for times in range(2):
        assert (call({quantised}, keys=(40, 40))[2:] == -1).all()
    assert [SENTENCE in str(w.message) for w in caught] == [True], caught
    for times in range(2):
        assert (call({quantised}, queries=(2, 2))[2:] == -1).all()
    assert len(caught) == 2 and "actual_seq_lengths_query" in str(caught[1].message), caught
"""
    folder = os.path.dirname(__file__)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=os.path.join(folder, "..", ".."), env=environment)


def test_strict_has_64_heads_in_the_quantised_form():
    with pytest.raises(dsakit.Error) as caught:
        call(True, heads=32, level="strict")
    assert (caught.value.status, caught.value.parameter) == ("UNSUPPORTED", "query")
    call(True, heads=32), call(False, heads=32, level="strict")


def test_value_checking_looks_at_products_of_fp16():
    code = """
import numpy as np, dsakit
query, key = np.ones((1, 1, 2, 16), np.int8), np.ones((1, 5, 1, 16), np.int8)
weights, scale = np.full((1, 1, 2), 300, np.float16), np.full((1, 1, 2), 300, np.float16)
call = lambda **change: dsakit.quant_lightning_indexer(
    **dict(query=query, key=key, weights=weights, query_dequant_scale=scale,
           key_dequant_scale=np.ones((1, 5, 1), np.float16), sparse_count=4) | change)
try:
    call()
    raise SystemExit("accepted")
except dsakit.Error as e:
    assert (e.status, e.parameter) == ("INVALID_VALUE", "weights"), e
call(weights=weights.astype(np.float32))
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"DSAKIT_CHECK": "1"})
