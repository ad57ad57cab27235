#!/usr/bin/env python3
"""Writes the seeds of fuzz_safetensors and fuzz_hf_json into tests/fuzz/corpus/{safetensors,hf_json}."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus"
SIZES = {"U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8}


def safetensors(tensors, metadata=None):
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape in tensors:
        count = SIZES[dtype]
        for n in shape:
            count *= n
        payload = struct.pack("<f", 0.5) if (dtype, shape) in (("F32", []), ("F32", [1])) else bytes(i % 127 for i in range(count))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + count]}
        data += payload
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def split(pattern):
    steps = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
             {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]
    return {"type": "Sequence", "pretokenizers": steps}


def letters():
    """GPT-2's 256 printable stand-ins of bytes."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in kept] + [chr(0x100 + i) for i in range(256 - len(kept))]


def folder(architecture, pattern, **more):
    config = {"architectures": [architecture], "vocab_size": 260, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
              "rope_theta": 1e4, "eos_token_id": [257, 258], **more}
    tokenizer = {"model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(letters() + ["he"])}, "merges": [["h", "e"]]},
                 "pre_tokenizer": split(pattern), "normalizer": {"type": "NFC"},
                 "added_tokens": [{"id": 257, "content": "<|im_end|>", "special": True}, {"id": 258, "content": "<think>"}],
                 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {}}]}}
    settings = {"bos_token": None, "eos_token": {"content": "<|im_end|>"}, "added_tokens_decoder": {"259": {"content": "<x>"}},
                "chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}
    generation = {"eos_token_id": [257, 0, 1], "temperature": 0.5, "top_k": 20}
    return b"\0".join(json.dumps(f, separators=(",", ":"), ensure_ascii=False).encode() for f in (config, tokenizer, settings, generation))


REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
SEEDS = {
    "safetensors": {
        "empty": safetensors([]),
        "plain": safetensors([("a.weight", "BF16", [2, 3]), ("b", "F32", []), ("c", "F64", [0, 5]), ("d", "F16", [4])], {"format": "pt"}),
        "modelopt": safetensors([("l.weight", "U8", [2, 32]), ("l.weight_scale", "F8_E4M3", [2, 4]), ("l.weight_scale_2", "F32", []),
                                 ("l.input_scale", "F32", [])]),
        "compressed": safetensors([("l.weight_packed", "U8", [2, 32]), ("l.weight_scale", "F8_E4M3", [2, 4]),
                                   ("l.weight_global_scale", "F32", [1]), ("l.input_global_scale", "F32", [1])]),
        "mxfp4": safetensors([("l.weight_packed", "U8", [2, 32]), ("l.weight_scale", "U8", [2, 2])]),
        "fp8": safetensors([("l.weight", "F8_E4M3", [130, 3]), ("l.weight_scale_inv", "F32", [2, 1]), ("m.weight", "F8_E5M2", [2, 2]),
                            ("m.weight_scale", "BF16", [2, 1])]),
        "wrapper": safetensors([("model.language_model.a", "BF16", [1]), ("model.a", "BF16", [1])]),
        "index": json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "x.safetensors"}}).encode(),
    },
    "hf_json": {
        "qwen3": folder("Qwen3ForCausalLM", WORDS + r"|\p{N}" + REST),
        "llama3": folder("LlamaForCausalLM", WORDS + r"|\p{N}{1,3}" + REST,
                         rope_scaling={"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}),
        "mixtral": folder("MixtralForCausalLM", WORDS + r"|\p{N}" + REST, num_local_experts=4, num_experts_per_tok=2),
        "qwen35": folder("Qwen3_5MoeForCausalLM", WORDS + r"|\p{N}" + REST, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                         shared_expert_intermediate_size=8, linear_num_key_heads=1, linear_num_value_heads=2, mtp_num_hidden_layers=1,
                         layer_types=["linear_attention", "full_attention"],
                         rope_parameters={"rope_type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 0]}),
    },
}

for kind, seeds in SEEDS.items():
    (HERE / kind).mkdir(parents=True, exist_ok=True)
    for name, content in seeds.items():
        (HERE / kind / name).write_bytes(content)
