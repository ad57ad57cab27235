#!/bin/sh
# Fails if a tracked C++ source differs from what clang-format makes of it, which CLANG_FORMAT may name, or a comment is
# longer than a line: clang-format leaves comments as they are.
set -eu
cd "$(dirname "$0")/.."
format=${CLANG_FORMAT:-clang-format}
if ! command -v "$format" >/dev/null; then
  echo "check_format: $format is not installed (apt-get install clang-format)" >&2
  exit 2
fi
git rev-parse --git-dir >/dev/null  # a checkout that git refuses to read would otherwise pass as having no sources
if git grep -nE '^.{121,}$' -- 'src/*.h' 'src/*.cpp' 'src/*.cu' 'src/*.cuh' 'tests/*.h' 'tests/*.cpp' 'tests/*.cu' |
  grep -E '^[^:]*:[0-9]*: *//'; then
  echo "check_format: these comments are longer than 120 columns" >&2
  exit 1
fi
# A process per 16 files keeps every core busy.
git ls-files -z 'src/*.h' 'src/*.cpp' 'src/*.cu' 'src/*.cuh' 'tests/*.h' 'tests/*.cpp' 'tests/*.cu' |
  xargs -0 -r -n 16 -P "$(nproc)" "$format" --dry-run -Werror
