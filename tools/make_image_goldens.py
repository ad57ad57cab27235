#!/usr/bin/env python3
"""Golden outputs of small random models that take images, from the transformers library. usage: make_image_goldens.py OUTDIR [NAME ...]

Text models of make_tiny_goldens.py behind towers of make_vision_goldens.py, with their weights; images are the tower's.
Written of each prompt: the log-probability of every token after those before it, and the distribution behind the last
one. In float32 with eager attention. Needs torch and transformers; docs/testing.md says which.
"""
import json
import math
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import make_tiny_goldens as texts
import make_vision_goldens as towers
import numpy as np
import torch
import transformers

PAD = 316
IMAGE = 313  # of Gemma 4, whose models take the padding token's embeddings in the place of this one's
MODELS = [
    dict(name="image-qwen35", cls="Qwen3_5", text="tiny-qwen35", tower="vision-qwen35"),
    dict(name="image-qwen3vl", cls="Qwen3VL", text="tiny-qwen3vl", tower="vision-qwen3vl"),  # with deepstack
    dict(name="image-gemma3", cls="Gemma3", text="tiny-gemma3", hidden=48, tower="vision-gemma3"),  # tokens of a picture attend to each other in both directions
    dict(name="image-gemma4", cls="Gemma4", text="tiny-gemma4", tower="vision-gemma4", direction="vision"),  # there in layers with a window alone
    dict(name="image-gemma4e", cls="Gemma4", text="tiny-gemma4e", tower="vision-gemma4e", direction=None),  # with embeddings of each layer
]

# Numbers of text tokens, and images by number (as "#0"), in their order. transformers takes images without a token in
# between for one. Of towers with fewer images the numbers go round.
PROMPTS = {
    "between": [5, "#0", 6],
    "near": [3, "#1", 1, "#2", 4],
    "first": ["#0", 5],
    "last": [5, "#2"],
    "none": [12],
    "over chunks": [58, "#0", 55, "#2", 1, "#1", 20],
    "again": [7, "#2", 70, "#2", 9],
}


def text_tokens(count, seed):
    """As tests/engine/engine_rig.h has them."""
    return [30 + (i * 37 + i * i * 11 + seed * 53) % 270 for i in range(count)]


def patches_of(t):
    """Pixels of 8 bits, as TinyTower::patch_bytes() has them, rescaled and normalised as processors do: a row for each patch, with its three colours."""
    n, plane = sum(math.prod(g) for g in t["grids"]), t["patch"] ** 2
    bits = towers.bf16_bits(towers.uniform(t["seed"], "pixels", n * 3 * plane))
    values = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    pixels = np.floor((values + 1) * 127.5 + 0.5).astype(np.uint8)
    scaled = (pixels * (1 / 255)).astype(np.float32)
    normalised = scaled if t["cls"] == "Gemma4" else (scaled - np.float32(0.5)) / np.float32(0.5)
    return torch.from_numpy(normalised.reshape(n, 3, plane))


def build_gemma(m, t, text):
    """Their tower and text model have no config in common but the widths."""
    vision = dict(hidden_size=t["width"], intermediate_size=t["ffn"], num_hidden_layers=t["blocks"], num_attention_heads=t["heads"], patch_size=t["patch"],
                  image_size=int(t["positions"] ** 0.5) * t["patch"], vision_use_head=False, hidden_act="gelu_pytorch_tanh")
    config = transformers.Gemma3Config(text_config=text.config.to_dict(), vision_config=vision, mm_tokens_per_image=t["positions"] // t["merge"] ** 2, image_token_id=PAD,
                                       tie_word_embeddings=m["tied"])
    for c in (config, config.text_config, config.vision_config):
        c._attn_implementation = "eager"
    model = transformers.Gemma3ForConditionalGeneration(config).float().eval()
    assert model.config.text_config.layer_types == text.config.layer_types and model.config.text_config.rope_parameters == text.config.rope_parameters
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    towers.fill(t, {"vision_tower.vision_model.": model.model.vision_tower, "multi_modal_projector.": model.model.multi_modal_projector})
    return model, t


def build_gemma4(row, m, t, text):
    of_text = dict(text.config.to_dict(), use_bidirectional_attention=row["direction"], pad_token_id=PAD)
    config = towers.gemma4_config(t, of_text)
    config.image_token_id, config.tie_word_embeddings = IMAGE, m["tied"]
    model = transformers.Gemma4ForConditionalGeneration(config).float().eval()
    assert model.config.text_config.layer_types == text.config.layer_types and model.config.text_config.rope_parameters == text.config.rope_parameters
    model.model.language_model.load_state_dict(text.model.state_dict())
    if m["tied"]:
        model.tie_weights()
    else:
        model.lm_head.load_state_dict(text.lm_head.state_dict())
    towers.fill(t, {"model.vision_tower.": model.model.vision_tower, "model.embed_vision.": model.model.embed_vision})
    return model, t


