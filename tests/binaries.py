# SPDX-License-Identifier: Apache-2.0
"""What is shipped has no path of the machine that built it, is linked as DSAKIT_HARDENING says, and every object of a library
of objects begins where calls and jumps may land (x86: IBT and SHSTK; AArch64: BTI). Read with readelf; the paths are the
folders of sources and build, and the temporary folder in which pip keeps nanobind.
Usage: binaries.py [--hardened] [--without FOLDER]... FILE..."""

import argparse
import pathlib
import re
import subprocess
import sys


def readelf(*arguments):
    done = subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def paths(file, folders):
    data = file.read_bytes()
    places = [str(folder).encode() for folder in folders] + [b"/pip-build-env-"]
    return [f"has the path {place.decode()}" for place in places if place in data]


def faults_of_objects(file):
    marks = re.compile(r"x86 feature: IBT, SHSTK|AArch64 feature: BTI")
    parts = re.split(r"^File: (.*)$", readelf("-n", file), flags=re.M)[1:]
    assert parts, f"{file} holds no object"
    return [
        f"{name}: calls and jumps may land anywhere"
        for name, notes in zip(parts[::2], parts[1::2])
        if not marks.search(notes)
    ]


def faults_of_linked(file):
    header, segments, dynamic, symbols = (readelf(option, file) for option in ("-h", "-l", "-d", "--dyn-syms"))
    flags = " ".join(re.findall(r"\((?:FLAGS|FLAGS_1)\) +(?:Flags:)?(.*)", dynamic))
    wanted = re.findall(r"UND (\S+)", symbols)
    searched = [path for entry in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic) for path in entry.split(":")]
    stack = re.search(r"GNU_STACK.* (\w+) +0x\w+$", segments, re.M)
    rules = {
        "runs at one address only (no PIE)": "DYN" in re.search(r"Type:.*", header)[0],
        "is no PIE, though a program": "INTERP" not in segments or "PIE" in flags,
        "binds functions late (not -z now)": "BIND_NOW" in flags or "NOW" in flags,
        "keeps its tables writable (no RELRO)": "GNU_RELRO" in segments,
        "has an executable stack": stack and "E" not in stack[1],
        "has a segment that is writable and executable": " RWE " not in segments,
        "has relocations in its code (TEXTREL)": "TEXTREL" not in dynamic,
        f"searches {searched} for libraries": all(path.startswith("$ORIGIN") for path in searched),
        "does not check the stack (-fstack-protector)": any("__stack_chk_fail" in name for name in wanted),
        "does not check lengths of copies (_FORTIFY_SOURCE)": any(re.match(r"__\w+_chk(@|$)", name) for name in wanted),
        "does not check indices of vectors (_GLIBCXX_ASSERTIONS)": any(
            "__glibcxx_assert_fail" in name for name in wanted
        ),
    }
    return [rule for rule, kept in rules.items() if not kept]


options = argparse.ArgumentParser()
options.add_argument("--hardened", action="store_true")
options.add_argument("--without", action="append", default=[], type=pathlib.Path)
options.add_argument("files", nargs="+", type=pathlib.Path)
options = options.parse_args()
bad = []
for file in options.files:
    faults = paths(file, options.without)
    if options.hardened:
        faults += faults_of_objects(file) if file.suffix == ".a" else faults_of_linked(file)
    bad += [f"{file.name} {fault}" for fault in faults]
print("\n".join(bad) or f"{len(options.files)} files as they should be")
sys.exit(bool(bad))
