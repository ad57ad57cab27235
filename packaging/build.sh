#!/usr/bin/env bash
# Makes the packages, from a clean tree and the same bytes each time on the same system:
#   packaging/build.sh [--preset PRESET] [--jobs N] [OUT]     OUT: build/packages
# quire_engine-*.whl (pip), quire_*.deb, quire-*.tar.xz with install.sh, quire-*-oci.tar (an image), LocalAI's backend,
# and SHA256SUMS. PRESET: `package`, with code for every GPU; `cuda` takes what was built for Hopper anyway.
set -euo pipefail
cd "$(dirname "$0")/.."
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
preset=package
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    -*) sed -n '2,/^set/{/^set/!p}' "$0" >&2 && exit 2 ;;
    *) break ;;
  esac
done
out=${1:-build/packages}

scripts/setup.sh
# Sources' time stands for that of everything that is made of them.
epoch=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH=$epoch
packaging/sysroot.py build/sysroot
cmake --log-level=WARNING --preset "$preset" -DQUIRE_SYSROOT="$PWD/build/sysroot"
cmake --build "build/$preset" -j "$jobs" --target quire quire-lab quire-localai

rm -rf "$out"
mkdir -p "$out"
stage=$out/stage
packaging/stage.py "build/$preset" "$stage" --epoch "$epoch"
version=$(sed -n 's/^project(quire VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)

packaging/wheel.py "$stage" "$out" --epoch "$epoch"
packaging/deb.py "$stage" "$out" --epoch "$epoch"
packaging/oci.py "$stage" "$out" --epoch "$epoch"

# Sorted, owned by root, of the sources' time.
archive() {
  tar --create --sort=name --owner=root:0 --group=root:0 --numeric-owner --mtime="@$epoch" --mode=u=rwX,go=rX \
    -C "$(dirname "$2")" "$(basename "$2")" | xz -6 -T1 >"$1"
  echo "$1"
}
folder=$out/quire-$version-linux-x86_64
mkdir -p "$folder"
cp -a "$stage" "$folder/tree"
cp packaging/install.sh "$folder/"
(cd "$folder" && find tree -type f | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
archive "$folder.tar.xz" "$folder"
localai=$out/quire-localai-$version-linux-x86_64
packaging/localai/install.sh "$stage/bin/quire-localai" "$localai" >/dev/null
archive "$localai.tar.xz" "$localai"
rm -rf "$folder" "$localai"
(cd "$out" && sha256sum -- *.whl *.deb *.tar *.tar.xz >SHA256SUMS)
