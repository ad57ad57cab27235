#!/usr/bin/env python3
"""Writes a Hugging Face folder with FP8 weights of random values, as large as a published one: to measure with.

    tools/make_fp8_folder.py FOLDER [--dense] [--layers 40] [--experts 256] [--tokenizer FOLDER]

The shapes are those of Qwen3.5-35B-A3B (35 GB), or with --dense of Qwen3.5-27B (28 GB): matrices of E4M3 codes with a
scale for each block of 128 x 128, norms, routers and embeddings in bf16. Codes repeat every 64 MiB. Plain Python, so
that it runs where nothing is installed.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import struct
import sys

HEAD, STATE, KEY_HEADS = 256, 128, 16
PERIOD = 64 << 20
SHARD_BYTES = 4 << 30


def take_shape(o):
    """What is not the same in both models."""
    sizes = (5120, 24, 4, 48, 17408) if o.dense else (2048, 16, 2, 32, 512)
    o.width, o.heads, o.kv_heads, o.value_heads, o.inner = sizes
    o.layers = o.layers or (64 if o.dense else 40)


def config_of(o):
    feed_forward = {"intermediate_size": o.inner} if o.dense else {
        "num_experts": o.experts, "num_experts_per_tok": 8, "norm_topk_prob": True, "moe_intermediate_size": o.inner,
        "shared_expert_intermediate_size": o.inner}
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(o.layers)]
    return feed_forward | {
        "architectures": ["Qwen3_5ForCausalLM" if o.dense else "Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_text" if o.dense else "qwen3_5_moe_text", "vocab_size": o.vocab,
        "hidden_size": o.width, "num_hidden_layers": o.layers, "num_attention_heads": o.heads,
        "num_key_value_heads": o.kv_heads, "head_dim": HEAD, "hidden_act": "silu", "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "attention_bias": False, "attn_output_gate": True,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": STATE, "linear_value_head_dim": STATE,
        "linear_num_key_heads": KEY_HEADS, "linear_num_value_heads": o.value_heads, "layer_types": kinds,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
                            "mrope_section": [11, 11, 10], "mrope_interleaved": True},
        "partial_rotary_factor": 0.25, "dtype": "bfloat16", "eos_token_id": o.vocab - 1,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                "weight_block_size": [128, 128]},
    }


def tensors_of(o):
    """(name, dtype, shape) in the order of their use."""
    def fp8(name, *shape):
        yield name, "F8_E4M3", shape
        grid = shape[:-2] + tuple(math.ceil(n / 128) for n in shape[-2:])
        yield name + "_scale_inv", "F32", grid

    width, inner = o.width, o.inner
    yield "model.embed_tokens.weight", "BF16", (o.vocab, width)
    keys, values = KEY_HEADS * STATE, o.value_heads * STATE
    for layer in range(o.layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", "BF16", (width,)
        yield at + "post_attention_layernorm.weight", "BF16", (width,)
        if layer % 4 == 3:
            yield from fp8(at + "self_attn.q_proj.weight", 2 * o.heads * HEAD, width)
            yield from fp8(at + "self_attn.k_proj.weight", o.kv_heads * HEAD, width)
            yield from fp8(at + "self_attn.v_proj.weight", o.kv_heads * HEAD, width)
            yield from fp8(at + "self_attn.o_proj.weight", width, o.heads * HEAD)
            yield at + "self_attn.q_norm.weight", "BF16", (HEAD,)
            yield at + "self_attn.k_norm.weight", "BF16", (HEAD,)
        else:
            yield from fp8(at + "linear_attn.in_proj_qkv.weight", 2 * keys + values, width)
            yield from fp8(at + "linear_attn.in_proj_z.weight", values, width)
            yield from fp8(at + "linear_attn.out_proj.weight", width, values)
            for name in ("in_proj_a", "in_proj_b"):
                yield at + f"linear_attn.{name}.weight", "BF16", (o.value_heads, width)
            yield at + "linear_attn.conv1d.weight", "BF16", (2 * keys + values, 1, 4)
            yield at + "linear_attn.A_log", "BF16", (o.value_heads,)
            yield at + "linear_attn.dt_bias", "BF16", (o.value_heads,)
            yield at + "linear_attn.norm.weight", "BF16", (STATE,)
        experts = [""] if o.dense else [f"experts.{i}." for i in range(o.experts)] + ["shared_expert."]
        if not o.dense:
            yield at + "mlp.gate.weight", "BF16", (o.experts, width)
            yield at + "mlp.shared_expert_gate.weight", "BF16", (1, width)
        for expert in experts:
            yield from fp8(at + f"mlp.{expert}gate_proj.weight", inner, width)
            yield from fp8(at + f"mlp.{expert}up_proj.weight", inner, width)
            yield from fp8(at + f"mlp.{expert}down_proj.weight", width, inner)
    yield "model.norm.weight", "BF16", (width,)
    yield "lm_head.weight", "BF16", (o.vocab, width)


SIZE = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


class Values:
    """Bytes of plausible weights, by type."""

    def __init__(self):
        noise = os.urandom(PERIOD)
        no_nan = bytes(code & 0x80 if code & 0x7F == 0x7F else code for code in range(256))
        small = bytes(code % 16 for code in range(256))
        bf16 = bytearray(PERIOD)
        bf16[0::2] = noise[: PERIOD // 2]
        bf16[1::2] = noise[PERIOD // 2:].translate(bytes(0x3C | (code & 0x81) if code & 1 else 0x3D | (code & 0x80)
                                                         for code in range(256)))
        f32 = b"".join(struct.pack("<f", 2.0**-9 * (1 + code / 16)) for code in noise[: 1 << 16].translate(small))
        self.of = {"F8_E4M3": noise.translate(no_nan), "BF16": bytes(bf16), "F32": f32}

    def write(self, to, dtype, count, offset):
        block = memoryview(self.of[dtype])
        left, at = count * SIZE[dtype], offset * 4096 % len(block)
        while left > 0:
            piece = block[at: at + left]
            to.write(piece)
            left, at = left - len(piece), 0


def shards_of(tensors):
    shard, size = [], 0
    for name, dtype, shape in tensors:
        size += math.prod(shape) * SIZE[dtype]
        shard.append((name, dtype, shape))
        if size >= SHARD_BYTES:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def main(o):
    take_shape(o)
    folder = pathlib.Path(o.folder)
    folder.mkdir(parents=True, exist_ok=True)
    values, index, total = Values(), {}, 0
    for number, shard in enumerate(shards_of(tensors_of(o)), 1):
        header, at = {}, 0
        for name, dtype, shape in shard:
            size = math.prod(shape) * SIZE[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file = f"model-{number:05}.safetensors"
        with open(folder / file, "wb") as to:
            to.write(struct.pack("<Q", len(text)) + text)
            for offset, (name, dtype, shape) in enumerate(shard):
                values.write(to, dtype, math.prod(shape), offset)
                index[name] = file
        total += at
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config_of(o), indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if o.tokenizer and (pathlib.Path(o.tokenizer) / name).is_file():
            shutil.copy(pathlib.Path(o.tokenizer) / name, folder / name)
    print(f"{total / 1e9:.1f} GB in {folder}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--dense", action="store_true", help="the shapes of the 27B")
    parser.add_argument("--layers", type=int, help="default: the model's")
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--tokenizer", help="folder whose tokenizer is copied")
    sys.exit(main(parser.parse_args()))
