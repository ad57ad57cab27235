"""Model folders and GGUF files that have a tokenizer and next to nothing else."""

import json
import struct


def write_folder(folder, vocab, bos=1, **files):
    """config.json and weights of a model of next to no size, and the tokenizer's files."""
    width = 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": width,
        "intermediate_size": width,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "bos_token_id": bos,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    layer = "model.layers.0."
    square = [
        layer + n + ".weight"
        for n in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        )
    ]
    shapes = {name: [width, width] for name in square}
    shapes |= {
        name: [width]
        for name in ("model.norm.weight", layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight")
    }
    shapes["model.embed_tokens.weight"] = [vocab, width]
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    for name, content in files.items():
        path = folder / name.replace("_DOT_", ".")
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content, encoding="utf-8")


def write_gguf(path, entries):
    """A GGUF file of metadata alone. Values: bool, int (uint32), str, lists of str, float or int (int32)."""

    def text(s):
        b = s.encode()
        return struct.pack("<Q", len(b)) + b

    out = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(entries))
    for key, value in entries.items():
        out += text(key)
        if isinstance(value, bool):
            out += struct.pack("<I?", 7, value)
        elif isinstance(value, int):
            out += struct.pack("<II", 4, value)
        elif isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        else:
            kind = {str: 8, float: 6, int: 5}[type(value[0])]
            out += struct.pack("<IIQ", 9, kind, len(value))
            out += b"".join(text(v) if kind == 8 else struct.pack("<f" if kind == 6 else "<i", v) for v in value)
    path.write_bytes(out)


def read_gguf(path):
    """The metadata of a GGUF file: numbers, texts and lists of them, by key."""
    scalars = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as file:

        def number(form):
            return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode()
            if kind != 9:
                return number(scalars[kind])
            inner, count = number("I"), number("Q")
            return [value(inner) for _ in range(count)]

        if file.read(4) != b"GGUF":
            raise ValueError("%s is no GGUF file" % path)
        number("I"), number("Q")  # its version, and how many tensors it has
        entries = {}
        for _ in range(number("Q")):
            key = value(8)
            entries[key] = value(number("I"))
        return entries
