#!/bin/sh
# One job of `./check --all`: builds the C++ tests by a preset (CMakePresets.json) and runs them, all of them but for
# aarch64: under emulation those of its test preset's filter. Prints one line with the result, and what failed.
#   scripts/job.sh asan | clang | aarch64
job=$1 log=build/$1.log
cd "$(dirname "$0")/.." && . scripts/build.sh
mkdir -p build
{
  install_packages .ci/debian-packages && install_packages .ci/debian-packages-all &&
    build "$job" && /usr/bin/ctest --preset "$job" -j "$(nproc)"
} > "$log" 2>&1 && ok=1 || ok=0
result=$(grep -E '[0-9]+% tests passed' "$log" || echo "no test ran")
[ $ok = 1 ] || tail -n 60 "$log"
echo "job $job: $result ($log)"
[ $ok = 1 ]
