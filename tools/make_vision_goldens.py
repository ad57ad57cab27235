#!/usr/bin/env python3
"""Golden outputs of small random vision towers, from the transformers library. usage: make_vision_goldens.py OUTDIR [NAME ...]

Weights and patches are not stored: they follow from a tensor's name and an element's index (make_tiny_goldens.py), and
tests/support/tiny_towers.cpp makes the same ones. `weights_fnv1a64` in each file is the hash of all of them. Outputs are
those of the tower in float32 with eager attention. Needs torch and transformers; docs/testing.md says which.
"""
import json
import math
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
import transformers
from make_tiny_goldens import bf16_bits, fnv1a64, uniform, weights_hash

# Each row is repeated in tests/support/tiny_towers.cpp. Heads of 72 and 64 elements as in real towers; widths of
# feed-forwards that are no multiple of 32; images with more patches a side than there are learned positions, and fewer.
TOWERS = [
    dict(name="vision-qwen3vl", seed=1, cls="Qwen3VL", width=144, blocks=3, heads=2, ffn=176, patch=16, merge=2, positions=36, out=48, deepstack=[0, 1],
         grids=[[1, 4, 6], [1, 8, 2], [1, 2, 2], [2, 4, 4]]),
    dict(name="vision-qwen35", seed=2, cls="Qwen3_5", width=128, blocks=2, heads=2, ffn=160, patch=16, merge=2, positions=25, out=64, deepstack=[],
         grids=[[1, 6, 6], [1, 2, 4], [1, 2, 12]]),
    dict(name="vision-gemma3", seed=3, cls="Gemma3", width=144, blocks=2, heads=2, ffn=176, patch=14, merge=2, positions=64, out=48, deepstack=[],
         grids=[[1, 8, 8], [1, 8, 8]]),
    # As of the large models, whose pooled rows are shifted and scaled: a picture of more tokens than the text model's window.
    dict(name="vision-gemma4", seed=4, cls="Gemma4", width=144, blocks=2, heads=2, ffn=176, patch=16, merge=3, positions=192, out=96, deepstack=[], standardize=True,
         max_tokens=64, grids=[[1, 6, 9], [1, 9, 3], [1, 18, 21], [1, 3, 3]]),
    # As of the small ones, whose products have bounds that some of their numbers reach.
    dict(name="vision-gemma4e", seed=5, cls="Gemma4", width=128, blocks=2, heads=2, ffn=160, patch=16, merge=3, positions=192, out=96, deepstack=[], bounds=True,
         max_tokens=64, grids=[[1, 3, 6], [1, 12, 6], [1, 6, 12]]),
]

# (suffix, centre, spread); a spread of None means a standard deviation of 1.5 / sqrt(inputs).
KINDS = [
    ("soft_emb_norm.weight", 0.0, 0.25),  # applied as 1 + w
    ("k_norm.weight", 0.15, 0.05),  # nothing else scales the scores
    ("norm.weight", 1.0, 0.25),
    ("norm1.weight", 1.0, 0.25),
    ("norm2.weight", 1.0, 0.25),
    (".bias", 0.0, 0.2),
    ("pos_embed.weight", 0.0, 0.5),
    ("position_embedding.weight", 0.0, 0.5),
    ("position_embedding_table", 0.0, 0.5),
    ("std_bias", 0.0, 4.0),
    ("std_scale", 0.5, 0.25),
    ("put_min", -1.5, 0.5),  # of what is taken and put out
    ("put_max", 1.5, 0.5),
    ("", 0.0, None),
]


def values(seed, name, shape):
    centre, spread = next((c, s) for suffix, c, s in KINDS if name.endswith(suffix))
    if spread is None:
        spread = 1.5 * math.sqrt(3.0 / math.prod(shape[1:]))
    bits = bf16_bits(centre + spread * uniform(seed, name, math.prod(shape)))
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)


def fill(m, modules):
    """Gives all parameters of {prefix: module} their values; returns these by their names in a model folder."""
    w = {}
    for prefix, module in modules.items():
        state = {k: values(m["seed"], prefix + k, tuple(v.shape)) for k, v in module.state_dict().items()}
        module.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in state.items()})
        w.update({prefix + k: v for k, v in state.items()})
    return w


