#!/bin/sh
# One job of `./check --all`, each with a build of its own (CMakePresets.json). Prints lines with the result, and what failed.
#   scripts/job.sh asan            all C++ tests, and then Python tests over the instrumented module
#   scripts/job.sh tsan            C++ tests of what has threads
#   scripts/job.sh valgrind        those that read files, of the release build; of instruction sets valgrind knows AVX2 at most
#   scripts/job.sh clang, aarch64  all C++ tests; aarch64: under emulation those of its test preset's filter
#   scripts/job.sh reproducible    the same build twice: scripts/reproducible.sh
#   scripts/job.sh fuzz [SECONDS [TARGET]]  each target of tests/fuzz so long (60), going on from what earlier runs kept in
#                                           build/fuzz/kept; what ends one is build/fuzz/finding-TARGET-*
#   scripts/job.sh coverage        lines of the readers and of every check*.cc that seeds and C++ tests run; fails below 90 % of one
job=$1 log=build/$1.log
cd "$(dirname "$0")/.." && . scripts/build.sh
mkdir -p build

run_asan() {
  /usr/bin/python3 -m venv .venv && .venv/bin/pip install -q nanobind -r python/tests/requirements.txt &&
    build asan -DDSAKIT_BUILD_PYTHON=ON -DPython_EXECUTABLE="$PWD/.venv/bin/python" &&
    /usr/bin/ctest --preset asan -j "$(nproc)" || return
  rm -rf build/asan/package && mkdir build/asan/package && cp -R python/dsakit build/asan/package &&
    /usr/bin/cmake --install build/asan --component python --prefix build/asan/package > /dev/null || return
  [ -e .venv/bin/dsakit ] || ln -s "$PWD/build/asan/dsakit" .venv/bin/dsakit
  # CPython keeps objects until it ends, and some beyond: leaks are looked for in the C++ tests. Some tests ask for more
  # memory than there is. What a wheel installs beside the package is not there, nor its command, which has a Python.
  env LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libstdc++.so)" \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$PWD/build/asan/package" DSAKIT_ISA=avx2 \
    .venv/bin/python -m pytest -q -rs -k \
    'not (manual_is_installed or every_object_is_as_its_schema or command_of_the_wheel or everything_is_in_it)' -n "$(nproc)" --maxprocesses 4 \
    python/tests/test_robustness*.py python/tests/test_operators_*.py python/tests/test_debug*.py python/tests/test_dist*.py
}

run_valgrind() {
  build release -DDSAKIT_DIST=ON && valgrind -q --error-exitcode=1 --soname-synonyms=somalloc=nouserintercepts --leak-check=full \
    --errors-for-leak-kinds=definite,indirect \
    build/release/tests/dsakit_tests --gtest_filter='Safetensors*:Json*:Config*:CaseFile*:Sharded*:Int8*:Pieces*:HalfACheckpoint*'
}

fuzz() { # seconds, target
  folder=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d) # of the files that targets write
  findings=0
  for program in build/fuzz/tests/fuzz/fuzz_${2:-*}; do
    target=${program##*fuzz_}
    kept=build/fuzz/kept/$target
    mkdir -p "$kept"
    seeds=tests/fuzz/seeds/$target
    [ "$target" != header ] || seeds="$seeds build/fuzz/tests/fuzz/corpus"
    # The rung that is instrumented beside generic (CMakeLists.txt).
    DSAKIT_ISA=avx2 DSAKIT_MEM_LIMIT=$((256 << 20)) TMPDIR=$folder UBSAN_OPTIONS=print_stacktrace=1 \
      "$program" -max_total_time="${1:-60}" -max_len=4096 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
      -dict=tests/fuzz/words.dict -artifact_prefix="build/fuzz/finding-$target-" "$kept" $seeds > "$log.$target" 2>&1 &&
      answer="no finding" || answer="FINDING" findings=$((findings + 1))
    figure() { sed -n "s/^stat::$1: *//p" "$log.$target"; }
    echo "job fuzz: $target: $(figure number_of_executed_units) executions, $(figure average_exec_per_sec)/s, $answer" \
      "($log.$target)"
    [ "$answer" = "no finding" ] || grep -E '^finding:|^SUMMARY:|runtime error:|Test unit written to' "$log.$target"
  done
  rm -rf "$folder"
  [ $findings = 0 ]
}

coverage() { # of what has run
  llvm-profdata-14 merge -o build/coverage/profile build/coverage/profiles/*.profraw &&
    llvm-cov-14 report -instr-profile=build/coverage/profile build/coverage/tests/dsakit_tests \
      $(find build/coverage/tests/fuzz -name 'fuzz_*' -type f -perm -u+x -printf '-object %p ') \
      $(ls src/io/*.cc | grep -Ev '/(test_.*|direct_file|durable|memory)\.cc') src/ops/*/check*.cc |
    awk '/\.cc |^TOTAL/ { printf "%6.2f %% of %4d lines: %s\n", $10, $8, $1 } $10 + 0 < 90 && /\.cc / { below = 1 }
         END { exit below }'
}

if [ "$job" = fuzz ]; then
  { install_packages .ci/debian-packages-all && build fuzz; } > "$log" 2>&1 || { tail -n 60 "$log"; exit 1; }
  fuzz "$2" "$3"
  exit
fi

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
[ $ok = 1 ] || exit 1
[ "$job" != coverage ] || coverage
