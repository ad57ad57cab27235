#!/usr/bin/env bash
# Makes the packages, from a clean tree and the same bytes each time on the same system:
#   packaging/build.sh [--preset PRESET] [--only KIND] ... [OUT]     OUT: build/packages
# KIND: wheel (pip), deb, tar (with install.sh), image (of containers), localai (its backend); all of them by default.
# PRESET: `package`, with code for every GPU; `cuda` takes what was built for Hopper anyway.
set -euo pipefail
cd "$(dirname "$0")/.."
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
preset=package
kinds=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=$2 && shift 2 ;;
    --only) kinds+=("$2") && shift 2 ;;
    -*) sed -n '2,/^set/{/^set/!p}' "$0" >&2 && exit 2 ;;
    *) break ;;
  esac
done
[ ${#kinds[@]} -gt 0 ] || kinds=(wheel deb tar image localai)
out=${1:-build/packages}

scripts/setup.sh
# Sources' time stands for that of everything that is made of them.
epoch=$(git log -1 --format=%ct)
packaging/sysroot.py build/sysroot
cmake --log-level=WARNING --preset "$preset" -DQUIRE_SYSROOT="$PWD/build/sysroot"
cmake --build "build/$preset" --target quire quire-lab quire-localai

rm -rf "$out"
mkdir -p "$out"
stage=$out/stage
packaging/stage.py "build/$preset" "$stage" --epoch "$epoch"
version=$(sed -n 's/^project(quire VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)

# A folder as an archive: sorted, owned by root, of the sources' time.
archive() {
  tar --create --sort=name --owner=root:0 --group=root:0 --numeric-owner --mtime="@$epoch" --mode=u=rwX,go=rX \
    -C "$(dirname "$1")" "$(basename "$1")" | xz -6 -T1 >"$1.tar.xz"
  rm -rf "$1"
  echo "$1.tar.xz"
}
make_wheel() { packaging/wheel.py "$stage" "$out" --epoch "$epoch"; }
make_deb() { packaging/deb.py "$stage" "$out" --epoch "$epoch"; }
make_image() { packaging/oci.py "$stage" "$out" --epoch "$epoch"; }
make_tar() {
  local folder=$out/quire-$version-linux-x86_64
  mkdir -p "$folder"
  cp -a "$stage" "$folder/tree"
  # zsh looks here below /usr/local, and in vendor-completions below /usr alone.
  mv "$folder/tree/share/zsh/vendor-completions" "$folder/tree/share/zsh/site-functions"
  cp packaging/install.sh "$folder/"
  (cd "$folder" && find tree -type f | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
  archive "$folder"
}
make_localai() {
  local folder=$out/quire-localai-$version-linux-x86_64
  packaging/localai/install.sh "$stage/bin/quire-localai" "$folder" >/dev/null
  packaging/oci.py --localai "$folder" "$out" --epoch "$epoch"
  archive "$folder"
}

# Side by side: each of them compresses on one core.
made=()
for kind in "${kinds[@]}"; do
  case $kind in
    wheel | deb | tar | image | localai) "make_$kind" & made+=($!) ;;
    *) echo "build: there are wheel, deb, tar, image and localai, and no '$kind'" >&2 && exit 2 ;;
  esac
done
for one in "${made[@]}"; do wait "$one"; done
rm -rf "$stage"
sums=$(cd "$out" && find . -maxdepth 1 -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum)
echo "$sums" >"$out/SHA256SUMS"
