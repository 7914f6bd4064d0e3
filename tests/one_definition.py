# SPDX-License-Identifier: Apache-2.0
"""Two classes of one full name are one class to the linker: it keeps the constructor or the destructor of either, and
which one depends on what the compiler inlined. Names of classes in unnamed namespaces may be anybody's.

    python3 tests/one_definition.py FOLDER
"""

import collections
import pathlib
import re
import sys

OPENS = re.compile(r"(?:inline )?namespace( [\w:]+)? \{")
CLOSES = re.compile(r"\}  // (anonymous )?namespace")
CLASS = re.compile(
    r"(?:template <.*> )?(?:class|struct|union|enum class|enum)(?: \[\[\w+\]\])?(?: alignas\(\w+\))? (\w+)(?: final)?(?: : [^;]*)?(?: \{.*)?$"
)

# Outside of functions everything begins in column 0 or is in a class, whose name tells it apart.
places = collections.defaultdict(set)
files = 0
root = pathlib.Path(sys.argv[1])
for file in sorted(f for part in ("include", "src", "tools", "tests", "python/src") for f in (root / part).rglob("*.[ch]*")):
    if file.suffix not in (".hpp", ".cc", ".h"):
        continue
    files += 1
    namespaces = []
    for line in file.read_text().splitlines():
        if match := OPENS.match(line):
            namespaces.append((match[1] or "").strip())
        elif CLOSES.match(line) and namespaces:
            namespaces.pop()
        elif (match := CLASS.match(line)) and "" not in namespaces and (namespaces or file.suffix != ".cc"):
            places["::".join([*namespaces, match[1]])].add(str(file.relative_to(root)))
wrong = {name: where for name, where in sorted(places.items()) if len(where) > 1}
for name, where in wrong.items():
    print(f"{name} is defined in {', '.join(sorted(where))}")
print(f"{files} files, {len(places)} classes, {len(wrong)} of them twice")
sys.exit(bool(wrong) or files < 20)
