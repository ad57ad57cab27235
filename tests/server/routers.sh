#!/usr/bin/env bash
# Routers that others made (PyPI) in front of two servers with the demo model: smg, vllm-router, litellm's proxy. Servers
# drain, come back and die. Dynamo's index reads KV events. Needs python3 with venv, and PyPI for the first run; not part
# of ctest for that reason.
#   tests/server/routers.sh [PROGRAM] [VENV] [TESTS]      default: build/release/quire, build/routers-venv, all
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/quire}
venv=${2:-build/routers-venv}

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import smg, vllm_router, litellm, openai' 2>/dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet smg==1.13.0 vllm-router==0.1.17 'litellm[proxy]==1.108.7' openai \
    ai-dynamo-runtime==1.6.1
fi
exec "$venv/bin/python" tests/server/behind_routers.py "$program" "$venv/bin" "${@:3}"
