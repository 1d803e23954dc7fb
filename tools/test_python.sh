#!/usr/bin/env bash
# Tests a wheel of the Python package in clean environments: of the oldest and the newest Python that is here, from 3.9.
# Usage: test_python.sh [WHEEL [PYTEST ARGUMENT...]] (default: the one in build/wheel). QUIRE_LEAK_ENGINES=1000: the
# long form of the test for leaks.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=${1:-$(echo build/wheel/*.whl)}
[ -f "$wheel" ] || { echo "test_python.sh: $wheel is missing; tools/build_wheel.sh builds it" >&2; exit 2; }
wheel=$(realpath "$wheel")
unset PYTHONPATH QUIRE_PREFIX

# The system's, and pyenv's where there is one; not every one runs and can make environments.
pythons=()
for minor in $(seq 9 20); do
  for python in python3."$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python; do
    "$python" -c 'import ensurepip, venv' 2>/dev/null || continue
    pythons+=("$python")
    break
  done
done
((${#pythons[@]} > 0)) ||
  { echo "test_python.sh: python3 or python3-venv is missing; tools/install_deps.sh dev installs it" >&2; exit 2; }
chosen=("${pythons[0]}")
((${#pythons[@]} == 1)) || chosen+=("${pythons[-1]}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for python in "${chosen[@]}"; do
  echo "== $("$python" --version)"
  venv=$work/$("$python" -c 'import sys; print("venv3.%d" % sys.version_info.minor)')
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
  # What README promises, without any other package.
  (cd "$work" && "$venv/bin/quire" chat --ask "What is Quire?" 2>/dev/null | grep -q engine)
  (cd "$work" && "$venv/bin/python" -m quire --version | grep -q '^quire ')
  (cd "$work" && "$venv/bin/python" -c "from quire import LLM
print(LLM().generate('What is Quire?', use_tqdm=False)[0].outputs[0].text)" | grep -q .)
  "$venv/bin/pip" install --quiet --disable-pip-version-check pytest
  "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/python "${@:2}"
done

echo "== types"
"$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/python/requirements.txt
# Of the installed package, as a user's checker sees it, and of a script that uses it.
script=$PWD/tests/python/typed_script.py
package=$("$venv/bin/python" -c 'import quire; print(quire.__path__[0])')
(cd "$work" && "$venv/bin/mypy" --strict --no-error-summary --cache-dir "$work/mypy" -p quire &&
  "$venv/bin/mypy" --strict --no-error-summary --cache-dir "$work/mypy" "$script" &&
  "$venv/bin/pyright" --pythonpath "$venv/bin/python" "$package" "$script")
