#!/usr/bin/env bash
# Installs a wheel in a new Debian 12 that has Python and nothing else, no compiler and none of our libraries, and asks
# the bundled model. Needs root, debootstrap and a Debian mirror. Usage: test_python_chroot.sh [WHEEL]
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=${1:-$(echo build/wheel/*.whl)}
[ -f "$wheel" ] || { echo "test_python_chroot.sh: $wheel is missing; tools/build_wheel.sh builds it" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "test_python_chroot.sh: debootstrap is missing" >&2; exit 2; }

root=$(mktemp -d)
cleanup() {
  mountpoint -q "$root/proc" && umount "$root/proc"
  rm -rf "$root"
}
trap cleanup EXIT
debootstrap --variant=minbase --include=python3,python3-venv bookworm "$root" ${MIRROR:+"$MIRROR"} >/dev/null
mount -t proc proc "$root/proc"  # by which a program finds what lies beside it
cp "$wheel" "$root/root/"
chroot "$root" bash -euc '
  cd /root
  ! command -v cc g++ >/dev/null
  python3 -m venv venv
  venv/bin/pip install --quiet --no-index ./*.whl
  venv/bin/quire chat --ask "What is Quire?" | grep engine
  venv/bin/python -c "from quire import LLM
print(LLM().generate(\"What is Quire?\")[0].outputs[0].text)" | grep .'
