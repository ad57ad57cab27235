#!/usr/bin/env python3
"""Lays an older Debian's C library into a folder, for the linker: what is linked with it runs on that system and later.

    packaging/sysroot.py FOLDER [--mirror URL]

Fetches libc6 and libc6-dev of Debian 11 (glibc 2.31) from the mirror that this machine's apt is set up with, checks
them, and unpacks them. Programs take compilers, headers and archives from this machine, and only glibc from FOLDER
(cmake/QuirePackage.cmake). The packages are kept in ~/.cache/quire. Does nothing where FOLDER is of these packages
already.
"""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

# Of Debian 11's last point release.
PACKAGES = {
    "pool/main/g/glibc/libc6_2.31-13+deb11u11_amd64.deb":
        "05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282",
    "pool/main/g/glibc/libc6-dev_2.31-13+deb11u11_amd64.deb":
        "e7f7b45d9c5cfcf37609f0b6efd3c645272c812144703af89dfd32218fcb0fd3",
}
KEPT = pathlib.Path.home() / ".cache" / "quire"


def mirrors():
    """Addresses of Debian archives in apt's sources, in either of the forms that these have."""
    places = [pathlib.Path("/etc/apt/sources.list")]
    for ending in ("sources", "list"):
        places += sorted(pathlib.Path("/etc/apt/sources.list.d").glob(f"*.{ending}"))
    for place in places:
        if not place.is_file():
            continue
        for line in place.read_text(errors="replace").splitlines():
            if line.startswith("URIs:"):
                addresses = line.split()[1:]
            else:
                address = re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)", line)
                addresses = [address[1]] if address else []
            yield from (a.rstrip("/") for a in addresses if re.search(r"/debian/?$", a))


def is_right(content, sha256):
    return hashlib.sha256(content).hexdigest() == sha256


def package(path, sha256, mirror):
    kept = KEPT / pathlib.Path(path).name
    if kept.is_file() and is_right(kept.read_bytes(), sha256):
        return kept
    print(f"sysroot: fetching {kept.name}", flush=True)
    with urllib.request.urlopen(f"{mirror}/{path}", timeout=60) as answer:
        content = answer.read()
    if not is_right(content, sha256):
        raise ValueError(f"{path}: its SHA-256 is not {sha256}")
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=KEPT, delete=False) as file:
        file.write(content)
    os.replace(file.name, kept)
    return kept


def make_links_relative(root):
    """A link to /lib/... means the one within the folder."""
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = pathlib.Path(folder) / name
            if path.is_symlink() and os.readlink(path).startswith("/"):
                target = root / os.readlink(path).lstrip("/")
                path.unlink()
                path.symlink_to(os.path.relpath(target, folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mirror", help="address of a Debian archive; by default, the one that apt is set up with")
    options = parser.parse_args()
    stamp = "".join(f"{sha256} {path}\n" for path, sha256 in PACKAGES.items())
    stamped = options.folder / ".packages"
    if stamped.is_file() and stamped.read_text() == stamp:
        return 0
    mirror = options.mirror or next(mirrors(), None)
    if mirror is None:
        print("sysroot: apt's sources name no Debian archive: say which with --mirror", file=sys.stderr)
        return 1
    options.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder.parent) as scratch:
        root = pathlib.Path(scratch) / "root"
        try:
            for path, sha256 in PACKAGES.items():
                subprocess.run(["dpkg-deb", "--extract", package(path, sha256, mirror), root], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"sysroot: {error}", file=sys.stderr)
            return 1
        make_links_relative(root)
        (root / ".packages").write_text(stamp)
        shutil.rmtree(options.folder, ignore_errors=True)
        root.rename(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
