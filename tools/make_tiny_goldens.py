#!/usr/bin/env python3
"""Golden outputs of small random models, from the transformers library. usage: make_tiny_goldens.py OUTDIR [NAME ...]
       make_tiny_goldens.py --check MODELDIR GOLDEN.json     compares this pipeline with golden outputs made elsewhere

The weights are not stored: they follow from the tensor's name and the element's index (see weights()), and
tests/support/tiny_models.cpp makes the same ones for the GGUF files. `weights_fnv1a64` in each golden file is the
hash of all of them, which tests/tiny compares. Needs torch, transformers and tokenizers; docs/testing.md says which.
"""
import copy
import json
import math
import os
import sys

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

MASK = (1 << 64) - 1
NEW_TOKENS, WINDOW, WINDOWS = 32, 128, 4
MIN_GAP, MIN_DISTINCT = 0.003, 8  # of a continuation

# ---- The models. Each row is repeated in tests/support/tiny_models.cpp; the weight hash fails when they differ. ----
# Shapes are odd on purpose: heads * head_dim != hidden, one KV head, FFN widths that are no multiple of 32.
MODELS = [
    dict(name="tiny-llama", seed=3, arch="llama", cls="Llama", vocab=320, hidden=64, layers=3, heads=4, kv_heads=1, head_dim=32, ffn=112, eps=1e-5, theta=10000.0, tied=False),
    dict(name="tiny-llama3", seed=4, arch="llama", cls="Llama", vocab=320, hidden=96, layers=3, heads=4, kv_heads=2, head_dim=48, ffn=160, eps=1e-5, theta=10000.0, tied=True,
         llama3=dict(factor=8.0, low=1.0, high=4.0, original=64)),
    dict(name="tiny-mixtral", seed=4, arch="llama", cls="Mixtral", vocab=301, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=80, eps=1e-5, theta=1000000.0, tied=False, experts=6, used=2),
    dict(name="tiny-qwen2", seed=3, arch="qwen2", cls="Qwen2", vocab=320, hidden=96, layers=3, heads=3, kv_heads=1, head_dim=32, ffn=112, eps=1e-6, theta=1000000.0, tied=True),
    dict(name="tiny-qwen3", seed=2, arch="qwen3", cls="Qwen3", vocab=333, hidden=64, layers=3, heads=4, kv_heads=2, head_dim=48, ffn=160, eps=1e-6, theta=1000000.0, tied=False),
    dict(name="tiny-qwen3moe", seed=3, arch="qwen3moe", cls="Qwen3Moe", vocab=320, hidden=64, layers=3, heads=2, kv_heads=2, head_dim=64, ffn=192, eps=1e-6, theta=1000000.0, tied=False,
         experts=8, used=3, expert_ffn=48),
    dict(name="tiny-qwen35", seed=3, arch="qwen35", cls="Qwen3_5", vocab=320, hidden=64, layers=4, heads=2, kv_heads=1, head_dim=64, ffn=112, eps=1e-6, theta=10000000.0, tied=True,
         interval=2, k_heads=2, v_heads=4, state=32, n_rot=16, sections=[3, 3, 2]),
    dict(name="tiny-qwen35moe", seed=1, arch="qwen35moe", cls="Qwen3_5Moe", vocab=320, hidden=96, layers=4, heads=4, kv_heads=2, head_dim=48, ffn=192, eps=1e-6, theta=10000000.0, tied=False,
         interval=4, k_heads=2, v_heads=6, state=64, n_rot=24, sections=[4, 4, 4], experts=8, used=3, expert_ffn=48, shared_ffn=80),
    dict(name="tiny-qwen3vl", seed=2, arch="qwen3vl", cls="Qwen3VL", vocab=320, hidden=48, layers=3, heads=2, kv_heads=1, head_dim=32, ffn=112, eps=1e-6, theta=5000000.0, tied=False,
         sections=[6, 5, 5]),
    dict(name="tiny-qwen3vlmoe", seed=3, arch="qwen3vlmoe", cls="Qwen3VLMoe", vocab=320, hidden=48, layers=2, heads=2, kv_heads=2, head_dim=32, ffn=112, eps=1e-6, theta=5000000.0, tied=False,
         sections=[6, 5, 5], experts=6, used=2, expert_ffn=32),
    dict(name="tiny-mistral", seed=3, arch="llama", cls="Mistral", vocab=320, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=24, ffn=96, eps=1e-5, theta=1000000.0, tied=False),
    dict(name="tiny-phi3", seed=2, arch="phi3", cls="Phi3", vocab=320, hidden=96, layers=3, heads=3, kv_heads=1, head_dim=32, ffn=112, eps=1e-5, theta=10000.0, tied=False, n_rot=24,
         longrope=dict(original=2048, magnitude=1.125)),
    dict(name="tiny-qwen3next", seed=2, arch="qwen3next", cls="Qwen3Next", vocab=320, hidden=64, layers=4, heads=2, kv_heads=1, head_dim=64, ffn=192, eps=1e-6, theta=10000000.0, tied=False,
         interval=4, k_heads=2, v_heads=6, state=32, n_rot=16, experts=8, used=3, expert_ffn=48, shared_ffn=80),
    dict(name="tiny-glm4", seed=2, arch="glm4", cls="Glm4", vocab=320, hidden=64, layers=3, heads=4, kv_heads=2, head_dim=32, ffn=112, eps=1e-5, theta=10000.0, tied=False, n_rot=16),
    dict(name="tiny-glm4moe", seed=2, arch="glm4moe", cls="Glm4Moe", vocab=320, hidden=64, layers=3, heads=3, kv_heads=1, head_dim=48, ffn=160, eps=1e-5, theta=1000000.0, tied=False, n_rot=24,
         experts=8, used=3, expert_ffn=48, shared_ffn=48, dense=1, groups=4, used_groups=2, scale=1.5),
    dict(name="tiny-gemma3", seed=2, arch="gemma3", cls="Gemma3", vocab=320, hidden=96, layers=4, heads=4, kv_heads=2, head_dim=32, ffn=112, eps=1e-6, theta=1000000.0, tied=False,
         window=40, window_interval=3, local_theta=10000.0, scalar=24),
    dict(name="tiny-gptoss", seed=1, arch="gpt-oss", cls="GptOss", vocab=320, hidden=64, layers=4, heads=4, kv_heads=2, head_dim=32, ffn=96, eps=1e-5, theta=150000.0, tied=False,
         experts=8, used=3, window=40, window_interval=2, yarn=dict(factor=4.0, original=512)),
    dict(name="tiny-gemma4", seed=1, arch="gemma4", cls="Gemma4", vocab=320, hidden=96, layers=4, heads=4, kv_heads=2, head_dim=32, ffn=112, eps=1e-6, theta=1000000.0, tied=False,
         window=40, window_interval=2, local_theta=10000.0, global_head_dim=64, global_kv_heads=1, rotated_pairs=8, soft_cap=10.0),
    dict(name="tiny-gemma4moe", seed=1, arch="gemma4", cls="Gemma4", vocab=320, hidden=64, layers=3, heads=4, kv_heads=2, head_dim=32, ffn=80, eps=1e-6, theta=1000000.0, tied=False,
         window=40, window_interval=3, local_theta=10000.0, global_head_dim=48, rotated_pairs=6, soft_cap=30.0, experts=8, used=3, expert_ffn=48),
    dict(name="tiny-gemma4e", seed=2, arch="gemma4", cls="Gemma4", vocab=320, hidden=96, layers=8, heads=4, kv_heads=2, head_dim=32, ffn=112, eps=1e-6, theta=1000000.0, tied=True,
         window=40, window_interval=2, local_theta=10000.0, global_head_dim=64, rotated_pairs=8, soft_cap=30.0, per_layer=40, shared_kv=5, double_wide=True),
]
CONTEXT = 2048


