#!/usr/bin/env bash
# Answers of `quire serve` to JSON schemas, held against an independent validator (jsonschema from PyPI). Needs python3 with
# venv, and PyPI for the first run; not part of ctest for that reason.
#   tests/server/schemas.sh FILE [COUNT] [PROGRAM] [VENV]    FILE: lines {"name", "schema"}; COUNT: schemas to draw from it,
#                                                            default 60; default: build/release/quire, build/schemas-venv
set -euo pipefail
file=$(realpath "$1")
cd "$(dirname "$0")/../.."
count=${2:-60}
program=${3:-build/release/quire}
venv=${4:-build/schemas-venv}

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import jsonschema' 2>/dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet jsonschema
fi

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; wait || true; rm -rf "$work"' EXIT
: >"$work/log"
"$program" serve -m models/demo-moe-nvfp4.gguf --port 0 -c 2048 -np 10 --served-model-name demo --access-log off 2>"$work/log" &
server=$!
url=
for _ in $(seq 300); do
  url=$(sed -n 's/.* at \(http:[^ ]*\).*$/\1/p' "$work/log" | head -n 1)
  [ -z "$url" ] || break
  kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
  sleep 0.1
done
[ -n "$url" ] || { cat "$work/log" >&2; exit 1; }
"$venv/bin/python" tests/server/schemas_test.py "$url" "$file" "$count"
