#!/usr/bin/env bash
# Reads what ninja prints and shows one line that says how far it is and how long the rest takes at this pace; where
# nobody sees lines change, a line for every tenth.
#   cmake --build ... 2>&1 | scripts/progress.sh
set -euo pipefail

tenth=-1 total=0 began=0
while IFS= read -r line || [ -n "$line" ]; do
  [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
  # Before it builds, ninja counts other things: "[0/2] Re-checking globbed directories...". Each count has a pace of its own.
  finished=$((10#${BASH_REMATCH[1]})) all=$((10#${BASH_REMATCH[2]}))
  if [ "$all" -ne "$total" ]; then total=$all began=$SECONDS tenth=-1; fi
  [ "$finished" -gt 0 ] && [ "$all" -gt 2 ] || continue
  left=$(((SECONDS - began) * (all - finished) / finished))
  if [ -t 2 ]; then
    printf '\r\033[KBuilding: %d of %d, about %d:%02d left' "$finished" "$all" $((left / 60)) $((left % 60)) >&2
  elif [ $((10 * finished / all)) -ne "$tenth" ]; then
    tenth=$((10 * finished / all))
    printf 'Building: %d of %d, about %d:%02d left\n' "$finished" "$all" $((left / 60)) $((left % 60)) >&2
  fi
done
if [ -t 2 ]; then printf '\r\033[K' >&2; fi