def long_factors(m):
    """Divisors of the rotary frequencies, up to the original context and beyond."""
    return [1 + 0.125 * i for i in range(m["n_rot"] // 2)], [2 + 0.5 * i for i in range(m["n_rot"] // 2)]


def hf_model(m):
    """The transformers model of one row, float32, eager attention, weights from weights()."""
    moe, hybrid = "experts" in m, "interval" in m
    rope = dict(rope_type="default", rope_theta=m["theta"])
    kw = dict(vocab_size=m["vocab"], hidden_size=m["hidden"], num_hidden_layers=m["layers"], num_attention_heads=m["heads"], num_key_value_heads=m["kv_heads"],
              head_dim=m["head_dim"], intermediate_size=m["ffn"], rms_norm_eps=m["eps"], tie_word_embeddings=m["tied"], max_position_embeddings=CONTEXT,
              bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if "llama3" in m:
        s = m["llama3"]
        rope = dict(rope_type="llama3", rope_theta=m["theta"], factor=s["factor"], low_freq_factor=s["low"], high_freq_factor=s["high"], original_max_position_embeddings=s["original"])
    if moe:
        kw.update({"num_local_experts" if m["cls"] == "Mixtral" else "num_experts": m["experts"]}, num_experts_per_tok=m["used"])
    if m["arch"] in ("qwen3moe", "qwen3vlmoe"):
        kw.update(norm_topk_prob=True, mlp_only_layers=[], decoder_sparse_step=1)
    if "expert_ffn" in m:
        kw.update(moe_intermediate_size=m["expert_ffn"])
    if "shared_ffn" in m:
        kw.update(shared_expert_intermediate_size=m["shared_ffn"])
    if "n_rot" in m:
        rope.update(partial_rotary_factor=m["n_rot"] / m["head_dim"])
    if "longrope" in m:
        short, long = long_factors(m)
        rope.update(rope_type="longrope", short_factor=short, long_factor=long, original_max_position_embeddings=m["longrope"]["original"], attention_factor=m["longrope"]["magnitude"])
        kw.update(original_max_position_embeddings=m["longrope"]["original"])
    if m["arch"] == "gpt-oss":
        kw.update(num_local_experts=m["experts"], attention_bias=True, sliding_window=m["window"],
                  layer_types=["full_attention" if (i + 1) % m["window_interval"] == 0 else "sliding_attention" for i in range(m["layers"])])
        del kw["num_experts"]
        rope.update(rope_type="yarn", factor=m["yarn"]["factor"], original_max_position_embeddings=m["yarn"]["original"], beta_fast=32.0, beta_slow=1.0, truncate=False)
    if m["cls"] == "Mistral":
        kw.update(sliding_window=None)
    if m["arch"].startswith("glm4"):
        kw.update(attention_bias=True)
    if m["arch"] == "glm4moe":
        kw.update(n_routed_experts=m["experts"], n_shared_experts=m["shared_ffn"] // m["expert_ffn"], first_k_dense_replace=m["dense"], n_group=m["groups"], topk_group=m["used_groups"],
                  routed_scaling_factor=m["scale"], norm_topk_prob=True, use_qk_norm=True)
        del kw["num_experts"]
    if m["arch"] == "gemma3":
        kw.update(sliding_window=m["window"], query_pre_attn_scalar=m["scalar"],
                  layer_types=["full_attention" if (i + 1) % m["window_interval"] == 0 else "sliding_attention" for i in range(m["layers"])])
        rope = dict(full_attention=dict(rope, rope_type="linear", factor=8.0), sliding_attention=dict(rope_type="default", rope_theta=m["local_theta"]))
    if m["arch"] == "gemma4":
        kw.update(sliding_window=m["window"], hidden_size_per_layer_input=m.get("per_layer", 0), vocab_size_per_layer_input=m["vocab"],
                  num_kv_shared_layers=m.get("shared_kv", 0), use_double_wide_mlp=m.get("double_wide", False), final_logit_softcapping=m["soft_cap"], global_head_dim=m["global_head_dim"],
                  layer_types=["full_attention" if (i + 1) % m["window_interval"] == 0 else "sliding_attention" for i in range(m["layers"])])
        if "global_kv_heads" in m:  # and there values are what keys are projected to
            kw.update(num_global_key_value_heads=m["global_kv_heads"], attention_k_eq_v=True)
        if moe:
            kw.update(enable_moe_block=True, top_k_experts=m["used"])
            del kw["num_experts_per_tok"]
        rope = dict(full_attention=dict(rope_type="proportional", rope_theta=m["theta"], partial_rotary_factor=2 * m["rotated_pairs"] / m["global_head_dim"]),
                    sliding_attention=dict(rope_type="default", rope_theta=m["local_theta"]))
    if "sections" in m:
        rope.update(mrope_section=m["sections"], mrope_interleaved=True)
    if hybrid:
        kw.update(partial_rotary_factor=m["n_rot"] / m["head_dim"], linear_conv_kernel_dim=4, linear_key_head_dim=m["state"], linear_value_head_dim=m["state"],
                  linear_num_key_heads=m["k_heads"], linear_num_value_heads=m["v_heads"],
                  layer_types=["full_attention" if (i + 1) % m["interval"] == 0 else "linear_attention" for i in range(m["layers"])])
    if m["arch"].startswith("qwen3vl"):  # their class for texts alone is that of the models without images
        del rope["mrope_section"], rope["mrope_interleaved"]
        m = dict(m, cls=m["cls"].replace("VL", ""))
    cfg = getattr(transformers, m["cls"] + ("TextConfig" if m["cls"] in ("Qwen3_5", "Qwen3_5Moe", "Gemma3", "Gemma4") else "Config"))(rope_parameters=rope, **kw)
    cfg._attn_implementation, cfg._experts_implementation = "eager", "eager"
    model = getattr(transformers, m["cls"] + "ForCausalLM")(cfg).float().eval()
    assert model.config._attn_implementation == "eager"
    w = weights(m, {k: tuple(v.shape) for k, v in model.state_dict().items()})
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in w.items()}, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if m["tied"] else set()), (missing, unexpected)
    model.tie_weights()
    return model, w


# ---- Weights: a counter-based generator, so that any language makes the same bits ----
# element i of tensor `name`: z = splitmix64's output function of (fnv1a64("<seed>/<name>") + (i + 1) * 0x9e3779b97f4a7c15),
# u = (z >> 40) / 2^23 - 1 in [-1, 1), value = bf16(float32(centre + spread * u)), computed in float64.
def fnv1a64(data, h=0xCBF29CE484222325):
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def uniform(seed, name, n):
    z = np.uint64(fnv1a64(("%d/%s" % (seed, name)).encode())) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) / 8388608.0 - 1.0


