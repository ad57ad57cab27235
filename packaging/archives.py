"""Archives whose bytes depend on what is in them alone: names sorted, owners and times given."""
import gzip
import hashlib
import io
import os
import pathlib
import stat
import tarfile
import time
import zipfile


def files_below(folder):
    """All entries below a folder as (path, name within), in the order of their names: folders before what they hold."""
    folder = pathlib.Path(folder)
    return sorted(((p, p.relative_to(folder).as_posix()) for p in folder.rglob("*")), key=lambda entry: entry[1])


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def add_to_tar(tar, path, name, epoch):
    info = tar.gettarinfo(path, name)
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = epoch
    # What may be executed is 755, everything else 644, whatever the umask was.
    if not info.issym():
        info.mode = 0o755 if info.isdir() or info.mode & stat.S_IXUSR else 0o644
    if info.isfile():
        with open(path, "rb") as file:
            tar.addfile(info, file)
    else:
        tar.addfile(info)


def write_tar(to, folder, epoch, prefix=""):
    """The folder as a tar, to an open binary file."""
    with tarfile.open(fileobj=to, mode="w", format=tarfile.PAX_FORMAT) as tar:
        if prefix:
            add_to_tar(tar, folder, prefix.rstrip("/"), epoch)
        for path, name in files_below(folder):
            add_to_tar(tar, path, prefix + name, epoch)


def gzipped(content, epoch):
    to = io.BytesIO()
    with gzip.GzipFile(fileobj=to, mode="wb", mtime=epoch, compresslevel=9) as file:
        file.write(content)
    return to.getvalue()


def add_to_zip(archive, name, content, mode, epoch):
    """`content`: bytes, or a path to take them from."""
    info = zipfile.ZipInfo(name, time.gmtime(max(epoch, 315532800))[:6])  # times of zip begin with 1980
    info.external_attr = (stat.S_IFREG | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    if isinstance(content, (bytes, str)):
        archive.writestr(info, content, compresslevel=9)
    else:
        archive.writestr(info, pathlib.Path(content).read_bytes(), compresslevel=9)


def executable(path):
    return os.access(path, os.X_OK)
