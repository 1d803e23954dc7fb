#!/usr/bin/env bash
# Installs the release build into an empty folder, moves it, and builds and runs examples/ against it.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install build/release --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"  # the tree is relocatable
cmake -S examples -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/generate"
"$work/prefix/bin/quire" generate -p "Once there was" --max-tokens 8 --temperature 0
