# SPDX-License-Identifier: Apache-2.0
"""Every exchange of a dsakit.dist.Group, and as a program one rank of test_dist.py's processes.

Usage: dist_ranks.py CASE STORE, with RANK and WORLD_SIZE set; STORE is a file of all ranks, or "torchrun"."""

import os
import signal
import sys

import numpy as np
import pytest

import dsakit
import dsakit.dist


def message(sender, receiver, number, size):
    i = np.arange(size)
    return ((sender * 131 + receiver * 31 + number * 17 + i * 7 + i // 256) % 256).astype(np.uint8)


def start_all_to_all(g, number, size):
    to = [size(g.rank(), r) for r in range(g.size())]
    from_ = [size(r, g.rank()) for r in range(g.size())]
    mine = np.concatenate([message(g.rank(), r, number, n) for r, n in enumerate(to)])
    wanted = np.concatenate([message(r, g.rank(), number, n) for r, n in enumerate(from_)])
    got = np.zeros_like(wanted)
    return g.all_to_all(mine, to, got, from_), got, wanted


def start_all_gather(g, number, size):
    sizes = [size(r) for r in range(g.size())]
    wanted = np.concatenate([message(r, 0, number, n) for r, n in enumerate(sizes)])
    got = np.zeros_like(wanted)
    return g.all_gather(message(g.rank(), 0, number, sizes[g.rank()]), got, sizes), got, wanted


def end(pending, got, wanted):
    pending.wait()
    assert pending.poll()
    np.testing.assert_array_equal(got, wanted)


def sizes_of_all_kinds(g):
    for unit in (0, 1, 13, 5000, 300000):
        end(*start_all_to_all(g, 1, lambda a, b: unit * ((a * 3 + b * 5) % 4)))
        end(*start_all_to_all(g, 2, lambda a, b: unit))
        end(*start_all_gather(g, 3, lambda a: unit * ((a + 2) % 3)))
        end(*start_all_gather(g, 4, lambda a: unit))
        for root in range(g.size()):
            wanted = message(root, 0, 5, unit)
            got = wanted.copy() if g.rank() == root else np.zeros_like(wanted)
            end(g.broadcast(got, root), got, wanted)


def several_pending(g):
    def start(number):
        return start_all_to_all(g, number, lambda a, b: number * 100 + a + b)

    pending = [start(number) for number in range(4)]
    with pytest.raises(dsakit.Error, match="begins while 4 exchanges are pending"):
        start(4)
    while not pending[2][0].poll():
        pass
    pending.append(start(4))
    for i in (4, 2, 0, 3, 1):
        end(*pending[i])


def sums_in_the_order_of_ranks(g):
    for n in (0, 1, 3, 1000):
        i = np.arange(n)
        values = [np.ldexp(1 + i % 7 / 3, (r * 29 + i) % 40 - 20).astype(np.float32) for r in range(g.size())]
        wanted = values[0].copy()
        for v in values[1:]:
            wanted += v
        mine = values[g.rank()].copy()
        g.all_reduce(mine)
        assert mine.tobytes() == wanted.tobytes()
        mine = values[g.rank()].copy()
        g.all_reduce(mine, largest=True)
        assert mine.tobytes() == np.max(values, axis=0).tobytes()


def parts(g):
    whole = start_all_gather(g, 9, lambda a: a + 1)
    part = g.split(g.rank() % 2, -g.rank())
    assert part.size() == (g.size() + 1 - g.rank() % 2) // 2
    assert part.rank() == part.size() - 1 - g.rank() // 2
    end(*start_all_gather(part, 10, lambda a: a + 40))
    end(*whole)
    again = part.split(part.rank() // 2, 0)
    assert again.size() == min(2, part.size() - part.rank() // 2 * 2)
    end(*start_all_gather(again, 11, lambda a: a + 4))


def refusals(g):
    bytes, ones = bytearray(g.size()), [1] * g.size()
    for call in (
        lambda: g.all_gather(bytearray(0), bytes, ones),
        lambda: g.all_gather(bytearray(1), bytearray(g.size() + 1), ones),
        lambda: g.all_gather(bytearray(1), bytes, ones[1:]),
        lambda: g.all_to_all(bytes, ones, bytearray(g.size() + 1), ones),
        lambda: g.broadcast(bytes, g.size()),
        lambda: g.split(-1, 0),
    ):
        with pytest.raises(dsakit.Error) as refused:
            call()
        assert refused.value.status == "INVALID_ARGUMENT"


def every_exchange(g):
    refusals(g)
    sizes_of_all_kinds(g)
    several_pending(g)
    sums_in_the_order_of_ranks(g)
    g.barrier()
    parts(g)
    sizes_of_all_kinds(g)


def fault(g, case):
    """The last rank goes wrong; what the others get is printed, twice."""
    print("ready", flush=True)
    g.barrier()
    if g.rank() == g.size() - 1:
        if case == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif case == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif case == "exit_0":
            os._exit(0)
        elif case == "dropped":
            start_all_gather(g, 0, lambda a: 1)
    for _ in range(2):
        try:
            for _ in range(10):
                g.barrier()
            print("nothing was wrong", flush=True)
        except dsakit.Error as e:
            print(e.status, " ".join(str(e).split()), flush=True)


def main(case, store):
    if store != "torchrun":
        import torch.distributed

        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    g = dsakit.dist.init(timeout=2 if case == "stopped" else 20)
    if case == "exchanges":
        every_exchange(g)
        print("every exchange", g.rank(), "of", g.size(), flush=True)
    else:
        fault(g, case)
        if case == "stopped":
            os._exit(1)  # torch's own end waits for what has begun with that rank, up to the time that its groups were given
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
