#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests. Arguments go to ctest, e.g. `-L tokenizer`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cmake --log-level=WARNING --preset release
cmake --build --preset release
ctest --preset release "$@"
