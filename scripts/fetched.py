"""What setup scripts fetch: files of a registry, by their address and their SHA-256, kept in ~/.cache/quire, so that a
further checkout needs no network; and folders of third_party/ that are made of them once."""
import hashlib
import os
import pathlib
import shutil
import tempfile
import urllib.request

THIRD_PARTY = pathlib.Path(__file__).resolve().parent.parent / "third_party"
KEPT = pathlib.Path.home() / ".cache" / "quire"


def fetch(what, url, sha256):
    """The file's bytes. OSError or ValueError: it could not be had, or is another one."""
    kept = KEPT / url.rsplit("/", 1)[1]
    is_right = lambda content: hashlib.sha256(content).hexdigest() == sha256
    if kept.is_file() and is_right(content := kept.read_bytes()):
        return content
    print(f"setup: fetching {what}", flush=True)
    with urllib.request.urlopen(url, timeout=60) as answer:
        content = answer.read()
    if not is_right(content):
        raise ValueError(f"its SHA-256 is not {sha256}")
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=KEPT, delete=False) as file:
        file.write(content)
    os.replace(file.name, kept)
    return content


def lay(name, stamp, make):
    """third_party/NAME as make(scratch folder) returns it; nothing is done where it is of this stamp already."""
    target = THIRD_PARTY / name
    stamped = target / ".fetched"
    if stamped.is_file() and stamped.read_text() == stamp:
        return
    THIRD_PARTY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=THIRD_PARTY) as folder:
        made = make(pathlib.Path(folder))
        (made / ".fetched").write_text(stamp)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
