# SPDX-License-Identifier: Apache-2.0
"""Processes that compute together: `init()` makes a Group of those that torchrun has started.

A Group exchanges bytes: `all_gather`, `all_to_all`, `broadcast`, `split`, `barrier`, `all_reduce`. All ranks start the same
exchanges with the same sizes in the same order; what they return is waited for with `wait()`. A rank that does not come is
an Error of status PEER_FAILED, after which the group is dead and says the same of everything.

Engines with caches of their own, whose tokens lie on several ranks, have `select` and `attend`, and the parts of them.
"""

from __future__ import annotations

import datetime
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ._core import Group, Pending, threads_as_ranks
from .errors import raise_error, shown
from .shards import Ownership, attend, index_candidates, merge_candidates, merge_partials, partial_attention, select

__all__ = [
    "Group",
    "Ownership",
    "PeersMissing",
    "Pending",
    "attend",
    "index_candidates",
    "init",
    "merge_candidates",
    "merge_partials",
    "partial_attention",
    "select",
    "threads",
]


def init(group: Any = None, *, timeout: float = 20.0) -> Group:
    """The ranks of torch's default group, which is made by gloo where the program has none, or of a ProcessGroup; all of
    them call this. Or of any object with these methods, which get memoryviews:

        rank(), size()
        all_gather(mine, all, bytes_of_rank), all_to_all(mine, to, got, from_), broadcast(bytes, root)
            return something with poll() and wait()
        split(colour, key)              another such object; ends with an exchange
        abort(exit_status, sentence)    ends all processes

    What they raise is PEER_FAILED; `ranks` of the exception, if it has them, are named as missing. So is a wait longer than
    `timeout` seconds.
    """
    if isinstance(group, Group):
        return group
    if group is not None and all(hasattr(group, name) for name in ("all_gather", "all_to_all", "split", "abort")):
        return Group(group)
    try:
        import torch.distributed as dist
    except ImportError:
        raise_error("UNSUPPORTED", "dist.init", "torch", "", "is not installed", "torch, or an object with its methods")
    if group is None:
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise_error(
            "INVALID_ARGUMENT", "dist.init", "group", "", f"is {shown(group)}", "a torch ProcessGroup or a carrier"
        )
    made = Group(_Torch(dist.get_process_group_ranks(group), timeout))
    made.barrier()  # connections are made late, and those are not timed
    return made


def threads(ranks: int, f: Callable[[Group], object], *, timeout: float = 20.0) -> None:
    """f(group) on `ranks` threads of this process, each a rank: for tests."""
    threads_as_ranks(ranks, f, timeout)


class PeersMissing(RuntimeError):
    """What a carrier raises that knows which ranks have not come."""

    def __init__(self, sentence: str, ranks: list[int]) -> None:
        super().__init__(sentence)
        self.ranks = ranks


class _Work:
    def __init__(self, work: Any, carrier: _Torch, *tensors: Any) -> None:
        self._work, self._carrier, self._tensors = work, carrier, tensors
        carrier._of_torch.pending.add(work)

    def poll(self) -> bool:
        if not self._work.is_completed():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        try:
            self._work.wait(datetime.timedelta(seconds=self._carrier.timeout))
        except RuntimeError as e:
            if missing := self._carrier.missing():
                raise PeersMissing(" ".join(str(e).split()), missing) from e
            raise
        self._carrier._of_torch.pending.discard(self._work)
        self._tensors = ()


_LOADING = 300.0  # seconds that a layer may take on one rank while the others wait: Peers::wait_for_all


