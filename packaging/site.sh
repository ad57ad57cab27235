#!/usr/bin/env bash
# Makes a site of docs/: pages, search, nothing from elsewhere. A link that leads nowhere is an error.
#   packaging/site.sh [FOLDER]       FOLDER: build/site
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build/site}")
venv=${XDG_CACHE_HOME:-$HOME/.cache}/quire/site
[ -x "$venv/bin/mkdocs" ] || { python3 -m venv "$venv" && "$venv/bin/pip" -q install 'mkdocs<2' 'mkdocs-material<10'; }
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" --quiet build --strict --config-file packaging/mkdocs.yml --site-dir "$out"
# A browser that opens the site fetches nothing: no address of another host in what pages load.
if grep -rlE '<(script|link|img)[^>]*(src|href)="(https?:)?//' --include='*.html' "$out" | grep -v '/404.html$'; then
  echo "site: these pages load from elsewhere" >&2
  exit 1
fi
echo "$out/index.html"
