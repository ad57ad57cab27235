#!/usr/bin/env bash
# From a fresh checkout to text: installs what is missing, builds the program, and runs the demo model that comes with
# the repository. Arguments, if any, are the prompt.
set -euo pipefail
cd "$(dirname "$0")/.."
model=models/demo-moe-nvfp4.gguf
prompt=${*:-Tell me a story about a fox who lost a key.}

# Lines of ninja as one line that says how far it is and how long the rest takes at this pace; where nobody sees lines
# change, as a line for every tenth.
show_progress() {
  local line began=$SECONDS done all left tenth=-1
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
    left=$(((SECONDS - began) * (all - done) / done))
    if [ -t 2 ]; then
      printf '\r\033[KBuilding: %d of %d, about %d:%02d left' "$done" "$all" $((left / 60)) $((left % 60)) >&2
    elif [ $((10 * done / all)) -ne "$tenth" ]; then
      tenth=$((10 * done / all))
      printf 'Building: %d of %d, about %d:%02d left\n' "$done" "$all" $((left / 60)) $((left % 60)) >&2
    fi
  done
  if [ -t 2 ]; then printf '\r\033[K' >&2; fi
}

scripts/setup.sh
cmake --log-level=WARNING --preset release >/dev/null
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --build --preset release --target quire 2>&1 | tee "$log" | show_progress; then
  cat "$log" >&2
  exit 1
fi

printf '> %s\n' "$prompt"
build/release/quire run "$model" -p "$prompt" --quiet
cat <<END

Next:
  build/release/quire run $model            # talk with it
  build/release/quire serve -m $model       # http://127.0.0.1:8000/v1 for clients of the OpenAI API
  build/release/quire help                  # all commands
END
