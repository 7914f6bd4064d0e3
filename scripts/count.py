# SPDX-License-Identifier: Apache-2.0
"""Says which rungs the tests in the log ran, adds up what the test runners counted and prints the one closing line;
exit 1 unless all passed."""
import re
import sys

# Lines of jobs (scripts/job.sh) tell of other builds: they fail the whole, their tests are not counted twice.
text = re.sub(r"^job \w+: .*$", "", open(sys.argv[1]).read(), flags=re.M)
passed = failed = skipped = 0
runners = 0
for bad, out_of in re.findall(r"\d+% tests passed(?:, (\d+) tests? failed)? out of (\d+)", text):
    passed += int(out_of) - int(bad or 0)
    failed += int(bad or 0)
    runners += 1
ctest_skipped = len(re.findall(r"^ *\d+/\d+ Test +#\d+: .*\*\*\*Skipped", text, re.M))  # these are among the passed ones
passed -= ctest_skipped
skipped += ctest_skipped
for line in re.findall(r"^(?=.*\bin [\d.]+s).*\b(?:passed|failed|error|skipped|no tests ran)\b.*$", text, re.M):
    passed += sum(map(int, re.findall(r"(\d+) passed", line)))
    failed += sum(map(int, re.findall(r"(\d+) (?:failed|errors?)", line)))
    skipped += sum(map(int, re.findall(r"(\d+) skipped", line)))
    runners += 1
broken = re.findall(r"^exit status \d+: .*$", text, re.M)
print(*broken, sep="\n", end="\n" if broken else "")
if broken and not failed:
    failed = len(broken)

# Tests of one rung end in its name; which rungs there are says src/kernels/test_rungs.cc.
tests = re.findall(r"^ *\d+/\d+ Test +#\d+: (\S+).*?(Passed|Skipped|Failed|Timeout|Not Run)", text, re.M)
rungs = dict.fromkeys(name.rsplit("/")[-1] for name, _ in tests if name.startswith("Known/Rungs."))
ran = {rung: sum(name.endswith("/" + rung) and how == "Passed" for name, how in tests) for rung in rungs}
print("rungs that ran:", ", ".join(f"{rung} ({n} tests of its own)" for rung, n in ran.items() if n) or "none")
print("rungs that did not:", ", ".join(rung for rung, n in ran.items() if n == 0) or "none")

print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
sys.exit(failed > 0 or passed == 0 or runners < 2 or not any(ran.values()))
