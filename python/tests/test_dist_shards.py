# SPDX-License-Identifier: Apache-2.0
"""dsakit.dist for engines: operators whose caches lie on several ranks, beside one call over the whole caches."""

import pathlib
import re

import dist_shards
import numpy as np
import pytest

import dsakit
import dsakit.dist as dist

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "distributed.md"


def on_ranks(ranks, f):
    results = [None] * ranks

    def run(group):
        results[group.rank()] = f(group)

    dist.threads(ranks, run)
    return results


def test_ownership_is_what_loops_say():
    for ranks, interleave in ((1, 1), (3, 2), (5, 16)):
        count = [0] * ranks
        positions = np.arange(200)
        for x in range(200):
            owner = x // interleave % ranks
            mine = dist.Ownership(ranks, owner, interleave)
            assert mine.owner(x) == owner and mine.owns(x)
            assert [dist.Ownership(ranks, r, interleave).below(x) for r in range(ranks)] == count
            assert mine.local(x) == count[owner] and mine.position(count[owner]) == x
            count[owner] += 1
        mine = dist.Ownership(ranks, ranks - 1, interleave)
        np.testing.assert_array_equal(mine.below(positions), [mine.below(int(x)) for x in positions])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("quantised", [True, False])
def test_selection_is_that_of_one_process(ranks, quantised):
    b = dist_shards.Batch()
    wanted = b.select_alone(quantised)
    for got in on_ranks(ranks, lambda group: b.select(group, quantised, interleave=4, merge="two")):
        np.testing.assert_array_equal(got, wanted)
    candidates = [b.candidates(quantised, dist.Ownership(ranks, rank, 4)) for rank in range(ranks)]
    assert all(c.dtype == np.uint64 for c in candidates)
    np.testing.assert_array_equal(dist.merge_candidates(candidates)[:, None], wanted)


def test_scores_come_with_the_selection():
    b = dist_shards.Batch()
    wanted = b.select_alone(False, return_value=True)
    for got in on_ranks(3, lambda group: b.select(group, False, interleave=1, return_value=True)):
        for one, other in zip(got, wanted, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("operator", dist_shards.ATTENTION)
def test_attention_over_rows_has_the_bits_of_one_process(ranks, operator):
    b = dist_shards.Batch()
    for rank, got in enumerate(on_ranks(ranks, lambda group: b.attend(group, operator, interleave=4))):
        assert got.tobytes() == b.attend_alone(operator, dist_shards.heads_of(rank)).tobytes()


@pytest.mark.parametrize("operator", dist_shards.ATTENTION)
def test_attention_of_parts_is_close(operator):
    b = dist_shards.Batch()
    for rank, got in enumerate(on_ranks(3, lambda group: b.attend(group, operator, exchange="partials"))):
        dist_shards.expect_close(got, b.attend_alone(operator, dist_shards.heads_of(rank)))
    parts = [b.partial(operator, dist.Ownership(3, rank)) for rank in range(3)]
    maxima, sums, values = zip(*parts, strict=True)
    merged = dist.merge_partials(maxima, sums, values)
    wanted = b.attend_alone(operator, slice(None))
    dist_shards.expect_close(merged, wanted.reshape(merged.shape))


def test_torch_tensors_come_back_as_torch():
    torch = pytest.importorskip("torch")
    b = dist_shards.Batch(torch=torch)
    wanted = b.select_alone(True)
    assert isinstance(wanted, torch.Tensor)
    for got in on_ranks(2, lambda group: b.select(group, True)):
        assert torch.equal(got, wanted)
    candidates = [b.candidates(True, dist.Ownership(2, rank)) for rank in range(2)]
    assert candidates[0].dtype == torch.int64 and torch.equal(dist.merge_candidates(candidates)[:, None], wanted)
    for operator in dist_shards.ATTENTION:
        for rank, got in enumerate(on_ranks(2, lambda group, op=operator: b.attend(group, op))):
            assert torch.equal(got, b.attend_alone(operator, dist_shards.heads_of(rank)))
        maxima, sums, values = zip(*(b.partial(operator, dist.Ownership(2, rank)) for rank in range(2)), strict=True)
        assert dist.merge_partials(maxima, sums, values).dtype == torch.bfloat16


@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_of_torch_distributed(ranks, tmp_path):
    pytest.importorskip("torch")
    dist_shards.run_processes(ranks, tmp_path)


def test_what_one_rank_gets_wrong_all_refuse():
    b = dist_shards.Batch()

    def refusals(call):
        def run(group):
            with pytest.raises(dsakit.Error) as refused:
                call(group, group.rank() == 1)
            group.barrier()  # it lives
            return type(refused.value), refused.value.status, str(refused.value)

        (said,) = set(on_ranks(3, run))
        return said

    operator = dsakit.kv_quant_sparse_flash_attention
    for call, status, sentence in (
        (
            lambda g, wrong: b.select(g, True, sparse_mode=7 if wrong else 3),
            "INVALID_ARGUMENT",
            "sparse_mode is 7, wanted 0 or 3",
        ),
        (
            lambda g, wrong: b.select(g, True, weights=None if wrong else b.weights),
            "INVALID_ARGUMENT",
            "weights is missing, wanted a tensor",
        ),
        (
            lambda g, wrong: b.select(g, True, **{"keys" if wrong else "numerics": "fp32"}),
            "INVALID_ARGUMENT",
            "keys is given, wanted a parameter of quant_lightning_indexer",
        ),
        (
            lambda g, wrong: b.select(g, True, key_dtype="int8" if wrong else None),
            "UNSUPPORTED",
            "key_dtype is 'int8', wanted None (reserved)",
        ),
        (lambda g, _: dist.select(g, operator), "INVALID_ARGUMENT", "operator is "),
    ):
        kind, got, said = refusals(call)
        assert got == status and said.startswith(f"dist.select: {sentence}"), said
        assert issubclass(kind, NotImplementedError if status == "UNSUPPORTED" else ValueError)
    with pytest.raises(dsakit.Error, match="dist.partial_attention: operator is .*, wanted dsakit.kv_quant_sparse"):
        dist.partial_attention(dsakit.rms_norm, owner=dist.Ownership(2, 0))
    with pytest.raises(dsakit.Error, match="dist.index_candidates: query is missing, wanted a tensor"):
        dist.index_candidates(dsakit.lightning_indexer, owner=dist.Ownership(2, 0))
    with pytest.raises(dsakit.Error, match="dist.index_candidates: rank is 2, wanted 0..1"):
        b.candidates(True, dist.Ownership(2, 2))
    with pytest.raises(dsakit.Error, match="dist.merge_candidates: candidates are none"):
        dist.merge_candidates([])
    with pytest.raises(dsakit.Error, match="dist.merge_partials: dtype is 'int8'"):
        dist.merge_partials([], [], [], dtype="int8")


def test_the_example_of_the_page():
    (example,) = re.findall(r"<!-- engine -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    b = dist_shards.Batch()
    names = {"lengths": b.lengths, "scale": b.scale, **b.example_inputs()}
    results = on_ranks(3, lambda group: dist_shards.run_example(example, group, names, b))
    for lists, out in results:
        np.testing.assert_array_equal(lists, b.select_alone(True))
        assert out.tobytes() == b.attend_alone(dsakit.kv_quant_sparse_flash_attention, slice(None)).tobytes()
