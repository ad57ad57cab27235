#!/usr/bin/env python3
"""Makes an image in the layout of the Open Container Initiative, without a daemon:
`skopeo copy oci-archive:quire-VERSION-oci.tar docker-daemon:quire:VERSION`, `podman load -i`, `docker load -i`.

    packaging/oci.py STAGE OUT
    packaging/oci.py --localai FOLDER OUT

Of STAGE (packaging/stage.py), nothing is in it but the program, the glibc of this machine, Mozilla's authorities of
certificates, and a user. Of FOLDER (packaging/localai/install.sh), it is that folder, as LocalAI takes a backend:
`local-ai backends install ocifile://$PWD/quire-localai-VERSION-oci.tar`.
"""
import argparse
import hashlib
import io
import json
import pathlib
import shutil
import sys
import tempfile
import time

import archives
import stage

USER = 65532
HOME = "/var/lib/quire"
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libresolv.so.2",
             "libnss_dns.so.2", "libnss_files.so.2")
# Of the package ca-certificates: what this machine trusts besides is none of the image's business.
CERTIFICATES = pathlib.Path("/usr/share/ca-certificates/mozilla")


def lay_base(root):
    """What the program needs of a system. /usr is merged, as Debian's is: /lib64 has the loader's name."""
    libraries = root / "usr/lib/x86_64-linux-gnu"
    for name in LIBRARIES:
        stage.copy(f"/lib/x86_64-linux-gnu/{name}", libraries / name, 0o755)
    stage.copy("/lib64/ld-linux-x86-64.so.2", root / "usr/lib64/ld-linux-x86-64.so.2", 0o755)
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")
    stage.write(root / "etc/ssl/certs/ca-certificates.crt",
                "".join(path.read_text() for path in sorted(CERTIFICATES.glob("*.crt"))))
    stage.write(root / "etc/passwd", f"root:x:0:0:root:/:/usr/sbin/nologin\n"
                                     f"quire:x:{USER}:{USER}:Quire:{HOME}:/usr/sbin/nologin\n")
    stage.write(root / "etc/group", f"root:x:0:\nquire:x:{USER}:\n")
    stage.write(root / "etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    for package in ("libc6", "ca-certificates"):
        stage.copy(f"/usr/share/doc/{package}/copyright", root / "usr/share/doc" / package / "copyright")
    for folder in (HOME.lstrip("/"), "tmp", "etc/ld.so.conf.d"):
        (root / folder).mkdir(parents=True)


def layer(root, epoch):
    to = io.BytesIO()
    archives.write_tar(to, root, epoch, owner=lambda name: USER if "/" + name == HOME else 0, modes={"tmp": 0o1777})
    return to.getvalue()


class Layout:
    """Blobs under the names of their digests."""

    def __init__(self, folder):
        self.blobs = folder / "blobs/sha256"
        self.blobs.mkdir(parents=True)

    def add(self, content, media_type):
        if not isinstance(content, bytes):
            content = json.dumps(content, sort_keys=True).encode()
        digest = hashlib.sha256(content).hexdigest()
        (self.blobs / digest).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}",
                "size": len(content)}


def write_image(to, name, version, roots, config, epoch):
    """The image of layers, one for each of `roots`: what made it and its folder."""
    with tempfile.TemporaryDirectory() as scratch:
        layout = pathlib.Path(scratch)
        blobs = Layout(layout)
        tars = [layer(root, epoch) for _, root in roots]
        layers = [blobs.add(archives.gzipped(t, epoch), "layer.v1.tar+gzip") for t in tars]
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
        labels = {"org.opencontainers.image.title": name, "org.opencontainers.image.version": version,
                  "org.opencontainers.image.licenses": "Apache-2.0"}
        config = blobs.add({
            "created": created, "architecture": "amd64", "os": "linux", "config": {**config, "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(t).hexdigest() for t in tars]},
            "history": [{"created": created, "created_by": f"packaging/oci.py: {what}"} for what, _ in roots],
        }, "config.v1+json")
        manifest = blobs.add({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                              "config": config, "layers": layers}, "manifest.v1+json")
        manifest["platform"] = {"architecture": "amd64", "os": "linux"}
        manifest["annotations"] = {"org.opencontainers.image.ref.name": version}
        stage.write(layout / "oci-layout", '{"imageLayoutVersion": "1.0.0"}')
        stage.write(layout / "index.json", json.dumps({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}))
        # `docker load` reads this one in layouts of older forms, and newer Docker the index.
        stage.write(layout / "manifest.json", json.dumps([{
            "Config": "blobs/sha256/" + config["digest"][7:], "RepoTags": [f"{name}:{version}"],
            "Layers": ["blobs/sha256/" + one["digest"][7:] for one in layers]}]))
        with open(to, "wb") as file:
            archives.write_tar(file, layout, epoch)
    print(to)


def of_program(staged, to, epoch):
    health = {"Test": ["CMD", "quire", "health"], "Interval": 10 * 10**9, "Timeout": 5 * 10**9,
              "StartPeriod": 600 * 10**9, "Retries": 3}
    config = {
        "User": f"{USER}:{USER}", "WorkingDir": HOME, "Entrypoint": ["/usr/bin/quire"], "Cmd": ["help"],
        "ExposedPorts": {"8000/tcp": {}}, "Volumes": {HOME: {}}, "StopSignal": "SIGTERM", "Healthcheck": health,
        # What NVIDIA's container toolkit reads.
        "Env": ["PATH=/usr/bin", f"HOME={HOME}", "LANG=C.UTF-8", "NVIDIA_VISIBLE_DEVICES=all",
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]}
    with tempfile.TemporaryDirectory() as scratch:
        base, own = pathlib.Path(scratch) / "base", pathlib.Path(scratch) / "own"
        base.mkdir()
        lay_base(base)
        stage.copy(staged / "bin/quire", own / "usr/bin/quire", 0o755)
        shutil.copytree(staged / "share/doc/quire", own / "usr/share/doc/quire")
        write_image(to, "quire", stage.version(), [("glibc, certificates", base), ("quire", own)], config, epoch)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--localai", action="store_true")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--epoch", type=int, required=True)
    options = parser.parse_args()
    if options.localai:
        to = options.out / f"quire-localai-{stage.version()}-oci.tar"
        write_image(to, "quire-localai", stage.version(), [("LocalAI's backend", options.folder)],
                    {"Entrypoint": ["/run.sh"]}, options.epoch)
    else:
        of_program(options.folder, options.out / f"quire-{stage.version()}-oci.tar", options.epoch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