def bf16_bits(x):
    u = x.astype(np.float32).view(np.uint32)
    return ((u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


# (suffix, centre, spread); spread 'g' means: standard deviation g / sqrt(inputs), inputs = the last dimension.
KINDS = [
    ("linear_attn.norm.weight", 1.0, 0.25),
    ("layernorm_1.weight", 1.0, 0.25),
    ("layernorm_2.weight", 1.0, 0.25),
    ("layer_scalar", 0.8, 0.25),
    ("router.scale", 8.0, 2.0),
    ("router.per_expert_scale", 1.0, 0.5),
    ("router.proj.weight", 0.0, "3"),
    ("norm.weight", "norm", 0.25),  # centre 1, or 0 where the model computes (1 + w)
    ("A_log", -1.0, 2.0),
    ("dt_bias", -1.0, 1.5),
    ("v_proj.bias", 0.0, 0.1),
    ("o_proj.bias", 0.0, 0.1),
    ("proj.bias", 0.0, 1.0),
    ("mlp.gate.weight", 0.0, "3"),
    ("mlp.router.weight", 0.0, "3"),
    ("mlp.router.bias", 0.0, 0.5),
    ("gate_up_proj_bias", 0.0, 9.0),  # beyond the limits of the activation
    ("down_proj_bias", 0.0, 0.25),
    ("self_attn.sinks", 0.0, 2.0),
    ("q_proj.weight", 0.0, "1.25"),
    ("k_proj.weight", 0.0, "1.25"),
    ("o_proj.weight", 0.0, "2"),
    ("linear_attn.out_proj.weight", 0.0, "1.5"),
    ("experts.down_proj", 0.0, "2"),
    ("down_proj.weight", 0.0, "2.5"),
    ("embed_tokens.weight", 0.0, "embed"),
    ("embed_tokens_per_layer.weight", 0.0, "3"),
    ("lm_head.weight", 0.0, "2.5"),
    ("", 0.0, "1"),
]


def spread_of(m, name, inputs):
    """centre and spread of a tensor's values."""
    for suffix, centre, spread in KINDS:
        if name.endswith(suffix):
            if centre == "norm":
                centre = 0.0 if "interval" in m or m["arch"] == "gemma3" else 1.0
                if m["arch"] == "gemma4" and name.endswith("k_norm.weight"):
                    centre = 0.25 if "shared_kv" in m else 0.5  # nothing else scales the scores; errors of shared keys add up
            if spread == "embed":  # a tied embedding is the head as well, and sets how peaked the output is
                spread = "2" if m["tied"] else "4"
            return centre, float(spread) * math.sqrt(3.0 / inputs) if isinstance(spread, str) else spread


def weights(m, shapes):
    """All tensors by transformers name, float32 holding bf16 values."""
    out = {}
    for name, shape in shapes.items():
        if name == "lm_head.weight" and m["tied"]:
            continue
        centre, spread = spread_of(m, name, shape[-1])
        bits = bf16_bits(centre + spread * uniform(m["seed"], name, math.prod(shape)))
        out[name] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)
    return out


def weights_hash(w):
    """FNV-1a over, for each tensor in order of its name: the name's bytes, then the bf16 elements, little-endian."""
    h = fnv1a64(b"")
    for name in sorted(w):
        h = fnv1a64(bf16_bits(w[name]).tobytes(), fnv1a64(name.encode(), h))
    return "%016x" % h


# ---- The tokenizer: 256 byte tokens in GPT-2's order, a few merges, unused ids, special tokens at the end ----
MERGES = ["Ġ t", "h e", "Ġ a", "i n", "Ġt he", "r e", "o n", "e r", "Ġ s", "a t", "n d", "o u", "i s", "Ġa nd", "in g", "Ġ w",
          "e n", "Ġ c", "l l", "Ġ f", "o r", "Ġs t", "å ·", "Ã ©", "Ġ 1", "Ġ (", ") ;", "Ċ Ċ"]
SPECIALS = {"llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]}
PATTERNS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def pre_of(m):
    return "llama-bpe" if m["arch"] == "llama" else "qwen35" if "interval" in m else "qwen2"


def add_bos(m):
    return m["name"] == "tiny-llama3"


def byte_alphabet():
    """The printable stand-in of each byte, and the order in which GPT-2 numbers them: printable bytes first."""
    plain = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(0x100 + i) for i in range(len(rest))]


def tokens_of(m):
    specials = SPECIALS["llama" if m["arch"] == "llama" else "qwen"]
    t = byte_alphabet() + [x.replace(" ", "") for x in MERGES]
    t += ["[PAD%d]" % i for i in range(len(t), m["vocab"] - len(specials))]
    return t + specials


def tokenizer_of(m):
    all_tokens = tokens_of(m)
    assert len(all_tokens) == m["vocab"] == len(set(all_tokens))
    bpe = tokenizers.models.BPE(vocab={t: i for i, t in enumerate(all_tokens)}, merges=[tuple(x.split(" ")) for x in MERGES])
    t = Tokenizer(bpe)
    if m["arch"] != "llama":
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[pre_of(m)]), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(all_tokens[-3:])
    return t


