#!/usr/bin/env python3
"""Random pictures beside PIL and transformers: decoded, resized and cut into patches, bit for bit.

    compare_test.py build/release/quire build/release/image_tool [SEED]

Exit code 77: transformers, or a Pillow whose passes are in the order that Quire keeps, is not installed
(docs/testing.md)."""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import PIL
    from PIL import Image

    import pictures
    import references
except ImportError as error:
    print(f"not installed: {error}")
    sys.exit(77)

# docs/images.md
if tuple(int(n) for n in PIL.__version__.split(".")[:2]) > (12, 1):
    print(f"Pillow {PIL.__version__} resizes in another order of passes: 12.0.0 is compared with")
    sys.exit(77)

TOOL = sys.argv[2]
SCRATCH = pathlib.Path(tempfile.mkdtemp())
failures = []


def run(what, data, *arguments):
    """Numbers of the first line and the bytes behind it; a sentence where the tool refuses."""
    file = SCRATCH / "picture"
    file.write_bytes(data)
    done = subprocess.run([TOOL, what, file, *map(str, arguments)], capture_output=True)
    if done.returncode != 0:
        return done.stderr.decode(), b""
    head, body = done.stdout.split(b"\n", 1)
    return tuple(int(n) for n in head.split()), body


def check(name, found, expected_head, expected):
    head, body = found
    if head != expected_head or body != np.ascontiguousarray(expected).tobytes():
        failures.append(name)
        print(f"differs: {name}: {head} {expected_head}")


def compare_files(rng):
    count = 0
    for seed in range(8):
        longest = rng.choice([30, 300])
        width, height = rng.randint(1, longest), rng.randint(1, longest)
        for name, data in pictures.files(width, height, seed):
            expected = references.pixels(data)
            check(f"{name} {width} x {height}", run("pixels", data), (expected.shape[1], expected.shape[0]), expected)
            count += 1
    return count


def compare_sizes(rng):
    count = 0
    for seed in range(120):
        width, height, *to = (rng.randint(1, rng.choice([30, 600])) for _ in range(4))
        image = Image.fromarray(pictures.drawing(width, height, seed))
        data = pictures.saved(image, "PNG", compress_level=1)
        for resample in (2, 3):
            expected = np.array(image.resize(to, resample))
            check(f"{width} x {height} to {to}, {resample}", run("resize", data, *to, resample), tuple(to), expected)
            count += 1
    return count


def compare_patches(rng):
    count = 0
    for seed in range(24):
        width, height = rng.randint(4, 300), rng.randint(4, 300)
        image = Image.fromarray(pictures.drawing(width, height, seed))
        data = pictures.saved(image, "PNG", compress_level=1)
        for name, config in references.CONFIGS.items():
            if name.startswith("gemma3") and seed > 3:
                continue
            path = SCRATCH / "config.json"
            path.write_text(json.dumps(config))
            *head, expected = references.patches(name, image)
            found = run("patches", data, path, references.TOWER_PATCH[name])
            check(f"{name} {width} x {height}", found, tuple(head), expected.astype(np.float32))
            count += 1
    return count


def main():
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    print(f"{compare_files(rng)} files, {compare_sizes(rng)} sizes, {compare_patches(rng)} pictures as patches, "
          f"{len(failures)} different")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
