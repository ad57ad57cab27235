"""Pictures in every kind of file, drawn from numbers: what make_golden.py keeps and compare_test.py compares."""
import io
import random
import struct
import zlib

import numpy as np
from PIL import Image


def drawing(width, height, seed):
    """Slopes, boxes with sharp edges, and a stripe of noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = [np.sin(x / rng.uniform(3, 40)) * 60 + y * rng.uniform(-1, 1) + rng.uniform(60, 200) for _ in range(3)]
    a = np.clip(np.stack(planes, axis=-1), 0, 255).astype(np.uint8)
    for _ in range(6):
        left, top = rng.integers(0, width), rng.integers(0, height)
        a[top:top + rng.integers(1, height + 1), left:left + rng.integers(1, width // 2 + 2)] = rng.integers(0, 256, 3)
    stripe = slice(height // 3, height // 3 + max(1, height // 8))
    a[stripe] = rng.integers(0, 256, a[stripe].shape)
    return a


def with_alpha(a, seed):
    alpha = np.random.default_rng(seed).integers(0, 256, a.shape[:2] + (1,), dtype=np.uint8)
    alpha[: a.shape[0] // 4] = 0
    alpha[a.shape[0] // 4: a.shape[0] // 2] = 255
    return np.concatenate([a, alpha], axis=-1)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def png(samples, depth, colour, interlaced=False, more=(), behind=()):
    """A PNG file: `samples` are rows of pixels of channels. PIL writes neither interlaced files nor most depths."""
    height, width, channels = samples.shape
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    data = b""
    for left, top, right, down in passes:
        part = samples[top::down, left::right]
        if part.size == 0:
            continue
        bits = np.zeros((part.shape[0], part.shape[1] * channels, depth), np.uint8)
        flat = part.reshape(part.shape[0], -1).astype(np.uint32)
        for b in range(depth):
            bits[:, :, b] = flat >> (depth - 1 - b) & 1
        for row in np.packbits(bits.reshape(part.shape[0], -1), axis=1):
            data += b"\0" + row.tobytes()
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    middle = b"".join(chunk(*c) for c in more) + chunk(b"IDAT", zlib.compress(data, 9))
    end = b"".join(chunk(*c) for c in behind) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + middle + end


def exif(orientation, big=False):
    order = ">" if big else "<"
    head = (b"MM" if big else b"II") + struct.pack(order + "HI", 42, 8)
    entry = struct.pack(order + "HHIHH", 0x112, 3, 1, orientation, 0)
    return head + struct.pack(order + "H", 2) + struct.pack(order + "HHII", 0x100, 4, 1, 7) + entry + bytes(4)


def ramp(depth, width, height, channels, seed):
    return np.random.default_rng(seed).integers(0, 1 << depth, (height, width, channels), dtype=np.uint32)


def png_files(w, h, seed):
    a = drawing(w, h, seed)
    palette = (b"PLTE", np.random.default_rng(seed).integers(0, 256, 48, dtype=np.uint8).tobytes())
    some = (b"tRNS", bytes([0, 128, 255, 7]))
    yield "png-rgb", png(a, 8, 2)
    yield "png-rgb-interlaced", png(a, 8, 2, True)
    yield "png-rgba", png(with_alpha(a, seed), 8, 6)
    yield "png-rgba-interlaced", png(with_alpha(a, seed), 8, 6, True)
    yield "png-rgb16", png(ramp(16, w, h, 3, seed), 16, 2)
    yield "png-rgba16", png(ramp(16, w, h, 4, seed), 16, 6)
    yield "png-grey8", png(a[:, :, :1], 8, 0)
    yield "png-grey16", png(ramp(16, w, h, 1, seed), 16, 0)
    yield "png-grey1", png(ramp(1, w, h, 1, seed), 1, 0)
    yield "png-grey2", png(ramp(2, w, h, 1, seed), 2, 0)
    yield "png-grey4-interlaced", png(ramp(4, w, h, 1, seed), 4, 0, True)
    yield "png-grey-alpha", png(with_alpha(a, seed)[:, :, 2:], 8, 4)
    yield "png-grey-alpha16", png(ramp(16, w, h, 2, seed), 16, 4)
    yield "png-palette4", png(ramp(4, w, h, 1, seed), 4, 3, more=[palette])
    yield "png-palette1-interlaced", png(ramp(1, w, h, 1, seed), 1, 3, True, more=[palette])
    yield "png-palette-alpha", png(ramp(4, w, h, 1, seed), 4, 3, more=[palette, some])
    one = a.copy()
    one[::3, ::2] = (1, 2, 3)
    yield "png-one-colour-transparent", png(one, 8, 2, more=[(b"tRNS", struct.pack(">HHH", 1, 2, 3))])
    yield "png-turned", png(a, 8, 2, more=[(b"eXIf", exif(6, big=True))])
    yield "png-turned-behind", png(a, 8, 2, behind=[(b"eXIf", exif(8))])
    yield "png-profile", png(a, 8, 2, more=[(b"gAMA", struct.pack(">I", 100000)),
                                            (b"iCCP", b"x\0\0" + zlib.compress(bytes(4000)))])


def jpeg_files(w, h, seed):
    image = Image.fromarray(drawing(w, h, seed))
    for name, sampling in (("444", 0), ("422", 1), ("420", 2)):
        yield "jpeg-" + name, saved(image, "JPEG", quality=85, subsampling=sampling)
    yield "jpeg-progressive", saved(image, "JPEG", quality=60, progressive=True)
    yield "jpeg-low", saved(image, "JPEG", quality=8)
    yield "jpeg-grey", saved(image.convert("L"), "JPEG", quality=80)
    yield "jpeg-grey-progressive", saved(image.convert("L"), "JPEG", quality=80, progressive=True)
    inks = saved(Image.fromarray(ramp(8, w, h, 4, seed).astype(np.uint8), "CMYK"), "JPEG", quality=90)
    yield "jpeg-cmyk", inks
    at = inks.index(b"Adobe") + 11
    assert inks[at] == 0
    yield "jpeg-ycck", inks[:at] + b"\2" + inks[at + 1:]
    yield "jpeg-restarts", saved(image, "JPEG", quality=75, restart_marker_blocks=3)
    for o in range(1, 9):
        yield f"jpeg-turned{o}", saved(image, "JPEG", quality=75, exif=b"Exif\0\0" + exif(o, big=o % 2 == 0))


def webp_files(w, h, seed):
    a = drawing(w, h, seed)
    image, clear = Image.fromarray(a), Image.fromarray(with_alpha(a, seed))
    yield "webp-lossy", saved(image, "WEBP", quality=70)
    yield "webp-lossless", saved(image, "WEBP", lossless=True)
    yield "webp-lossy-alpha", saved(clear, "WEBP", quality=70)
    yield "webp-lossless-alpha", saved(clear, "WEBP", lossless=True)
    yield "webp-turned", saved(image, "WEBP", quality=50, exif=b"Exif\0\0" + exif(5))
    others = [Image.fromarray(drawing(w, h, seed + i)) for i in (1, 2)]
    yield "webp-animated", saved(image, "WEBP", save_all=True, append_images=others, duration=50)
    yield "webp-animated-alpha", saved(clear, "WEBP", save_all=True, append_images=others, lossless=True)


def gif(width, height, frame, indices, palette, local=None, transparent=None, interlaced=False, background=0):
    """A GIF file whose frame lies anywhere, coded without compression: nine bits for each index, often cleared."""
    left, top = frame
    rows, columns = indices.shape
    passes = ((0, 8), (4, 8), (2, 4), (1, 2)) if interlaced else ((0, 1),)
    order = [y for first, step in passes for y in range(first, rows, step)]
    codes = []
    for i, v in enumerate(np.concatenate([indices[y] for y in order])):
        if i % 250 == 0:
            codes.append(256)
        codes.append(int(v))
    number = sum(c << 9 * i for i, c in enumerate(codes + [257]))
    data = number.to_bytes((9 * (len(codes) + 1) + 7) // 8, "little")
    blocks = b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255))
    out = b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7 if palette else 0, background, 0) + (palette or b"")
    out += b"!\xfe\x05hello\0"
    if transparent is not None:
        out += b"!\xf9\x04" + bytes([1, 0, 0, transparent]) + b"\0"
    flags = (0x87 if local else 0) | (0x40 if interlaced else 0)
    frame_header = b"," + struct.pack("<HHHHB", left, top, columns, rows, flags) + (local or b"")
    return out + frame_header + b"\x08" + blocks + b"\0;"


def gif_files(w, h, seed):
    image = Image.fromarray(drawing(w, h, seed))
    random_bytes = random.Random(seed).randbytes
    palette, local = random_bytes(768), random_bytes(768)
    some = np.random.default_rng(seed).integers(0, 256, (h, w), dtype=np.uint8)
    yield "gif-plain", saved(image, "GIF")
    frames = [Image.fromarray(drawing(w, h, seed + i)) for i in (1, 2)]
    yield "gif-animated", saved(image, "GIF", save_all=True, append_images=frames)
    yield "gif-interlaced", gif(w, h, (0, 0), some, palette, interlaced=True)
    yield "gif-within", gif(w + 9, h + 5, (4, 3), some, palette, background=7)
    yield "gif-within-clear", gif(w + 9, h + 5, (4, 3), some, palette, transparent=int(some[0, 0]))
    yield "gif-beyond", gif(w // 2, h // 2, (1, 2), some, palette)
    yield "gif-local", gif(w, h, (0, 0), some, palette, local=local)
    yield "gif-grey", gif(w, h, (0, 0), some, None)


def files(w, h, seed):
    """Pairs of a name and a file."""
    for kind in (png_files, jpeg_files, webp_files, gif_files):
        yield from kind(w, h, seed)
