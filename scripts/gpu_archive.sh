#!/usr/bin/env bash
# Tests on a machine with an NVIDIA GPU that has neither a compiler nor this tree:
#   scripts/gpu_archive.sh [FILE]      writes one archive (build/gpu-tests.tar.xz): programs without shared libraries, the
#                                      demo models, and the script that runs all of it
# There:
#   tar xf gpu-tests.tar.xz && gpu-tests/run [FOLDER]      one line for each step; what it said goes to FOLDER
# What .ci/run cannot show without a GPU: every operator's kernels against the reference, whole models' fingerprints, the
# engine (exactness in company, graphs, host tier, FP8, embeddings, biases and log-probabilities, cancels), a lost device.
set -euo pipefail
cd "$(dirname "$0")/.."
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1

file=${1:-build/gpu-tests.tar.xz}
cmake --log-level=WARNING --preset cuda
cmake --build --preset cuda --target quire quire-lab cuda_checks
folder=build/gpu-tests
rm -rf "$folder"
mkdir -p "$folder/models"
for program in quire quire-lab cuda_checks; do
  cp "build/cuda/$program" "$folder/"
  strip "$folder/$program"
done
cp models/*.gguf "$folder/models/"
mkdir -p "$folder/tests"
cp -r tests/data "$folder/tests/"
cat >"$folder/run" <<'RUN'
#!/usr/bin/env bash
# Runs all tests that need a GPU. Ends with 0 if all passed.
set -uo pipefail
cd "$(dirname "$0")"
out=$(mkdir -p "${1:-results}" && cd "${1:-results}" && pwd)
failed=0

# NAME SECONDS COMMAND...
step() {
  local began=$SECONDS status=0
  timeout "$2" "${@:3}" >"$out/$1.txt" 2>&1 </dev/null || status=$?
  [ "$status" -eq 0 ] || failed=1
  printf '%-22s %s in %d s: %s\n' "$1" "$([ "$status" -eq 0 ] && echo passed || echo "FAILED ($status)")" \
    $((SECONDS - began)) "$(grep -E '^(\[  (PASSED|FAILED)  \]|total )' "$out/$1.txt" | tail -n 1)"
}

./quire devices
# Three processes share the card: most tests wait for the host.
for shard in 0 1 2; do
  GTEST_TOTAL_SHARDS=3 GTEST_SHARD_INDEX=$shard step "cuda_checks-$shard" 400 ./cuda_checks --gtest_brief=1 &
  shards[shard]=$!
done
wait "${shards[@]}"
for shard in 0 1 2; do grep -q PASSED "$out/cuda_checks-$shard.txt" || failed=1; done
step test-ops 400 ./quire-lab test-ops --device cuda
if command -v compute-sanitizer >/dev/null; then
  step memcheck 400 compute-sanitizer --tool memcheck --error-exitcode 9 ./quire-lab test-ops --device cuda --one-case
fi
step generate 60 ./quire run --device cuda -m models/demo-moe-nvfp4.gguf -p "Once upon a time" -n 32
exit "$failed"
RUN
chmod +x "$folder/run"
# The three programs share most of their bytes: a dictionary that holds more than one of them.
XZ_OPT="--lzma2=preset=4,dict=128MiB" tar -C build -cJf "$file" gpu-tests
du -h "$file"
