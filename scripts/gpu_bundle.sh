#!/usr/bin/env bash
# One file for a machine with a GPU and without a network: gpu_bundle.sh PYTHON CONSTRAINTS OUT
# The work tree as git knows it, changes included, and the wheels that test_gpu.sh unpacks.
set -euo pipefail
python=$1 constraints=$2 out=$3
most=$((64 * 1024 * 1024))
packages=(pytest pytest-timeout iniconfig packaging pluggy pygments)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/apportion/wheels" "$(dirname "$out")"
# Only these lines of the constraints, with their hashes.
pattern=$(IFS='|'; echo "${packages[*]}")
awk -v wanted="^($pattern)==" '/^[a-z]/ {keep = $0 ~ wanted} keep' "$constraints" >"$work/wanted"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --require-hashes -r "$work/wanted" --dest "$work/apportion/wheels"
for wheel in "$work"/apportion/wheels/*; do
  case $wheel in *-none-any.whl) ;; *) echo "gpu-bundle: ${wheel##*/} is not for every Python" >&2; exit 1 ;; esac
done
git ls-files -z --cached --others --exclude-standard --deduplicate |
  { while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done; } |
  tar --null --no-recursion -T - -cf - | tar -xf - -C "$work/apportion"
tar -C "$work" -czf "$out.part" apportion
size=$(stat -c %s "$out.part")
[ "$size" -le "$most" ] || { echo "gpu-bundle: $size bytes are more than $most" >&2; exit 1; }
mv "$out.part" "$out"
echo "$out: $((size / 1024)) KiB"
