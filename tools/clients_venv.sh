#!/usr/bin/env bash
# Prints a Python with what tests/clients needs (requirements.txt, from PyPI), in build/clients; installs it where it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=tests/clients/requirements.txt
venv=build/clients
if ! cmp -s "$wanted" "$venv/requirements.txt"; then
  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    { echo "clients_venv.sh: python3 or python3-venv is missing; tools/install_deps.sh dev installs it" >&2; exit 2; }
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted" >&2 ||
    { echo "clients_venv.sh: pip could not install $wanted; PyPI must be in reach" >&2; exit 2; }
  cp "$wanted" "$venv/requirements.txt"
fi
echo "$PWD/$venv/bin/python"