def build(row):
    m = next(m for m in texts.MODELS if m["name"] == row["text"])
    t = next(t for t in towers.TOWERS if t["name"] == row["tower"])
    m = dict(m, hidden=row.get("hidden", m["hidden"]))
    text, _ = texts.hf_model(m)
    if row["cls"] == "Gemma3":
        return build_gemma(m, t, text)
    if row["cls"] == "Gemma4":
        return build_gemma4(row, m, t, text)
    vision = dict(depth=t["blocks"], hidden_size=t["width"], intermediate_size=t["ffn"], num_heads=t["heads"], patch_size=t["patch"], spatial_merge_size=t["merge"],
                  temporal_patch_size=2, out_hidden_size=t["out"], num_position_embeddings=t["positions"])
    of_text = text.config.to_dict()
    if row["cls"] == "Qwen3VL":
        vision.update(deepstack_visual_indexes=t["deepstack"])
        of_text = {k: v for k, v in of_text.items() if k not in ("architectures", "model_type", "layer_types")}
        of_text["rope_parameters"] = dict(of_text["rope_parameters"], mrope_section=m["sections"], mrope_interleaved=True)
    config = getattr(transformers, row["cls"] + "Config")(text_config=of_text, vision_config=vision, image_token_id=PAD, video_token_id=PAD + 4, vision_start_token_id=PAD + 5,
                                                          tie_word_embeddings=m["tied"])
    for c in (config, config.text_config, config.vision_config):
        c._attn_implementation = "eager"
    model = getattr(transformers, row["cls"] + "ForConditionalGeneration")(config).float().eval()
    assert model.config.text_config.rope_parameters["mrope_section"] == m["sections"]
    state = {k.replace("model.", "model.language_model.", 1): v for k, v in text.state_dict().items() if k.startswith("model.")}
    if not m["tied"]:
        state["lm_head.weight"] = text.state_dict()["lm_head.weight"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(k.startswith("model.visual.") or (m["tied"] and k == "lm_head.weight") for k in missing), (missing, unexpected)
    model.tie_weights()
    towers.fill(t, {"model.visual.": model.model.visual})
    return model, t


def run(model, row, ids, kw):
    taken = [IMAGE if i == PAD and row["cls"] == "Gemma4" else i for i in ids]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([taken]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), use_cache=False, **kw).logits[0].float()
    logprobs = torch.log_softmax(logits, dim=-1)
    return logprobs, logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def pictures(row, t, patches, first, numbers):
    """What the model takes of these images."""
    of = [patches[first[n]:first[n + 1]] for n in numbers]
    if row["cls"] == "Gemma4":
        pixels, places = towers.gemma4_rows(t, torch.cat(of), [t["grids"][n] for n in numbers])
        return dict(pixel_values=pixels, image_position_ids=places)
    if row["cls"] != "Gemma3":  # a still picture is its frame twice
        values = torch.cat(of)[:, :, None].repeat(1, 1, 2, 1).reshape(-1, 6 * t["patch"] ** 2)
        return dict(pixel_values=values, image_grid_thw=torch.tensor([t["grids"][n] for n in numbers]))
    p, side, merge = t["patch"], int(t["positions"] ** 0.5), t["merge"]
    blocks = torch.stack(of).reshape(len(numbers), side // merge, side // merge, merge, merge, 3, p, p)
    return dict(pixel_values=blocks.permute(0, 5, 1, 3, 6, 2, 4, 7).reshape(len(numbers), 3, side * p, side * p))


def make(row, folder):
    model, t = build(row)
    rounded, errors = build(row)[0].bfloat16(), []
    kind = "token_type_ids" if row["cls"] == "Gemma3" else "mm_token_type_ids"
    patches = patches_of(t)
    first = [0]
    for grid in t["grids"]:
        first.append(first[-1] + grid[0] * grid[1] * grid[2])
    prompts = []
    for seed, (name, parts) in enumerate(PROMPTS.items()):
        ids, images = [], []
        for part in parts:
            if isinstance(part, int):
                ids += text_tokens(part, seed + len(ids))
                continue
            number = int(part[1:]) % len(t["grids"])
            grid = t["grids"][number]
            images.append([number, len(ids)])
            ids += [PAD] * (grid[1] * grid[2] // t["merge"] ** 2)
        kw = {}
        if images:
            kw = pictures(row, t, patches, first, [n for n, _ in images])
            kw[kind] = torch.tensor([[1 if i == PAD else 0 for i in ids]])
        logprobs, of_tokens = run(model, row, ids, kw)
        if images:
            kw["pixel_values"] = kw["pixel_values"].bfloat16()
        errors.append(run(rounded, row, ids, kw)[1] - of_tokens)
        prompts.append(dict(name=name, ids=ids, images=images, logprobs=towers.numbers(of_tokens), next=towers.numbers(logprobs[-1])))
        print(name, len(ids), "entropy %.2f" % float(-(logprobs[-1].exp() * logprobs[-1]).sum()), "logprob %.3f" % float(of_tokens.mean()))
    golden = dict(name=row["name"], transformers=transformers.__version__, torch=torch.__version__.split("+")[0], text=row["text"], tower=row["tower"], pad=PAD,
                  bf16_rms=float(torch.cat(errors).square().mean().sqrt()), prompts=prompts)
    print("bf16_rms", golden["bf16_rms"])
    with open(os.path.join(folder, row["name"] + ".json"), "w", encoding="utf-8") as f:
        json.dump(golden, f, separators=(",", ":"))
        f.write("\n")


def main(folder, names):
    torch.manual_seed(0)
    for row in MODELS:
        if not names or row["name"] in names:
            make(row, folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
