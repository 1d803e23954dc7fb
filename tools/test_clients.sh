#!/usr/bin/env bash
# Tests `quire serve` with real clients (tests/clients). Usage: test_clients.sh [QUIRE [PYTEST ARGUMENT...]]
# build/clients.xml says of each test how it ended.
set -euo pipefail
cd "$(dirname "$0")/.."
export QUIRE=${1:-build/release/bin/quire}
[ -x "$QUIRE" ] || { echo "test_clients.sh: $QUIRE is missing; make test builds build/release/bin/quire" >&2; exit 2; }
QUIRE=$(realpath "$QUIRE")
command -v curl >/dev/null || { echo "test_clients.sh: curl is missing; tools/install_deps.sh dev installs it" >&2; exit 2; }
python=$(tools/clients_venv.sh)
exec "$python" -m pytest -q -p no:cacheprovider --junitxml=build/clients.xml tests/clients "${@:2}"
