#!/usr/bin/env bash
# Makes a version's packages twice, tries them everywhere that can be had here, and writes down what was checked where,
# in OUT/CHECKED.md:
#   packaging/release.sh [--preset PRESET] [OUT]       OUT: build/packages; PRESET: of packaging/build.sh; as root
# Ends with 1 where a check failed. Checks whose tools are missing are named as not done.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=package
if [ "${1:-}" = --preset ]; then preset=$2 && shift 2; fi
out=${1:-build/packages}
[ -z "$(git status --porcelain)" ] || { echo "release: the tree has changes that are not committed" >&2 && exit 1; }
packaging/build.sh --preset "$preset" "$out"
# What was compiled is thrown away, but not what ccache has: it is the linking and packing that is done again.
rm -rf "build/$preset"
packaging/build.sh --preset "$preset" "$out.again"
page=$out/CHECKED.md
failed=0

ok() { echo "- $*" >>"$page"; }
not_ok() {
  failed=1
  echo "- FAILED: $*" >>"$page"
}

same_bytes() {
  local different
  different=$({ diff "$out/SHA256SUMS" "$out.again/SHA256SUMS" || true; } | sed -n 's/^[<>] [0-9a-f]*  //p')
  different=$(sort -u <<<"$different" | xargs)
  if [ -z "$different" ]; then
    ok "Two builds: equal bytes."
  else
    not_ok "Two builds: other bytes in $different."
  fi
}

rules() {
  # packaging/wheel.py has refused it otherwise.
  ok "The wheel's program: no libraries but glibc, no symbols newer than its tag says."
  if ! command -v lintian >/dev/null; then
    ok "The .deb: not read by lintian, which is not here."
  elif said=$(lintian --fail-on error "$out"/*.deb 2>&1); then
    ok "The .deb: no errors of lintian."
  else
    not_ok "The .deb: $(grep '^E:' <<<"$said" | head -n 1)"
  fi
}

# The examples for Kubernetes and Compose, against their schemas.
manifests() {
  local venv=${XDG_CACHE_HOME:-$HOME/.cache}/quire/manifests
  [ -x "$venv/bin/kubernetes-validate" ] ||
    { python3 -m venv "$venv" && "$venv/bin/pip" -q install kubernetes-validate; } >/dev/null 2>&1 || rm -rf "$venv"
  local file said
  for file in packaging/kubernetes/quire.yaml dist/kubernetes-replicas.yaml; do
    if [ ! -x "$venv/bin/kubernetes-validate" ]; then
      ok "$file: not checked, kubernetes-validate cannot be had here."
    elif said=$("$venv/bin/kubernetes-validate" --strict "$file" 2>&1); then
      ok "$file: as the schemas of ${said##*against version } want it."
    else
      not_ok "$file: $(grep ERROR <<<"$said" | head -n 1)"
    fi
  done
  for file in packaging/compose.yaml dist/compose-replicas.yaml; do
    if ! command -v docker-compose >/dev/null; then
      ok "$file: not checked, docker-compose is not here."
    elif said=$(MODEL=ORG/NAME docker-compose -f "$file" config --quiet 2>&1); then
      ok "$file: as Compose wants it."
    else
      not_ok "$file: $(head -n 1 <<<"$said")"
    fi
  done
}

# One package on one system.
try() {
  local said status=0
  said=$(packaging/try.sh "$out" "$2" "$1" 2>&1) || status=$?
  case $status in
    0) ok "$(sed -n '$s/^try: //p' <<<"$said")." ;;
    77) ok "$1 on $2: not tried. ${said##*try: }." ;;
    *) not_ok "$1 on $2: $(tail -n 1 <<<"$said")" ;;
  esac
}

version=$(sed -n 's/^project(quire VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
{
  printf '# Checks of quire %s\n\n' "$version"
  echo "Commit $(git rev-parse HEAD), preset \`$preset\`, built on $(. /etc/os-release && echo "$PRETTY_NAME")."
  echo
} >"$page"
same_bytes
rules
manifests
for suite in bullseye bookworm trixie focal jammy noble; do
  for kind in wheel deb tar; do try "$kind" "$suite"; done
done
try image bookworm
try localai bookworm
{
  printf '\n| bytes | package |\n|---:|---|\n'
  find "$out" -maxdepth 1 -type f ! -name SHA256SUMS ! -name CHECKED.md -printf '| %s | %f |\n' | LC_ALL=C sort -k 4
  echo
  sed 's/^/    /' "$out/SHA256SUMS"
} >>"$page"
rm -rf "$out.again"
cat "$page"
exit "$failed"
