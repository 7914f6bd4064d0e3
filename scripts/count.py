# SPDX-License-Identifier: Apache-2.0
"""Adds up what the test runners in the log counted and prints the one closing line; exit 1 unless all passed."""
import re
import sys

text = open(sys.argv[1]).read()
passed = failed = 0
runners = 0
for bad, out_of in re.findall(r"\d+% tests passed(?:, (\d+) tests? failed)? out of (\d+)", text):
    passed += int(out_of) - int(bad or 0)
    failed += int(bad or 0)
    runners += 1
for line in re.findall(r"^(?=.*\bin [\d.]+s).*\b(?:passed|failed|error|no tests ran)\b.*$", text, re.M):
    passed += sum(map(int, re.findall(r"(\d+) passed", line)))
    failed += sum(map(int, re.findall(r"(\d+) (?:failed|errors?)", line)))
    runners += 1
broken = re.findall(r"^exit status \d+: .*$", text, re.M)
print(*broken, sep="\n", end="\n" if broken else "")
if broken and not failed:
    failed = len(broken)
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0 or passed == 0 or runners < 2)
