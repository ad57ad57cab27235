#!/usr/bin/env python3
"""Prints one hash of all that the build for GPUs adds to the others: .ci/run leaves that build out where it passed before.

Read are all .cu files, the templates and lists that others are made of, all files that speak of QUIRE_CUDA, what these
include in turn, and what says how they are compiled.
"""
import hashlib
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
BUILD = ["CMakeLists.txt", "CMakePresets.json", "cmake/QuireBatch.cmake", "cmake/QuireInstances.cmake",
         "cmake/QuireLayer.cmake", ".ci/run"]


def sources() -> list[pathlib.Path]:
    files = [p for folder in ("src", "tests") for p in (ROOT / folder).rglob("*") if p.is_file()]
    return [p for p in files if p.suffix == ".cu" or p.name.endswith(".cu.in") or p.name == "instances.cmake"
            or b"QUIRE_CUDA" in p.read_bytes()]


def inputs() -> set[pathlib.Path]:
    seen: set[pathlib.Path] = set()
    waiting = sources()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in INCLUDE.findall(path.read_bytes()):
            for folder in (ROOT / "src", ROOT / "tests", path.parent):
                if (folder / name.decode()).is_file():
                    waiting.append(folder / name.decode())
                    break
    return seen | {ROOT / name for name in BUILD}


def main() -> None:
    total = hashlib.sha256(subprocess.run(["nvcc", "--version"], capture_output=True, check=True).stdout)
    for path in sorted(inputs()):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    print(total.hexdigest())


if __name__ == "__main__":
    main()
