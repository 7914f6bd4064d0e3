#!/bin/sh
# One job of `./check --all`. Of a preset (CMakePresets.json): builds the C++ tests and runs them, all of them but for aarch64
# (under emulation) and tsan (what has threads), which have filters. asan then runs Python tests over its instrumented module;
# valgrind reads files with the tests of the release build, of which it knows AVX2 at most. Prints one line with the result,
# and what failed.
#   scripts/job.sh asan | tsan | valgrind | clang | aarch64 | reproducible
job=$1 log=build/$1.log
cd "$(dirname "$0")/.." && . scripts/build.sh
mkdir -p build

run_asan() {
  /usr/bin/python3 -m venv .venv && .venv/bin/pip install -q nanobind -r python/tests/requirements.txt &&
    build asan -DDSAKIT_BUILD_PYTHON=ON -DPython_EXECUTABLE="$PWD/.venv/bin/python" &&
    /usr/bin/ctest --preset asan -j "$(nproc)" || return
  rm -rf build/asan/package && mkdir build/asan/package && cp -R python/dsakit build/asan/package &&
    /usr/bin/cmake --install build/asan --component python --prefix build/asan/package > /dev/null || return
  # CPython keeps objects until it ends, and some beyond: leaks are looked for in the C++ tests.
  env LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
    UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$PWD/build/asan/package" DSAKIT_ISA=avx2 \
    .venv/bin/python -m pytest -q -rs -n "$(nproc)" --maxprocesses 4 python/tests/test_robustness*.py \
    python/tests/test_operators_*.py python/tests/test_debug*.py python/tests/test_dist*.py
}

run_valgrind() {
  build release -DDSAKIT_DIST=ON && valgrind -q --error-exitcode=1 --soname-synonyms=somalloc=nouserintercepts --leak-check=full \
    --errors-for-leak-kinds=definite,indirect \
    build/release/tests/dsakit_tests --gtest_filter='Safetensors*:Json*:Config*:CaseFile*:Sharded*:Int8*:Pieces*:HalfACheckpoint*'
}

case $job in
  asan | valgrind) run=run_$job ;;
  reproducible) run="sh scripts/reproducible.sh" ;;
  *) run="build $job && /usr/bin/ctest --preset $job -j $(nproc)" ;;
esac
{
  install_packages .ci/debian-packages && install_packages .ci/debian-packages-all && eval "$run"
} > "$log" 2>&1 && ok=1 || ok=0
result=$(grep -E '[0-9]+% tests passed|[0-9]+ passed.* in |\[  (PASSED|FAILED)  \] [0-9]+ tests?|^the same in both' "$log" | paste -sd ';')
[ $ok = 1 ] || tail -n 60 "$log"
echo "job $job: ${result:-no test ran} ($log)"
[ $ok = 1 ]
