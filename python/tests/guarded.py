#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls with unmapped pages beside each of their tensors (oracle/guards.py).

Usage: guarded.py small              the small good calls of every operator, and those within the limits of strict
       guarded.py widths WIDTH ..    the calls of oracle/sized.py
       pytest -p guarded FILE ..     the calls that other tests make (this folder in PYTHONPATH)

The last line counts what was called. In the environment: DSAKIT_GUARD_LAST names a file that holds the call under way, should
it end the process; DSAKIT_GUARD_ONLY the one tensor to put there; DSAKIT_GUARD_PART=3/24 takes the fourth of every 24 tests."""

import json
import os
import sys
import warnings

import dsakit
from oracle import sized
from oracle.calls import CALLS, STRICT
from oracle.guards import Guard

guard = Guard(os.environ.get("DSAKIT_GUARD_ONLY"), os.environ.get("DSAKIT_GUARD_LAST", os.devnull))


def report():
    print(json.dumps(dict(calls=guard.calls, tensors=sum(guard.tensors.values()))))


def pytest_configure():
    guard.__enter__()


def pytest_collection_modifyitems(config, items):
    first, step = map(int, os.environ.get("DSAKIT_GUARD_PART", "0/1").split("/"))
    items[:] = items[first::step]


def pytest_unconfigure():
    guard.__exit__()
    report()


def main():
    what, *widths = sys.argv[1:]
    warnings.simplefilter("ignore")  # tolerances, once a process
    with guard:
        if what == "small":
            for call in (CALLS | STRICT).values():
                getattr(dsakit, call.operator)(**call.make())
        for width in map(int, widths):
            for calls in (sized.wide, sized.tall):
                for operator, args in calls(width):
                    try:
                        getattr(dsakit, operator)(**args)
                    except BaseException as error:
                        error.add_note(f"{operator} of {calls.__name__}({width})")
                        raise
    report()


if __name__ == "__main__":
    main()
