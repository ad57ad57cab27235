#!/usr/bin/env bash
# Makes a version's packages twice, tries them everywhere that can be had here, and writes down what was checked where:
#   packaging/release.sh [OUT]       OUT: build/packages; as root
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/packages}
[ -z "$(git status --porcelain)" ] || { echo "release: the tree has changes that are not committed" >&2 && exit 1; }
packaging/build.sh "$out"
# Everything that was compiled is thrown away, but not what ccache has: it is the linking and packing that is done again.
rm -rf build/package
packaging/build.sh "$out.again"
page=$out/CHECKED.md
{
  echo "# Checks of quire $(sed -n 's/^project(quire VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)"
  echo
  echo "Commit $(git rev-parse HEAD), built on $(. /etc/os-release && echo "$PRETTY_NAME")."
  echo
  if cmp "$out/SHA256SUMS" "$out.again/SHA256SUMS"; then
    echo "- Two builds: equal bytes."
  else
    echo "- Two builds: NOT equal."
  fi
} >"$page"
failed=0
for suite in bullseye bookworm trixie; do
  if said=$(packaging/try.sh "$out" "$suite" 2>&1); then
    sed -n 's/^try: /- /p' <<<"$said" >>"$page"
  else
    failed=1
    printf -- '- %s: FAILED: %s\n' "$suite" "$(tail -n 1 <<<"$said")" >>"$page"
  fi
done
{
  echo
  (cd "$out" && cat SHA256SUMS | sed 's/^/    /')
} >>"$page"
rm -rf "$out.again"
cat "$page"
exit "$failed"
