# SPDX-License-Identifier: Apache-2.0
"""What scripts that time us beside others share: turns, threads, and what is said of the machine."""

import importlib
import os
import pathlib
import platform
import statistics
import sys
import time

import dsakit

ASLEEP = 0.01  # seconds; threads of OpenMP, which torch has, wait for work in a loop for some milliseconds


def set_threads(count):
    """The same number for us and, if it is there, torch."""
    dsakit.set_num_threads(count)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


def alternate(calls, seconds=1.0, rounds=3, after={}, turn=0.05):
    """Calls by name, each called once and then turn and turn about: the median seconds of each.

    At least so many rounds, and so many seconds in all; a turn is a call, or as many as take `turn` seconds.
    after[name], if there is one, follows every call of it, not timed."""
    times = {name: [] for name in calls}
    for name, call in calls.items():
        call()
        after.get(name, int)()
    end = time.perf_counter() + seconds
    while rounds > 0 or time.perf_counter() < end:
        for name, call in calls.items():
            time.sleep(ASLEEP)
            last = time.perf_counter() + turn
            while True:
                start = time.perf_counter()
                call()
                stop = time.perf_counter()
                times[name].append(stop - start)
                after.get(name, int)()
                if stop > last:
                    break
        rounds -= 1
    return {name: statistics.median(each) for name, each in times.items()}


def version_of(package):
    """Its version, or why it is absent."""
    try:
        return importlib.import_module(package).__version__
    except ImportError as error:
        return f"absent ({error})"


def cpu():
    """Its name and, since guests are often told no more than the maker's, its family and model."""
    path = pathlib.Path("/proc/cpuinfo")
    lines = [line.split(":", 1) for line in path.read_text().split("\n\n")[0].splitlines()] if path.exists() else []
    told = {key.strip(): value.strip() for key, value in (line for line in lines if len(line) == 2)}
    name = told.get("model name") or platform.processor() or platform.machine()
    return f"{name}, family {told['cpu family']} model {told['model']}" if "cpu family" in told else name


def load():
    """Mean number of processes that wanted a processor in the last minute."""
    return round(os.getloadavg()[0], 2)


def machine(threads):
    """What a report says first; `finished` adds what it says last."""
    info = dsakit.info()
    return {
        "cpu": cpu(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": list(threads),
        "isa": info["isa"],
        "isas": info["isas"],
        "dsakit": info["version"],
        "torch": version_of("torch"),
        "transformers": version_of("transformers"),
        "load_begin": load(),
    }


def finished(machine):
    """With the load at the end, which has this run's own threads in it, and a sentence if others were at work."""
    begin, end, own = machine["load_begin"], load(), max(machine["threads"])
    busy = begin > 0.5 * machine["processors"] or end > own + 0.5  # what has just ended is still in the average
    sentence = "others were at work: ratios feel that less than times do, shares of the floor as much" if busy else ""
    return machine | {"load_end": end, "warning": sentence}


def heading(machine):
    """The machine in two lines, three if there is something to be warned of."""
    counts = " and ".join(str(n) for n in machine["threads"])
    threads = f"{counts} thread{'' if machine['threads'] == [1] else 's'}"
    lines = [
        f"{machine['cpu']}, {machine['processors']} processors; {threads}, {machine['isa']}; "
        f"load average {machine['load_begin']} at the beginning, {machine['load_end']} at the end",
        ", ".join(f"{name} {machine[name]}" for name in ("dsakit", "torch", "transformers")),
    ]
    return "\n".join(lines + ([f"warning: {machine['warning']}"] if machine["warning"] else []))
