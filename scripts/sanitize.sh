#!/usr/bin/env bash
# What threads share, and what owns memory, under ThreadSanitizer and under AddressSanitizer with UBSan:
#   scripts/sanitize.sh [tsan|asan]      default: both
# A quarter of an hour each on two cores, most of it building; too long for .ci/run, which runs what reads files under ASan.
set -euo pipefail
cd "$(dirname "$0")/.."

build() {
  cmake --log-level=WARNING --preset "$1"
  cmake --build --preset "$1" --target "${@:2}"
}

# The pool, the engine with steps under way, every kernel once with three threads, templates, the server.
tsan() {
  build tsan quire test_core test_engine test_conformance test_jinja test_server
  build/tsan/test_core --gtest_brief=1 --gtest_filter='ThreadPool*:Signal*'
  build/tsan/test_jinja --gtest_brief=1
  build/tsan/test_conformance --gtest_brief=1 --gtest_filter='*.PassesOneCase*'
  build/tsan/test_engine --gtest_brief=1 --gtest_filter='EngineTest*:Depth*'
  build/tsan/test_server --gtest_brief=1
}

asan() {
  build asan quire test_ops test_cache test_conformance test_engine test_server
  build/asan/test_ops --gtest_brief=1
  build/asan/test_cache --gtest_brief=1
  build/asan/test_conformance --gtest_brief=1 --gtest_filter='*.PassesOneCase*'
  build/asan/test_engine --gtest_brief=1
  build/asan/test_server --gtest_brief=1
}

for job in "${@:-tsan asan}"; do
  for name in $job; do
    case $name in
      tsan | asan) "$name" ;;
      *) echo "usage: scripts/sanitize.sh [tsan|asan]" >&2 && exit 2 ;;
    esac
  done
done
