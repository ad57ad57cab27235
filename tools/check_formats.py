#!/usr/bin/env python3
"""Quantised weights beside independent decoders (numpy, ml_dtypes): every matrix of a model folder gets random codes,
all codes there are among them, in each format that Quire reads. What the codes stand for is worked out here and written
as F32 into a second folder. `quire convert --outtype f32` must make the same file of both, bit for bit, and the first
folder, run as it is, must say on the reference device what the second one says, to the last bit of its logprobs; or what
its own conversion says where a factor or a rounding comes after the sums.

usage: check_formats.py PROGRAM FOLDER [--only TEXT]

FOLDER is a model in bf16. Needs numpy and ml_dtypes; without them, or without FOLDER, it says so and ends with 77, which
ctest takes for skipped.
"""
import argparse
import filecmp
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import ml_dtypes
    import numpy as np
except ImportError as missing:
    print("check_formats: skipped: %s (needs numpy and ml_dtypes)" % missing)
    sys.exit(77)

ELEMENTS = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F8_E4M3": ml_dtypes.float8_e4m3fn, "U8": np.uint8,
            "I32": np.int32, "I64": np.int64}
NAMES = {np.dtype(t): name for name, t in ELEMENTS.items()}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


# ---- safetensors ----
def read_tensors(folder):
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        for name, t in header.items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            array = np.frombuffer(data[8 + size + begin:8 + size + end], dtype=ELEMENTS[t["dtype"]])
            out[name] = array.reshape(t["shape"])
    return out


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            f.write(np.ascontiguousarray(t).tobytes())


# ---- Formats: tensors by suffix, and values in float64 ----
def e4m3_codes(rng, shape, positive=False):
    """Every code but those that are not numbers, about equally often."""
    codes = rng.integers(0, 128 if positive else 256, shape, dtype=np.uint8)
    codes[(codes & 127) == 127] = 126
    return codes.view(ml_dtypes.float8_e4m3fn)


def expand(scales, shape, rows, cols):
    return np.repeat(np.repeat(scales, rows, axis=0), cols, axis=1)[:shape[0], :shape[1]]