# ---- Prompts ----
STORY = ("The mill stood where two rivers met, and nobody could say which of them turned the wheel. In spring the left one rose first and carried "
         "branches, reeds and once a blue rowing boat with nobody in it. The miller tied it to the willow and waited for its owner until the autumn. ")


def prompts(m, tok, variant=0):
    """The prompts; another variant changes each of them a little."""
    specials, mark = tokens_of(m)[-3:], "*" * variant
    chat = "%suser\nWhere is the boat?%s%s\n%sassistant\n" % (specials[1], mark, specials[2], specials[1])
    texts = [("one_token", chr(ord("Z") - variant)), ("words", mark + "The wheel turned and the"),
             ("digits", mark + "x = 1234567; (12 + 30) * 7.5 = 318.75\n\nfor i in range(10): print(i);\n"),
             ("unicode", mark + "Ça va? Über 25 °C – naïve café, 東京の川, Привет, мир! 🙂🚣"), ("chat", chat)]
    # Lengths around the 64-token chunks of a prefill; prompts start at different words so that they do not share a prefix.
    for n, begin in ((64, 0), (65, 4), (80, 9), (129, 14), (150, 23), (261, 30)):
        texts.append(("tokens_%d" % n, exact(tok, (STORY * 4)[begin + 3 * variant:], n - add_bos(m))))
    bos = [m["vocab"] - 3] if add_bos(m) else []
    return [dict(name=n, text=t, ids=bos + tok.encode(t, add_special_tokens=False).ids) for n, t in texts]


