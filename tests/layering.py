# SPDX-License-Identifier: Apache-2.0
"""Includes point downwards only, and intrinsics stay in src/kernels. Usage: layering.py SOURCE_DIR"""
import pathlib
import re
import sys

# folder under src -> folders under src it may include (besides itself); everybody may include <dsakit/...>.
ALLOWED = {
    "kernels": set(),
    "core": {"kernels"},  # state.hpp holds the table of kernels; kernels know nothing of core
    "io": {"core"},
    "ops": {"core", "kernels"},
    "layer": {"core", "kernels", "ops", "io"},
    "capi": {"core", "layer", "io", "ops"},
}
TESTS_MAY = {"core", "kernels", "ops", "io", "layer", "tests"}

root = pathlib.Path(sys.argv[1])
bad = []
files = [p for p in (root / "src").rglob("*") if p.suffix in (".cc", ".hpp", ".inc")]
for path in files:
    folder = path.relative_to(root / "src").parts[0]
    probe = path.name.startswith(("test", "bench"))
    for number, line in enumerate(path.read_text().splitlines(), 1):
        here = f"{path.relative_to(root)}:{number}"
        if re.search(r"#\s*include\s*<(immintrin|x86intrin|arm_neon)\.h>", line) and folder != "kernels":
            bad.append(f"{here}: intrinsics outside src/kernels: {line.strip()}")
        match = re.match(r'\s*#\s*include\s*"([a-z]+)/', line)
        if not match or match[1] == "dsakit" or folder not in ALLOWED:
            continue
        if match[1] not in (TESTS_MAY if probe else ALLOWED[folder] | {folder}):
            bad.append(f"{here}: {folder} may not include {match[1]}: {line.strip()}")
for path in (root / "include").rglob("*.hpp"):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if re.match(r'\s*#\s*include\s*"(?!dsakit/)', line):
            bad.append(f"{path.relative_to(root)}:{number}: a public header includes a private one: {line.strip()}")

print("\n".join(bad) or f"{len(files)} files, no arrow upwards")
sys.exit(bool(bad) or len(files) < 20)
