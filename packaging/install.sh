#!/bin/sh
# Installs what this archive holds below a prefix, or takes it away again.
#   ./install.sh [PREFIX]               PREFIX: /usr/local, or ~/.local for who is not root
#   ./install.sh --uninstall [PREFIX]
set -eu
cd "$(dirname "$0")"
remove=
if [ "${1:-}" = --uninstall ]; then remove=1; shift; fi
if [ "$(id -u)" -eq 0 ]; then prefix=/usr/local; else prefix=$HOME/.local; fi
prefix=${1:-$prefix}
case $prefix in
  -*) echo "usage: ./install.sh [--uninstall] [PREFIX]" >&2; exit 2 ;;
esac
sha256sum --quiet --check SHA256SUMS

if [ "$remove" ]; then
  (cd tree && find . -type f) | while read -r file; do rm -f "$prefix/$file"; done
  # Folders that nothing else is in, the deepest first.
  (cd tree && find . -mindepth 1 -depth -type d) | while read -r folder; do
    rmdir "$prefix/$folder" 2>/dev/null || true
  done
  echo "quire is no longer in $prefix"
  exit
fi
(cd tree && find . -type d) | while read -r folder; do mkdir -p "$prefix/$folder"; done
(cd tree && find . -type f) | while read -r file; do
  mode=644
  case $file in ./bin/*) mode=755 ;; esac
  install -m "$mode" "tree/$file" "$prefix/$file"
done
echo "quire is in $prefix/bin"
case :$PATH: in
  *":$prefix/bin:"*) ;;
  *) echo "Add $prefix/bin to PATH, or call it by its whole name." ;;
esac
