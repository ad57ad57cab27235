#!/usr/bin/env bash
# From a fresh checkout to text: installs what is missing, builds the program, and runs the demo model that comes with
# the repository. Arguments, if any, are the prompt.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cmake --log-level=WARNING --preset release
cmake --build --preset release --target quire
build/release/quire run -m models/demo-moe-nvfp4.gguf --chat -p "${*:-Tell me a story about a fox who lost a key.}"
