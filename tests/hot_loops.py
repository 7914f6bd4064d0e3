# SPDX-License-Identifier: Apache-2.0
"""The loops in which the kernels spend their time keep their sums in registers: every innermost loop of a rung that
multiplies moves at most one vector to or from the stack for eight dots (gcc 12 does not do better for six rows of pairs).
Usage: hot_loops.py [-v] OBJECT..."""
import os
import pathlib
import re
import subprocess
import sys

DOTS = re.compile(r"\s(v?pdpbusd|vdpbf16ps|vfn?madd\w+p[sd]|vpmaddwd|pmaddwd|tdp\w+|fmla|sdot|udot|usdot|bfdot|smmla|bfmmla)\b")
STACK = re.compile(r"\(%rsp|\(%rbp|\[sp[,\]]|\[x29[,\]]")
VECTOR = re.compile(r"%[xyz]mm\d+|\bq\d+\b")
TILE_DOTS = 16  # of one dot of tiles, which is as much as so many of the widest vectors
LEAST_DOTS = 8  # fewer: a tail
# What each rung must have (the compiler makes one function of both kinds of rows of FmaPairs) for its products and index scores: function, and dots of its largest tile's loop.
EXPECTED = {
    "amx": {
        "tile_block<Vec512, TileDotI8<Tiles>, 2, 2>": 64,
        "tile_block<Vec512, TileDotBf16<Tiles>, 2, 2>": 64,
        "tile_block<Vec512, TileDotBf16<Tiles>, 1, 4>": 64,
        "dots_of_keys<Tiles, 4>": 64,
        "peak_on_tiles<TileDotI8<Tiles>, 16843009>": 96,
        "peak_on_tiles<TileDotBf16<Tiles>, 1065369472>": 96,
    },
    "avx512": {"tile<Vec512, DotBf16, bf16, 6, 1>": 24, "peak_of_pairs<Vec512, DotBf16>": 16},
    "avx512vnni": {
        "tile<Vec512, DotI8<Vec512, Dot4>, signed char, 6, 1>": 24,
        "tile<Vec512, FmaPairs<Vec512, float>, bf16, 6, 1>": 48,
        "tile<Vec512, Fma<Vec512>, float, 6, 1>": 24,
        "code_tile<Vec512, DotI8<Vec512, Dot4>, 6, 4, false, signed char>": 24,
        "float_tile<Vec512, 6, 4, true>": 24,
        "peak_of_codes<Vec512, DotI8<Vec512, Dot4> >": 16,
        "peak_of_floats<Vec512>": 16,
    },
    "avxvnni": {
        "tile<Vec256, DotI8<Vec256, Dot4>, signed char, 6, 1>": 12,
        "code_tile<Vec256, DotI8<Vec256, Dot4>, 6, 2, false, signed char>": 12,
    },
    "avx2": {
        "tile<Vec256, WidenedI8<Vec256>, signed char, 6, 1>": 24,
        "tile<Vec256, FmaPairs<Vec256, float>, bf16, 6, 1>": 24,
        "tile<Vec256, Fma<Vec256>, float, 6, 1>": 12,
        "code_tile<Vec256, WidenedI8<Vec256>, 6, 2, false, short>": 24,
        "float_tile<Vec256, 6, 2, true>": 12,
        "peak_of_codes<Vec256, WidenedI8<Vec256> >": 12,
        "peak_of_floats<Vec256>": 12,
    },
    "neon": {
        "tile<VecNeon, FmaPairs<VecNeon, float>, bf16, 6, 1>": 48,
        "tile<VecNeon, Fma<VecNeon>, float, 6, 1>": 24,
        "float_tile<VecNeon, 6, 4, true>": 24,
        "peak_of_floats<VecNeon>": 16,
    },
    "neon_dotprod": {
        "tile<VecNeon, SignedI8<VecNeon, NeonDot4>, signed char, 6, 1>": 24,
        "code_tile<VecNeon, SignedI8<VecNeon, NeonDot4>, 6, 4, false, signed char>": 24,
    },
    "neon_i8mm": {
        "tile<VecNeon, Squares4, signed char, 1, 4>": 16,
        "tile<VecNeon, Squares4, signed char, 6, 1>": 24,
        "code_tile<VecNeon, Squares4, 6, 4, false, signed char>": 24,
    },
    "neon_bf16": {"tile<VecNeon, DotBf16, bf16, 1, 4>": 16, "tile<VecNeon, DotBf16, bf16, 6, 1>": 24},
}
# Written for 32 registers; with 16, GEMV kernels and strips have a few of them on the stack, and tails of columns go by way of it: of
# few rows they are faster than panels all the same. Codes are arranged
# once for many products; keys wider than 12288 are not prepared. Decoding e4m3 codes takes tables and masks besides the
# sums, more than there are registers, of four rows with 32 too: other orders of the same steps measured no faster.
NOT_HOT = re.compile(
    r"(gemv_\w+|strip_tile)<Vec(128|256)|(transpose|interleave)_codes<|code_tile<.*, true, signed char>|softmax<"
    r"|(scaled_rows|product_of_scaled)<Vec(256|512|Amx),"
    r"|(gemv_sums_of_pairs|product_of_scaled)_on_tiles<"  # what a tile loads is put there, on the stack, by the same loop
)