def clear_prompt(model, m, tok, index):
    """The golden of prompt `index` in its first variant without a near tie among the greedy steps."""
    for variant in range(20):
        p = golden_prompt(model, tok, prompts(m, tok, variant)[index])
        if min(p["continuation_gap"]) > MIN_GAP and (index == 0 or len(set(p["continuation_ids"])) >= MIN_DISTINCT):
            return p
    raise SystemExit("%s: every variant of prompt %d has a tie or repeats itself: try another seed" % (m["name"], index))


def exact(tok, text, n):
    """The longest beginning of text that has n tokens."""
    for end in range(len(text), 0, -1):
        if len(tok.encode(text[:end], add_special_tokens=False).ids) == n:
            return text[:end]
    raise SystemExit("no beginning of the text has %d tokens" % n)


# ---- Reference runs. Always whole forward passes without a cache: some public code restarts the recurrent state when
# several tokens are given on top of a cache, and one way of computing leaves nothing to disagree about. ----
@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor(ids) if isinstance(ids[0], list) else torch.tensor([ids]), use_cache=False).logits.float()


def top(lp, k=10):
    v, i = lp.topk(k)
    return [[int(a), round(float(b), 6)] for a, b in zip(i, v)]


def golden_prompt(model, tok, p):
    ids, n, cont = p["ids"], len(p["ids"]), []
    for _ in range(NEW_TOKENS):
        cont.append(int(logits_of(model, ids + cont)[0, -1].argmax()))
    lp = torch.log_softmax(logits_of(model, ids + cont)[0], -1)
    lp_prompt = torch.log_softmax(logits_of(model, ids)[0], -1)
    best = lp[n - 1:-1].topk(2).values
    spread = sorted(set(round(k * (n - 1) / 5) for k in range(1, 5)) | {i for i in (63, 64, 127, 128) if i < n})
    return dict(p, continuation_ids=cont, continuation_text=tok.decode(cont, skip_special_tokens=False),
                continuation_logprobs=[round(float(v), 6) for v in best[:, 0]], continuation_gap=[round(float(v[0] - v[1]), 6) for v in best],
                full_forward_agrees=sum(int(lp[n - 1 + i].argmax()) == cont[i] for i in range(len(cont))), last_top10=top(lp_prompt[-1]),
                spread_top10=[dict(pos=i, top10=top(lp_prompt[i])) for i in spread],
                prompt_nll=float(-lp_prompt[:-1].gather(1, torch.tensor(ids)[1:, None]).sum()) if n > 1 else 0.0)


