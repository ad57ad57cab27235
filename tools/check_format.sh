#!/bin/sh
# Fails if a tracked C++ source differs from what clang-format makes of it. CLANG_FORMAT names another program.
set -eu
cd "$(dirname "$0")/.."
format=${CLANG_FORMAT:-clang-format}
if ! command -v "$format" >/dev/null; then
  echo "check_format: $format is not installed (apt-get install clang-format)" >&2
  exit 2
fi
git rev-parse --git-dir >/dev/null  # a checkout that git refuses to read would otherwise pass as having no sources
# A process per 16 files keeps every core busy.
git ls-files -z 'src/*.h' 'src/*.cpp' 'src/*.cu' 'src/*.cuh' 'tests/*.h' 'tests/*.cpp' 'tests/*.cu' |
  xargs -0 -r -n 16 -P "$(nproc)" "$format" --dry-run -Werror
