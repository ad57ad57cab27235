#!/usr/bin/env python3
"""Writes a Hugging Face folder with FP8 weights of a folder in bf16: to measure what FP8 weights and activations cost.

    tools/quantise_fp8_folder.py BF16_FOLDER FOLDER

As published FP8 models are made: projections and feed-forward matrices become E4M3 with a scale for each block of 128 x
128, its largest magnitude / 448; embeddings, head, routers, norms, what has fewer than 128 rows or columns, and the
block for multi-token prediction stay as they are. config.json says that activations are made FP8 as they come. Needs
numpy.
"""

import argparse
import json
import pathlib
import shutil
import struct
import sys

import numpy as np

BLOCK, LARGEST = 128, 448.0
KEPT = ("embed_tokens", "lm_head", "mlp.gate.weight", "shared_expert_gate", "norm", "conv1d", "mtp.", "in_proj_a",
        "in_proj_b")


def codes_of_all():
    """The numbers of the codes 0 to 126."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))


NUMBERS = codes_of_all()
BORDERS = (NUMBERS[1:] + NUMBERS[:-1]) / 2


def to_e4m3(x):
    """To the nearest, ties to even."""
    size = np.abs(x)
    code = np.searchsorted(BORDERS, size, side="left")
    ties = (code < len(BORDERS)) & (size == BORDERS[np.minimum(code, len(BORDERS) - 1)]) & (code % 2 == 1)
    return ((code + ties) | (np.signbit(x).astype(np.int64) << 7)).astype(np.uint8)


def quantise(matrix):
    rows, cols = matrix.shape
    grid = (-(-rows // BLOCK), -(-cols // BLOCK))
    padded = np.zeros((grid[0] * BLOCK, grid[1] * BLOCK))
    padded[:rows, :cols] = matrix
    blocks = padded.reshape(grid[0], BLOCK, grid[1], BLOCK)
    scales = np.maximum(np.abs(blocks).max(axis=(1, 3)), 2.0**-100) / LARGEST
    scales = scales.astype(np.float32)
    codes = to_e4m3(blocks / scales[:, None, :, None].astype(np.float64))
    return codes.reshape(padded.shape)[:rows, :cols], scales


def tensors_of(file):
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            yield name, t["dtype"], t["shape"], data[8 + length + begin:8 + length + end]


def quantised(name, dtype, shape, data):
    if dtype != "BF16" or len(shape) < 2 or min(shape[-2:]) < BLOCK or any(word in name for word in KEPT):
        yield name, dtype, shape, data
        return
    values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(-1, *shape[-2:])
    pairs = [quantise(matrix.astype(np.float64)) for matrix in values]
    grid = list(shape[:-2]) + list(pairs[0][1].shape)
    yield name, "F8_E4M3", shape, b"".join(np.ascontiguousarray(codes).tobytes() for codes, _ in pairs)
    yield name + "_scale_inv", "F32", grid, b"".join(scales.tobytes() for _, scales in pairs)


def main(o):
    source, folder = pathlib.Path(o.source), pathlib.Path(o.folder)
    folder.mkdir(parents=True, exist_ok=True)
    index = {}
    for file in sorted(source.glob("*.safetensors")):
        header, payloads, at = {}, [], 0
        for tensor in tensors_of(file):
            for name, dtype, shape, data in quantised(*tensor):
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
                at += len(data)
                payloads.append(data)
                index[name] = file.name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / file.name).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(payloads))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [BLOCK, BLOCK]}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("source")
    parser.add_argument("folder")
    sys.exit(main(parser.parse_args()))
