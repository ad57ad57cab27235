#!/usr/bin/env python3
"""Fetches XGrammar's source distribution, checks it, and lays it into third_party/xgrammar with our changes applied.

The archive is kept in ~/.cache/quire, so that a further checkout needs no network. Does nothing where the sources are
there already, of this version and with these changes.
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request

VERSION = "0.2.8"
SHA256 = "8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80"
URL = (
    "https://files.pythonhosted.org/packages/03/0f/29f521535729be740779c2c98b630ef6607cf28be9b669895dd2b821ff63/"
    f"xgrammar-{VERSION}.tar.gz"
)
ROOT = pathlib.Path(__file__).resolve().parent.parent
PATCH = ROOT / "cmake" / "xgrammar.patch"
TARGET = ROOT / "third_party" / "xgrammar"
KEPT = pathlib.Path.home() / ".cache" / "quire" / f"xgrammar-{VERSION}.tar.gz"


def is_right(archive):
    return hashlib.sha256(archive).hexdigest() == SHA256


def archive_bytes():
    if KEPT.is_file() and is_right(kept := KEPT.read_bytes()):
        return kept
    print(f"setup: fetching XGrammar {VERSION}", flush=True)
    with urllib.request.urlopen(URL, timeout=60) as answer:
        archive = answer.read()
    if not is_right(archive):
        raise ValueError(f"its SHA-256 is not {SHA256}")
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=KEPT.parent, delete=False) as file:
        file.write(archive)
    os.replace(file.name, KEPT)
    return archive


def apply_patch(sources):
    # Files of which nothing was there before are made; what does not fit exactly is an error.
    done = subprocess.run(["patch", "-p1", "--fuzz=0", "--silent", "--input", PATCH], cwd=sources, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise ValueError(f"{PATCH} does not fit: {done.stdout.strip()}")


def main():
    stamp = f"{SHA256} {hashlib.sha256(PATCH.read_bytes()).hexdigest()}\n"
    stamped = TARGET / ".fetched"
    if stamped.is_file() and stamped.read_text() == stamp:
        return 0
    try:
        archive = archive_bytes()
    except (OSError, ValueError) as error:
        print(f"setup: XGrammar's sources could not be fetched from {URL}: {error}", file=sys.stderr)
        return 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent) as folder:
        packed = pathlib.Path(folder) / "archive.tar.gz"
        packed.write_bytes(archive)
        with tarfile.open(packed) as tar:
            tar.extractall(folder)
        sources = pathlib.Path(folder) / f"xgrammar-{VERSION}"
        try:
            apply_patch(sources)
        except (OSError, ValueError) as error:
            print(f"setup: {error}", file=sys.stderr)
            return 1
        (sources / ".fetched").write_text(stamp)
        shutil.rmtree(TARGET, ignore_errors=True)
        sources.rename(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
