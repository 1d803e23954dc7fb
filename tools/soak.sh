#!/usr/bin/env bash
# The long form of the tests: 256 streams for 10 minutes (or $1 seconds), what `quire quantize` writes by the libraries
# that read it, other models by transformers, 100 rounds of 500 clients that go, requests of which each allocation fails
# once, starts that are killed at each step, 10^7 operations on scheduler and KV cache and every order of 12, 2,000
# walks through each schema of the grammars' tests, 10^5 schemas one after the other, all tests of the engine with
# blocks full of NaN and hashes that collide, builds by clang and without each part that can be left out, 300 mutants of
# the program, all tests with ASan and UBSan and with TSan, and each fuzz target for 60 s (or $2 seconds).
set -euo pipefail
cd "$(dirname "$0")/.."
stream_seconds=${1:-600}
seconds=${2:-60}

tools/install_deps.sh dev
cmake --preset release -DQUIRE_UNITY=OFF >/dev/null  # so that each file is seen to compile alone
cmake --build --preset release --target quire_program scheduler_tests grammar_tests engine_tests failing_allocation
"$(tools/clients_venv.sh)" tests/clients/soak.py build/release/bin/quire --seconds "$stream_seconds"
tools/check_quantized.py build/release/bin/quire
tools/check_models.py build/release/bin/quire
QUIRE_WHOLE_STORM=1 tools/test_clients.sh build/release/bin/quire -k test_storms_of_disconnects
QUIRE_EVERY_ALLOCATION=1 tools/test_clients.sh build/release/bin/quire -k test_allocation
QUIRE_EVERY_STEP=1 tools/test_clients.sh build/release/bin/quire -k test_interruptions
QUIRE_PROPERTY_OPERATIONS=10000000 build/release/bin/scheduler_tests --gtest_filter='*Property*'
QUIRE_EXHAUSTIVE_ACTIONS=12 build/release/bin/scheduler_tests --gtest_filter='*Exhaustive*'
QUIRE_GRAMMAR_WALKS=2000 build/release/bin/grammar_tests --gtest_filter='Mask.Walks*'
QUIRE_GRAMMAR_SCHEMAS=100000 build/release/bin/engine_tests --gtest_filter='GrammarCompilerTest.MemoryDoesNotGrow*'

cmake --preset release -B build/harsh -DCMAKE_CXX_FLAGS=-DQUIRE_HARSH_HOOKS >/dev/null
cmake --build build/harsh --target engine_tests
build/harsh/bin/engine_tests --gtest_brief=1
tools/check_parts.sh
cmake --preset release -B build/clang -DCMAKE_CXX_COMPILER=clang++-16 -DQUIRE_SIMD=OFF -DQUIRE_WERROR=ON \
  -DQUIRE_BUILD_TESTS=OFF >/dev/null
cmake --build build/clang

cmake --build --preset release
tools/mutate.py build/release

for sanitizer in asan tsan; do
  cmake --preset $sanitizer >/dev/null
  cmake --build --preset $sanitizer
  tools/run_tests.py build/$sanitizer
done

for program in build/asan/bin/fuzz_*; do
  name=${program##*/fuzz_}
  found=build/asan/tests/fuzz/$name
  printf '%s: ' "$name"
  "$program" -max_total_time="$seconds" -rss_limit_mb=4096 -dict="build/asan/tests/fuzz/dictionary.$name" \
    -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/$name" 2>&1 | tail -n 1
done
