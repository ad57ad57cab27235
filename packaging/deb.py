#!/usr/bin/env python3
"""Makes the .deb of what packaging/stage.py laid out: programs, pages of man, completions, the service.

    packaging/deb.py STAGE OUT
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import archives
import stage

HERE = pathlib.Path(__file__).resolve().parent
CONTROL = """Package: quire
Version: {version}
Section: science
Priority: optional
Architecture: amd64
Maintainer: The Quire authors <quire@example.org>
Installed-Size: {size}
Depends: libc6 (>= 2.31), adduser
Recommends: ca-certificates
Description: server for large language models
 Serves large language models from one program, on CPUs and NVIDIA GPUs, with
 the APIs of OpenAI, Anthropic and Ollama. The text that a request gets does
 not depend on what else is served.
 .
 GPUs need NVIDIA's driver and nothing else.
"""


def licence_text(path):
    """Debian wants the whole text of the Apache licence in one place alone."""
    text = path.read_text(errors="replace")
    if "TERMS AND CONDITIONS FOR USE" not in text:
        return text
    return "The Apache License, version 2.0: /usr/share/common-licenses/Apache-2.0\n"


def lay(staged, root, epoch, version):
    usr = root / "usr"
    # LocalAI has a package of its own for its backend.
    shutil.copytree(staged, usr, symlinks=True, ignore=shutil.ignore_patterns("quire-localai"))
    doc = usr / "share/doc/quire"
    licences = "".join(f"\n== {name}\n\n{licence_text(path)}" for path, name in archives.files_below(doc / "licences"))
    (doc / "LICENSE").unlink()
    shutil.rmtree(doc / "licences")
    stage.write(doc / "copyright",
                "Quire is under the Apache License, version 2.0: /usr/share/common-licenses/Apache-2.0\n\n"
                f"What is linked into the programs has these:\n{licences}")
    when = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(epoch))
    changes = f"quire ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n" \
              f" -- The Quire authors <quire@example.org>  {when}\n"
    stage.write_gzipped(doc / "changelog.gz", changes)
    stage.copy(HERE / "debian/quire.service", root / "usr/lib/systemd/system/quire.service")
    stage.copy(HERE / "debian/serve.conf", root / "etc/quire/serve.conf")
    stage.copy(HERE / "debian/lintian-overrides", usr / "share/lintian/overrides/quire")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--epoch", type=int, required=True)
    options = parser.parse_args()
    version = stage.version()
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch) / "root"
        lay(options.stage, root, options.epoch, version)
        files = [(p, n) for p, n in archives.files_below(root) if p.is_file()]
        control = root / "DEBIAN"
        size = sum(p.stat().st_size for p, _ in files) // 1024
        stage.write(control / "control", CONTROL.format(version=version, size=size))
        stage.write(control / "conffiles", "/etc/quire/serve.conf\n")
        sums = "".join(f"{stage.run('md5sum', p).split()[0]}  {n}\n" for p, n in files if not n.startswith("etc/"))
        stage.write(control / "md5sums", sums)
        for script in ("postinst", "prerm", "postrm"):
            stage.copy(HERE / "debian" / script, control / script, 0o755)
        for path, _ in archives.files_below(root):
            if path.is_dir():
                path.chmod(0o755)
        root.chmod(0o755)
        to = options.out / f"quire_{version}_amd64.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "-z6", "--build", root, to], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": str(options.epoch)})
    print(to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
