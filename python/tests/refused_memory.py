#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls whose n-th request for memory is refused, for each n: MemoryError with a sentence, nothing written, nothing lost, and
the next call has its bits. Each in a child that has never called the library, so that all there is to ask for is asked for.

Usage: refused_memory.py MEMORY FACE      under LD_PRELOAD=MEMORY, which is memory_refused.cc; FACE: numpy or torch_npu

DSAKIT_MEMORY_ALL=1 refuses every single request; else each of the first ones, and then some."""

import ctypes
import json
import os
import sys
import warnings

import dsakit
from oracle.calls import CALLS
from oracle.refusals import Numpy, TorchNpu, arrays, bits

warnings.simplefilter("ignore")
memory = ctypes.CDLL(sys.argv[1])
memory.memory_refuse.argtypes = [ctypes.c_long, ctypes.c_bool]
memory.memory_counted.restype = memory.memory_live.restype = ctypes.c_long
ALL = os.environ.get("DSAKIT_MEMORY_ALL") == "1"


def numbers(last):
    """Which requests are refused."""
    n = 1
    while n <= last:
        yield n
        n = n + 1 if ALL or n < 8 else n * 3 // 2


def left(face, name, args):
    result = face.call(name, args)
    return bits(result), bits([args[w] for w in CALLS[name].written])


def refused(face, name, n, others):
    """What is wrong with the answer to a call whose n-th request is refused, or "". None: it took fewer."""
    args = CALLS[name].make()
    before = bits(arrays(args))
    try:
        memory.memory_refuse(n, others)
        face.call(name, args)
        memory.memory_refuse(0, False)
        return None if memory.memory_counted() < n else "computed"
    except Exception as error:
        memory.memory_refuse(0, False)
        caught = error
    if not isinstance(caught, MemoryError) or not isinstance(caught, dsakit.Error) or caught.status != "OUT_OF_MEMORY":
        return f"{type(caught).__name__}: {caught}"
    if caught.operator not in (face.spelling(CALLS[name].operator), "dsakit") or ", wanted " not in str(caught):
        return f"no sentence: {caught}"
    return "" if bits(arrays(args)) == before else f"has written: {caught}"


def in_child(work):
    """What work() returns, in a child; a signal becomes a sentence."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(text) if status == 0 else f"ended by status {status}"


def call(face, name):
    """How many requests were refused, and what was wrong."""

    def good():
        """Requests of a cold and of a warm call, what is live after them, what they leave."""
        memory.memory_refuse(0, False)
        first = left(face, name, CALLS[name].make())
        cold = memory.memory_counted()
        memory.memory_refuse(0, False)
        second = left(face, name, CALLS[name].make())
        warm = memory.memory_counted()
        assert first == second
        assert not refused(face, name, 1, False)  # whose texts stay
        return cold, warm, memory.memory_live(), repr(first)

    cold, warm, live, want = in_child(good)
    done, wrong = 0, []
    for n in numbers(cold):
        for others in (False, True):

            def bad():
                fault = refused(face, name, n, others)
                if fault:
                    return fault
                warm_faults = [refused(face, name, m, others) for m in range(1, warm + 1)] if n == 1 else []
                if any(warm_faults):
                    return f"warm: {warm_faults}"
                got = good()
                if got[3] != want:
                    return "the next call has other bits"
                if got[2] != live:
                    return f"{got[2] - live} are lost"
                return fault

            fault = in_child(bad)
            if fault is None and n < cold:
                fault = "is computed"
            done += fault == ""
            wrong += [f"{name}, request {n}{' and those after it' if others else ''}: {fault}"] if fault else []
    return done, wrong


def main():
    face = TorchNpu() if sys.argv[2] == "torch_npu" else Numpy(dsakit)
    if sys.argv[2] == "torch_npu":
        dsakit.npu.install()
    assert memory.memory_watch(b"dsakit/_core") == 1
    if sys.argv[2] == "numpy":  # where texts grow; torch has its own there
        assert memory.memory_watch(b"libstdc++") == 1
    counts, wrong = {}, []
    for name in sys.argv[3:] or face.calls():
        counts[name], more = call(face, name)
        wrong += more
    print(json.dumps(dict(refused=counts, wrong=wrong)))


if __name__ == "__main__":
    main()
