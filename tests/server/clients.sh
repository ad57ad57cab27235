#!/usr/bin/env bash
# Runs clients that others made (PyPI) against `quire serve` with the demo model: litellm, openai, ollama, LangChain,
# Node's fetch where there is one, and sglang-router and vllm-router in front of two servers; and openai, anthropic,
# ollama and litellm with pictures. Needs python3 with venv, and PyPI for the first run; not part of ctest for that
# reason.
#   tests/server/clients.sh [PROGRAM] [VENV]      default: build/release/quire, build/clients-venv
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/quire}
venv=${2:-build/clients-venv}

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import litellm, langchain_openai, ollama, anthropic, PIL' 2>/dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet openai ollama litellm langchain-openai anthropic pillow \
    sglang-router vllm-router
fi

work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT

free_port() { "$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Waits until a URL answers; what the program wrote, if it ended.
wait_for() { # URL PID LOG
  for _ in $(seq 1200); do
    curl -fs -m 5 -o /dev/null "$1" && return
    kill -0 "$2" 2>/dev/null || break
    sleep 0.1
  done
  cat "$3" >&2
  exit 1
}

servers=()
for i in 1 2; do
  port=$(free_port)
  "$program" serve -m models/demo-moe-nvfp4.gguf --port "$port" -c 2048 -np 8 --served-model-name demo \
    --access-log "$work/access$i.log" 2>"$work/server$i.log" &
  pids+=($!)
  wait_for "http://127.0.0.1:$port/health" $! "$work/server$i.log"
  servers+=("http://127.0.0.1:$port")
done

routers=()
for router in sglang_router vllm_router; do
  "$venv/bin/python" -c "import $router" 2>/dev/null || continue
  port=$(free_port)
  "$venv/bin/python" -m "$router.launch_router" --worker-urls "${servers[@]}" --policy cache_aware \
    --host 127.0.0.1 --port "$port" --prometheus-port "$(free_port)" >"$work/$router.log" 2>&1 &
  pids+=($!)
  wait_for "http://127.0.0.1:$port/v1/models" $! "$work/$router.log"
  routers+=("http://127.0.0.1:$port")
done

"$venv/bin/python" tests/server/clients_test.py "${servers[@]}" "${routers[@]}"

# A model that sees, and a host whose pictures its server fetches.
"$venv/bin/python" tests/vision/picture_folders.py "$work/sees"
mkdir "$work/pictures"
host=$(free_port)
"$venv/bin/python" -m http.server "$host" --bind 127.0.0.1 --directory "$work/pictures" >"$work/host.log" 2>&1 &
pids+=($!)
wait_for "http://127.0.0.1:$host/" $! "$work/host.log"
port=$(free_port)
"$program" serve -m "$work/sees" --port "$port" -c 2048 --served-model-name sees \
  --allowed-media-domains "localhost:$host" 2>"$work/sees.log" &
pids+=($!)
wait_for "http://127.0.0.1:$port/health" $! "$work/sees.log"
"$venv/bin/python" tests/server/picture_clients_test.py "http://127.0.0.1:$port" "http://localhost:$host" \
  "$work/pictures"
