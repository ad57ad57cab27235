#!/usr/bin/env python3
"""Writes the seed files of fuzz_gguf: tests/fuzz/make_gguf_corpus.py tests/fuzz/corpus/gguf"""
import pathlib
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, x):
    return string(x) if kind == STRING else struct.pack("<" + FORMATS[kind], x)


def entry(key, kind, x):
    if isinstance(x, list):
        elements = b"".join(value(kind, e) for e in x)
        return string(key) + struct.pack("<IIQ", ARRAY, kind, len(x)) + elements
    return string(key) + struct.pack("<I", kind) + value(kind, x)


def model(entries, tensors, version=3, alignment=32):
    """tensors: (name, dims, type, payload)"""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entry(*e) for e in entries)
    offset = 0
    for name, dims, kind, payload in tensors:
        out += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        offset += -(-len(payload) // alignment) * alignment
    if tensors:
        out += bytes(-len(out) % alignment)
    for *_, payload in tensors:
        out += payload + bytes(-len(payload) % alignment)
    return out


def split(no, count, total):
    return [("split.no", U16, no), ("split.count", U16, count), ("split.tensors.count", I32, total)]


# Block formats: GGUF id, elements, bytes.
BLOCKS = [(1, 1, 2), (30, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (12, 256, 144),
          (13, 256, 176), (14, 256, 210), (39, 32, 17), (40, 64, 36)]

scalars = [(f"s{kind}", kind, 1) for kind in FORMATS] + [("text", STRING, "chat {{ x }}"), ("f", F32, 1e-6)]
arrays = [("a", I32, [1, -2, 3]), ("t", STRING, ["<s>", "", "\u0120the"]), ("b", BOOL, [True, False]), ("e", F64, [])]
ramp = bytes(range(256))
shard = model(split(0, 2, 2) + [("general.architecture", STRING, "llama")], [("a", [8], 0, ramp[:32])])

FILES = {
    "empty": model([], []),
    "scalars": model(scalars, []),
    "arrays_v2": model(arrays, [], version=2),
    "example": model([("general.architecture", STRING, "llama"), ("general.alignment", U32, 32), ("x.arr", I32, [1, -2, 3])],
                     [("a", [2, 3], 0, ramp[:24]), ("b", [32], 8, ramp[:34])]),
    "aligned_64": model([("general.alignment", U32, 64)], [("a", [4, 2, 2], 0, ramp[:64]), ("none", [0, 7], 0, b"")], alignment=64),
    "importance": model([("general.type", STRING, "imatrix"), ("imatrix.datasets", STRING, ["a.txt"]), ("imatrix.chunk_count", U32, 3)],
                        [("w.in_sum2", [2, 2], 0, struct.pack("<4f", 1, 2, 0, 0)), ("w.counts", [1, 2], 0, struct.pack("<2f", 3, 0))]),
    "split": shard + bytes(-len(shard) % 8) + model(split(1, 2, 2), [("b", [32], 8, ramp[:34])]),
} | {f"block_{kind}": model([], [("t", [elems], kind, ramp[:size])]) for kind, elems, size in BLOCKS}

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, data in FILES.items():
    (folder / f"{name}.gguf").write_bytes(data)
