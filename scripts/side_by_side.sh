#!/usr/bin/env bash
# Runs the commands that are its arguments, a line each, beside each other: tests that wait a lot. Fails if one of them,
# or a part of its pipe, does.
set -euo pipefail
each=()
for one in "$@"; do
  bash -o pipefail -c "$one" &
  each+=($!)
done
for one in "${each[@]}"; do wait "$one"; done
