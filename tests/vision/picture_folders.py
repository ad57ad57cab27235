#!/usr/bin/env python3
"""Folders of small random models that see: Qwen3-VL's and Gemma 3's text models and towers behind a vocabulary of
bytes. Their answers are noise. Needs the standard library only.

usage: picture_folders.py FOLDER    writes a Qwen3-VL
"""
import array
import json
import math
import os
import random
import struct
import sys

VOCABULARY = 263


def byte_alphabet():
    """The 256 characters of byte-level BPE, in the order of their bytes."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    more = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(more)) for b in range(256)]


def tokenizer_json(special):
    vocabulary = byte_alphabet() + ["he", "in"]
    vocabulary += special
    added = [dict(id=vocabulary.index(t), content=t, special=True, normalized=False, single_word=False, lstrip=False,
                  rstrip=False) for t in special]
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(vocabulary)}, "merges": [["h", "e"], ["i", "n"]]}
    return {"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": model}, len(vocabulary)


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, (shape, values) in tensors.items():
        size = 4 * len(values)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(values.tobytes())


class Weights:
    """Random ones: matrices whose products are about as large as what they are multiplied with, norms near 1."""

    def __init__(self, seed):
        self.random, self.all = random.Random(seed), {}

    def add(self, name, *shape, scale=None, around=0.0):
        scale = scale or 1 / math.sqrt(math.prod(shape[1:]) if len(shape) > 1 else 100)
        values = array.array("f", (self.random.gauss(around, scale) for _ in range(math.prod(shape))))
        self.all[name] = list(shape), values

    def linear(self, name, rows, columns):
        self.add(name + ".weight", rows, columns)
        self.add(name + ".bias", rows)

    def norm(self, name, width, bias=True):
        self.add(name + ".weight", width, around=1.0)
        if bias:
            self.add(name + ".bias", width)


def text_weights(w, prefix, c, gemma):
    hidden, ffn, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    queries, keys = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    around = 0.0 if gemma else 1.0  # Gemma's norms multiply by 1 + w
    w.add(prefix + "embed_tokens.weight", c["vocab_size"], hidden, scale=0.5)
    w.add(prefix + "norm.weight", hidden, around=around)
    for i in range(c["num_hidden_layers"]):
        layer = "%slayers.%d." % (prefix, i)
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
        for norm in norms:
            w.add(layer + norm + ".weight", hidden, around=around)
        for norm in "q_norm", "k_norm":
            w.add("%sself_attn.%s.weight" % (layer, norm), head, around=around)
        for name, rows in ("q", queries), ("k", keys), ("v", keys):
            w.add("%sself_attn.%s_proj.weight" % (layer, name), rows, hidden)
        w.add(layer + "self_attn.o_proj.weight", hidden, queries)
        for name, rows, columns in ("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn):
            w.add("%smlp.%s_proj.weight" % (layer, name), rows, columns)


QWEN_TEXT = dict(model_type="qwen3_vl_text", hidden_size=64, intermediate_size=96, num_hidden_layers=4,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6, hidden_act="silu",
                 max_position_embeddings=4096, tie_word_embeddings=True, attention_bias=False,
                 rope_parameters=dict(rope_type="default", rope_theta=5000000.0, mrope_section=[6, 5, 5],
                                      mrope_interleaved=True))
QWEN_TOWER = dict(model_type="qwen3_vl", depth=3, hidden_size=64, intermediate_size=112, num_heads=4, patch_size=16,
                  spatial_merge_size=2, temporal_patch_size=2, in_channels=3, out_hidden_size=64,
                  hidden_act="gelu_pytorch_tanh")
GEMMA_TEXT = dict(model_type="gemma3_text", hidden_size=64, intermediate_size=96, num_hidden_layers=6,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
                  hidden_activation="gelu_pytorch_tanh", max_position_embeddings=4096, tie_word_embeddings=True,
                  query_pre_attn_scalar=32, sliding_window=64, rope_theta=1000000.0, rope_local_base_freq=10000.0,
                  sliding_window_pattern=6)
GEMMA_TOWER = dict(model_type="siglip_vision_model", num_hidden_layers=3, hidden_size=64, intermediate_size=112,
                   num_attention_heads=4, patch_size=14, image_size=224, num_channels=3, vision_use_head=False,
                   hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6)


def qwen_tower(w, t, stacked):
    prefix, width = "model.visual.", t["hidden_size"]
    merged = width * t["spatial_merge_size"] ** 2
    w.add(prefix + "patch_embed.proj.weight", width, 3, 2, t["patch_size"], t["patch_size"])
    w.add(prefix + "patch_embed.proj.bias", width)
    w.add(prefix + "pos_embed.weight", t["num_position_embeddings"], width, scale=0.3)
    for i in range(t["depth"]):
        block = "%sblocks.%d." % (prefix, i)
        w.norm(block + "norm1", width)
        w.norm(block + "norm2", width)
        w.linear(block + "attn.qkv", 3 * width, width)
        w.linear(block + "attn.proj", width, width)
        w.linear(block + "mlp.linear_fc1", t["intermediate_size"], width)
        w.linear(block + "mlp.linear_fc2", width, t["intermediate_size"])
    mergers = [(prefix + "merger.", width)] + [("%sdeepstack_merger_list.%d." % (prefix, i), merged)
                                               for i in range(stacked)]
    for merger, normed in mergers:
        w.norm(merger + "norm", normed)
        w.linear(merger + "linear_fc1", merged, merged)
        w.linear(merger + "linear_fc2", t["out_hidden_size"], merged)


def gemma_tower(w, t, out):
    prefix, width = "vision_tower.vision_model.", t["hidden_size"]
    w.add(prefix + "embeddings.patch_embedding.weight", width, 3, t["patch_size"], t["patch_size"])
    w.add(prefix + "embeddings.patch_embedding.bias", width)
    w.add(prefix + "embeddings.position_embedding.weight", (t["image_size"] // t["patch_size"]) ** 2, width, scale=0.3)
    for i in range(t["num_hidden_layers"]):
        block = "%sencoder.layers.%d." % (prefix, i)
        w.norm(block + "layer_norm1", width)
        w.norm(block + "layer_norm2", width)
        for name in "q_proj", "k_proj", "v_proj", "out_proj":
            w.linear(block + "self_attn." + name, width, width)
        w.linear(block + "mlp.fc1", t["intermediate_size"], width)
        w.linear(block + "mlp.fc2", width, t["intermediate_size"])
    w.norm(prefix + "post_layernorm", width)
    w.add("multi_modal_projector.mm_soft_emb_norm.weight", width)
    w.add("multi_modal_projector.mm_input_projection_weight", width, out)


def template_of(mark):
    return ("{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}"
            "{%- if m.content is string -%}{{ m.content }}{%- else -%}"
            "{%- for part in m.content -%}{%- if part.type == 'image' -%}{{ '" + mark + "' }}{%- else -%}{{ part.text }}"
            "{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
            "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}")


def write_folder(folder, config, weights, special, mark, processor):
    tokenizer, size = tokenizer_json(special)
    os.makedirs(folder)
    template = {"chat_template": template_of(mark), "eos_token": "<|im_end|>"}
    for name, content in (("config.json", config), ("preprocessor_config.json", processor),
                          ("tokenizer.json", tokenizer), ("tokenizer_config.json", template)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    assert size == VOCABULARY
    write_safetensors(os.path.join(folder, "model.safetensors"), weights.all)


def write_qwen(folder, seed, stacked, positions):
    special = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]
    text = dict(QWEN_TEXT, vocab_size=VOCABULARY)
    tower = dict(QWEN_TOWER, deepstack_visual_indexes=[0, 2][:stacked], num_position_embeddings=positions)
    w = Weights(seed)
    text_weights(w, "model.language_model.", text, False)
    qwen_tower(w, tower, stacked)
    config = dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", text_config=text,
                  vision_config=tower, tie_word_embeddings=True, image_token_id=261)
    processor = dict(image_processor_type="Qwen2VLImageProcessorFast", patch_size=16, merge_size=2,
                     temporal_patch_size=2, size=dict(shortest_edge=65536, longest_edge=16777216),
                     image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.6, 0.4])
    write_folder(folder, config, w, special, "<|vision_start|><|image_pad|><|vision_end|>", processor)


def write_gemma(folder, seed):
    special = ["<|im_start|>", "<|im_end|>", "<start_of_image>", "<image_soft_token>", "<end_of_image>"]
    text = dict(GEMMA_TEXT, vocab_size=VOCABULARY)
    w = Weights(seed)
    text_weights(w, "language_model.model.", text, True)
    gemma_tower(w, GEMMA_TOWER, text["hidden_size"])
    config = dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", text_config=text,
                  vision_config=GEMMA_TOWER, mm_tokens_per_image=16, image_token_index=261)
    processor = dict(image_processor_type="Gemma3ImageProcessor", size=dict(height=224, width=224), image_seq_length=16,
                     image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5])
    write_folder(folder, config, w, special, "<start_of_image>", processor)


if __name__ == "__main__":
    write_qwen(sys.argv[1], 1, 2, 36)
