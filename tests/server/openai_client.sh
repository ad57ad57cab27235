#!/usr/bin/env bash
# Runs the official openai client (PyPI) against `quire serve` with the demo model. Needs python3 with venv, and PyPI for
# the first run; not part of ctest for that reason.
#   tests/server/openai_client.sh [PROGRAM] [VENV]      default: build/release/quire, build/openai-venv
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/quire}
venv=${2:-build/openai-venv}

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import openai' 2>/dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet openai
fi

work=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
echo "a-key-of-this-test" >"$work/keys"
: >"$work/log"  # read below, perhaps before the server has begun
"$program" serve -m models/demo-moe-nvfp4.gguf --port 0 -c 2048 -np 8 --served-model-name demo \
  --api-key-file "$work/keys" --access-log "$work/access.log" 2>"$work/log" &
server=$!
for _ in $(seq 600); do
  url=$(sed -n 's/.* at \(http:.*\)$/\1/p' "$work/log")
  [ -z "$url" ] || break
  kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
  sleep 0.1
done
"$venv/bin/python" tests/server/openai_client_test.py "$url/v1" "a-key-of-this-test"
