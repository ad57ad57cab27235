#!/usr/bin/env python3
"""Fetches NVIDIA's wheel of CUDA's runtime for 64-bit ARM, checks it, and lays its libraries into
third_party/cudart-aarch64: what the preset `cuda-aarch64` links with, since a toolkit for x86-64 has its own alone.

Does nothing where they are there already, of this version.
"""
import io
import sys
import zipfile

import fetched

VERSION = "13.0.96"
SHA256 = "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55"
URL = (
    "https://files.pythonhosted.org/packages/87/4f/17d7b9b8e285199c58ce28e31b5c5bbaa4d8271af06a89b6405258245de2/"
    f"nvidia_cuda_runtime-{VERSION}-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl"
)


def make(folder):
    libraries = folder / "libraries"
    libraries.mkdir()
    with zipfile.ZipFile(io.BytesIO(fetched.fetch(f"CUDA's runtime {VERSION} for ARM", URL, SHA256))) as wheel:
        for name in ("libcudart_static.a", "libcudadevrt.a"):
            (libraries / name).write_bytes(wheel.read(f"nvidia/cu13/lib/{name}"))
    return libraries


def main():
    try:
        fetched.lay("cudart-aarch64", f"{SHA256}\n", make)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        print(f"setup: CUDA's runtime for ARM could not be had from {URL}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
