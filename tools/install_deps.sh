#!/usr/bin/env bash
# Installs the packages Quire is built with, on Debian 12 and Ubuntu 24.04; says what it installs and why.
# Usage: install_deps.sh [build|dev]   build: what `make demo` and `make test` need; dev: also what .ci/run needs.
set -euo pipefail

# Boost 1.81 or newer has a package of its own on Debian 12.
boost=libboost-dev
! grep -q '^VERSION_CODENAME=bookworm' /etc/os-release || boost=libboost1.81-dev

build=(g++ cmake ninja-build pkg-config
       nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libxxhash-dev libutf8proc-dev libpcre2-dev
       "$boost" libyaml-cpp-dev libssl-dev libcurl4-openssl-dev ca-certificates
       libgtest-dev libgmock-dev)
dev=(clang-16 libclang-rt-16-dev clang-format-14 git python3 python3-venv python3-jsonschema curl
     libopenmpi-dev openmpi-bin iproute2 tidy)
# Ubuntu has Chromium as a snap alone.
grep -q '^ID=ubuntu' /etc/os-release || dev+=(chromium-headless-shell fonts-dejavu-core)

set_name=${1:-build}
case "$set_name" in
  build) wanted=("${build[@]}") ;;
  dev) wanted=("${build[@]}" "${dev[@]}") ;;
  *) echo "install_deps.sh: unknown set '$set_name'; use build or dev" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "install_deps.sh: this is not a Debian or Ubuntu system; install by hand what these packages hold: ${wanted[*]}" >&2
  exit 2
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install_deps.sh: needs root or sudo to install: ${missing[*]}" >&2; exit 2; }
  as_root=(sudo)
fi
echo "Installing: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
