#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Good and bad calls drawn by chance, in every way of calling, for as long as wanted: results have the bits and refusals the
sentences of the first round of the same seeds, which had other numbers of threads, and memory stays what it was.

Usage: soak.py [--seconds 600] [--interval 60] [--calls 20000] [--seed 0] [--record FILE] [--compare FILE]

Ways of calling are arrays, the reference, npu_ names, those of torch (three) where it is installed, and C through the newest
build/*/libdsakit.so, where there is one of this version: what is left out is said. C has contexts of its own. A round is
`--calls` calls. --record keeps what the first round answered, --compare takes that of another run for the first round:
another build or machine, the same ways and instruction set, to which the last bits of bf16 products belong. Exit code 1:
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
from oracle import c_api, capsule
from oracle.refusals import FIELDS, GOOD, C, Dispatched, Numpy, Spelled, Torch, TorchNpu, answer, bits, breaks


def faces():
    """Ways of calling by name; those of torch and C if they are there."""
    found = {"numpy": Numpy(dsakit), "reference": Numpy(dsakit.reference), "npu_ names": Spelled(dsakit)}
    try:
        import torch  # noqa: F401

        from dsakit import npu
    except ImportError:
        print("torch, torch.ops, torch_npu: left out, torch is not installed")
    else:
        npu.install()
        found |= {"torch": Torch(dsakit), "torch.ops": Dispatched(), "torch_npu": TorchNpu()}
    path = c_api.find()
    library = path and c_api.Library(path)
    if library is None:
        print("C: left out, build/*/libdsakit.so is not built")
    elif library.version() != dsakit.__version__:
        print(f"C: left out, {path} is of version {library.version()}, wanted {dsakit.__version__}")
    else:
        found["C"] = C(library)
    return found


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
        self.contexts = {}  # of C, by threads
        self.breaks = {name: list(breaks(name)) for name in GOOD}
        self.counts = collections.Counter()  # "computed", "refused", and each way of calling
        self.wrong = []

    def call(self, seed, i, threads):
        """Eight bytes of what the call of a seed answers."""
        r = np.random.default_rng([seed, i])
        dsakit.set_num_threads(threads)
        label = list(self.faces)[r.integers(len(self.faces))]
        face = self.faces[label]
        if label == "C":
            if threads not in self.contexts:
                self.contexts[threads] = face.library.context(threads=threads)
            face.context = self.contexts[threads]
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
        self.counts[label] += 1
        capsule._alive.clear()
        return hashlib.blake2b(said, digest_size=8).hexdigest()


def resident():
    """MiB of this process now, and at most so far."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("seconds", 600.0), ("interval", 60.0), ("calls", 20000), ("seed", 0)):
        parser.add_argument("--" + name, type=type(default), default=default)
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # tolerances are said once a process, not once a call
    soak, first, settled = Soak(), [], None
    if given.compare:
        told = json.loads(given.compare.read_text())
        mine = dict(seed=given.seed, calls=given.calls, isa=dsakit.info()["isa"], faces=list(soak.faces))
        theirs = dict(seed=told["seed"], calls=len(told["answers"]), isa=told["isa"], faces=told.get("faces"))
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
            given.record.write_text(
                json.dumps(dict(seed=given.seed, isa=dsakit.info()["isa"], faces=list(soak.faces), answers=first))
            )
        if settled is None and rounds >= 2 and time.monotonic() - start >= given.seconds / 10:
            settled = resident()[0]
    report()
    now = resident()[0]
    print("\n".join(soak.wrong[:20]))
    print(", ".join(f"{label} {soak.counts[label]}" for label in soak.faces))
    print(
        f"{dsakit.info()['isa']}: {rounds} rounds of {given.calls} calls, memory {settled:.1f} MiB once settled, {now:.1f} at the end"
    )
    return bool(soak.wrong) or now > settled * 1.01


if __name__ == "__main__":
    sys.exit(main())
