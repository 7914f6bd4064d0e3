#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Good and bad calls drawn by chance, in every way of calling from Python, for as long as wanted: results have the bits and
refusals the sentences of the first round of the same seeds, which had other numbers of threads, and memory stays what it was.

Usage: soak.py [--seconds 600] [--interval 60] [--calls 20000] [--seed 0] [--record FILE] [--compare FILE]

A round is `--calls` calls. --record keeps what the first round answered, --compare takes that of another run for the first
round: another build or machine, the same instruction set, to which the last bits of bf16 products belong. Exit code 1:
another answer, or 1 % more memory than after two rounds and a tenth of the time: until then the heaps of Python and of C grow
to what the calls need at once."""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import pathlib
import resource
import sys
import time
import warnings

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python" / "tests"))

import dsakit
from oracle import capsule
from oracle.refusals import FIELDS, GOOD, Dispatched, Numpy, Spelled, Torch, TorchNpu, answer, bits, breaks


def faces():
    """Ways of calling by name; those of torch if it is there."""
    found = {"numpy": Numpy(dsakit), "reference": Numpy(dsakit.reference), "npu_ names": Spelled(dsakit)}
    try:
        import torch  # noqa: F401

        from dsakit import npu
    except ImportError:
        return found
    npu.install()
    return found | {"torch": Torch(dsakit), "torch.ops": Dispatched(), "torch_npu": TorchNpu()}


def vary(name, args, r):
    """Other numbers in the same shapes: of what is multiplied alone, so that the call stays good."""
    for key, value in args.items():
        if FIELDS[GOOD[name].operator][key]["kind"] not in ("data", "weight") or not isinstance(value, np.ndarray):
            continue
        if key in GOOD[name].written or (key == "value" and "scale_value" in args):
            continue
        if value.dtype == np.int8:
            args[key] = r.integers(-128, 128, value.shape, np.int8)
        elif value.dtype.kind in "fV" and value.dtype.itemsize < 8:
            least = 0.1 if (value.astype(np.float32) > 0).all() else -1  # what clips and divides stays above 0
            args[key] = r.uniform(least, 1, value.shape).astype(value.dtype)


class Soak:
    def __init__(self):
        self.faces = faces()
        self.breaks = {name: list(breaks(name)) for name in GOOD}
        self.counts = collections.Counter()
        self.wrong = []

    def call(self, seed, i, threads):
        """Eight bytes of what the call of a seed answers."""
        r = np.random.default_rng([seed, i])
        dsakit.set_num_threads(threads)
        label = list(self.faces)[r.integers(len(self.faces))]
        face = self.faces[label]
        names = face.calls()
        name = names[r.integers(len(names))]
        if r.integers(2):
            asked = [b for b in self.breaks[name] if face.takes(b)]
            b = asked[r.integers(len(asked))]
            sentence, fault = answer(face, b)
            if fault:
                self.wrong.append(f"seed {seed} {i}, {label}: {b}: {fault}")
            self.counts["refused"] += 1
            said = sentence.encode()
        else:
            args = GOOD[name].make()
            vary(name, args, r)
            try:
                result = face.call(name, args)
            except dsakit.Error as error:
                self.wrong.append(f"seed {seed} {i}, {label}: {name} is refused: {error}")
                result = None
            self.counts["computed"] += 1
            said = repr((bits(result), bits([args[w] for w in GOOD[name].written]))).encode()
        capsule._alive.clear()
        return hashlib.blake2b(said, digest_size=8).hexdigest()


def resident():
    """MiB of this process now, and at most so far."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("seconds", 600.0), ("interval", 60.0), ("calls", 20000), ("seed", 0)):
        parser.add_argument("--" + name, type=type(default), default=default)
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # tolerances are said once a process, not once a call
    soak, first, settled = Soak(), [], None
    if given.compare:
        told = json.loads(given.compare.read_text())
        mine = dict(seed=given.seed, calls=given.calls, isa=dsakit.info()["isa"])
        theirs = dict(seed=told["seed"], calls=len(told["answers"]), isa=told["isa"])
        if theirs != mine:
            parser.error(f"--compare is of {theirs}, wanted {mine}")
        first = told["answers"]
    start, said, rounds = time.monotonic(), 0.0, 0

    def report():
        now, most = resident()
        done = soak.counts["computed"] + soak.counts["refused"]
        print(f"{time.monotonic() - start:7.0f} s  {done:9} calls  {soak.counts['refused']:9} refused  "
              f"round {rounds}  {now:.1f} MiB, at most {most:.1f}  {len(soak.wrong)} wrong", flush=True)  # fmt: skip

    while time.monotonic() - start < given.seconds or rounds < 3:
        for i in range(given.calls):
            got = soak.call(given.seed, i, 1 + (i + rounds) % 3)
            if len(first) == i:
                first.append(got)
            elif first[i] != got:
                soak.wrong.append(f"seed {given.seed} {i}: another answer than in the first round")
            if time.monotonic() - start >= said:
                report()
                said += given.interval
        rounds += 1
        if rounds == 1 and given.record:
            given.record.write_text(json.dumps(dict(seed=given.seed, isa=dsakit.info()["isa"], answers=first)))
        if settled is None and rounds >= 2 and time.monotonic() - start >= given.seconds / 10:
            settled = resident()[0]
    report()
    now = resident()[0]
    print("\n".join(soak.wrong[:20]))
    print(
        f"{dsakit.info()['isa']}: {rounds} rounds of {given.calls} calls, memory {settled:.1f} MiB once settled, {now:.1f} at the end"
    )
    return bool(soak.wrong) or now > settled * 1.01


if __name__ == "__main__":
    sys.exit(main())
