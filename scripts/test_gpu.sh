#!/usr/bin/env bash
# The tests and measurements before a real GPU: test_gpu.sh [arguments for pytest]
# Needs root, an NVIDIA driver, gcc, make and Python 3.11; what needs PyTorch says so itself. pytest
# comes from wheels/ (a bundle of `make gpu-bundle`), else from the environment of `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."
die() { echo "test-gpu: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "needs root, for a share is mounted as in a container"
[ -e /dev/nvidiactl ] || die "no NVIDIA GPU here (/dev/nvidiactl is missing); see docs/gpu-testing.md"
for tool in gcc make unshare mount ldconfig python3; do
  command -v "$tool" >/dev/null || die "$tool is missing; install it and try again"
done
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "python3 is older than 3.11"

if [ -d wheels ]; then
  site=$PWD/build/gpu-site
  rm -rf "$site"
  # They hold nothing but Python, so unpacking them is installing them: no pip, no network.
  for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
else
  make --no-print-directory setup
  site=$(build/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
fi
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}

python3 -m pytest -m gpu tests/gpu "$@"
python3 -m bench.shim --gpu
