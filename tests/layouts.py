# SPDX-License-Identifier: Apache-2.0
"""How operands of products lie is said in src/kernels/panel.hpp and nowhere else: no arithmetic of panels, of groups of
four bytes in them or of blocks of heads outside src/kernels. Usage: layouts.py SOURCE_DIR"""
import pathlib
import re
import sys

SPELLED = re.compile(
    r"[24] \* kPanel\b|\bkPanel \* [24]\b|kPanel / [24]\b"  # groups of a panel
    r"|\w / 64 \*(?! 64)|% 64\b|/ 4 \* 64|\+ 63\) / 64\)"  # columns of a panel (not: rounded up to a cache line)
    r"|/ (16|kHeadBlock) \*(?! 16\b)|% 16 \* 4|heads \+ 15\) / 16|head_blocks_? \* 16\b"  # blocks of heads
)

root = pathlib.Path(sys.argv[1])
bad, files = [], 0
for path in sorted((root / "src").rglob("*")):
    folder = path.relative_to(root / "src").parts[0]
    if path.suffix not in (".cc", ".hpp") or folder == "kernels" or path.name.startswith(("test", "bench")):
        continue
    files += 1
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if SPELLED.search(line.split("//")[0]):
            bad.append(f"{path.relative_to(root)}:{number}: a layout of panel.hpp spelled: {line.strip()}")
print("\n".join(bad) or f"{files} files, no layout spelled outside src/kernels/panel.hpp")
sys.exit(bool(bad) or files < 20)
