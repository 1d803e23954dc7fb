#!/usr/bin/env bash
# Tests engines of several processes (tests/ranks). Usage: test_ranks.sh [QUIRE [PYTEST ARGUMENT...]]
# build/ranks.xml says of each test how it ended.
set -euo pipefail
cd "$(dirname "$0")/.."
export QUIRE=${1:-build/release/bin/quire}
[ -x "$QUIRE" ] || { echo "test_ranks.sh: $QUIRE is missing; make test builds build/release/bin/quire" >&2; exit 2; }
QUIRE=$(realpath "$QUIRE")
module=$(dirname "$QUIRE")/../lib/quire/libquire_mpi.so
[ -f "$module" ] || { echo "test_ranks.sh: $QUIRE was built without MPI; -DQUIRE_MPI=ON switches it on" >&2; exit 2; }
for program in mpirun curl; do
  command -v $program >/dev/null ||
    { echo "test_ranks.sh: $program is missing; tools/install_deps.sh dev installs it" >&2; exit 2; }
done
python=$(tools/clients_venv.sh)
exec "$python" -m pytest -q -p no:cacheprovider -rs --junitxml=build/ranks.xml tests/ranks "${@:2}"
