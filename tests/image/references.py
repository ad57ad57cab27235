"""What transformers makes of pictures: the processors that compute with PIL and numpy ("slow" ones)."""
import io

import numpy as np
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import (Gemma4ImageProcessorPil,
                                                                    get_aspect_ratio_preserving_size)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

HALF = [0.5, 0.5, 0.5]
QWEN3 = {"image_processor_type": "Qwen2VLImageProcessorFast",
         "size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16,
         "temporal_patch_size": 2, "merge_size": 2, "image_mean": HALF, "image_std": HALF}
GEMMA4 = {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 16, "pooling_kernel_size": 3,
          "max_soft_tokens": 280, "do_normalize": False}
# As models have them, and with limits so small that pictures of tests pass them.
CONFIGS = {
    "qwen3": QWEN3,
    "qwen3-small": {**QWEN3, "size": {"shortest_edge": 4096, "longest_edge": 6144}},
    "qwen2": {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 50176,
              "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
              "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}, "resample": 2,
               "image_mean": HALF, "image_std": HALF, "image_seq_length": 256, "do_pan_and_scan": None,
               "rescale_factor": 0.00392156862745098},
    "gemma3-scans": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896},
                     "image_mean": HALF, "image_std": HALF, "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20,
                     "pan_and_scan_max_num_crops": 3, "pan_and_scan_min_ratio_to_activate": 1.3},
    "gemma4": GEMMA4,
    "gemma4-small": {**GEMMA4, "max_soft_tokens": 70},
}
# The side of a patch, which Gemma 3 has in the tower's configuration alone.
TOWER_PATCH = {"qwen3": 16, "qwen3-small": 16, "qwen2": 14, "gemma3": 14, "gemma3-scans": 14, "gemma4": 16,
               "gemma4-small": 16}


def pixels(data):
    """A file as a processor sees it: upright, and on white where it is transparent. PIL makes everything above 255 of
    16-bit grey white; as it does with 16 bits otherwise, the upper 8 are taken here."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode == "I;16":
        return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[:, :, None], 3, axis=-1)
    return convert_to_rgb(image, return_numpy=True)


def processor(name):
    kinds = {"Qwen": Qwen2VLImageProcessorPil, "Gemma3": Gemma3ImageProcessorPil, "Gemma4": Gemma4ImageProcessorPil}
    config = CONFIGS[name]
    kind = next(c for start, c in kinds.items() if config["image_processor_type"].startswith(start))
    return kind(**{k: v for k, v in config.items() if k != "image_processor_type"})


def patches(name, image):
    """Rows and columns of patches, tokens, and the patches in the order in which the tower takes them: of the whole, and
    then of the pieces of pan and scan."""
    out = processor(name)(images=[image], return_tensors="np")
    values = np.asarray(out["pixel_values"], np.float32)
    if name.startswith("qwen"):
        _, rows, columns = (int(n) for n in out["image_grid_thw"][0])
        return rows, columns, rows * columns // CONFIGS[name]["merge_size"] ** 2, values
    if name.startswith("gemma3"):
        side, patch = values.shape[-1], TOWER_PATCH[name]
        n = side // patch
        cut = values.reshape(-1, 3, n, patch, n, patch).transpose(0, 2, 4, 1, 3, 5)
        return n, n, CONFIGS[name].get("image_seq_length", 256), cut
    places = np.asarray(out["image_position_ids"])[0]
    real = places[:, 0] >= 0
    columns, rows = (int(n) + 1 for n in places.max(axis=0))
    return rows, columns, int(np.asarray(out["num_soft_tokens_per_image"])[0]), values[0][real]


def pieces(width, height, min_crop, max_crops, min_ratio):
    """What pan and scan shows of a picture besides the whole: x, y, width and height of each piece."""
    places = np.stack(np.meshgrid(np.arange(width, dtype=np.int32), np.arange(height, dtype=np.int32)))
    cut = Gemma3ImageProcessorPil().pan_and_scan(places, min_crop, max_crops, min_ratio)
    return [[int(p[0, 0, 0]), int(p[1, 0, 0]), p.shape[2], p.shape[1]] for p in cut if p.size]


def size_for(name, width, height):
    """The width and height that a picture is resized to, and its tokens; nothing where it is refused."""
    config = CONFIGS[name]
    try:
        if name.startswith("qwen"):
            size = config.get("size") or {"shortest_edge": config["min_pixels"], "longest_edge": config["max_pixels"]}
            side = config["patch_size"] * config["merge_size"]
            h, w = smart_resize(height, width, side, size["shortest_edge"], size["longest_edge"])
        elif name.startswith("gemma3"):
            return 896, 896, 256
        else:
            pool = config["pooling_kernel_size"]
            side = config["patch_size"] * pool
            h, w = get_aspect_ratio_preserving_size(height, width, config["patch_size"],
                                                    config["max_soft_tokens"] * pool ** 2, pool)
    except ValueError:
        return ()
    return w, h, (h // side) * (w // side)
