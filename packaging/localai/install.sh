#!/usr/bin/env bash
# Makes a directory that LocalAI takes as a backend: the program, run.sh, and the shared libraries that not every system
# has. A program of the presets `static` and `cuda` needs none of them.
#   packaging/localai/install.sh PROGRAM DIRECTORY      PROGRAM: build/release/quire-localai
set -euo pipefail
if [ $# -ne 2 ] || [ ! -x "$1" ]; then
  echo "usage: packaging/localai/install.sh PROGRAM DIRECTORY" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
program=$1
to=$2
mkdir -p "$to/lib"
cp "$program" "$to/quire-localai"
cp "$here/run.sh" "$here/metadata.json" "$to/"
# glibc and the loader are the system's: others than the one that started the program do not fit it.
{ ldd "$program" || true; } | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
  { grep -Ev '/(libc|libm|libdl|libpthread|librt|libresolv|ld-linux[^/]*)\.so' || true; } | while read -r library; do
  cp -L "$library" "$to/lib/"
done
chmod +x "$to/run.sh" "$to/quire-localai"
echo "LocalAI's backend is in $to"