def loops(lines):
    """The instructions of each innermost natural loop of a function: what lies on a way from the target of a backward
    jump round to that jump. Of loops with dots of tiles the innermost that has such: in between others ask for memory."""
    at = {address: i for i, (address, _) in enumerate(lines)}
    before = {i: [] for i in range(len(lines))}
    back = []
    for i, (_, text) in enumerate(lines):
        jump = re.match(r"(j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\s+.*?([0-9a-f]+) <", text)
        target = at.get(int(jump[2], 16)) if jump else None
        if target is not None:
            before[target].append(i)
            if target <= i:
                back.append((target, i))
        if i + 1 < len(lines) and not re.match(r"(ret|jmp|b)\b", text):
            before[i + 1].append(i)
    found = []
    for head, latch in back:
        body, todo = {head}, [latch]
        while todo:
            i = todo.pop()
            if i not in body:
                body.add(i)
                todo += before[i]
        if 0 not in body or head == 0:  # else the jump only leads back to a place that other ways reach too
            found.append((head, body))
    tiles = {head for head, body in found if any(dots_of(lines[i][1]) == TILE_DOTS for i in body)}
    within = {head: tiles if head in tiles else {h for h, _ in found} for head, _ in found}
    return [body for head, body in found if not any(h != head and h in body for h in within[head])]


def dots_of(text):
    dot = DOTS.search(" " + text)
    return (TILE_DOTS if dot[1].startswith("tdp") else 1) if dot else 0


def functions(path):
    text = subprocess.run(
        [os.environ.get("OBJDUMP", "objdump"), "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    ).stdout
    name, lines = None, []
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            if name:
                yield name, lines
            name, lines = head[1], []
        elif body := re.match(r"\s*([0-9a-f]+):\s+(.*)$", line):
            lines.append((int(body[1], 16), body[2]))
    if name:
        yield name, lines


def demangled(names):
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [re.sub(r"dsakit::|\(anonymous namespace\)::", "", n) for n in out.splitlines()]


def main():
    verbose = "-v" in sys.argv
    found, rungs = [], set()
    for path in (pathlib.Path(a) for a in sys.argv[1:] if a != "-v"):
        if path.parent.name != "rung":
            continue
        rung = path.name.split(".")[0]
        rungs.add(rung)
        for name, lines in functions(path):
            for loop in loops(lines):
                body = [lines[i][1] for i in sorted(loop)]
                dots = sum(dots_of(t) for t in body)
                stack = sum(bool(STACK.search(t) and VECTOR.search(t)) for t in body)
                if dots >= LEAST_DOTS:
                    found.append((rung, name, len(body), dots, stack))
    bad = 0
    names = demangled([f[1] for f in found])
    for (rung, _, length, dots, stack), name in zip(found, names):
        wrong = stack * 8 > dots and not NOT_HOT.search(name) and rung != "generic"
        bad += wrong
        if verbose or wrong:
            print(f"{rung:12}{dots:5} dots of {length:4} instructions, {stack:3} on the stack  {name[:150]}")
    for rung in rungs & EXPECTED.keys():
        for function, dots in EXPECTED[rung].items():
            if not any(f[0] == rung and f[3] == dots and f" {function}(" in name for f, name in zip(found, names)):
                bad += 1
                print(f"{rung}: no loop of {dots} dots in {function}")
    print(f"{len(found)} hot loops of {len(rungs)} rungs, {bad} wrong")
    return bad > 0 or len(rungs) < 2


sys.exit(main())
