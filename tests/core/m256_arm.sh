#!/usr/bin/env bash
# core/m256.h on ARM: its test, compiled for aarch64 and run by an emulator as a CPU of Armv8.0, the oldest that there
# is. `scripts/setup.sh --aarch64` installs what it needs; without that it is skipped (status 77).
set -euo pipefail
cd "$(dirname "$0")/../.."

compiler=aarch64-linux-gnu-g++ emulator=qemu-aarch64-static gtest=/usr/src/googletest/googletest
if ! command -v "$compiler" >/dev/null || ! command -v "$emulator" >/dev/null || [ ! -d "$gtest/src" ]; then
  echo "m256_arm: skipped: there is no $compiler, no $emulator or no $gtest (scripts/setup.sh --aarch64)" >&2
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# GoogleTest's sources: its library is this machine's. -Wno-unused-function: the header has all there are.
"$compiler" -std=c++20 -O2 -ffp-contract=off -Wall -Wextra -Wshadow -Werror -Wno-unused-function -Isrc \
  -isystem "$gtest/include" -isystem "$gtest" tests/core/m256_test.cpp "$gtest/src/gtest-all.cc" \
  "$gtest/src/gtest_main.cc" -static -o "$scratch/m256" 2>"$scratch/errors" || {
  cat "$scratch/errors" >&2
  exit 1
}
"$emulator" -cpu cortex-a53 "$scratch/m256" --gtest_brief=1
