#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models shared on grids drawn by chance, on threads of this process, beside one process: the bits of all logits, sessions
saved by so many ranks and read by others, engines' selection and attention, and faults, after which all ranks say the same
or the group is dead. Prints what went wrong, with the seed that draws it again, and how often what was tried.

Usage: random_grids.py MODEL [--seconds 600 | --count N] [--seed N]"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import sys
import tempfile
import time

os.environ.setdefault("DSAKIT_NUM_THREADS", "1")

import numpy as np

import dsakit
import dsakit.dist as dist

MODES = ("dense_bf16", "sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed")
PATIENCE = 300  # seconds that ranks wait for each other


class Wrong(Exception):
    pass


def draw_grid(r, dense):
    """Ranks and options; dense_bf16 has the bits of one process without kv alone."""
    while True:
        kv, heads, query = (int(x) for x in r.integers(1, 5, 3))
        if kv * heads * query <= 8 and not (dense and kv > 1):
            break
    words = ",".join(f"{name}={n}" for name, n in (("kv", kv), ("heads", heads), ("query", query)))
    return kv * heads * query, dict(
        parallel=words,
        index=str(r.choice(["all", "kv", "copy"])),
        merge=str(r.choice(["auto", "one", "two"])),
        prolog=str(r.choice(["split", "copy"])),
        interleave=int(r.choice([1, 2, 16, 128])),
    )


def draw_pieces(r, count):
    """A text in pieces: prompts and single tokens."""
    pieces, left = [], count
    while left > 0:
        pieces.append(min(left, int(r.choice([1, 1, 2, 17, 64, 150]))))
        left -= pieces[-1]
    return pieces


def logits_of(session, text, pieces):
    """Of the last token of each piece."""
    rows, at = [], 0
    for n in pieces:
        rows.append(session.prefill(text[at : at + n]) if n > 1 else session.step(text[at]))
        at += n
    return np.stack(rows)


def on_ranks(ranks, f):
    """What f(group) gives on each rank, an Error among them, and whether a rank left."""
    seen = [None] * ranks

    def run(group):
        try:
            seen[group.rank()] = f(group)
        except dsakit.Error as e:
            seen[group.rank()] = e
            if e.status == "PEER_FAILED":
                raise

    try:
        dist.threads(ranks, run, timeout=PATIENCE)
    except dsakit.Error as e:
        if e.status != "PEER_FAILED":
            raise
    return seen


class Faulty:
    """A carrier that fails in its n-th exchange, counted over all groups of a rank."""

    def __init__(self, group, count):
        self._group, self._count = group, count

    def rank(self):
        return self._group.rank()

    def size(self):
        return self._group.size()

    def _next(self):
        self._count[0] -= 1
        if self._count[0] == 0:
            raise OSError("the cable is cut")

    def all_gather(self, mine, all, bytes_of_rank):
        self._next()
        return self._group.all_gather(mine, all, bytes_of_rank)

    def all_to_all(self, mine, to, got, from_):
        self._next()
        return self._group.all_to_all(mine, to, got, from_)

    def broadcast(self, bytes, root):
        self._next()
        return self._group.broadcast(bytes, root)

    def split(self, colour, key):
        return Faulty(self._group.split(colour, key), self._count)

    def abort(self, exit_status, sentence):
        self._group.abort(0, sentence)


