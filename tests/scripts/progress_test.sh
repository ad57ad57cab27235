#!/usr/bin/env bash
# scripts/progress.sh over what ninja prints in a tree that was never built, in one that has nothing to do, and over garbage.
set -euo pipefail
cd "$(dirname "$0")/../.."

failures=0
# $1: what is tried; $2: input; $3: the output wanted, times left out.
expect() {
  local said status=0
  said=$(printf '%b' "$2" | scripts/progress.sh 2>&1 | sed 's/about [0-9]*:[0-9][0-9] left/LEFT/') || status=$?
  if [ "$status" -ne 0 ] || [ "$said" != "$(printf '%b' "$3")" ]; then
    printf '%s: ended with %d and said:\n%s\nwanted:\n%b\n' "$1" "$status" "$said" "$3" >&2
    failures=$((failures + 1))
  fi
}

expect "a fresh clone" \
  '[0/2] Re-checking globbed directories...\n[1/2] Re-running CMake...\n[1/20] Building a\n[2/20] Building b\n[3/20] c\n[20/20] Linking quire\n' \
  'Building: 1 of 20, LEFT\nBuilding: 2 of 20, LEFT\nBuilding: 20 of 20, LEFT'
expect "nothing to do" '[0/2] Re-checking globbed directories...\nninja: no work to do.\n' ''
expect "no output" '' ''
expect "nothing finished, nothing to finish" '[0/0] x\n[0/20] y\n' ''
expect "numbers that look octal" '[08/09] x\n' 'Building: 8 of 9, LEFT'
expect "no line of progress" 'FAILED: a.o\nerror: [1/3] is no progress here\n[x/3]\n' ''
expect "a last line that does not end" '[1/3] a\n[3/3] b' 'Building: 1 of 3, LEFT\nBuilding: 3 of 3, LEFT'

[ "$failures" -eq 0 ] || exit 1
echo "progress: all cases as wanted"
