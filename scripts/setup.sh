#!/usr/bin/env bash
# Installs what the machine lacks, then the Python environment: setup.sh VENV CONSTRAINTS
# Debian's packages are only asked for when one is missing, so a second run needs no network.
set -euo pipefail
venv=$1
constraints=$2

missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need gcc gcc
need make make
need git git
need cppcheck cppcheck
need musl-gcc musl-tools
need readelf binutils
need unshare util-linux
need zstd zstd
need lz4 lz4
[ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
need python3 python3
python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)

if [ "${#missing[@]}" -gt 0 ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup: missing ${missing[*]}; install them (Debian: apt-get install ${missing[*]}) and try again" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]} by apt-get"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "${missing[@]}" >/dev/null
fi

python3 - <<'PY'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"setup: Python 3.11 or newer is needed, python3 is {sys.version.split()[0]}; put a newer one first on PATH")
PY

echo "setup: Python packages from $constraints into $venv"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$constraints"
