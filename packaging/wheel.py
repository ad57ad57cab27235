#!/usr/bin/env python3
"""Makes the wheel of what packaging/stage.py laid out: the program as a command, and the Python module that starts it.

    packaging/wheel.py STAGE OUT
"""
import argparse
import base64
import hashlib
import pathlib
import re
import sys
import zipfile

import archives
import stage

sys.path.insert(0, str(stage.ROOT / "tools"))
import make_python_options  # noqa: E402

# glibc of the sysroot (packaging/sysroot.py).
TAG = "py3-none-manylinux_2_31_x86_64"
SUMMARY = "Serves large language models from one program: CPUs and NVIDIA GPUs, OpenAI's and others' APIs"
# Libraries that PEP 600 lets a wheel take from the system, and that the program takes: all parts of glibc.
ALLOWED = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2"}


def check(program):
    """The rules of manylinux that auditwheel checks: libraries, and the versions of their symbols."""
    dynamic = stage.run("readelf", "--dynamic", "--wide", program)
    foreign = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) - ALLOWED
    if foreign:
        sys.exit(f"wheel: {program.name} needs {', '.join(sorted(foreign))}")
    allowed = tuple(int(n) for n in re.search(r"manylinux_(\d+)_(\d+)", TAG).groups())
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", stage.run("readelf", "--version-info", "--wide", program))
    newest = max(tuple(int(n) for n in v) for v in versions)
    if newest > allowed:
        sys.exit(f"wheel: {program.name} asks for glibc {newest[0]}.{newest[1]}, and {TAG} says otherwise")


def metadata(version, readme):
    return (f"Metadata-Version: 2.1\nName: quire-engine\nVersion: {version}\nSummary: {SUMMARY}\n"
            "License: Apache-2.0\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n"
            "Provides-Extra: numpy\nRequires-Dist: numpy; extra == \"numpy\"\n"
            "Classifier: Typing :: Typed\nClassifier: Programming Language :: Python :: 3\n"
            "Classifier: Environment :: GPU :: NVIDIA CUDA\nClassifier: Operating System :: POSIX :: Linux\n"
            f"Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence\n\n{readme}")


def module(program):
    """The files of the Python module, with the options of this very program."""
    folder = stage.ROOT / "python/quire_engine"
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            yield f"quire_engine/{path.name}", path.read_bytes(), 0o644
    if make_python_options.module_text(program) != (folder / "_options.py").read_text():
        sys.exit("wheel: the module's options are not the program's: run tools/make_python_options.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--epoch", type=int, required=True)
    options = parser.parse_args()
    version = stage.version()
    program = options.stage / "bin/quire"
    check(program)
    info = f"quire_engine-{version}.dist-info"
    data = f"quire_engine-{version}.data"
    doc = options.stage / "share/doc/quire"
    entries = [(f"{data}/scripts/quire", program.read_bytes(), 0o755), *module(program)]
    for path, name in archives.files_below(options.stage / "share/man"):
        if path.is_file() and not path.name.startswith("quire-lab"):
            entries.append((f"{data}/data/share/man/{name}", path.read_bytes(), 0o644))
    for path, name in archives.files_below(doc):
        if path.is_file() and name != "README.md":
            entries.append((f"{info}/licenses/{name}", path.read_bytes(), 0o644))
    entries += [(f"{info}/METADATA", metadata(version, (doc / "README.md").read_text()).encode(), 0o644),
                (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: packaging/wheel.py\nRoot-Is-Purelib: false\n"
                                  f"Tag: {TAG}\n".encode(), 0o644)]
    record = ""
    for name, content, _ in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    entries.append((f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode(), 0o644))
    to = options.out / f"quire_engine-{version}-{TAG}.whl"
    with zipfile.ZipFile(to, "w") as wheel:
        for name, content, mode in entries:
            archives.add_to_zip(wheel, name, content, mode, options.epoch)
    print(to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