def fp8(rng, shape, kind, power=False):
    codes = e4m3_codes(rng, shape)
    grid = {"block": (-(-shape[0] // 128), -(-shape[1] // 128)), "row": (shape[0], 1), "tensor": (1, 1)}[kind]
    each = {"block": (128, 128), "row": (1, shape[1]), "tensor": shape}[kind]
    scales = (rng.uniform(1, 1 if power else 2, grid) * 2.0 ** rng.integers(-14, -9, grid)).astype(np.float32)
    values = codes.astype(np.float64) * expand(scales.astype(np.float64), shape, *each)
    stored = scales.reshape(()) if kind == "tensor" else scales
    return {".weight": codes, ".weight_scale_inv" if kind == "block" else ".weight_scale": stored}, values


def nvfp4(rng, shape, kind):
    pairs = rng.integers(0, 256, (shape[0], shape[1] // 2), dtype=np.uint8)
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(shape).view(ml_dtypes.float4_e2m1fn)
    scales = e4m3_codes(rng, (shape[0], shape[1] // 16), positive=True)
    factor = np.float32(2.0 ** -12 * rng.uniform(1, 2))
    stored = {".weight" if kind == "modelopt" else ".weight_packed": pairs, ".weight_scale": scales}
    if kind == "modelopt":
        stored[".weight_scale_2"] = np.array(factor, np.float32)
    else:  # a divisor
        stored[".weight_global_scale"] = np.array([np.float32(1) / factor], np.float32)
        factor = np.float32(1) / stored[".weight_global_scale"][0]
    values = codes.astype(np.float64) * expand(scales.astype(np.float64), shape, 1, 16) * np.float64(factor)
    return stored, values


def words(numbers, order):
    """Eight 4-bit numbers along the last axis in each word."""
    out = np.zeros(numbers.shape[:-1] + (numbers.shape[-1] // 8,), np.uint32)
    for place, number in enumerate(order):
        out |= numbers[..., number::8].astype(np.uint32) << np.uint32(4 * place)
    return out.view(np.int32)


def int4(rng, shape, kind):
    group = 64 if kind == "awq" else 32 if kind.startswith("packed") else 128
    groups = shape[1] // group
    codes = rng.integers(0, 16, shape, dtype=np.uint8)
    zeros = rng.integers(1, 16, (shape[0], groups), dtype=np.uint8)
    if kind in ("packed", "gptq_symmetric"):
        zeros[:] = 8
    scales = (rng.uniform(1, 2, (shape[0], groups)) * 2.0 ** -9).astype(ml_dtypes.bfloat16 if kind == "packed" else np.float16)
    group_of = np.arange(shape[1], dtype=np.int32) // group
    if kind == "gptq_sorted":
        group_of = rng.permutation(group_of)
    values = (codes.astype(np.int64) - zeros.astype(np.int64)[:, group_of]) * scales.astype(np.float64)[:, group_of]
    plain = range(8)
    if kind.startswith("packed"):
        stored = {".weight_packed": words(codes, plain), ".weight_scale": scales, ".weight_shape": np.array(shape, np.int64)}
        if kind == "packed_zeros":
            stored[".weight_zero_point"] = words(zeros.T, plain).T.copy()
        return stored, values
    if kind == "awq":
        return {".qweight": words(codes.T, AWQ_ORDER), ".qzeros": words(zeros.T, AWQ_ORDER), ".scales": scales.T.copy()}, values
    less = 0 if kind == "gptq_v2" else 1
    return {".qweight": words(codes, plain).T.copy(), ".qzeros": words(zeros.T - less, plain), ".scales": scales.T.copy(),
            ".g_idx": group_of}, values


FORMATS = {
    "fp8 block": (lambda r, s: fp8(r, s, "block"), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "fp8 row": (lambda r, s: fp8(r, s, "row"), {"quant_method": "compressed-tensors", "format": "float-quantized"}),
    "fp8 tensor": (lambda r, s: fp8(r, s, "tensor"), {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "nvfp4 modelopt": (lambda r, s: nvfp4(r, s, "modelopt"), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nvfp4 packed": (lambda r, s: nvfp4(r, s, "packed"), {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
    "int4 packed": (lambda r, s: int4(r, s, "packed"), {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "int4 packed, zero points": (lambda r, s: int4(r, s, "packed_zeros"), {"quant_method": "compressed-tensors"}),
    "gptq": (lambda r, s: int4(r, s, "gptq"), {"quant_method": "gptq", "bits": 4}),
    "gptq symmetric": (lambda r, s: int4(r, s, "gptq_symmetric"), {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}),
    "gptq v2": (lambda r, s: int4(r, s, "gptq_v2"), {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}),
    "gptq sorted": (lambda r, s: int4(r, s, "gptq_sorted"), {"quant_method": "gptq", "bits": 4}),
    "awq": (lambda r, s: int4(r, s, "awq"), {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    # Attention in FP8, feed-forward in NVFP4, each role with a factor of its own.
    "mixed": (None, {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}),
}


def single_experts(tensors):
    """Packed experts as one matrix for each expert and role, as quantised model folders have them."""
    out = {}
    for name, t in tensors.items():
        stem = name.rsplit(".", 1)[0]
        if name.endswith("experts.gate_up_proj"):
            half = t.shape[1] // 2
            for e in range(t.shape[0]):
                out["%s.%d.gate_proj.weight" % (stem, e)] = t[e, :half]
                out["%s.%d.up_proj.weight" % (stem, e)] = t[e, half:]
        elif name.endswith("experts.down_proj"):
            for e in range(t.shape[0]):
                out["%s.%d.down_proj.weight" % (stem, e)] = t[e]
        else:
            out[name] = t
    return out


def make_folders(source, tensors, name, seed, quantised, plain):
    rng = np.random.default_rng(seed)
    maker, config = FORMATS[name]
    stored, values, count = {}, {}, 0
    for tensor, t in tensors.items():
        if not tensor.endswith("proj.weight") or t.shape[0] % 8 or t.shape[1] % 128:
            stored[tensor] = values[tensor] = t
            continue
        if maker is not None:
            parts, decoded = maker(rng, t.shape)
        else:
            parts, decoded = nvfp4(rng, t.shape, "modelopt") if ".mlp." in tensor else fp8(rng, t.shape, "tensor", power=True)
        count += t.size
        stored.update({tensor[:-len(".weight")] + suffix: part for suffix, part in parts.items()})
        values[tensor] = decoded.astype(np.float32)
    for folder, content, more in ((quantised, stored, {"quantization_config": config}), (plain, values, {})):
        folder.mkdir()
        for path in source.iterdir():
            if path.suffix != ".safetensors" and path.name != "model.safetensors.index.json":
                shutil.copy(path, folder / path.name)
        document = json.loads((source / "config.json").read_text())
        os.chmod(folder / "config.json", 0o644)
        (folder / "config.json").write_text(json.dumps(dict(document, **more)))
        write_tensors(folder / "model.safetensors", content)
    return count


def check(program, source, tensors, name, seed, work):
    quantised, plain = work / "quantised", work / "plain"
    count = make_folders(source, tensors, name, seed, quantised, plain)

    def quire(*arguments):
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise SystemExit("%s: quire %s: %s" % (name, arguments[0], done.stderr.decode()))
        return done.stdout

    for folder in (quantised, plain):
        quire("convert", folder, work / (folder.name + ".gguf"), "--outtype", "f32", "--name", "m")
    same = filecmp.cmp(work / "quantised.gguf", work / "plain.gguf", shallow=False)

    def said(model):
        out = json.loads(quire("run", "-m", model, "--device", "reference", "--tokens", "5,6,7,8,9,10,11,12", "-n", "4",
                               "--ignore-eos", "--temperature", "0", "--logprobs", "5", "--json"))
        return [out["tokens"], out["logprobs"]]

    # With NVFP4 sums are multiplied by the matrix's factor, and sorted groups are rounded: these as their own file has them.
    other = plain
    if any(word in name for word in ("nvfp4", "mixed", "sorted")):
        other = work / "auto.gguf"
        quire("convert", quantised, other)
    same_run = said(quantised) == said(other)
    print("%-26s %9d values %s, run as it is %s" % (name, count, "equal" if same else "DIFFER", "equal" if same_run else "DIFFERS"),
          flush=True)
    return same and same_run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if not (options.folder / "config.json").exists():
        print("check_formats: skipped: %s is not there" % options.folder)
        return 77
    tensors = single_experts(read_tensors(options.folder))
    good = True
    for seed, name in enumerate(FORMATS):
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as work:
            good &= check(options.program, options.folder, tensors, name, seed, pathlib.Path(work))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
