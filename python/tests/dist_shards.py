# SPDX-License-Identifier: Apache-2.0
"""A batch whose caches lie on several ranks, for test_dist_shards.py; as a program one of its processes.

Usage: dist_shards.py FOLDER, with RANK and WORLD_SIZE set."""

import datetime
import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np

import dsakit
import dsakit.dist as dist

BF16 = ml_dtypes.bfloat16
PAGE = 8
HEADS, DV, DR, TILE = 4, 32, 8, 16
ATTENTION = [
    dsakit.kv_quant_sparse_flash_attention,
    dsakit.sparse_flash_attention,
    dsakit.sparse_flash_attention_quant,
]
WHOLE = dist.Ownership(1, 0)


def heads_of(rank):
    """As many as a rank likes."""
    return slice(rank % 2, rank % 2 + 1 + rank % 3)


class Batch:
    def __init__(self, torch=None):
        self.torch = torch
        self.lengths, self.queries, self.count, self.scale = [3, 37, 90, 200], 2, 64, 0.25
        self.totals = [self.queries * (b + 1) for b in range(len(self.lengths))]
        r = np.random.default_rng(3)
        rows, total = self.queries * len(self.lengths), sum(self.lengths)
        self.index_query = r.integers(-128, 128, (rows, 2, 32), np.int8)
        self.weights = r.normal(size=(rows, 2)).astype(np.float32)
        self.index_query_scale = r.uniform(0.1, 1, (rows, 2)).astype(np.float32)
        self.index_key = r.integers(-3, 3, (total, 32), np.int8)  # few different scores
        self.index_key_scale = np.ones((total, 1), np.float32)
        self.query = r.normal(size=(rows, HEADS, DV + DR)).astype(BF16)
        self.latent = r.normal(size=(total, DV)).astype(BF16)
        self.rope = r.normal(size=(total, DR)).astype(BF16)
        self.code = r.integers(-128, 128, (total, DV), np.int8)
        self.code_scale = r.uniform(0.001, 0.02, (total, DV // TILE)).astype(np.float32)
        parts = (self.code, self.rope.view(np.int8), self.code_scale.view(np.int8))
        self.row = np.concatenate(parts, axis=1)

    def kind(self, array):
        """As the caller has it: numpy or torch."""
        if self.torch is None:
            return array
        array = np.ascontiguousarray(array)
        if array.dtype == BF16:
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)

    def pages(self, owner, whole):
        """The pages of a rank, in no order, and their table."""
        held = [owner.below(n) for n in self.lengths]
        columns = max(1, -(-max(held) // PAGE))
        table = np.random.default_rng(owner.rank).permutation(len(held) * columns).astype(np.int32).reshape(-1, columns)
        memory = np.zeros((table.size * PAGE, whole.shape[1]), whole.dtype)
        begin = 0
        for b, length in enumerate(self.lengths):
            positions = np.arange(length)
            positions = positions[owner.owns(positions)]
            local = owner.local(positions)
            memory[table[b, local // PAGE] * PAGE + local % PAGE] = whole[begin + positions]
            begin += length
        return self.kind(memory.reshape(table.size, PAGE, 1, -1)), self.kind(table)

    def select_arguments(self, owner, quantised):
        """By position, and by name."""
        lengths = dict(actual_seq_lengths_query=self.totals, actual_seq_lengths_key=self.lengths)
        layouts = dict(layout_query="TND", layout_key="PA_BSND", sparse_count=self.count)
        keys, table = self.pages(owner, self.index_key)
        if quantised:
            scales = self.pages(owner, self.index_key_scale)[0][..., 0]
            arrays = [self.kind(x) for x in (self.index_query, self.weights, self.index_query_scale)]
            args = (arrays[0], keys, arrays[1], arrays[2], scales)
        else:
            keys = self.pages(owner, self.index_key.astype(BF16))[0]
            args = (self.kind(self.index_query.astype(BF16)), keys, self.kind(self.weights.astype(BF16)))
        return args, dict(block_table=table, **lengths, **layouts)

    def indexer(self, quantised):
        return dsakit.quant_lightning_indexer if quantised else dsakit.lightning_indexer

    def select_alone(self, quantised, **more):
        args, names = self.select_arguments(WHOLE, quantised)
        result = self.indexer(quantised)(*args, **names, **more)
        return result if quantised or more else result[0]

    def select(self, group, quantised, interleave=1, merge="auto", **more):
        args, names = self.select_arguments(dist.Ownership(group.size(), group.rank(), max(interleave, 1)), quantised)
        if "weights" in more:  # instead of the third
            names |= dict(zip(("query_dequant_scale", "key_dequant_scale"), args[3:], strict=True))
            args = args[:2]
        options = dict(interleave=interleave, merge=merge)
        result = dist.select(group, self.indexer(quantised), *args, **(names | more), **options)
        return result if quantised or more else result[0]

    def candidates(self, quantised, owner):
        args, names = self.select_arguments(owner, quantised)
        return dist.index_candidates(self.indexer(quantised), *args, **names, owner=owner)

    def attend_arguments(self, operator, owner, heads):
        query = self.query[:, heads]
        nope, rope = self.kind(query[..., :DV]), self.kind(query[..., DV:])
        lists = self.select_alone(True)
        lengths = dict(actual_seq_lengths_query=self.totals, actual_seq_lengths_kv=self.lengths)
        names = dict(layout_query="TND", layout_kv="PA_BSND", attention_mode=2, **lengths)
        if operator is dsakit.sparse_flash_attention_quant:
            codes, table = self.pages(owner, self.code)
            ropes, scales = self.pages(owner, self.rope)[0], self.pages(owner, self.code_scale)[0]
            flat = [x.reshape(-1, x.shape[-1]) for x in (nope, rope, codes, ropes, scales)]
            lengths = self.kind(np.array(self.lengths, np.int32))
            sizes = (len(self.lengths), self.queries, query.shape[1])
            names = dict(
                b=sizes[0], s1=sizes[1], nq=sizes[2], softmax_scale=self.scale, topk=self.count, block_size=PAGE
            )
            named = dict(
                zip(("query_nope", "query_rope", "key_nope_2d", "key_rope_2d", "k_nope_scales"), flat, strict=True)
            )
            named |= dict(topk_indices=lists.reshape(-1, self.count), block_table=table, kv_act_seqs=lengths)
            return (), named | names
        if operator is dsakit.sparse_flash_attention:
            latents, table = self.pages(owner, self.latent)
            ropes = dict(query_rope=rope, key_rope=self.pages(owner, self.rope)[0])
            return (nope, latents, latents, lists, self.scale), dict(block_table=table, **ropes, **names)
        rows, table = self.pages(owner, self.row)
        sizes = dict(tile_size=TILE, rope_head_dim=DR)
        return (self.kind(query), rows, rows, lists, self.scale, 2, 2), dict(block_table=table, **sizes, **names)

    def result_of(self, operator, result):
        return result[0] if operator is dsakit.sparse_flash_attention else result

    def attend_alone(self, operator, heads):
        args, names = self.attend_arguments(operator, WHOLE, heads)
        return self.result_of(operator, operator(*args, **names))

    def attend(self, group, operator, interleave=1, exchange="rows"):
        owner = dist.Ownership(group.size(), group.rank(), interleave)
        args, names = self.attend_arguments(operator, owner, heads_of(group.rank()))
        return self.result_of(
            operator, dist.attend(group, operator, *args, **names, interleave=interleave, exchange=exchange)
        )

    def partial(self, operator, owner):
        args, names = self.attend_arguments(operator, owner, slice(None))
        return dist.partial_attention(operator, *args, **names, owner=owner)

    def example_inputs(self, owner=WHOLE):
        """What the example of docs/distributed.md calls its arrays."""
        index, named = self.select_arguments(owner, True)
        attention, _ = self.attend_arguments(dsakit.kv_quant_sparse_flash_attention, owner, slice(None))
        names = ("index_query", "index_keys", "weights", "index_query_scale", "index_key_scales")
        return dict(zip(names, index, strict=True)) | dict(
            query=attention[0], rows=attention[1], table=named["block_table"], totals=self.totals
        )


def expect_close(got, wanted):
    """docs/accuracy.md: bfloat16 attention."""
    got, wanted = np.asarray(got, np.float32), np.asarray(wanted, np.float32)
    assert got.shape == wanted.shape
    assert (np.abs(got - wanted) <= 1e-3 + np.abs(wanted) * 2.0**-7).all()


def run_example(code, group, names, batch):
    inputs = batch.example_inputs(dist.Ownership(group.size(), group.rank(), 16))
    scope = {"dsakit": dsakit, "dist": dist, "group": group} | names | inputs
    exec(compile(code, "docs/distributed.md", "exec"), scope)
    return scope["lists"], scope["out"]


def run_processes(ranks, folder, hang=300):
    network = {"GLOO_SOCKET_IFNAME": "lo", "DSAKIT_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, folder],
            env=os.environ | network | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            out = process.communicate(timeout=hang)[0]
            assert process.returncode == 0 and "equal" in out, out
    finally:
        for process in processes:
            process.kill()


def main(folder):
    import torch.distributed

    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.FileStore(str(pathlib.Path(folder, "store")), int(os.environ["WORLD_SIZE"])),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=datetime.timedelta(seconds=300),
    )
    group = dist.init(timeout=300)
    b = Batch(torch=torch)
    for quantised in (True, False):
        for merge in ("one", "two"):
            assert torch.equal(b.select(group, quantised, interleave=4, merge=merge), b.select_alone(quantised))
    for operator in ATTENTION:
        wanted = b.attend_alone(operator, heads_of(group.rank()))
        assert torch.equal(b.attend(group, operator), wanted)
        expect_close(b.attend(group, operator, exchange="partials").float(), wanted.float())
    print("equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
