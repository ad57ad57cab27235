#!/usr/bin/env bash
# Tries packages in a bare system in a folder: each is installed, runs and serves the demo model, and is removed without
# a trace. As root.
#   packaging/try.sh PACKAGES SUITE [wheel] [deb] [tar] [image]     SUITE: bullseye, bookworm, trixie
# The bare system is made by debootstrap from the mirror that apt is set up with, and kept packed in ~/.cache/quire.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
packages=$(cd "$1" && pwd)
suite=$2
shift 2
[ $# -gt 0 ] || set -- wheel deb tar image
kept=${XDG_CACHE_HOME:-$HOME/.cache}/quire/bare-$suite.tar
root=$(mktemp -d "/var/tmp/quire-$suite.XXXXXX")
unmount() {
  for m in dev proc; do if mountpoint -q "$root/$m"; then umount -l "$root/$m"; fi; done
  rm -rf --one-file-system "$root"
}
trap unmount EXIT

if [ ! -e "$kept" ]; then
  command -v debootstrap >/dev/null || apt-get -q install -y debootstrap >/dev/null
  mirror=$(python3 -c "import sys; sys.path.insert(0, '$here/packaging'); import sysroot; print(next(sysroot.mirrors()))")
  echo "try: making a bare $suite"
  made=$(mktemp -d /var/tmp/quire-bare.XXXXXX)
  # What the packages and their tests want of a system that people have: Python, as venv wants it.
  debootstrap --variant=minbase --include=adduser,python3-venv,xz-utils,ca-certificates "$suite" "$made" "$mirror" >"$made.log" 2>&1 ||
    { tail -5 "$made.log" >&2 && exit 1; }
  rm -rf "$made"/var/cache/apt/archives/*.deb "$made"/var/lib/apt/lists/*
  mkdir -p "$(dirname "$kept")"
  tar -C "$made" -cf "$kept.part" . && mv "$kept.part" "$kept"
  rm -rf --one-file-system "$made" "$made.log"
fi

fresh() {
  unmount
  mkdir -p "$root"
  tar -C "$root" -xf "$kept"
  mount -t proc proc "$root/proc"
  mount --bind /dev "$root/dev"
  mkdir "$root/try"
  cp "$here/models/demo-moe-nvfp4.gguf" "$here/packaging/try_serving.py" "$root/try/"
}
inside() { chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"; }
# Names of all files and folders, but for what systems write about packages, and compiled Python.
listing() { (cd "$root" && find . -xdev -path ./proc -prune -o -path ./dev -prune -o -path ./try -prune -o -print) |
  grep -Ev '^\./var/(lib/dpkg|lib/apt|cache|log)|__pycache__|^\./(root|tmp)$|^\./run/|^\./etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$' | sort; }
# The program runs, and serves: what it says is the same both ways.
works() { inside python3 /try/try_serving.py "$1" /try/demo-moe-nvfp4.gguf; }
removed() {
  if diff "$root.before" <(listing) >"$root.diff"; then
    rm -f "$root.before" "$root.diff"
  else
    echo "try: $1 leaves on $suite:" >&2
    head -20 "$root.diff" >&2
    exit 1
  fi
  echo "try: $1 on $suite: installed, ran, served and removed in $((SECONDS - began)) s"
}

wheel() {
  inside python3 -m venv /opt/venv
  cp "$packages"/*.whl "$root/try/"
  listing >"$root.before"
  inside sh -c '/opt/venv/bin/pip install -q --no-index /try/*.whl'
  works /opt/venv/bin/quire
  inside /opt/venv/bin/python -c '
from quire_engine import LLM, SamplingParams
with LLM("/try/demo-moe-nvfp4.gguf", max_model_len=512) as llm:
    assert llm.generate("Once upon a time", SamplingParams(max_tokens=16))[0].outputs[0].text.strip()'
  inside /opt/venv/bin/pip uninstall -q -y quire-engine
  inside sh -c 'find /opt/venv/share -depth -type d -empty -delete 2>/dev/null || true'
  removed wheel
}

deb() {
  cp "$packages"/*.deb "$root/try/"
  listing >"$root.before"
  inside sh -c 'dpkg -i /try/*.deb >/dev/null'
  inside getent passwd quire >/dev/null
  works /usr/bin/quire
  echo "# mine" >>"$root/etc/quire/serve.conf"
  inside sh -c 'dpkg -i /try/*.deb >/dev/null 2>&1' # an upgrade keeps what was written
  grep -q '^# mine' "$root/etc/quire/serve.conf"
  inside dpkg --remove quire >/dev/null
  grep -q '^# mine' "$root/etc/quire/serve.conf"
  inside dpkg --purge quire >/dev/null 2>&1
  if inside getent passwd quire; then echo "try: purge leaves the user" >&2 && exit 1; fi
  removed deb
}

tar_xz() {
  cp "$packages"/quire-[0-9]*-linux-x86_64.tar.xz "$root/try/"
  listing >"$root.before"
  inside sh -c 'cd /try && tar xf *.tar.xz && quire-*/install.sh >/dev/null'
  works /usr/local/bin/quire
  inside sh -c '/try/quire-*/install.sh --uninstall >/dev/null'
  removed tar
}

# An image is no package of a system: its layers are one, and the program in it is started there.
image() {
  local layout=$root.layout
  mkdir -p "$layout" && command tar -C "$layout" -xf "$packages"/*-oci.tar
  unmount
  mkdir -p "$root"
  python3 - "$layout" "$root" <<'PY'
import json, pathlib, sys, tarfile
layout, root = (pathlib.Path(p) for p in sys.argv[1:])
blob = lambda digest: layout / "blobs" / digest.replace(":", "/")
manifest = json.loads(blob(json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]).read_text())
for one in manifest["layers"]:
    tarfile.open(blob(one["digest"])).extractall(root)
PY
  rm -rf "$layout"
  mkdir -p "$root/proc" "$root/try"
  mount -t proc proc "$root/proc"
  cp "$here/models/demo-moe-nvfp4.gguf" "$root/try/"
  python3 "$here/packaging/try_serving.py" --chroot "$root" --user 65532 /usr/bin/quire /try/demo-moe-nvfp4.gguf
  echo "try: image: ran and served as its user in $((SECONDS - began)) s"
}

for what in "$@"; do
  fresh
  began=$SECONDS
  case $what in
    wheel | deb | image) "$what" ;;
    tar) tar_xz ;;
    *) echo "try: there are wheel, deb, tar and image, and no '$what'" >&2 && exit 2 ;;
  esac
done
