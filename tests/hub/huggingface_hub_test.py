#!/usr/bin/env python3
"""The cache, shared with huggingface_hub itself: what one has fetched, the other finds.

    huggingface_hub_test.py build/release/quire build/release/fake_hub

Exit code 77: huggingface_hub is not installed (docs/testing.md)."""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import huggingface_hub  # noqa: F401
except ImportError:
    print("huggingface_hub is not installed")
    sys.exit(77)

MODEL = "org/both"
FILES = {"config.json": 300, "model.safetensors": 300_000, "tokenizer.json": 50_000, "sub/extra.json": 10}


def make_files(folder):
    for index, (name, size) in enumerate(FILES.items()):
        path = folder / MODEL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(hashlib.sha512(bytes([index])).digest() * (size // 64 + 1))


def fetch_with_theirs(url, cache, offline):
    """In a process of its own: the package reads its settings when it is imported."""
    script = ("import sys, huggingface_hub as h\n"
              "print(h.snapshot_download(sys.argv[1], cache_dir=sys.argv[2], "
              "allow_patterns=['*.json', '*.safetensors'], ignore_patterns=['sub/*']))")
    environment = dict(os.environ, HF_ENDPOINT=url, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1",
                       HF_HUB_OFFLINE="1" if offline else "0", HF_HOME=str(pathlib.Path(cache).parent / "home"))
    done = subprocess.run([sys.executable, "-c", script, MODEL, str(cache)], env=environment, text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def fetch_with_ours(program, url, cache, *more):
    done = subprocess.run([program, "pull", MODEL, "--hub", url, "--hub-cache", cache, "--json", *more], text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def same_content(source, snapshot):
    for name in FILES:
        if "/" not in name:
            assert (pathlib.Path(snapshot) / name).read_bytes() == (source / MODEL / name).read_bytes(), name


def main():
    program, fake_hub = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "source"
        make_files(source)
        with subprocess.Popen([fake_hub, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hub:
            url = hub.stdout.readline().strip()
            cache = pathlib.Path(folder) / "ours" / "hub"
            ours = fetch_with_ours(program, url, cache)
            assert ours["fetched"] > 0
            same_content(source, ours["path"])
            assert fetch_with_theirs(url, cache, offline=True) == ours["path"], "they do not find what we fetched"
            assert fetch_with_theirs(url, cache, offline=False) == ours["path"]

            cache = pathlib.Path(folder) / "theirs" / "hub"
            theirs = fetch_with_theirs(url, cache, offline=False)
            same_content(source, theirs)
            again = fetch_with_ours(program, url, cache)
            assert again["path"] == theirs and again["fetched"] == 0, again
            offline = fetch_with_ours(program, url, cache, "--offline")
            assert offline["path"] == theirs
            scan = subprocess.run([sys.executable, "-c",
                                   "import sys, huggingface_hub as h; i = h.scan_cache_dir(sys.argv[1]);"
                                   "assert not i.warnings, i.warnings; print(len(i.repos))",
                                   str(pathlib.Path(folder) / "ours" / "hub")], text=True, capture_output=True)
            assert scan.returncode == 0 and scan.stdout.strip() == "1", scan.stderr
            hub.stdin.close()
    print("both directions: ok")


if __name__ == "__main__":
    main()
