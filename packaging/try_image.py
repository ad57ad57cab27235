#!/usr/bin/env python3
"""Unpacks an image, checks its layout, and starts it as Docker or Kubernetes would: with runc, as the image's user,
without capabilities, with a root that nobody can write, a volume, and the image's own check of its health.

    packaging/try_image.py IMAGE.tar MODEL SCRATCH

Prints when the first answer was there, in seconds since 1970. As root.
"""
import gzip
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

import try_serving

PORT = 8000  # of the image's check of its health


def unpack(image, scratch):
    """Lays the layers into SCRATCH/rootfs, and returns the image's configuration."""
    layout = scratch / "layout"
    with tarfile.open(image) as tar:
        tar.extractall(layout)

    def blob(of):
        content = (layout / "blobs" / of["digest"].replace(":", "/")).read_bytes()
        assert "sha256:" + hashlib.sha256(content).hexdigest() == of["digest"] and len(content) == of["size"], of
        return content

    assert json.loads((layout / "oci-layout").read_text())["imageLayoutVersion"] == "1.0.0"
    manifest = json.loads(blob(json.loads((layout / "index.json").read_text())["manifests"][0]))
    config = json.loads(blob(manifest["config"]))
    for one, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        assert "sha256:" + hashlib.sha256(gzip.decompress(blob(one))).hexdigest() == diff_id, one
        with tarfile.open(layout / "blobs" / one["digest"].replace(":", "/")) as tar:
            tar.extractall(scratch / "rootfs")
    named = json.loads((layout / "manifest.json").read_text())[0]
    assert named["Config"] == "blobs/" + manifest["config"]["digest"].replace(":", "/")
    shutil.rmtree(layout)
    return config["config"]


def bundle(scratch, config, model):
    """What runc wants to know of a container, but for its command."""
    subprocess.run(["runc", "spec", "--bundle", scratch], check=True)
    spec = json.loads((scratch / "config.json").read_text())
    user, group = (int(n) for n in config["User"].split(":"))
    assert user and group, "the image is root's"
    volume = scratch / "volume"
    shutil.copytree(scratch / "rootfs" / config["WorkingDir"].lstrip("/"), volume)
    shutil.chown(volume, user, group)
    spec["process"].update({"terminal": False, "user": {"uid": user, "gid": group}, "env": config["Env"],
                            "cwd": config["WorkingDir"], "noNewPrivileges": True, "capabilities": {}})
    spec["root"] = {"path": "rootfs", "readonly": True}
    bound = {"type": "bind", "options": ["rbind", "rw"]}
    spec["mounts"] += [{**bound, "source": str(volume), "destination": next(iter(config["Volumes"]))},
                       {**bound, "source": str(model), "destination": "/model.gguf", "options": ["rbind", "ro"]},
                       {"type": "tmpfs", "source": "tmpfs", "destination": "/tmp"}]
    # Its port is asked from here.
    spec["linux"]["namespaces"] = [n for n in spec["linux"]["namespaces"] if n["type"] != "network"]
    return spec


def main():
    image, model, scratch = (pathlib.Path(p).resolve() for p in sys.argv[1:])
    config = unpack(image, scratch)
    spec = bundle(scratch, config, model)
    name = scratch.name

    def start(arguments):
        spec["process"]["args"] = [*config["Entrypoint"], *arguments]
        (scratch / "config.json").write_text(json.dumps(spec))
        return subprocess.Popen(["runc", "run", "--bundle", scratch, name], stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    kind, *health = config["Healthcheck"]["Test"]
    assert kind == "CMD"
    (version, error) = start(["version"]).communicate(timeout=60)
    assert version.startswith("quire "), error
    answered = try_serving.check(
        start, lambda: subprocess.run(["runc", "exec", name, *health], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL).returncode, "/model.gguf", PORT)
    print(f"{answered:.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
