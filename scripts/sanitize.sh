#!/usr/bin/env bash
# What reads files, owns memory or is shared by threads, under sanitizers:
#   scripts/sanitize.sh asan      AddressSanitizer with UBSan: parsers, caches, operators, the engine
#   scripts/sanitize.sh tsan      ThreadSanitizer: the pool, every kernel once, the engine with two steps under way, templates
#   scripts/sanitize.sh server-asan, server-tsan    the server, of the second one what its threads share
# Without an argument all four.
set -euo pipefail
cd "$(dirname "$0")/.."

build() {
  cmake --log-level=WARNING --preset "$1"
  cmake --build --preset "$1" --target "${@:2}"
}

asan() {
  build asan test_{core,gguf,tokenizer,constraint,convert,jinja,image,cache,ops,conformance,engine,fuzz}
  # Without those that run the program: the server and the commands take as long to compile as all the rest.
  GTEST_FILTER='-ConvertCommand*:SchemaTable*' \
    ctest --test-dir build/asan --output-on-failure -j2 -R '^(core|gguf|tokenizer|constraint|convert|jinja|image|cache|ops|fuzz)$'
  # Of the engine what owns and gives back; the texts of whole models run long through the same code.
  scripts/side_by_side.sh "build/asan/test_conformance --gtest_brief=1 --gtest_filter='*.PassesOneCase*'" \
    "build/asan/test_engine --gtest_brief=1 --gtest_filter='EngineTest*:Checkpoints*:Depth*:Constraints*:*/Windows.*:*Speculation.Drafts*tiny_qwen35moe'"
}

tsan() {
  build tsan test_{core,constraint,engine,conformance,jinja}
  build/tsan/test_core --gtest_brief=1 --gtest_filter='ThreadPool*:Signal*'
  build/tsan/test_jinja --gtest_brief=1
  build/tsan/test_constraint --gtest_brief=1 --gtest_filter='*Cache*'
  scripts/side_by_side.sh "build/tsan/test_conformance --gtest_brief=1 --gtest_filter='*.PassesOneCase*'" \
    "build/tsan/test_engine --gtest_brief=1 --gtest_filter='EngineTest*:Depth*:Constraints*:*Speculation.Drafts*tiny_qwen35'"
}

# The tests that tests/server/sanitized.cmake names, but for one that compares many texts. Half of them at a time: they
# wait a lot.
server() {
  build "$1" test_server
  local half="GTEST_TOTAL_SHARDS=2 build/$1/test_server --gtest_brief=1 --gtest_filter='-Embeddings.ManyInputs*'"
  scripts/side_by_side.sh "GTEST_SHARD_INDEX=0 $half" "GTEST_SHARD_INDEX=1 $half"
}

[ $# -gt 0 ] || set -- asan tsan server-asan server-tsan
for job in "$@"; do
  case $job in
    asan | tsan) "$job" ;;
    server-asan | server-tsan) server "${job#server-}" ;;
    *) echo "usage: scripts/sanitize.sh [asan] [tsan] [server-asan] [server-tsan]" >&2 && exit 2 ;;
  esac
done
