# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a program by mpirun and looks at how they end. Usage: mpi.py MPIRUN PROGRAM CASE RANKS"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

mpirun, program, case, ranks = sys.argv[1:5]
wrong = []
HANG = 120  # seconds

# What each fault leaves: the exit status of mpirun (None: another than 0), and what ranks say (None: mpirun ends them before).
MISSING = r"PEER_FAILED: group: all_gather 2 misses ranks? [\d, ]*{last} after 2 s, wanted all ranks"
DROPPED = r"PEER_FAILED: group: all_gather \d misses rank {last}, .*all_gather 2 was dropped by rank {last}"
# Whoever looks first says so: a rank that gets more, or the last one, which gets less.
LONGER = r"all_gather 2 of rank ({last} to rank \d has more bytes, wanted 1|\d to rank {last} has 1 byte, wanted 2)"
SHORTER = r"INTERNAL: group: broadcast 2 of rank 0 to rank {last} has 1 byte, wanted 5"
FAULTS = {
    "killed": (137, None),
    "stopped": (5, MISSING),
    "exit_0": (5, r"PEER_FAILED: group: all_gather 2 misses rank {last}, wanted all ranks \(it has ended\)"),
    "quick_exit_0": (None, None),
    "dropped": (5, DROPPED),
    "longer": (None, LONGER),
    "another": (None, SHORTER),
}


def is_open_mpi():
    version = subprocess.run([mpirun, "--version"], check=False, capture_output=True, text=True).stdout
    return "Open MPI" in version or "OpenRTE" in version


OPEN_MPI = is_open_mpi()


def options():
    """Several ranks on few cores, in a container."""
    if not OPEN_MPI:
        return []
    few = ["--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader", "--mca", "mpi_yield_when_idle", "1"]
    return few + ["--timeout", str(HANG)] + ["--allow-run-as-root"] * (os.geteuid() == 0)


def left_over(pids):
    """Processes of the ranks that are still there, and no zombies."""
    there = []
    for pid in pids:
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                there.append(pid)
        except OSError:
            pass
    return there


# `dsakit run` of so many ranks: how they share the model.
FATAL = {"run_killed": signal.SIGKILL, "run_stopped": signal.SIGSTOP}
GRIDS = {"2": "kv=2", "3": "heads=3", "4": "kv=2,heads=2"}
RUN = ["run", "--json", "--context", "190", "--mode", "sparse_w8a8", "--text"]


def run_arguments(folder):
    text = pathlib.Path(folder, "text")
    text.write_bytes(b"".join(b"%d and %d make %d. " % (i, j, i + j) for i in range(4) for j in range(4)))
    shared = ["--parallel", "kv=3" if case == "run_refused" else GRIDS[ranks]]
    if case in FATAL:  # more than anybody waits for
        return ["run", "--mode", "sparse_w8a8", "--generate", "1000000", "--timeout", "2", "--text", str(text), *shared]
    return [*RUN, str(text), *shared, "--trace", str(pathlib.Path(folder, "trace"))]


