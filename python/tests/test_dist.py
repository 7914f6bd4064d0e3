# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks: threads, torch.distributed, an object of one's own."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import dist_ranks
import pytest

import dsakit
import dsakit.dist

HANG = 120  # seconds
PROGRAM = pathlib.Path(dist_ranks.__file__)
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "DSAKIT_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def run(case, ranks, folder):
    """What each rank printed, and how it ended; None if it had to be killed."""
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, case, folder / "store"],
            env=os.environ | ENVIRONMENT | {"RANK": str(rank), "WORLD_SIZE": str(ranks)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        ended = []
        for rank, process in enumerate(processes):
            if case == "stopped" and rank == ranks - 1:
                process.send_signal(signal.SIGKILL)
            ended.append((process.communicate(timeout=HANG)[0], process.returncode))
        return ended
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_every_exchange_of_torch(ranks, tmp_path):
    pytest.importorskip("torch")
    for rank, (out, status) in enumerate(run("exchanges", ranks, tmp_path)):
        assert status == 0, out
        assert f"every exchange {rank} of {ranks}" in out


def test_every_exchange_of_two_ranks_of_torchrun():
    pytest.importorskip("torch")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, PROGRAM, "exchanges", "torchrun"],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("every exchange") == 2


def test_threads_of_gloo_have_ended_when_python_ends():
    """One that lets go of a tensor after that ends the process by std::terminate."""
    pytest.importorskip("torch")
    program = """
import atexit, os, time
tasks = lambda: len(os.listdir("/proc/self/task"))
@atexit.register
def all_gone():  # the first registered is the last called
    while tasks() > before:
        time.sleep(0.01)
    print("all gone")
import torch.distributed as dist
import dsakit.dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
before = tasks()
group = dsakit.dist.init()
part = group.split(0, 0)
assert tasks() > before
del part
while tasks() > before + 3:
    time.sleep(0.01)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=HANG
    )
    assert (ended.returncode, ended.stdout) == (0, "all gone\n"), ended.stderr


@pytest.mark.parametrize("case", ["killed", "exit_0", "stopped", "dropped"])
def test_a_rank_that_fails_is_an_error_of_the_others(case, tmp_path):
    pytest.importorskip("torch")
    ended = run(case, 3, tmp_path)
    for out, _ in ended[:2]:
        said = out.split("ready\n")[1].splitlines()
        assert "nothing was wrong" not in said, out
        said = [line for line in said if line.startswith("PEER_FAILED")]
        assert len(said) == 2 and said[0] == said[1], out
        if case != "dropped":  # that rank is there, and may answer
            assert re.search(r"group: all_gather \d+ misses ranks? [\d, ]*2, wanted all ranks", said[0]), out
    if case == "dropped":
        assert "was dropped by rank 2 before it was done" in ended[2][0]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_exchange_of_threads(ranks):
    seen = []

    def rank(group):
        dist_ranks.every_exchange(group)
        seen.append(group.rank())

    dsakit.dist.threads(ranks, rank)
    assert sorted(seen) == list(range(ranks))


def test_threads_raise_what_the_lowest_raised():
    groups = []

    def rank(group):
        groups.append(group)
        if group.rank() == 1:
            raise KeyError("one")
        group.barrier()

    with pytest.raises(dsakit.Error, match="misses rank 1, wanted all ranks .it threw KeyError: 'one'") as refused:
        dsakit.dist.threads(3, rank)
    assert refused.value.status == "PEER_FAILED"
    with pytest.raises(dsakit.Error, match="is used after its thread"):
        groups[0].rank()


class Alone:
    """One rank that talks to itself, by the methods that dist.init documents."""

    def __init__(self):
        self.calls = []

    def rank(self):
        return 0

    def size(self):
        return 1

    def _copy(self, mine, got):
        got[:] = mine
        return dsakit.dist._Done()

    def all_gather(self, mine, all, bytes_of_rank):
        self.calls.append(("all_gather", bytes_of_rank))
        return self._copy(mine, all)

    def all_to_all(self, mine, to, got, from_):
        self.calls.append(("all_to_all", to, from_))
        return self._copy(mine, got)

    def broadcast(self, bytes, root):
        return dsakit.dist._Done()

    def split(self, colour, key):
        return Alone()

    def abort(self, exit_status, sentence):
        raise AssertionError


def test_any_object_with_the_methods_is_a_group():
    alone = Alone()
    group = dsakit.dist.init(alone)
    dist_ranks.every_exchange(group)
    assert ("all_gather", [13]) in alone.calls and ("all_to_all", [13], [13]) in alone.calls
    assert dsakit.dist.init(group) is group


def test_what_a_carrier_raises_is_said_from_then_on():
    class Broken(Alone):
        def all_gather(self, mine, all, bytes_of_rank):
            raise OSError("the cable is cut")

    group = dsakit.dist.init(Broken())
    for call in (group.barrier, group.barrier, lambda: group.broadcast(bytearray(1), 0)):
        with pytest.raises(
            dsakit.Error, match="group: all_gather 1 raised OSError, wanted all ranks .the cable is cut"
        ) as refused:
            call()
        assert refused.value.status == "PEER_FAILED"


def test_init_refuses_what_is_no_group():
    pytest.importorskip("torch")
    with pytest.raises(dsakit.Error, match="dist.init: group is 7, wanted a torch ProcessGroup or a carrier"):
        dsakit.dist.init(7)


def test_a_carrier_may_name_who_is_missing():
    class Broken(Alone):
        def broadcast(self, bytes, root):
            raise dsakit.dist.PeersMissing("no light", [2, 5])

    with pytest.raises(dsakit.Error, match="broadcast 1 misses ranks 2, 5, wanted all ranks .no light"):
        dsakit.dist.init(Broken()).broadcast(bytearray(1), 0)
