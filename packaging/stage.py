#!/usr/bin/env python3
"""Lays out what every package has: stripped programs, pages of man, completions, licences, a list of what is inside.

    packaging/stage.py BUILD FOLDER       BUILD: where the preset `package` was built

FOLDER becomes a prefix, as /usr is one: bin, share/man, share/bash-completion, share/doc/quire, ...
"""
import argparse
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import archives

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ("quire", "quire-lab", "quire-localai")
# Libraries of which nothing but headers is used: the linker does not see them.
HEADERS = ("nlohmann-json3-dev", "libcli11-dev", "libfmt-dev", "libspdlog-dev", "libboost-dev")


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, text=True, stdout=subprocess.PIPE).stdout


def version():
    return re.search(r"project\(quire VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


def copy(source, to, mode=0o644):
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)
    to.chmod(mode)


def write(to, text):
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)
    to.chmod(0o644)


def write_gzipped(to, text):
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(archives.gzipped(text.encode(), 0))
    to.chmod(0o644)


def lay_programs(build, to):
    for name in PROGRAMS:
        program = build / name
        if not program.is_file():
            sys.exit(f"stage: {program} is not built")
        copy(program, to / "bin" / name, 0o755)
        run("strip", "--strip-all", to / "bin" / name)


def lay_help(to):
    """Pages of man and completions, as the programs write them from their options."""
    for name in ("quire", "quire-lab"):
        program = to / "bin" / name
        share = to / "share"
        pages = run(program, "options", name, "--format", "man")
        write_gzipped(share / "man/man1" / f"{name}.1.gz", pages)
        for command in re.findall(rf"\\fB{re.escape(name).replace('-', chr(92) * 3 + '-')}\\-(\S+?)\\fR\(1\)", pages):
            command = command.replace("\\-", "-")
            page = run(program, "options", command, "--format", "man")
            write_gzipped(share / "man/man1" / f"{name}-{command}.1.gz", page)
        write(share / "bash-completion/completions" / name, run(program, "completions", "bash"))
        write(share / "zsh/vendor-completions" / f"_{name}", run(program, "completions", "zsh"))
        write(share / "fish/vendor_completions.d" / f"{name}.fish", run(program, "completions", "fish"))


def debian_packages(build):
    """Name and version of each Debian package of which the programs have code."""
    commands = "".join(run("ninja", "-C", build, "-t", "commands", name) for name in PROGRAMS)
    archives = {str(pathlib.Path(a).resolve()) for a in re.findall(r"/usr/lib/x86_64-linux-gnu/\S+?\.a\b", commands)}
    owners = set(HEADERS)
    for archive in sorted(archives):
        # The file may be known by its name before /usr was merged.
        for path in (archive, archive.removeprefix("/usr")):
            found = subprocess.run(["dpkg", "-S", path], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if found.returncode == 0:
                owners.add(found.stdout.split(":")[0])
                break
        else:
            sys.exit(f"stage: no package has {archive}")
    compiler = run("g++", "-dumpversion").strip().split(".")[0]
    owners.add(f"libstdc++-{compiler}-dev")
    owners.discard("libc6-dev")  # what comes of glibc is the sysroot's, and shared
    for owner in sorted(owners):
        yield owner, run("dpkg-query", "-W", "-f=${Version}", owner)


def others(build):
    """What is linked that is no Debian package: name, version, licence as SPDX has it, the file with its text."""
    stamp = (ROOT / "scripts/fetch_xgrammar.py").read_text()
    yield "xgrammar", re.search(r'VERSION = "([^"]+)"', stamp)[1], "Apache-2.0", ROOT / "third_party/xgrammar/LICENSE"
    for name, licence in (("dlpack", "Apache-2.0"), ("picojson", "BSD-2-Clause")):
        folder = ROOT / "third_party/xgrammar/3rdparty" / name
        text = next((p for p in (folder / "LICENSE", folder / "picojson.h") if p.is_file()), None)
        if text:
            yield name, "of xgrammar", licence, text
    cache = (build / "CMakeCache.txt").read_text()
    if "QUIRE_CUDA:BOOL=ON" in cache:
        compiler = re.search(r"CMAKE_CUDA_COMPILER:\w+=(.*)", cache)[1]
        release = re.search(r"release (\S+),", run(compiler, "--version"))[1]
        yield "cuda-cudart", release, "LicenseRef-NVIDIA-CUDA-EULA", None


CUDA_NOTICE = """The programs hold NVIDIA's CUDA runtime (libcudart_static, libcudadevrt), which NVIDIA's "CUDA Toolkit End User
License Agreement" lets applications distribute (Attachment A). Its text: https://docs.nvidia.com/cuda/eula/
"""


def lay_licences(build, to, epoch):
    """Licence texts, and an SPDX document that lists what is inside."""
    doc = to / "share/doc/quire"
    packages = []
    copy(ROOT / "LICENSE", doc / "LICENSE")

    def note(name, of_version, licence, purl=None):
        entry = {"SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name), "name": name, "versionInfo": of_version,
                 "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": licence,
                 "licenseDeclared": licence, "copyrightText": "NOASSERTION"}
        if purl:
            entry["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                      "referenceLocator": purl}]
        packages.append(entry)

    note("quire", version(), "Apache-2.0")
    for name, of_version in debian_packages(build):
        note(name, of_version, "NOASSERTION", f"pkg:deb/debian/{name}@{of_version}?arch=amd64")
        copy(f"/usr/share/doc/{name}/copyright", doc / "licences" / name)
    for name, of_version, licence, text in others(build):
        note(name, of_version, licence)
        if text:
            copy(text, doc / "licences" / name)
        else:
            write(doc / "licences" / name, CUDA_NOTICE)
    digest = hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"quire-{version()}", "documentNamespace": f"https://spdx.org/spdxdocs/quire-{version()}-{digest}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
                         "creators": ["Tool: packaging/stage.py"]},
        "packages": packages,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                           "relatedSpdxElement": packages[0]["SPDXID"]}] +
                         [{"spdxElementId": packages[0]["SPDXID"], "relationshipType": "STATIC_LINK",
                           "relatedSpdxElement": p["SPDXID"]} for p in packages[1:]],
    }
    write(doc / "quire.spdx.json", json.dumps(document, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--epoch", type=int, required=True, help="seconds since 1970 that the documents say")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    lay_programs(options.build, options.folder)
    lay_help(options.folder)
    lay_licences(options.build, options.folder, options.epoch)
    copy(ROOT / "README.md", options.folder / "share/doc/quire/README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
