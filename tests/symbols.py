# SPDX-License-Identifier: Apache-2.0
"""Only use_<isa> may leave the object of a rung: an inline function compiled with AVX-512 that wins at link time is a
SIGILL on somebody else's machine. Usage: symbols.py OBJECT..."""
import os
import pathlib
import re
import subprocess
import sys

bad, seen = [], 0
for path in sys.argv[1:]:
    name = pathlib.Path(path).name
    match = re.match(r"(\w+)\.cc", name)
    if pathlib.Path(path).parent.name != "rung" or not match:
        continue
    seen += 1
    text = subprocess.run([os.environ.get("NM", "nm"), "-C", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        kind, symbol = line.split(maxsplit=2)[1:]
        if kind.isupper() and kind != "A" and not symbol.startswith((f"dsakit::use_{match[1]}(", "DW.ref")):
            bad.append(f"{name}: {kind} {symbol}")
print("\n".join(bad) or f"{seen} rungs, nothing leaks")
sys.exit(bool(bad) or seen == 0)
