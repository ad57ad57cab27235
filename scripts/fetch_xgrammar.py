#!/usr/bin/env python3
"""Fetches XGrammar's source distribution, checks it, and lays it into third_party/xgrammar with our changes applied.

Does nothing where the sources are there already, of this version and with these changes.
"""
import hashlib
import pathlib
import subprocess
import sys
import tarfile

import fetched

VERSION = "0.2.8"
SHA256 = "8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80"
URL = (
    "https://files.pythonhosted.org/packages/03/0f/29f521535729be740779c2c98b630ef6607cf28be9b669895dd2b821ff63/"
    f"xgrammar-{VERSION}.tar.gz"
)
PATCH = pathlib.Path(__file__).resolve().parent.parent / "cmake" / "xgrammar.patch"


def apply_patch(sources):
    # Files of which nothing was there before are made; what does not fit exactly is an error.
    done = subprocess.run(["patch", "-p1", "--fuzz=0", "--silent", "--input", PATCH], cwd=sources, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise ValueError(f"{PATCH} does not fit: {done.stdout.strip()}")


def make(folder):
    packed = folder / "archive.tar.gz"
    packed.write_bytes(fetched.fetch(f"XGrammar {VERSION}", URL, SHA256))
    with tarfile.open(packed) as tar:
        tar.extractall(folder)
    sources = folder / f"xgrammar-{VERSION}"
    apply_patch(sources)
    return sources


def main():
    try:
        fetched.lay("xgrammar", f"{SHA256} {hashlib.sha256(PATCH.read_bytes()).hexdigest()}\n", make)
    except (OSError, ValueError) as error:
        print(f"setup: XGrammar's sources could not be had from {URL}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
