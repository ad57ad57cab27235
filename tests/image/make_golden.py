#!/usr/bin/env python3
"""Writes the pictures that tests/image and the fuzz target begin with, and what PIL and transformers make of them.

    tests/image/make_golden.py         tests/fuzz/corpus/image/*, tests/data/image.json

Needs transformers, numpy and Pillow 12.0.0: newer ones resize in another order of passes (docs/images.md)."""
import hashlib
import json
import pathlib
import random

import numpy as np
import PIL
import transformers
from PIL import Image

import pictures
import references

ROOT = pathlib.Path(__file__).resolve().parent.parent


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def noise(width, height, seed):
    """As tests/image/noise.h makes it. Every third picture has 0 and 255 only, so that sums leave the range."""
    i = np.arange(width * height * 3, dtype=np.uint64)
    v = (i * 2654435761 + seed * 40503) & 0xFFFFFFFF
    v ^= v >> 15
    v = (v * 2246822519) & 0xFFFFFFFF
    b = (v >> 24).astype(np.uint8)
    if seed % 3 == 0:
        b = np.where(b >= 128, 255, 0).astype(np.uint8)
    return b.reshape(height, width, 3)


def resizes(count):
    rng = random.Random(1)
    for seed in range(count):
        small, large = ((rng.randint(1, most), rng.randint(1, most)) for most in (40, 240))
        tall = (3, rng.randint(200, 300))
        width, height = rng.choice([small, large, tall])
        to = rng.choice([(rng.randint(1, 40), rng.randint(1, 40)), (rng.randint(1, 240), rng.randint(1, 240)),
                         (width, rng.randint(1, 240)), (rng.randint(1, 240), height)])
        image = Image.fromarray(noise(width, height, seed))
        for name, resample in (("bilinear", 2), ("bicubic", 3)):
            yield [width, height, *to, name, sha256(np.array(image.resize(to, resample)))]


def plans(count):
    rng = random.Random(2)
    for _ in range(count):
        w, h = rng.choice([(rng.randint(1, 100), rng.randint(1, 100)), (rng.randint(1, 5000), rng.randint(1, 5000)),
                           (rng.randint(1, 9000), rng.randint(1, 60)), (rng.randint(1, 60), rng.randint(1, 9000)),
                           (rng.randint(1, 40) * 16, rng.randint(1, 40) * 16)])
        for name in (n for n in references.CONFIGS if n != "gemma3-scans"):
            yield [name, w, h, *references.size_for(name, w, h)]


def scans(count):
    rng = random.Random(3)
    usual = 256, 4, 1.2
    for i in range(count):
        longer = rng.randint(1, rng.choice([300, 4000]))
        shorter = rng.randint(max(1, longer // 9), longer)
        rule = usual if i % 2 else (rng.randint(1, 300), rng.randint(2, 9), rng.choice([1.0, 1.2, 1.25, 2.0, 3.5]))
        w, h = rng.choice([(longer, shorter), (shorter, longer)])
        yield [w, h, *rule, references.pieces(w, h, *rule)]
    # Where ratios are exactly those that pieces begin with, or end just below.
    for longer, shorter in ((1200, 1000), (1199, 1000), (600, 500), (768, 640), (1320, 1100), (12000, 10000)):
        yield [longer, shorter, *usual, references.pieces(longer, shorter, *usual)]


def main():
    files = {}
    folder = ROOT / "fuzz/corpus/image"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in pictures.files(19, 13, 1):
        (folder / name).write_bytes(data)
        pixels = references.pixels(data)
        files[name] = {"width": pixels.shape[1], "height": pixels.shape[0], "pixels": sha256(pixels)}
    for name in ("qwen3", "gemma3", "gemma3-scans", "gemma4"):
        (folder / f"spec-{name}.json").write_text(json.dumps(references.CONFIGS[name]))
    patches = {}
    for name, config in references.CONFIGS.items():
        for width, height in ((61, 43), (150, 30)):
            rows, columns, tokens, values = references.patches(name, Image.fromarray(noise(width, height, 1)))
            hashed = sha256(values.astype(np.float32))
            patches.setdefault(name, []).append([width, height, rows, columns, tokens, hashed])
    golden = {"made_with": {"pillow": PIL.__version__, "transformers": transformers.__version__},
              "files": files, "configs": references.CONFIGS, "patches": patches,
              "resizes": list(resizes(220)), "plans": list(plans(200)), "scans": list(scans(200))}
    lines = json.dumps(golden, indent=None).replace('], [', '],\n[').replace('}, "', '},\n"')
    (ROOT / "data/image.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
