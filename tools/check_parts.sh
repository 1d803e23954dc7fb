#!/usr/bin/env bash
# Builds Quire without each of the parts that can be left out, or those named, and runs the tests that remain, without
# the same over every golden model. Usage: check_parts.sh [SIMD|BEAMS|GRAMMAR|HUB|SERVER|WINDOW]...
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- $(sed -n 's/^quire_part(\([a-z]*\) .*/\U\1/p' CMakeLists.txt)

for part in "$@"; do
  printf '== without %s\n' "$part"
  cmake --preset release -B "build/without_$part" "-DQUIRE_$part=OFF" -DQUIRE_WERROR=ON \
    -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" >/dev/null
  cmake --build "build/without_$part" >/dev/null
  tools/run_tests.py "build/without_$part" -E ':Golden/|ExhaustiveTest' | tail -n 20
done
