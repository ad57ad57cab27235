"""Archives whose bytes depend on what is in them alone: names sorted, owners and times given."""
import gzip
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


def write_tar(to, folder, epoch, owner=lambda name: 0, modes={}):
    """What the folder holds as a tar, to an open binary file.

    `owner`: the number of an entry's user and group. `modes`: of entries by their names; of others what may be executed
    is 755 and everything else 644, whatever the umask was.
    """
    with tarfile.open(fileobj=to, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, name in files_below(folder):
            info = tar.gettarinfo(path, name)
            info.uid = info.gid = owner(name)
            info.uname = info.gname = ""
            info.mtime = epoch
            if not info.issym():
                info.mode = modes.get(name, 0o755 if info.isdir() or os.access(path, os.X_OK) else 0o644)
            if info.isfile():
                with open(path, "rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)


def gzipped(content, epoch):
    to = io.BytesIO()
    with gzip.GzipFile(fileobj=to, mode="wb", mtime=epoch, compresslevel=9, filename="") as file:
        file.write(content)
    return to.getvalue()


def add_to_zip(archive, name, content, mode, epoch):
    info = zipfile.ZipInfo(name, time.gmtime(max(epoch, 315532800))[:6])  # times of zip begin with 1980
    info.external_attr = (stat.S_IFREG | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content, compresslevel=9)
