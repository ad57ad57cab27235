#!/usr/bin/env python3
"""Makes an image in the layout of the Open Container Initiative, without a daemon:
`skopeo copy oci-archive:quire-VERSION-oci.tar docker-daemon:quire:VERSION`, `podman load -i`, `docker load -i`.

    packaging/oci.py STAGE OUT

Nothing is in it but the program, the glibc of this machine, certificates of authorities, and a user.
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
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")


def lay_base(root):
    """What the program needs of a system. /usr is merged, as Debian's is: /lib64 has the loader's name."""
    libraries = root / "usr/lib/x86_64-linux-gnu"
    for name in LIBRARIES:
        stage.copy(f"/lib/x86_64-linux-gnu/{name}", libraries / name, 0o755)
    stage.copy("/lib64/ld-linux-x86-64.so.2", root / "usr/lib64/ld-linux-x86-64.so.2", 0o755)
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")
    stage.copy(CERTIFICATES, root / "etc/ssl/certs/ca-certificates.crt")
    stage.write(root / "etc/passwd", f"root:x:0:0:root:/:/usr/sbin/nologin\n"
                                     f"quire:x:{USER}:{USER}:Quire:{HOME}:/usr/sbin/nologin\n")
    stage.write(root / "etc/group", f"root:x:0:\nquire:x:{USER}:\n")
    stage.write(root / "etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    stage.copy("/usr/share/doc/libc6/copyright", root / "usr/share/doc/libc6/copyright")
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--epoch", type=int, required=True)
    options = parser.parse_args()
    version = stage.version()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        base, own = scratch / "base", scratch / "own"
        base.mkdir()
        lay_base(base)
        stage.copy(options.stage / "bin/quire", own / "usr/bin/quire", 0o755)
        shutil.copytree(options.stage / "share/doc/quire", own / "usr/share/doc/quire")
        layout = scratch / "layout"
        layout.mkdir()
        blobs = Layout(layout)
        tars = [layer(root, options.epoch) for root in (base, own)]
        layers = [blobs.add(archives.gzipped(t, options.epoch), "layer.v1.tar+gzip") for t in tars]
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(options.epoch))
        health = {"Test": ["CMD", "quire", "health"], "Interval": 10 * 10**9, "Timeout": 5 * 10**9,
                  "StartPeriod": 600 * 10**9, "Retries": 3}
        config = blobs.add({
            "created": created, "architecture": "amd64", "os": "linux",
            "config": {
                "User": f"{USER}:{USER}", "WorkingDir": HOME, "Entrypoint": ["/usr/bin/quire"],
                "Cmd": ["help"], "ExposedPorts": {"8000/tcp": {}}, "Volumes": {HOME: {}},
                "StopSignal": "SIGTERM", "Healthcheck": health,
                # What NVIDIA's container toolkit reads.
                "Env": ["PATH=/usr/bin", f"HOME={HOME}", "LANG=C.UTF-8", "NVIDIA_VISIBLE_DEVICES=all",
                        "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
                "Labels": {"org.opencontainers.image.title": "quire", "org.opencontainers.image.version": version,
                           "org.opencontainers.image.licenses": "Apache-2.0"}},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(t).hexdigest() for t in tars]},
            "history": [{"created": created, "created_by": "packaging/oci.py: glibc, certificates"},
                        {"created": created, "created_by": "packaging/oci.py: quire"}]}, "config.v1+json")
        manifest = blobs.add({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                              "config": config, "layers": layers}, "manifest.v1+json")
        manifest["annotations"] = {"org.opencontainers.image.ref.name": version}
        stage.write(layout / "oci-layout", '{"imageLayoutVersion": "1.0.0"}')
        stage.write(layout / "index.json", json.dumps({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}))
        # `docker load` reads this one in layouts of older forms, and newer Docker the index.
        stage.write(layout / "manifest.json", json.dumps([{
            "Config": "blobs/sha256/" + config["digest"][7:], "RepoTags": [f"quire:{version}"],
            "Layers": ["blobs/sha256/" + one["digest"][7:] for one in layers]}]))
        to = options.out / f"quire-{version}-oci.tar"
        with open(to, "wb") as file:
            archives.write_tar(file, layout, options.epoch)
    print(to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
