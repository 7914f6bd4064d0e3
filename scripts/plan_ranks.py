# SPDX-License-Identifier: Apache-2.0
"""The tables and the picture of docs/distributed.md, "What to expect", from `dsakit plan --ranks N --json`.

usage: plan_ranks.py DSAKIT [--pages DOCS]    DSAKIT: the command. Prints the tables; with --pages makes
DOCS/distributed.svg and the tables of DOCS/distributed.md anew.
"""

import argparse
import json
import math
import pathlib
import subprocess

CONFIG = pathlib.Path(__file__).parents[1] / "tests" / "configs" / "deepseek-v3.2.json"
RANKS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = {"128K": 131072, "1M": 1048576}
MEMORY = "256GB"
BEGIN, END = "<!-- plan_ranks -->", "<!-- end -->"


def plans(command):
    """Of every context and number of processes: {context: {ranks: report}}."""

    def plan(ranks, context):
        words = ("plan", CONFIG, "--ranks", ranks, "--context", context, "--memory", MEMORY, "--json")
        return json.loads(subprocess.check_output([command, *map(str, words)]))["parallel"]

    return {name: {ranks: plan(ranks, context) for ranks in RANKS} for name, context in CONTEXTS.items()}


def grid_of(report, name):
    return next(grid for grid in report["grids"] if grid["parallel"] == name)


def row(ranks, report):
    best, kv = grid_of(report, report["best"]), grid_of(report, f"kv={ranks}")
    term = {name: 1e3 * seconds for name, seconds in best["terms"].items()}
    network = term["latency"] + term["transfer"]
    rest = term["attention"] + term["merge"] + term["rest"]
    cells = [best["parallel"], f"{1e3 * best['seconds']:.1f}"]
    cells += [f"{value:.1f}" for value in (term["weights"], term["index"], rest, network, term["disk"])]
    cells += [f"{best['messages']}, {best['received_bytes'] / 1e6:.1f} MB", f"{best['memory'] / 1e9:.1f}"]
    cells += [f"{1e3 * kv['seconds']:.1f}, {kv['memory'] / 1e9:.1f}"]
    return f"| {ranks} | " + " | ".join(cells) + " |"


def tables(all_plans):
    heads = ("processes", "best grid", "ms a token", "weights", "index", "attention, rest", "network", "disk")
    heads += ("messages, received", "GB each", "kv=N: ms, GB each")
    lines = []
    for context, reports in all_plans.items():
        lines += [f"{context} positions:", "", f"| {' | '.join(heads)} |", "|--:|---|" + 9 * "--:|"]
        lines += [row(ranks, report) for ranks, report in reports.items()] + [""]
    return "\n".join(lines)


STYLE = """
.paper { fill: #ffffff } .text { fill: #333333; font: 13px sans-serif } .grid { stroke: #dddddd }
.a { stroke: #1f6fb5 } .a-fill { fill: #1f6fb5 } .b { stroke: #c2570c } .b-fill { fill: #c2570c }
.line { fill: none; stroke-width: 2.5 } .number { font: 12px sans-serif }
@media (prefers-color-scheme: dark) {
  .paper { fill: #1c1c1e } .text { fill: #dddddd } .grid { stroke: #444444 }
  .a { stroke: #6db3f2 } .a-fill { fill: #6db3f2 } .b { stroke: #f0a05a } .b-fill { fill: #f0a05a }
}"""


def picture(all_plans):
    """Milliseconds of a token over the number of processes, both logarithmic."""
    left, top, width, height, low, high = 60, 40, 600, 300, 10, 4000

    def x(ranks):
        return left + 30 + (width - 50) * math.log2(ranks) / math.log2(RANKS[-1])

    def y(ms):
        return top + height * (1 - math.log(ms / low) / math.log(high / low))

    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 400" role="img">',
        "<title>Milliseconds a token of DeepSeek-V3.2 over the number of processes</title>",
        f"<style>{STYLE}\n</style>",
        '<rect class="paper" width="700" height="400"/>',
        f'<text class="text" x="{left}" y="22">DeepSeek-V3.2, decoding: ms a token, foretold ({MEMORY} each)</text>',
    ]
    for ms in (10, 30, 100, 300, 1000, 3000):
        out.append(f'<path class="grid" d="M{left} {y(ms):.1f}H{left + width}"/>')
        out.append(f'<text class="text" x="{left - 8}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms}</text>')
    for ranks in RANKS:
        out.append(f'<text class="text" x="{x(ranks):.1f}" y="{top + height + 20}" text-anchor="middle">{ranks}</text>')
    out.append(
        f'<text class="text" x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle">processes</text>'
    )
    # The longer context is the upper line and has its numbers above it.
    for (name, reports), colour, shift in zip(all_plans.items(), "ab", (20, -10)):
        points = [(x(ranks), 1e3 * grid_of(r, r["best"])["seconds"]) for ranks, r in reports.items()]
        out.append(f'<path class="line {colour}" d="M' + "L".join(f"{at:.1f} {y(ms):.1f}" for at, ms in points) + '"/>')
        for at, ms in points:
            out.append(f'<circle class="{colour}-fill" cx="{at:.1f}" cy="{y(ms):.1f}" r="4"/>')
            out.append(
                f'<text class="number {colour}-fill" x="{at:.1f}" y="{y(ms) + shift:.1f}" text-anchor="middle">{ms:.0f}</text>'
            )
        legend = f'x="{left + width}" y="{top + 16 + 2 * abs(shift)}" text-anchor="end"'
        out.append(f'<text class="number {colour}-fill" {legend}>{name} positions</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command")
    parser.add_argument("--pages", type=pathlib.Path)
    options = parser.parse_args()
    all_plans = plans(options.command)
    print(tables(all_plans))
    if options.pages:
        (options.pages / "distributed.svg").write_text(picture(all_plans))
        page = options.pages / "distributed.md"
        before, _, rest = page.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        page.write_text(f"{before}{BEGIN}\n{tables(all_plans)}{END}{after}")


if __name__ == "__main__":
    main()
