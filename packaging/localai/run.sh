#!/usr/bin/env bash
# What LocalAI starts, with --addr=HOST:PORT. The token that calls must show comes in the environment: it goes on
# through a pipe, so that no list of processes shows it.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if [ -n "${LOCALAI_GRPC_AUTH_TOKEN:-}" ]; then
  exec "$here/quire-localai" "$@" --auth-token-file /dev/fd/3 3<<<"$LOCALAI_GRPC_AUTH_TOKEN"
fi
exec "$here/quire-localai" "$@"
