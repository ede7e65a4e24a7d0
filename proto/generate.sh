#!/bin/sh
# Generate plugin/apportion/kubelet/pb from proto/*.proto, keeping the package path of the imports.
# usage: proto/generate.sh [output folder]     (default: plugin; PYTHON names the interpreter)
# tests/unit/kubelet/test_pb.py fails when the committed files differ from what this makes.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
output=${1:-$root/plugin}
package=apportion/kubelet/pb
mkdir -p "$output/$package"
cd "$root/proto"
set -- *.proto
for file do set -- "$@" "$package/$file"; shift; done
exec "${PYTHON:-python3}" -m grpc_tools.protoc "-I$package=." \
  "--python_out=$output" "--pyi_out=$output" "$@"