class _Done:
    def poll(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class _OfTorch:
    """A ProcessGroup of our own, and the works of it that were not waited for.

    gloo's threads let go of the tensors of an exchange after it is done, and that needs a Python that is not ending. So they
    are joined before: with the carrier, or at the program's end. Unless one may wait for a rank that does not come.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.pending: set[Any] = set()

    def destroy(self) -> None:
        import torch.distributed as dist

        if not self.pending:
            group, self.group = self.group, None  # the last of it joins
            if group in dist.distributed_c10d._world.pg_map:  # the program may have destroyed all groups
                dist.destroy_process_group(group)


class _Torch:
    """A group of its own, by gloo, of these ranks of the default group."""

    def __init__(self, ranks: list[int], timeout: float) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist, self._ranks, self.timeout = torch, dist, ranks, timeout
        self._of_torch = _OfTorch(
            dist.new_group(
                ranks,
                timeout=datetime.timedelta(seconds=max(timeout, _LOADING)),  # each wait has its own
                backend="gloo",
                use_local_synchronization=True,
                sort_ranks=False,
            )
        )
        weakref.finalize(self, self._of_torch.destroy)

    @property
    def _group(self) -> Any:
        return self._of_torch.group

    def rank(self) -> int:
        return self._dist.get_rank(self._group)

    def size(self) -> int:
        return len(self._ranks)

    def missing(self) -> list[int]:
        """Ranks that do not answer a call of all within a second, by the store in which they met; [] if that is gone."""
        silent: list[list[int]] = []

        def call() -> None:
            store = self._dist.PrefixStore("dsakit", self._dist.distributed_c10d._get_default_store())
            store.set(str(self._dist.get_rank()), "here")
            until = time.monotonic() + 1
            while True:
                rest = [rank for rank in self._ranks if not store.check([str(rank)])]
                if not rest or time.monotonic() > until:
                    silent.append(rest)
                    return
                time.sleep(0.01)

        # Its process may be the one that is stopped, and then nothing limits the time.
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(2)
        return silent[0] if silent else []

    def _tensor(self, view: memoryview) -> Any:
        torch = self._torch
        return torch.frombuffer(view, dtype=torch.uint8) if len(view) else torch.empty(0, dtype=torch.uint8)

    def all_gather(self, mine: memoryview, all: memoryview, bytes_of_rank: list[int]) -> Any:
        if len(all) == 0:
            return _Done()
        sent, got = self._tensor(mine), self._tensor(all)
        if len(set(bytes_of_rank)) == 1:
            work = self._dist.all_gather_single(got, sent, group=self._group, async_op=True)
            return _Work(work, self, sent, got)
        return self._all_to_all(sent.repeat(self.size()), [len(mine)] * self.size(), got, bytes_of_rank)

    def all_to_all(self, mine: memoryview, to: list[int], got: memoryview, from_: list[int]) -> Any:
        return self._all_to_all(self._tensor(mine), to, self._tensor(got), from_)

    def _all_to_all(self, sent: Any, to: list[int], got: Any, from_: list[int]) -> Any:
        work = self._dist.all_to_all_single(got, sent, from_, to, group=self._group, async_op=True)
        return _Work(work, self, sent, got)

    def broadcast(self, bytes: memoryview, root: int) -> Any:
        if len(bytes) == 0:
            return _Done()
        all = self._tensor(bytes)
        work = self._dist.broadcast(all, self._ranks[root], group=self._group, async_op=True)
        return _Work(work, self, all)

    def split(self, colour: int, key: int) -> _Torch:
        words = struct.Struct("<qq")
        all = bytearray(words.size * self.size())
        mine = memoryview(bytearray(words.pack(colour, key)))
        self.all_gather(mine, memoryview(all), [words.size] * self.size()).wait()
        of_rank = list(words.iter_unpack(all))
        members = sorted((r for r in range(self.size()) if of_rank[r][0] == colour), key=lambda r: of_rank[r][1])
        part = _Torch([self._ranks[r] for r in members], self.timeout)
        done = memoryview(bytearray(len(members)))
        part.all_gather(memoryview(bytearray(1)), done, [1] * len(members)).wait()
        return part

    def abort(self, exit_status: int, sentence: str) -> None:
        """torchrun ends the others."""
        print(sentence, file=sys.stderr, flush=True)
        os._exit(exit_status)
