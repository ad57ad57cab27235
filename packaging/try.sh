#!/usr/bin/env bash
# Tries packages in a bare system in a folder: each is installed, answers a prompt, serves the demo model, and is
# removed without a trace. As root.
#   packaging/try.sh PACKAGES SUITE [wheel] [deb] [tar] [image] [localai]
# SUITE: bullseye, bookworm, trixie of Debian; focal, jammy, noble of Ubuntu.
# Bare systems are made by debootstrap, and kept packed in ~/.cache/quire. Ends with 77 where there is none and it
# cannot be fetched.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
packages=$(cd "$1" && pwd)
suite=$2
shift 2
[ $# -gt 0 ] || set -- wheel deb tar image localai
cache=${XDG_CACHE_HOME:-$HOME/.cache}/quire
kept=$cache/bare-$suite.tar
root=$(mktemp -d "/var/tmp/quire-$suite.XXXXXX")
model=demo-moe-nvfp4.gguf
ubuntu_keys=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
ubuntu_keys_sha256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
unmount() {
  for m in dev proc; do if mountpoint -q "$root/$m"; then umount -l "$root/$m"; fi; done
  rm -rf --one-file-system "$root"
}
trap unmount EXIT

# What packaging/sysroot.py knows: where apt fetches from, and how to keep a file whose digest is known.
sysroot() { PYTHONPATH=$here/packaging python3 -c "import sysroot; print($1)"; }

make_bare() {
  local made mirror options=(--variant=minbase)
  # What the packages and their tests want of a system that people have: Python, as venv wants it.
  options+=(--include=adduser,python3-venv,xz-utils,ca-certificates)
  case $suite in
    focal | jammy | noble)
      mirror=http://archive.ubuntu.com/ubuntu
      reachable "$mirror"
      dpkg-deb --extract "$(sysroot "sysroot.package('$ubuntu_keys', '$ubuntu_keys_sha256', '$mirror')")" "$root/keys"
      options+=(--components=main,universe "--keyring=$root/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg")
      ;;
    *)
      mirror=$(sysroot "next(sysroot.mirrors())")
      reachable "$mirror"
      ;;
  esac
  command -v debootstrap >/dev/null || apt-get -q install -y debootstrap >/dev/null
  echo "try: making a bare $suite"
  made=$(mktemp -d /var/tmp/quire-bare.XXXXXX)
  # Debian's debootstrap has no script for every Ubuntu; they are all the same.
  local script=()
  case $mirror in */ubuntu) script=(gutsy) ;; esac
  debootstrap "${options[@]}" "$suite" "$made" "$mirror" "${script[@]}" >"$made.log" 2>&1 || {
    tail -5 "$made.log" >&2
    exit 1
  }
  rm -rf "$made"/var/cache/apt/archives/*.deb "$made"/var/lib/apt/lists/*
  mkdir -p "$cache"
  tar -C "$made" -cf "$kept.part" . && mv "$kept.part" "$kept"
  rm -rf --one-file-system "$made" "$made.log"
}
reachable() {
  local release=$1/dists/$suite/Release
  python3 -c "import urllib.request as u; u.urlopen('$release', timeout=30)" 2>/dev/null && return
  echo "try: $suite cannot be had here: no answer from $release" >&2
  exit 77
}

fresh() {
  unmount
  mkdir -p "$root"
  tar -C "$root" -xf "$kept"
  mount -t proc proc "$root/proc"
  mount --bind /dev "$root/dev"
  chmod 755 "$root"
  mkdir "$root/try"
  cp "$here/models/$model" "$here/packaging/try_serving.py" "$root/try/"
  if [ "$suite" = focal ]; then newer_pip; fi
}
# Ubuntu 20.04's pip is older than the names of wheels that say which glibc they need.
newer_pip() {
  ls "$cache"/pip-24.0-*.whl >/dev/null 2>&1 || python3 -m pip download -q --no-deps -d "$cache" pip==24.0
  cp "$cache"/pip-24.0-*.whl "$root/try/"
}
inside() {
  local path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  chroot "$root" env -i PATH=$path HOME=/root LANG=C.UTF-8 "$@"
}
# Names of all files and folders, but for what systems write about packages and users, and compiled Python.
listing() {
  local systems='^\./var/(lib/dpkg|lib/apt|cache|log)|__pycache__|^\./(root|tmp)$|^\./run/'
  systems+='|^\./etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$'
  (cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./try \) -prune -o -print) |
    grep -Ev "$systems" | sort
}
# The program runs, and serves.
works() { answered=$(inside python3 /try/try_serving.py "$1" "/try/$model"); }
removed() {
  if ! diff "$root.before" <(listing) >"$root.diff"; then
    echo "try: $1 leaves on $suite:" >&2
    head -20 "$root.diff" >&2
    exit 1
  fi
  rm -f "$root.before" "$root.diff"
  passed "$1" "${2-served}, removed without a trace"
}
# What passed, after how long it answered.
passed() {
  local tenths=$(((${answered/./} - ${began/./}) / 100000))
  echo "try: $1 on $suite: first answer $((tenths / 10)).$((tenths % 10)) s after installing began, $2"
}

wheel() {
  inside python3 -m venv /opt/venv
  if [ "$suite" = focal ]; then inside sh -c '/opt/venv/bin/pip install -q --no-index /try/pip-*.whl'; fi
  cp "$packages"/*.whl "$root/try/"
  listing >"$root.before"
  inside sh -c '/opt/venv/bin/pip install -q --no-index /try/quire_engine-*.whl'
  works /opt/venv/bin/quire
  local served="served, the module too"
  if inside /opt/venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
    inside /opt/venv/bin/python -c '
from quire_engine import LLM, SamplingParams
with LLM("/try/demo-moe-nvfp4.gguf", max_model_len=512) as llm:
    assert llm.generate("Once upon a time", SamplingParams(max_tokens=16))[0].outputs[0].text.strip()'
  else
    served="served (the module needs a newer Python)"
  fi
  inside /opt/venv/bin/pip uninstall -q -y quire-engine
  inside sh -c 'find /opt/venv/share -depth -type d -empty -delete 2>/dev/null || true'
  removed wheel "$served"
}

deb() {
  local wants=$root/etc/systemd/system/multi-user.target.wants
  mkdir -p "$wants"
  cp "$packages"/*.deb "$root/try/"
  listing >"$root.before"
  inside sh -c 'dpkg -i /try/*.deb >/dev/null'
  inside getent passwd quire >/dev/null
  works /usr/bin/quire
  # As an administrator would: enabled, with options.
  ln -s /usr/lib/systemd/system/quire.service "$wants/"
  echo "# mine" >>"$root/etc/quire/serve.conf"
  inside sh -c 'dpkg -i /try/*.deb >/dev/null 2>&1' # an upgrade keeps what was written
  grep -q '^# mine' "$root/etc/quire/serve.conf"
  inside dpkg --remove quire >/dev/null
  grep -q '^# mine' "$root/etc/quire/serve.conf"
  mkdir -p "$root/var/lib/quire/hub" # what the service fetched
  inside dpkg --purge quire >/dev/null 2>&1
  if inside getent passwd quire; then echo "try: purge leaves the user" >&2 && exit 1; fi
  removed deb
}

tar_xz() {
  cp "$packages"/quire-[0-9]*-linux-x86_64.tar.xz "$root/try/"
  listing >"$root.before"
  inside sh -c 'cd /try && tar xf *.tar.xz && quire-*/install.sh >/dev/null'
  works /usr/local/bin/quire
  # Over itself, and of somebody else in a prefix that is not there yet, named from where they are.
  inside sh -c '/try/quire-*/install.sh >/dev/null && /try/quire-*/install.sh --uninstall >/dev/null'
  inside su nobody -s /bin/sh -c 'cd /tmp && /try/quire-*/install.sh "own/its prefix" >/dev/null &&
    "own/its prefix/bin/quire" version >/dev/null && /try/quire-*/install.sh --uninstall "own/its prefix" >/dev/null'
  removed tar
}