def perplexity(model, m):
    """Text drawn from the model itself (temperature 1), so that the probabilities that count are not the tiny ones."""
    rng = np.random.default_rng(7)
    ids = [[int(x)] for x in rng.integers(0, m["vocab"], WINDOWS)]
    for _ in range(WINDOW - 1):
        c = torch.softmax(logits_of(model, ids)[:, -1].double(), -1).cumsum(-1)
        for row, r, u in zip(ids, c, rng.random(WINDOWS)):
            row.append(min(int(torch.searchsorted(r, u)), m["vocab"] - 1))
    lp = torch.log_softmax(logits_of(model, ids).double(), -1)
    nll = -lp[:, :-1].gather(2, torch.tensor(ids)[:, 1:, None])[..., 0].sum(1)
    scored = WINDOWS * (WINDOW - 1)
    return dict(ids=sum(ids, []), window=WINDOW, windows=WINDOWS, scored=scored, nll=float(nll.sum()), mean_nll=float(nll.sum()) / scored,
                ppl=math.exp(float(nll.sum()) / scored), window_nll=[float(x) for x in nll],
                protocol="As ppl.json of the demo models: consecutive windows, each from an empty state with positions 0..127; "
                         "tokens 1..127 of each window are scored given the earlier ones of the same window.")


@torch.no_grad()
def cached_agrees(model, p):
    """Greedy tokens with a cache, one token per step after the prompt: a second opinion, recorded but not the golden."""
    out, same = model(input_ids=torch.tensor([p["ids"]]), use_cache=True), 0
    for t in p["continuation_ids"]:
        same += int(out.logits[0, -1].argmax()) == t
        out = model(input_ids=torch.tensor([[t]]), past_key_values=out.past_key_values, use_cache=True)
    return same


@torch.no_grad()
def bf16_noise(model, ids):
    """How far logits move when transformers computes in bf16: the scale at which a gap means something. In a copy, and with
    the float32 frequencies of RoPE put back: those are what from_pretrained keeps, and a model converted there and back would
    have lost them."""
    a = torch.log_softmax(logits_of(model, ids)[0], -1)
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    for name, buffer in model.named_buffers():
        rounded.get_buffer(name).data = buffer.data
    b = torch.log_softmax(logits_of(rounded, ids)[0], -1)
    kl = (a.exp() * (a - b)).sum(-1)
    return dict(mean_kl=round(float(kl.mean()), 6), max_kl=round(float(kl.max()), 6), mean_abs_top1=round(float((a - b).gather(1, a.argmax(-1, keepdim=True)).abs().mean()), 4))


