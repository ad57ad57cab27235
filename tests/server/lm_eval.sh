#!/usr/bin/env bash
# Runs lm-evaluation-harness (PyPI) against `quire serve` and against transformers on the same folder, and compares what
# both say of every sample: tasks of log-likelihoods, rolling ones and texts, defined by local files. Needs python3 with venv, and
# PyPI for the first run (torch is large); not part of ctest for that reason.
#   tests/server/lm_eval.sh FOLDER [PROGRAM] [VENV]      FOLDER: a Hugging Face one; default: build/release/quire,
#                                                        build/lm-eval-venv
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$0")/../.."
program=${2:-build/release/quire}
venv=${3:-build/lm-eval-venv}

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import lm_eval, torch, transformers, accelerate' 2>/dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet 'lm_eval[api]' torch transformers accelerate
fi

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; wait || true; rm -rf "$work"' EXIT
"$program" convert "$folder" "$work/model.gguf" >"$work/convert.log" || { cat "$work/convert.log" >&2; exit 1; }

# float32 throughout, as transformers computes here; then the kernels that serve, whose activations are bf16.
for device in reference cpu; do
  "$program" serve -m "$work/model.gguf" --device "$device" --port 0 -c 1024 -np 8 --served-model-name demo \
    --access-log off 2>"$work/log" &
  server=$!
  url=
  for _ in $(seq 600); do
    url=$(sed -n 's/.* at \(http:[^ ]*\).*$/\1/p' "$work/log" | head -n 1)
    [ -z "$url" ] || break
    kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
  done
  [ -n "$url" ] || { cat "$work/log" >&2; exit 1; }
  HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$work/hf" "$venv/bin/python" tests/server/lm_eval_test.py \
    "$url" "$folder" "$device" "$work/transformers.json"
  kill "$server"
  wait "$server" || true
  server=
done