class Trial:
    def __init__(self, folder, text, alone, r):
        self.folder, self.text, self.alone, self.r = folder, text, alone, r
        self.mode = str(r.choice(MODES))
        self.ranks, self.options = draw_grid(r, self.mode == "dense_bf16")
        self.text = text[: int(r.integers(2, 230))]
        self.pieces = draw_pieces(r, len(self.text))

    def __str__(self):
        return f"{self.mode} {self.options} pieces {self.pieces}"

    def wanted(self):
        return logits_of(self.alone.session(self.mode), self.text, self.pieces)

    def model(self, group, **more):
        return dsakit.Model(self.folder, group=group, **(self.options | more))

    def must_be_same(self, got, wanted):
        for rank, rows in enumerate(got):
            if isinstance(rows, Exception):
                raise Wrong(f"rank {rank}: {rows}")
            if rows.tobytes() != wanted.tobytes():
                raise Wrong(f"rank {rank} has other bits")

    def bits(self):
        run = on_ranks(self.ranks, lambda g: logits_of(self.model(g).session(self.mode), self.text, self.pieces))
        self.must_be_same(run, self.wanted())

    def partials(self):
        """Close to one process, the same on all ranks."""

        def run(group):
            model = self.model(group, exchange="partials")
            return logits_of(model.session(self.mode), self.text, self.pieces)

        got, wanted = on_ranks(self.ranks, run), self.wanted()
        self.must_be_same(got, got[0])
        if np.sqrt(np.mean((got[0] - wanted) ** 2)) > 0.1:
            raise Wrong("far from one process")

    def saved(self):
        """By these ranks, for others."""
        cut = sum(self.pieces[: len(self.pieces) // 2])
        others, options = draw_grid(self.r, self.mode == "dense_bf16")
        with tempfile.TemporaryDirectory() as folder:

            def save(group):
                session = self.model(group).session(self.mode)
                if cut:
                    session.prefill(self.text[:cut])
                session.save(folder)
                return np.zeros(0)

            def go_on(group):
                session = dsakit.Model(self.folder, group=group, **options).load_session(folder)
                return logits_of(session, self.text[cut:], self.pieces[len(self.pieces) // 2 :])

            self.must_be_same(on_ranks(self.ranks, save), np.zeros(0))
            wanted = self.wanted()[len(self.pieces) // 2 :]
            self.must_be_same(on_ranks(others, go_on), wanted)

    def refused(self):
        """What one rank gets wrong all refuse with one sentence, and go on."""
        culprit, kind = int(self.r.integers(self.ranks)), int(self.r.integers(3))
        said = [None] * self.ranks

        def run(group):
            session = self.model(group).session(self.mode)
            tokens = list(self.text[:20])
            if group.rank() == culprit:
                tokens = (tokens[:-1] + [9999], tokens[:-1] + [(tokens[-1] + 1) % 256], tokens[1:])[kind]
            try:
                session.prefill(tokens)
            except dsakit.Error as e:
                said[group.rank()] = (e.status, str(e))
            if len(session) != 0 and said[group.rank()]:
                raise Wrong(f"{len(session)} tokens are kept")
            if not said[group.rank()]:  # one rank alone differs from nobody
                session.crop(len(session))
            return logits_of(session, self.text, self.pieces)

        self.must_be_same(on_ranks(self.ranks, run), self.wanted())
        if len(set(said)) != 1 or (said[0] is None) != (self.ranks == 1 and kind > 0):
            raise Wrong(f"said {said}")

    def cut_off(self):
        """A carrier fails on one rank: all end with PEER_FAILED, none waits for ever."""
        culprit, at = int(self.r.integers(self.ranks)), int(self.r.integers(1, 200))
        begin = time.monotonic()

        def run(group):
            if group.rank() == culprit:
                group = dist.init(Faulty(group, [at]))
            return logits_of(self.model(group).session(self.mode), self.text, self.pieces)

        got = on_ranks(self.ranks, run)
        failed = [isinstance(x, dsakit.Error) for x in got]
        if any(failed) and not failed[culprit]:
            raise Wrong("the one that was cut off has not noticed")
        for x in got:
            if isinstance(x, dsakit.Error) and x.status != "PEER_FAILED":
                raise Wrong(f"said {x}")
        if time.monotonic() - begin > PATIENCE:
            raise Wrong("took long")

    def engine(self):
        """Selection and attention over shards of caches in pages."""
        r, ranks, interleave = self.r, int(self.r.integers(1, 9)), int(self.r.choice([1, 3, 16]))
        length, rows, page, k = int(r.integers(1, 400)), int(r.integers(1, 5)), 8, int(r.choice([1, 16, 100]))
        query = r.integers(-2, 3, (rows, 2, 32), np.int8)
        weights, ones = r.normal(size=(rows, 2)).astype(np.float32), np.ones((rows, 2), np.float32)
        key, row = r.integers(-2, 3, (length, 32), np.int8), r.normal(size=(length, 40)).astype(np.float16)
        heads = r.normal(size=(rows, 3, 40)).astype(np.float16)

        def pages(owner, whole):
            x = np.arange(length)
            mine = whole[x[owner.owns(x)]]
            memory = np.zeros((max(-(-len(mine) // page), 1) * page, whole.shape[1]), whole.dtype)
            memory[: len(mine)] = mine
            return memory.reshape(-1, page, 1, whole.shape[1])

        def both(owner, select, attend):
            keys, scales = pages(owner, key), pages(owner, np.ones((length, 1), np.float32))[..., 0]
            table = np.arange(len(keys), dtype=np.int32)[None]
            common = dict(actual_seq_lengths_query=[rows], block_table=table, layout_query="TND")
            names = dict(actual_seq_lengths_key=[length], layout_key="PA_BSND", sparse_count=k)
            lists = select(query, keys, weights, ones, scales, **common, **names)
            cache, parts = (
                pages(owner, row),
                (np.ascontiguousarray(heads[..., :32]), np.ascontiguousarray(heads[..., 32:])),
            )
            latent, rope = np.ascontiguousarray(cache[..., :32]), np.ascontiguousarray(cache[..., 32:])
            names = dict(query_rope=parts[1], key_rope=rope, actual_seq_lengths_kv=[length], layout_kv="PA_BSND")
            out = attend(parts[0], latent, latent, lists, 0.1, attention_mode=2, **common, **names)[0]
            return np.concatenate([lists.reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)])

        def shared(group):
            def call(f, operator):
                return lambda *args, **names: f(group, operator, *args, **names, interleave=interleave)

            select = call(dist.select, dsakit.quant_lightning_indexer)
            owner = dist.Ownership(group.size(), group.rank(), interleave)
            return both(owner, select, call(dist.attend, dsakit.sparse_flash_attention))

        wanted = both(dist.Ownership(1, 0), dsakit.quant_lightning_indexer, dsakit.sparse_flash_attention)
        self.must_be_same(on_ranks(ranks, shared), wanted)


KINDS = ("bits", "bits", "bits", "partials", "saved", "refused", "cut_off", "engine")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--count", type=int, help="so many trials, however long they take")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    text = (args.model / "heldout.txt").read_bytes()
    alone = dsakit.Model(args.model)
    done, wrong, seed, end = collections.Counter(), 0, args.seed, time.monotonic() + args.seconds
    while seed - args.seed < args.count if args.count else time.monotonic() < end:
        r = np.random.default_rng(seed)
        kind = str(r.choice(KINDS))
        trial = Trial(args.model, text, alone, r)
        try:
            getattr(trial, kind)()
        except Exception as e:
            wrong += 1
            print(f"seed {seed}: {kind}, {trial}: {type(e).__name__}: {e}", flush=True)
        done[kind] += 1
        seed += 1
    print(
        ", ".join(f"{kind} {n}" for kind, n in sorted(done.items())),
        f"; {wrong} wrong, seeds {args.seed} to {seed - 1}",
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
