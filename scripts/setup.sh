#!/usr/bin/env bash
# Installs the Debian packages that building and testing Quire needs: those that are missing, and no others. Fetches
# XGrammar's sources (scripts/fetch_xgrammar.py).
#   scripts/setup.sh            compiler, libraries, test and formatting tools
#   scripts/setup.sh --fuzz     also clang and its sanitizer runtime, for the preset `fuzz`
#   scripts/setup.sh --browser  also Chromium, for the test of the page that the server has
#   scripts/setup.sh --aarch64  also a compiler and libraries for 64-bit ARM and an emulator, for the preset `aarch64`;
#                               where there is nvcc, CUDA's runtime for ARM too, for the preset `cuda-aarch64`
set -euo pipefail

aarch64=0
packages=(
  g++ cmake ninja-build ccache pkg-config
  nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libutf8proc-dev libpcre2-dev libedit-dev # the program
  libboost-dev libssl-dev                                                                           # its server
  libpng-dev libjpeg62-turbo-dev libwebp-dev libgif-dev                                             # pictures
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc                            # quire-localai
  libgtest-dev libgmock-dev libbenchmark-dev                                                        # its tests and benchmarks
  clang-format python3                                                                              # checks of the sources
  ca-certificates patch                                                                             # to fetch XGrammar
)
for argument in "$@"; do
  case "$argument" in
    --fuzz) packages+=(clang libclang-rt-14-dev) ;;
    --browser) packages+=(chromium fonts-dejavu-core) ;;
    --aarch64) aarch64=1 ;;
    *)
      echo "setup: unknown argument '$argument'; there are --fuzz, --browser and --aarch64" >&2
      exit 2
      ;;
  esac
done

# On such a machine itself nothing is missing. Elsewhere Debian's packages for it lie beside the machine's own.
if [ "$aarch64" -eq 1 ] && [ "$(uname -m)" != aarch64 ]; then
  packages+=(g++-aarch64-linux-gnu qemu-user-static googletest)
  for library in utf8proc pcre2 edit boost ssl fmt spdlog png jpeg62-turbo webp gif gtest gmock; do
    packages+=("lib$library-dev:arm64")
  done
fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "setup: this is no Debian system (no apt-get). Install what these Debian 12 packages hold, then build:" >&2
  echo "  ${packages[*]}" >&2
  exit 1
fi

missing=()
own=$(dpkg --print-architecture)
for package in "${packages[@]}"; do
  wanted=$own
  [ "$package" = "${package%:*}" ] || wanted=${package#*:}
  dpkg-query -W -f='${Architecture} ${db:Status-Status}\n' "$package" 2>/dev/null |
    grep -qxE "(all|$wanted) installed" || missing+=("$package")
done

install_packages() {
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: packages are missing and this is neither root nor a system with sudo. As root, run:" >&2
      echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" 2>&1 </dev/null; }
  install_missing() { apt install -y --no-install-recommends "${missing[@]}"; }

  if [[ ${missing[*]} == *:arm64* ]] && ! dpkg --print-foreign-architectures | grep -qx arm64; then
    "${as_root[@]}" dpkg --add-architecture arm64
  fi
  # Fresh package lists are fetched only when installing with those at hand fails: none yet, or too old.
  echo "setup: installing ${missing[*]}"
  if ! output=$(install_missing); then
    echo "setup: updating the package lists"
    if ! output=$(apt update && install_missing); then
      echo "$output" >&2
      echo "setup: apt-get failed (its output is above); the packages needed are: ${missing[*]}" >&2
      exit 1
    fi
  fi
}
[ ${#missing[@]} -eq 0 ] || install_packages

# Without it everything else is built, and requests for constrained output are refused.
"$(dirname "$0")/fetch_xgrammar.py" || echo "setup: the build goes on without constrained output" >&2

if [ "$aarch64" -eq 1 ] && [ "$(uname -m)" != aarch64 ] && command -v nvcc >/dev/null; then
  "$(dirname "$0")/fetch_cudart_aarch64.py" || echo "setup: programs for ARM are built without CUDA" >&2
fi