def ranks_of(pid):
    """The processes of the program below mpirun: its children, or those of what it starts them by."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[1] != str(pid):
                continue
            if os.path.samefile(stat.parent / "exe", program):
                found.append(int(stat.parent.name))
            else:
                found += ranks_of(stat.parent.name)
        except OSError:
            pass
    return found


def fault_of_last(process):
    """Once tokens come, the last rank is killed or stopped; then everybody has to end."""
    process.stdout.read(1)
    pids = ranks_of(process.pid)
    if pids:
        os.kill(max(pids), FATAL[case])
    return pids


def run(folder):
    environment = os.environ | {"DSAKIT_NUM_THREADS": "1", "TMPDIR": folder}
    arguments = ["dist-bench", "--json"] if case in ("dist-bench", "alone") else [case]
    if case.startswith("run"):
        arguments = run_arguments(folder)
    command = [mpirun, *options(), "-n", ranks, program, *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        pids = fault_of_last(process) if case in FATAL else []
        out, err = process.communicate(timeout=HANG + 60)
    return subprocess.CompletedProcess(command, process.returncode, out, err), pids


def one_process(folder):
    """The report of the same run without ranks."""
    command = [program, *RUN, str(pathlib.Path(folder, "text"))]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG).stdout)


def wait_for_end(pids):
    for _ in range(100):  # mpirun's own children are killed, but perhaps not yet gone
        if not left_over(pids):
            return
        time.sleep(0.1)
    wrong.append(f"processes left: {left_over(pids)}")


with tempfile.TemporaryDirectory(prefix="mpi") as folder:
    ended, killed = run(folder)
    out = ended.stdout + ended.stderr
    print(out, f"exit status {ended.returncode}", sep="")
    if case == "dist-bench":
        table = json.loads(ended.stdout)
        kinds = {row["exchange"] for row in table["exchanges"] if row["count"] >= 20 and row["median_seconds"] > 0}
        if table["ranks"] != int(ranks) or kinds != {"all_gather", "all_to_all", "broadcast", "all_reduce"}:
            wrong.append("wanted every exchange in the table")
        if any(row["predicted_seconds"] < 0 for row in table["exchanges"]) or table["bandwidth_bytes_per_second"] <= 0:
            wrong.append("wanted a fit")
    elif case == "alone":
        if ended.returncode != 2 or "dist-bench: ranks are 1, wanted 2 or more" not in out:
            wrong.append("wanted a refusal")
    elif case == "exchanges":
        if ended.returncode != 0 or "every exchange" not in ended.stdout:
            wrong.append("wanted every exchange, exit status 0")
    elif case == "run":
        report, alone = json.loads(ended.stdout), one_process(folder)
        same = report["modes"]["sparse_w8a8"]["bits_per_byte"] == alone["modes"]["sparse_w8a8"]["bits_per_byte"]
        for rank in range(int(ranks)):
            with pathlib.Path(folder, f"trace.{rank}").open() as lines:
                seen = {line["exchange"] for line in map(json.loads, lines) if line["rank"] == rank}
            if not {"first_products", "layer_output", "logits"} <= seen:
                wrong.append(f"rank {rank} traces {seen}")
        if ended.returncode != 0 or report["ranks"] != int(ranks) or not same:
            wrong.append(f"wanted the bits of one process: {alone}")
    elif case == "run_refused":
        if ended.returncode != 2 or ended.stderr.count("is kv=3") != int(ranks):
            wrong.append("wanted a refusal of every rank, exit status 2")
    elif case in FATAL:
        if ended.returncode == 0 or not killed:
            wrong.append("went on")
        wait_for_end(killed)
    else:
        status, sentence = FAULTS[case]
        if not OPEN_MPI:  # MPICH passes the signal on, and takes any exit with 0 for the end of all
            status = {"killed": 9, "quick_exit_0": 0}.get(case, status)
        if (status != 0 and ended.returncode == 0) or status not in (None, ended.returncode):
            wrong.append(f"exit status {ended.returncode}, wanted {status or 'another than 0'}")
        if sentence and not re.search(sentence.format(last=int(ranks) - 1), ended.stdout):
            wrong.append(f"nobody says {sentence}")
        if "nothing was wrong" in out or "a dead group" in out:
            wrong.append("went on")
        pids = re.findall(r"pid (\d+)", ended.stdout)
        if len(pids) != int(ranks):
            wrong.append(f"{len(pids)} ranks, wanted {ranks}")
        wait_for_end(pids)
    for name in ["text", *(f"trace.{rank}" for rank in range(int(ranks)))]:
        pathlib.Path(folder, name).unlink(missing_ok=True)
    left = [str(p) for p in pathlib.Path(folder).rglob("*") if not p.is_dir()]
    if left:
        wrong.append(f"files left: {left}")

print(*wrong, sep="\n")
sys.exit(bool(wrong))
