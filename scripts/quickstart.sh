#!/usr/bin/env bash
# From a fresh checkout to text: installs what is missing, builds the program, and runs the demo model that comes with
# the repository. Arguments, if any, are the prompt.
set -euo pipefail
cd "$(dirname "$0")/.."
model=models/demo-moe-nvfp4.gguf
prompt=${*:-Tell me a story about a fox who lost a key.}

scripts/setup.sh
cmake --log-level=WARNING --preset release >/dev/null
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# What only shows progress must not end the build, nor leave it writing to nobody.
if ! cmake --build --preset release --target quire 2>&1 | tee "$log" | { scripts/progress.sh || cat >/dev/null; }; then
  cat "$log" >&2
  exit 1
fi

printf '> %s\n' "$prompt"
build/release/quire run "$model" -p "$prompt" --temperature 0 --quiet
cat <<END

Next:
  build/release/quire run $model            # talk with it
  build/release/quire serve -m $model       # http://127.0.0.1:8000: a page to chat at; /v1 for clients
  build/release/quire help                  # all commands
END
