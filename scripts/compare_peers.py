#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every operator beside the best that other libraries of this machine have for the same work (oneDNN and the operators
of torch, transformers), by turns in one run with the same threads, and beside the floor measured in that run.

    .venv/bin/python scripts/compare_peers.py                    # a table; what is not installed is said to be absent
    .venv/bin/python scripts/compare_peers.py --quick rows       # small sizes, some of the comparisons
    .venv/bin/python scripts/compare_peers.py --pages            # measures everything (ten minutes) and writes the
                                                                 # tables of README.md and docs/performance.md anew
    .venv/bin/python scripts/compare_peers.py --json FILE ..     # keeps the figures; --from FILE makes tables of them

The floor is what no implementation can avoid: bytes read once from memory, or products at the peak of the machine's
dots.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

import comparisons
import compare_transformers
import dsakit
import timing

ROOT = pathlib.Path(__file__).parent.parent
COMMAND = pathlib.Path(dsakit.__file__).parent / "bin" / "dsakit"
PARTS = {f.__name__: f for f in comparisons.ALL}
# What instruction sets are compared with: a prolog, an indexer, attention over packed and over dense rows, plain rows.
RUNG_OPERATORS = (
    "mla_prolog_quant",
    "quant_lightning_indexer",
    "kv_quant_sparse_flash_attention",
    "fused_infer_attention_score_v2",
    "rms_norm",
)


# Measuring.


def bench(*arguments, isa=None):
    """What `dsakit bench` reports; nothing if the command is not there or was built without it."""
    environment = os.environ | ({"DSAKIT_ISA": isa} if isa else {})
    call = [COMMAND, "bench", *arguments, "--json"]
    if not COMMAND.exists():
        return []
    done = subprocess.run(call, stdout=subprocess.PIPE, env=environment)
    if done.returncode == 2:  # no such subcommand
        return []
    done.check_returncode()
    return json.loads(done.stdout)


def limits(threads):
    return {n: each for n in threads for each in bench("limits", "--threads", str(n))}


def best_of(a, b):
    """A neighbour may have been busy before, or after."""
    if not isinstance(a, dict):
        return max(a, b)
    return {key: best_of(a[key], b[key]) for key in a}


def floor_of(work, limit):
    """Seconds; None without limits."""
    if not limit:
        return None
    products = work["i8_ops"] / limit["i8_ops_per_second"] + work["bf16_flops"] / limit["bf16_flops_per_second"]
    return max(work["bytes"] / limit["bytes_per_second"], products)


def row_of(c, threads, turns):
    """One comparison with so many threads. Peers: seconds, or why there are none."""
    row = dict(operator=c.operator, size=c.size, threads=threads, isa=dsakit.info()["isa"])
    row |= dict(bytes=c.bytes, i8_ops=c.i8_ops, bf16_flops=c.bf16_flops)
    row["peers"] = {name: {"absent": peer} for name, peer in c.peers.items() if isinstance(peer, str)}
    calls = {name: peer for name, peer in c.peers.items() if not isinstance(peer, str)}
    if c.ours is None:
        return row
    timing.set_threads(threads)
    medians = timing.alternate({"ours": c.ours} | calls, after=c.after, **turns)
    row["seconds"] = medians.pop("ours")
    row["peers"] |= {name: {"seconds": t} for name, t in medians.items()}
    if c.difference:
        result = taken(c, "ours", c.ours)
        for name, call in calls.items():
            row["peers"][name]["difference"] = c.difference(result, taken(c, name, call))
    return row


def taken(c, name, call):
    """The result of a call that is taken back."""
    result = call()
    c.after.get(name, int)()
    return result


def measure_peers(names, sizes, threads, turns):
    rows = []
    with comparisons.torch.inference_mode() if comparisons.torch else contextlib.nullcontext():
        for name in names:
            for c in PARTS[name](sizes):
                for n in threads if c.one_thread else threads[-1:]:
                    progress(f"{c.operator}, {c.size}, {threads_text(n)}")
                    rows.append(row_of(c, n, turns))
    progress("")
    return rows