def patches_of(m, width):
    n = sum(math.prod(g) for g in m["grids"])
    bits = bf16_bits(uniform(m["seed"], "patches", n * width))
    return torch.from_numpy((bits.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(n, width).copy())


def run_qwen(m):
    kw = dict(depth=m["blocks"], hidden_size=m["width"], intermediate_size=m["ffn"], num_heads=m["heads"], patch_size=m["patch"], spatial_merge_size=m["merge"],
              temporal_patch_size=2, out_hidden_size=m["out"], num_position_embeddings=m["positions"])
    if m["cls"] == "Qwen3VL":
        kw["deepstack_visual_indexes"] = m["deepstack"]
    config = getattr(transformers, m["cls"] + "VisionConfig" if hasattr(transformers, m["cls"] + "VisionConfig") else m["cls"] + "Config")
    if config.__name__.endswith("VisionConfig"):
        config = config(**kw)
    else:
        config = config(vision_config=kw).vision_config
    config._attn_implementation = "eager"
    tower = transformers.AutoModel.from_config(config).float().eval()
    w = fill(m, {"model.visual.": tower})
    patches = patches_of(m, 3 * 2 * m["patch"] ** 2)
    out = tower(patches, grid_thw=torch.tensor(m["grids"]))
    return w, out.pooler_output, list(getattr(out, "deepstack_features", []))


def run_gemma(m):
    vision = dict(hidden_size=m["width"], intermediate_size=m["ffn"], num_hidden_layers=m["blocks"], num_attention_heads=m["heads"], patch_size=m["patch"],
                  image_size=int(m["positions"] ** 0.5) * m["patch"], vision_use_head=False, hidden_act="gelu_pytorch_tanh")
    config = transformers.Gemma3Config(text_config=dict(hidden_size=m["out"]), vision_config=vision, mm_tokens_per_image=m["positions"] // m["merge"] ** 2)
    config.vision_config._attn_implementation = "eager"
    tower = transformers.AutoModel.from_config(config.vision_config).float().eval()
    projector = transformers.models.gemma3.modeling_gemma3.Gemma3MultiModalProjector(config).float().eval()
    w = fill(m, {"vision_tower.vision_model.": tower, "multi_modal_projector.": projector})
    # From blocks of merge x merge patches to images.
    p, side, merge = m["patch"], int(m["positions"] ** 0.5), m["merge"]
    blocks = patches_of(m, 3 * p * p).reshape(len(m["grids"]), side // merge, side // merge, merge, merge, 3, p, p)
    images = blocks.permute(0, 5, 1, 3, 6, 2, 4, 7).reshape(len(m["grids"]), 3, side * p, side * p)
    return w, projector(tower(images).last_hidden_state).reshape(-1, m["out"]), []


def gemma4_config(m, text):
    vision = dict(hidden_size=m["width"], intermediate_size=m["ffn"], num_hidden_layers=m["blocks"], num_attention_heads=m["heads"], num_key_value_heads=m["heads"],
                  head_dim=m["width"] // m["heads"], patch_size=m["patch"], pooling_kernel_size=m["merge"], position_embedding_size=m["positions"],
                  standardize=m.get("standardize", False), use_clipped_linears=m.get("bounds", False))
    config = transformers.Gemma4Config(text_config=text, vision_config=vision, audio_config=None)
    for c in (config, config.text_config, config.vision_config):
        c._attn_implementation = "eager"
    return config


def gemma4_rows(m, patches, grids):
    """From blocks of merge x merge patches, as the tests have them, to rows of patches padded to those of the largest grid: pixels and their places."""
    most, k, pixels, places = max(math.prod(g) for g in grids), m["merge"], [], []
    first = 0
    for _, rows, columns in grids:
        n = rows * columns
        blocks = patches[first:first + n].reshape(rows // k, columns // k, k, k, 3, m["patch"] ** 2)
        first += n
        in_rows = blocks.permute(0, 2, 1, 3, 5, 4).reshape(n, -1)  # pixels of colours
        at = torch.tensor([[x, y] for y in range(rows) for x in range(columns)])
        pixels.append(torch.cat([in_rows, torch.zeros(most - n, in_rows.shape[1])]))
        places.append(torch.cat([at, torch.full((most - n, 2), -1)]))
    return torch.stack(pixels), torch.stack(places)


def run_gemma4(m):
    config = gemma4_config(m, dict(hidden_size=m["out"], num_hidden_layers=1))
    tower = transformers.AutoModel.from_config(config.vision_config).float().eval()
    embedder = transformers.models.gemma4.modeling_gemma4.Gemma4MultimodalEmbedder(config.vision_config, config.text_config).float().eval()
    w = fill(m, {"model.vision_tower.": tower, "model.embed_vision.": embedder})
    patches = patches_of(m, 3 * m["patch"] ** 2) / 2 + 0.5  # the model itself moves them to between -1 and 1
    pixels, places = gemma4_rows(m, patches, m["grids"])
    return w, embedder(tower(pixels, places).last_hidden_state), []


def numbers(t):
    return [float("%.9g" % x) for x in t.reshape(-1).tolist()]


def main(folder, names):
    torch.manual_seed(0)
    for m in TOWERS:
        if names and m["name"] not in names:
            continue
        with torch.no_grad():
            w, rows, deepstack = dict(Gemma3=run_gemma, Gemma4=run_gemma4).get(m["cls"], run_qwen)(m)
        golden = dict(name=m["name"], transformers=transformers.__version__, torch=torch.__version__.split("+")[0], weights_fnv1a64=weights_hash(w),
                      config={k: v for k, v in m.items() if k not in ("name", "cls", "grids")}, grids=m["grids"], tensors=sorted([k, list(v.shape)] for k, v in w.items()),
                      rows=numbers(rows), deepstack=[numbers(d) for d in deepstack])
        path = os.path.join(folder, m["name"] + ".json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(golden, f, separators=(",", ":"))
            f.write("\n")
        print(path, tuple(rows.shape), "rms %.3f" % float(rows.square().mean().sqrt()), [float(d.square().mean().sqrt()) for d in deepstack])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
