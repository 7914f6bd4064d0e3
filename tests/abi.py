# SPDX-License-Identifier: Apache-2.0
"""The C interface is what it was: the symbols that libdsakit.so has, and the declarations, sizes,
members and numbers of dsakit.h.
Usage: abi.py LIBRARY INCLUDE_DIR COMPILER RECORD [--write]. What is appended is recorded with --write; what changes or
goes breaks programs that were built before."""
import pathlib
import re
import subprocess
import sys
import tempfile

library, include, compiler, record = sys.argv[1:5]
header = (pathlib.Path(include) / "dsakit/dsakit.h").read_text()
header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)

nm = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
lines = sorted(f"symbol {line.split()[-1]}" for line in nm.splitlines())
soname = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
lines += ["soname " + re.search(r"soname: \[(.*)\]", soname)[1]]

lines += ["declares " + " ".join(text.split()) for text in re.findall(r"DSAKIT_API\s([^;]*?)\sDSAKIT_NOEXCEPT;", header)]

# A program that prints the rest, made of the declarations themselves.
prints = []
for body, name in re.findall(r"typedef struct \w+ \{(.*?)\n\} (\w+);", header, flags=re.S):
    prints.append(f'printf("struct {name} size %zu align %zu\\n", sizeof({name}), _Alignof({name}));')
    union = re.search(r"union \{(.*?)\} (\w+);", body, flags=re.S)
    members = re.sub(r"union \{.*?\} (\w+);", r"union \1;", body, flags=re.S)
    names = [(m, m) for m in re.findall(r"(\w+)(?:\[\d+\])?;", members)]
    names += [(f"{union[2]}.{m}", f"{union[2]}.{m}") for m in re.findall(r"(\w+);", union[1])] if union else []
    for member, shown in names:
        place = f"offsetof({name}, {member}), sizeof((({name} *)0)->{member})"
        prints.append(f'printf("  {name}.{shown} at %zu size %zu\\n", {place});')
for body in re.findall(r"enum(?: \w+)? \{(.*?)\n\}", header, flags=re.S):
    for name in re.findall(r"(DSAKIT_\w+)\s*=", body):
        prints.append(f'printf("number {name} %d\\n", (int){name});')

with tempfile.TemporaryDirectory() as folder:
    source, program = f"{folder}/abi.c", f"{folder}/abi"
    text = ["#include <dsakit/dsakit.h>", "#include <stdio.h>", "int main(void) {", *prints, "}"]
    pathlib.Path(source).write_text("\n".join(text) + "\n")
    flags = ["-x", "c", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{include}"]
    subprocess.run([compiler, *flags, source, "-o", program], check=True)
    lines += subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()

if "--write" in sys.argv:
    pathlib.Path(record).write_text("\n".join(lines) + "\n")
recorded = pathlib.Path(record).read_text().splitlines()
bad = [f"changed or gone: {line}" for line in recorded if line not in lines]
bad += [f"not recorded (--write): {line}" for line in lines if line not in recorded]
print("\n".join(bad) or f"{len(lines)} lines as recorded")
sys.exit(bool(bad) or len(lines) < 100)