def progress(line):
    """Where a run is, for those who watch it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def measure(args):
    sizes = comparisons.TINY if args.tiny else comparisons.QUICK if args.quick else comparisons.Sizes()
    turns = dict(seconds=0, rounds=1, turn=0) if args.tiny else dict(seconds=0.5 if args.quick else 1)
    report = {"machine": timing.machine(args.threads)}
    before = limits(args.threads)
    report["rows"] = measure_peers(args.names or PARTS, sizes, args.threads, turns)
    if args.pages:
        timing.set_threads(args.threads[-1])
        report["transformers"] = compare_transformers.measure(context=2048)
        quick = ["--quick"] if args.quick else []
        report["operators"] = [row for n in args.threads for row in bench("--threads", str(n), *quick)]
        rungs = [isa for isa in dsakit.info()["isas"] if isa != "generic"]
        report["rungs"] = [row for isa in rungs for row in bench(*RUNG_OPERATORS, "--threads", "1", *quick, isa=isa)]
    report["limits"] = before if args.tiny else best_of(before, limits(args.threads))
    for row in report["rows"]:
        floor = floor_of(row, report["limits"].get(row["threads"]))
        row["floor_seconds"] = floor
        row["share_of_floor"] = floor / row["seconds"] if floor and "seconds" in row else None
    report["machine"] = timing.finished(report["machine"])
    return report


# Tables.


def best_peer(row):
    """Name and seconds of the fastest; None if there is none."""
    there = {name: peer["seconds"] for name, peer in row["peers"].items() if "seconds" in peer}
    return min(there.items(), key=lambda item: item[1]) if there else None


def duration(seconds):
    """Three digits."""
    unit, size = next(((u, x) for u, x in (("s", 1), ("ms", 1e-3)) if seconds >= 0.9995 * x), ("us", 1e-6))
    number = seconds / size
    return f"{number:.{0 if number >= 99.95 else 1 if number >= 9.995 else 2}f} {unit}"


def times(ratio):
    return f"{ratio:.{0 if ratio >= 9.95 else 1 if ratio >= 0.95 else 2}f} x"


def percent(share):
    return "" if share is None else f"{100 * share:.0f} %"


def absences(row):
    return "; ".join(f"{name}: {peer['absent']}" for name, peer in row["peers"].items() if "absent" in peer)


def cells(row):
    """Time, share of the floor, best peer, its time, how much longer it takes."""
    if "seconds" not in row:
        return ["", "", f"absent: {absences(row)}", "", ""]
    best = best_peer(row)
    theirs = (
        [best[0], duration(best[1]), times(best[1] / row["seconds"])] if best else ["absent: " + absences(row), "", ""]
    )
    return [duration(row["seconds"]), percent(row["share_of_floor"]), *theirs]


def threads_text(n):
    return f"{n} thread{'s' if n > 1 else ''}"


def text(report):
    lines = [timing.heading(report["machine"])]
    for n, limit in report["limits"].items():
        lines.append(
            f"limits with {threads_text(n)}: memory {limit['bytes_per_second'] / 1e9:.1f} GB/s, int8 "
            f"{limit['i8_ops_per_second'] / 1e9:.0f} GOP/s, bf16 {limit['bf16_flops_per_second'] / 1e9:.0f} GFLOP/s"
        )
    if not report["limits"]:
        lines.append(f"limits: absent ({COMMAND} has no bench)")
    head = ("ours", "floor", "best peer", "time", "ratio")
    line = "{:<32}{:<46}{:>8}{:>10}{:>8}  {:<22}{:>9}{:>9}".format
    lines += ["", line("operator", "size", "threads", *head)]
    lines += [line(row["operator"], row["size"], row["threads"], *cells(row)) for row in report["rows"]]
    missing = {
        f"{name}: {peer['absent']}" for row in report["rows"] for name, peer in row["peers"].items() if "absent" in peer
    }
    return "\n".join(lines + [f"absent: {each}" for each in sorted(missing)])


def table(*rows):
    """Markdown; the first row is the head."""
    head, *body = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])


def by_size(rows):
    """operator, size -> rows of its thread counts."""
    groups = {}
    for row in rows:
        groups.setdefault((row["operator"], row["size"]), {})[row["threads"]] = row
    return groups


def side_by_side(rows, groups, columns, of):
    """One line for each operator and size, the operator named once.

    groups: "threads" of rows -> what the head calls them; each has the columns."""
    lines, last = [["operator", "size", *(column.format(name) for name in groups.values() for column in columns)]], None
    for (operator, size), there in by_size(rows).items():
        each = [cell for key in groups for cell in (of(there[key]) if key in there else [""] * len(columns))]
        lines.append(["" if operator == last else f"`{operator}`", size, *each])
        last = operator
    return table(*lines)


def machine_text(report):
    m = report["machine"]
    lines = [
        f"{m['cpu']}; {m['processors']} processors, rung `{m['isa']}`; dsakit {m['dsakit']}, torch {m['torch']}, "
        f"transformers {m['transformers']}; load average {m['load_begin']} at the beginning, {m['load_end']} at the "
        "end."
    ]
    if m["warning"]:
        lines.append("\n" + provisional(report))
    rows = [["limits", "memory", "int8 products", "bf16 products"]]
    for n, limit in report["limits"].items():
        giga = [limit[key] / 1e9 for key in ("bytes_per_second", "i8_ops_per_second", "bf16_flops_per_second")]
        rows.append([threads_text(n), f"{giga[0]:.1f} GB/s", f"{giga[1]:.0f} GOP/s", f"{giga[2]:.0f} GFLOP/s"])
    return "\n".join(lines) + "\n\n" + table(*rows)


def peers_text(report):
    """All of it: a line for each number of threads."""
    head = ["operator", "size", "threads", "time", "of the floor", "best peer", "its time", "ratio"]
    lines, last = [head], None
    for row in report["rows"]:
        name = row["operator"]
        lines.append(["" if name == last else f"`{name}`", row["size"], row["threads"], *cells(row)])
        last = name
    return table(*lines)


def summary_text(report):
    """For README: time, share of the floor, and how much longer the best peer takes; sizes in between left out."""
    rows = [row for row in report["rows"] if not re.search(r"\b(4 tokens|32K keys)", row["size"])]
    counts = {n: threads_text(n) for n in report["machine"]["threads"]}
    of = lambda row: [*cells(row)[:2], cells(row)[4] or "absent"]
    text = side_by_side(rows, counts, ("{}", "of the floor", "best peer"), of)
    return text + (f"\n\n{provisional(report)}" if report["machine"]["warning"] else "")


def provisional(report):
    m = report["machine"]
    return f"**Provisional figures** (load average {m['load_begin']} to {m['load_end']}): {m['warning']}."


def operators_text(report):
    counts = {n: threads_text(n) for n in report["machine"]["threads"]}
    of = lambda row: [duration(row["seconds"]), percent(row["share_of_floor"] or None)]
    return side_by_side(report["operators"], counts, ("{}", "of the floor"), of)


def rungs_text(report):
    """One thread; the floor of a rung has the peak of its own dots."""
    rungs = list(dict.fromkeys(row["isa"] for row in report["rungs"]))
    own = report["limits"].get(1, {}).get("rungs", {})
    memory = report["limits"].get(1, {}).get("bytes_per_second")
    rows = [row | {"threads": row["isa"]} for row in report["rungs"]]

    def of(row):
        floor = floor_of(row, own[row["isa"]] | {"bytes_per_second": memory}) if memory else None
        return [duration(row["seconds"]), percent(floor / row["seconds"] if floor else None)]

    return side_by_side(rows, {isa: f"`{isa}`" for isa in rungs}, ("{}", "of its floor"), of)


def transformers_text(report):
    """Tokens per second of ours, and how many of the fastest of theirs that is."""
    theirs = {what: compare_transformers.best_of_theirs(report["transformers"], what) for what in ("prefill", "decode")}
    rate = lambda x: f"{x:.0f}" if x >= 100 else f"{x:.1f}"
    best = [cell for x in theirs.values() for cell in ([rate(x), ""] if x else ["absent", ""])]
    rows = [["", "prefill", "", "decode", ""], ["transformers, its best", *best]]
    for name, row in report["transformers"].items():
        if name.startswith("dsakit"):
            each = [(row[what], times(row[what] / x) if x else "") for what, x in theirs.items()]
            rows.append([f"`{name.split()[1]}`", *(cell for x, ratio in each for cell in (rate(x), ratio))])
    return table(*rows)


TABLES = {
    "machine": machine_text,
    "peers": peers_text,
    "summary": summary_text,
    "operators": operators_text,
    "rungs": rungs_text,
    "transformers": transformers_text,
}


NOT_OF_PEERS = ("operators", "rungs", "transformers")  # measured for pages alone


def renewed(page, report):
    """The page with each `<!-- figures NAME ISA -->` .. `<!-- end -->` of the machine's best instruction set filled
    anew, as far as that was measured."""

    def table_of(match):
        name, isa = match[2], match[3]
        measured = name not in NOT_OF_PEERS or name in report
        return f"{match[1]}{TABLES[name](report)}\n{match[4]}" if measured and isa == report["machine"]["isa"] else match[0]

    return re.sub(r"(<!-- figures (\w+) (\w+) -->\n).*?(<!-- end -->)", table_of, page, flags=re.S)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(PARTS)}")
    parser.add_argument("--threads", type=int, nargs="+", help="default: one, then all")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller sizes, less time for each")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)  # for the test
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--from", dest="source", type=pathlib.Path, metavar="FILE", help="measure nothing: figures of --json"
    )
    parser.add_argument("--markdown", choices=TABLES, help="print this table as the pages have it")
    parser.add_argument("--pages", action="store_true", help="measure what the pages have, and write their tables anew")
    args = parser.parse_args(arguments)
    if unknown := set(args.names) - set(PARTS):
        parser.error(f"NAME is {sorted(unknown)[0]}, wanted {', '.join(PARTS)}")
    if args.names and args.pages:
        parser.error("--pages wants everything, not " + args.names[0])
    args.threads = args.threads or sorted({1, dsakit.get_num_threads()})
    if min(args.threads) < 1:
        parser.error(f"--threads is {min(args.threads)}, wanted 1 and more")
    report = json.loads(args.source.read_text()) if args.source else measure(args)
    if args.markdown in NOT_OF_PEERS and args.markdown not in report:
        parser.error("the figures are those of the peers alone, wanted some of a run with --pages")
    report["limits"] = {int(n): limit for n, limit in report["limits"].items()}  # JSON has no numbers for names
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(TABLES[args.markdown](report) if args.markdown else text(report))
    if args.pages:
        for page in (ROOT / "README.md", ROOT / "docs" / "performance.md"):
            page.write_text(renewed(page.read_text(), report))


if __name__ == "__main__":
    main()