# An image is no package of a system: its layers are one. Without runc nothing here can start it.
image() {
  command -v runc >/dev/null || apt-get -q install -y --no-install-recommends runc >/dev/null
  unmount
  mkdir -p "$root"
  answered=$(python3 "$here/packaging/try_image.py" "$packages"/quire-[0-9]*-oci.tar "$here/models/$model" "$root")
  suite=runc passed image "served as its user with a read-only root, was healthy"
}

# LocalAI's backend is a folder, which the image of the same name has as well.
localai() {
  local folder image=("$packages"/quire-localai-*-oci.tar)
  command tar -C "$root/try" -xf "$packages"/quire-localai-*-linux-x86_64.tar.xz
  folder=$(basename "$root"/try/quire-localai-*)
  answered=$(python3 "$here/packaging/try_localai.py" "$root" "/try/$folder" "/try/$model")
  diff <(digests "$root/try/$folder") <(of_image "${image[0]}")
  passed localai "loaded, answered and ended; its image has the same files"
}
digests() { (cd "$1" && find . -type f -exec sha256sum {} + | sort); }
# Of the files in an image of one layer.
of_image() {
  local to=$root/try/image layer
  mkdir -p "$to/layer"
  command tar -C "$to" -xf "$1"
  layer=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[0]["Layers"][0])' "$to/manifest.json")
  command tar -C "$to/layer" -xf "$to/$layer"
  digests "$to/layer"
}

[ -e "$kept" ] || make_bare
for what in "$@"; do
  fresh
  began=$EPOCHREALTIME
  case $what in
    wheel | deb | image | localai) "$what" ;;
    tar) tar_xz ;;
    *) echo "try: there are wheel, deb, tar, image and localai, and no '$what'" >&2 && exit 2 ;;
  esac
done
