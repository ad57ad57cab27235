#!/usr/bin/env bash
# Quire for 64-bit ARM, compiled here and run by an emulator as CPUs of three levels: neon (Armv8.0), dotprod, i8mm.
#   tests/aarch64.sh
# `scripts/setup.sh --aarch64` installs what it needs. Its answers are held to those of build/release/quire as a CPU with
# AVX2, whose bits ARM's are.
set -euo pipefail
cd "$(dirname "$0")/.."
# -R: see cmake/aarch64.cmake.
emulator="qemu-aarch64-static -R 0x400000000 -cpu"
build=build/aarch64

for needed in /usr/bin/aarch64-linux-gnu-g++ /usr/bin/qemu-aarch64-static /usr/lib/aarch64-linux-gnu/libssl.a; do
  if [ ! -e "$needed" ]; then
    echo "aarch64: skipped: there is no $needed (scripts/setup.sh --aarch64)" >&2
    exit 77
  fi
done
cmake --log-level=WARNING --preset aarch64
cmake --build --preset aarch64 --target quire quire-lab test_ops test_golden
for program in quire quire-lab; do
  if readelf -d "$build/$program" | grep -q NEEDED; then
    echo "aarch64: $program needs shared libraries" >&2
    exit 1
  fi
done

# What a CPU is taken for.
while read -r cpu levels; do
  said=$($emulator "$cpu" "$build/quire" version | grep '^cpu:')
  if [ "$said" != "cpu: $levels" ]; then
    echo "aarch64: on a $cpu quire says '$said', not '$levels'" >&2
    exit 1
  fi
done <<END
cortex-a53 neon
cortex-a76 neon dotprod
max neon dotprod i8mm bf16
END

# Two at a time: an emulated program's threads wait a lot.
scripts/side_by_side.sh "$emulator max $build/quire-lab test-ops --one-case | tail -2" \
  "$emulator max $build/test_ops --gtest_brief=1 --gtest_filter='*IntegerCores*:*Bfmmla*:*FloatWeights*'"
golden='*TinyGolden.CpuTeacherForced/llama:*TinyGolden.CpuPerplexity/qwen35moe:*TinyGolden.CpuPerplexity/gemma3'
for level in neon dotprod i8mm; do
  echo "aarch64: as a CPU with $level"
  scripts/side_by_side.sh "$emulator max $build/test_golden --cpu=$level --gtest_brief=1 --gtest_filter='$golden'" \
    "tools/exact_under_load.py '$emulator max $build/quire --cpu $level' models/demo-moe-nvfp4.gguf \
       --alone 'build/release/quire --cpu avx2' --seeds 1 --clients 6 --without-grammars --setting auto -- -t 2"
done