def versions():
    return dict(transformers=transformers.__version__, torch=torch.__version__, tokenizers=tokenizers.__version__, numpy=np.__version__,
                device="cpu", dtype="float32 compute, bf16 weights", attention="eager", linear_attention="transformers torch fallback")


def dump(golden, path):
    """One prompt per line: differences between two runs stay readable."""
    head = {k: v for k, v in golden.items() if k != "prompts"}
    text = json.dumps(head, ensure_ascii=False)[:-1] + ',\n"prompts": [\n' + ",\n".join(json.dumps(p, ensure_ascii=False) for p in golden["prompts"]) + "\n]}\n"
    assert json.loads(text) == golden
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def make(m, outdir):
    model, w = hf_model(m)
    tok = tokenizer_of(m)
    done = [clear_prompt(model, m, tok, i) for i in range(len(prompts(m, tok)))]
    cached = [cached_agrees(model, p) for p in done]
    dump(dict(model=m["name"], **versions(), weights_fnv1a64=weights_hash(w), parameters=int(sum(v.size for v in w.values())), config={k: v for k, v in m.items() if k != "name"},
              add_bos=add_bos(m), pre=pre_of(m),
              note="ids: prompt tokens (a BOS first where add_bos). continuation_ids: greedy tokens, end tokens do not stop it. "
                   "top10: [token, log-probability]. spread_top10: logits after token pos.",
              bf16_compute=bf16_noise(model, done[-1]["ids"]), cached_agrees=cached, ppl=perplexity(model, m), prompts=done), os.path.join(outdir, m["name"] + ".json"))
    report(m, w, done, cached, json.load(open(os.path.join(outdir, m["name"] + ".json"), encoding="utf-8")))


def report(m, w, done, cached, g):
    gaps = sorted(x for p in done for x in p["continuation_gap"])
    distinct = [len(set(p["continuation_ids"])) for p in done]
    repeats = sum(a == b for p in done for a, b in zip(p["continuation_ids"], p["continuation_ids"][1:]))
    print("%-15s %7d params  hash %s  gap min %.4f p10 %.3f median %.3f  distinct/32 %s  repeats %d  last tokens %d  cached %s  ppl %.2f  bf16 %s" % (
        m["name"], g["parameters"], g["weights_fnv1a64"], gaps[0], gaps[len(gaps) // 10], gaps[len(gaps) // 2], distinct, repeats,
        len(set(p["continuation_ids"][-1] for p in done)), "all" if set(cached) == {NEW_TOKENS} else cached, g["ppl"]["ppl"], g["bf16_compute"]))
    assert all(p["full_forward_agrees"] == NEW_TOKENS for p in done)


@torch.no_grad()
def check(modeldir, golden):
    """Runs the golden prompts of another file through this tool's settings."""
    cls = json.load(open(os.path.join(modeldir, "config.json")))["architectures"][0]
    model = getattr(transformers, cls).from_pretrained(modeldir, dtype=torch.float32, attn_implementation="eager").eval()
    worst, same, steps, order = 0.0, 0, 0, 0
    for p in json.load(open(golden, encoding="utf-8"))["prompts"]:
        lp = torch.log_softmax(logits_of(model, p["ids"] + p["continuation_ids"])[0], -1)
        n = len(p["ids"])
        for pos, want in [(n - 1, p["last_top10"])] + [(s["pos"], s["top10"]) for s in p["spread_top10"]]:
            worst = max([worst] + [abs(float(lp[pos, t]) - v) for t, v in want])
            order += [t for t, _ in top(lp[pos])] != [t for t, _ in want]
        same += sum(int(lp[n - 1 + i].argmax()) == t for i, t in enumerate(p["continuation_ids"]))
        steps += len(p["continuation_ids"])
    print("%s: %d of %d greedy tokens agree, largest top-10 log-probability difference %.2e, %d lists in another order" % (modeldir, same, steps, worst, order))
    return 0 if same == steps and worst < 1e-3 else 1


def main(args):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if len(args) == 3 and args[0] == "--check":
        return check(args[1], args[2])
    if not args or args[0].startswith("-"):
        raise SystemExit(__doc__)
    for m in MODELS:
        if not args[1:] or m["name"] in args[1:]:
            make(m, args[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
