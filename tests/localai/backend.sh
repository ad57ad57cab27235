#!/usr/bin/env bash
# Plays LocalAI against `quire localai`, the door to quire-localai, with the demo model: a client with grpcio (PyPI),
# and `quire serve` beside it, whose texts must be the same. Needs python3 with venv, and PyPI for the first run; not
# part of ctest for that reason.
#   tests/localai/backend.sh [PROGRAM] [VENV]      default: build/release/quire, build/localai-venv
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/quire}
venv=${2:-build/localai-venv}

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import grpc, grpc_tools' 2>/dev/null; then
  if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install --quiet grpcio grpcio-tools; then
    echo "backend.sh: skipped, there is no environment with grpcio in $venv and none can be made" >&2
    exit 77
  fi
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" -m grpc_tools.protoc --proto_path=src/localai --python_out="$work" --grpc_python_out="$work" \
  backend.proto
# A model that takes pictures, with one layer and one block.
"$program-lab" synth --preset 4b-hybrid --type nvfp4 --layers 1 --vocab 4096 --images "$work/sees.gguf" >/dev/null
PYTHONPATH="$work" "$venv/bin/python" tests/localai/backend_test.py "$program" "$PWD/models/demo-moe-nvfp4.gguf" \
  "$work/sees.gguf"
