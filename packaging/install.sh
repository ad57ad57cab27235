#!/bin/sh
# Installs what this archive holds below a prefix, or takes away what was installed there.
#   ./install.sh [PREFIX]               PREFIX: /usr/local, or ~/.local for who is not root
#   ./install.sh --uninstall [PREFIX]
# PREFIX/share/doc/quire/installed lists what was made. An update takes away what the new version lacks.
set -eu
remove=
if [ "${1:-}" = --uninstall ]; then remove=1; shift; fi
if [ "$(id -u)" -eq 0 ]; then prefix=/usr/local; else prefix=$HOME/.local; fi
prefix=${1:-$prefix}
case $prefix in
  -*) echo "usage: ./install.sh [--uninstall] [PREFIX]" >&2; exit 2 ;;
  /*) ;;
  *) prefix=$PWD/$prefix ;;
esac
cd "$(dirname "$0")"
list=$prefix/share/doc/quire/installed

remove_folders() { LC_ALL=C sort -r | while read -r folder; do rmdir "$1$folder" 2>/dev/null || true; done; }

if [ "$remove" ]; then
  [ -f "$list" ] || { echo "install.sh: quire is not in $prefix: there is no $list" >&2; exit 1; }
  said=$(cat "$list")
  echo "$said" | sed -n 's/^file //p' | while read -r file; do rm -f "$prefix/$file"; done
  rm -f "$list"
  # The deepest first; one that holds something else stays.
  echo "$said" | sed -n 's/^folder //p' | remove_folders "$prefix/"
  echo "$said" | sed -n 's/^above //p' | remove_folders ""
  echo "quire is no longer in $prefix"
  exit
fi

sha256sum --quiet --check SHA256SUMS
# Folders that are not there yet, and the prefix itself with those above it.
made=$(
  above=$prefix
  while [ ! -d "$above" ]; do echo "above $above"; above=$(dirname "$above"); done
  (cd tree && find . -mindepth 1 -type d) | while read -r folder; do
    [ -d "$prefix/$folder" ] || echo "folder $folder"
  done
)
older=
if [ -f "$list" ]; then older=$(cat "$list"); fi
(cd tree && find . -type d) | while read -r folder; do mkdir -p "$prefix/$folder"; done
{
  (cd tree && find . -type f) | sed 's/^/file /'
  printf '%s\n%s\n' "$made" "$(echo "$older" | grep -v '^file ')" | grep . || true
} >"$list"
(cd tree && find . -type f) | while read -r file; do
  mode=644
  case $file in ./bin/*) mode=755 ;; esac
  install -m "$mode" "tree/$file" "$prefix/$file"
done
echo "$older" | sed -n 's/^file //p' | while read -r file; do
  [ -e "tree/$file" ] || rm -f "$prefix/$file"
done
echo "quire is in $prefix/bin"
case :$PATH: in
  *":$prefix/bin:"*) ;;
  *) echo "Add $prefix/bin to PATH, or call it by its whole name." ;;
esac
