#!/usr/bin/env python3
"""`quire convert` beside transformers: folders that transformers saves, of small random models of every architecture and
with every key that once made a difference, are converted; logits and tokens must be the same, or the folder refused.

usage: check_convert.py PROGRAM [--only TEXT] [--keep DIR]

Needs torch, transformers and tokenizers (docs/testing.md says how to get them); without them it says so and ends with 77,
which ctest takes for skipped. Downloads nothing.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import safetensors.torch
    import tokenizers
    import torch
    import transformers
    from tokenizers import normalizers, pre_tokenizers

    import make_tiny_goldens as tiny  # the models, their weights and their tokenizers
except ImportError as missing:
    print("check_convert: skipped: %s (needs torch, transformers and tokenizers)" % missing)
    sys.exit(77)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
# Float32 in another order of summation: found are 1e-5, of hybrids 5e-5. In an expert model a token at a tie could go to
# another expert; none of these does.
TOLERANCE = 5e-4
LENGTHS = (1, 6, 70)
GENERATED = 6


class Refused(Exception):
    pass


# ---- Folders ----
def model_row(name):
    return next(m for m in tiny.MODELS if m["name"] == "tiny-" + name)


def save_folder(folder, row, wrapper):
    """The folder of a model as transformers saves it today."""
    model, _ = tiny.hf_model(row)
    if wrapper:
        vision = dict(num_hidden_layers=1, hidden_size=32, intermediate_size=32, num_attention_heads=2, image_size=28, patch_size=14) if row["cls"] == "Gemma3" else \
            dict(depth=1, hidden_size=32, intermediate_size=32, num_heads=2, out_hidden_size=row["hidden"], num_position_embeddings=16)
        text = model.config.to_dict()
        more = dict(mm_tokens_per_image=1) if row["cls"] == "Gemma3" else {}  # of the 2 x 2 patches
        config = getattr(transformers, row["cls"] + "Config")(text_config=text, vision_config=vision, tie_word_embeddings=row["tied"], **more)
        model = getattr(transformers, row["cls"] + "ForConditionalGeneration")(config).float()
        shapes = {k: tuple(v.shape) for k, v in model.state_dict().items()}
        model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in tiny.weights(row, shapes).items()}, strict=False)
        model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tiny.tokenizer_of(row))
    tokenizer.save_pretrained(folder)


def edit_json(path, edit):
    with open(path, encoding="utf-8") as f:
        document = json.load(f)
    edit(document)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(document, f, ensure_ascii=False)


def edit_tensors(folder, edit):
    path = os.path.join(folder, "model.safetensors")
    tensors = safetensors.torch.load_file(path)
    edit(tensors)
    safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})


def convert(program, folder, output):
    done = subprocess.run([program, "convert", folder, output], capture_output=True, text=True)
    if done.returncode == 2 and not os.path.exists(output):
        raise Refused(done.stderr.strip())
    if done.returncode != 0:
        raise SystemExit("convert ended with %d: %s" % (done.returncode, done.stderr))


# ---- Logits ----
def quire_logprobs(program, gguf, ids, vocab):
    done = subprocess.run([program, "run", "-m", gguf, "--device", "reference", "--tokens", ",".join(map(str, ids)), "-n", str(GENERATED),
                           "--temperature", "0", "--ignore-eos", "--logprobs", str(vocab), "--json"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    rows = []
    for entry in answer["logprobs"]:
        row = torch.full((vocab,), float("nan"))
        for t in entry["top"]:
            row[t["token"]] = t["logprob"]
        rows.append(row)
    return answer["tokens"], torch.stack(rows)


def text_vocab(config):
    return config.get_text_config().vocab_size


@torch.no_grad()
def worst_difference(program, folder, gguf):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        cls = json.load(f)["architectures"][0]
    model = getattr(transformers, cls).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    vocab, worst = text_vocab(model.config), 0.0
    for n in LENGTHS:
        ids = [random.Random(n).randrange(256) for _ in range(n)]
        tokens, got = quire_logprobs(program, gguf, ids, vocab)
        want = torch.log_softmax(model(input_ids=torch.tensor([ids + tokens]), use_cache=False).logits[0].float(), -1)
        worst = max(worst, float((got - want[n - 1:n - 1 + len(tokens)]).abs().max()))  # NaN: a token is missing
    return worst


# ---- Cases: name, model, wrapper, edit of config.json, edit of the tensors, and whether it must be refused ----
def rope(**parameters):
    def edit(c):
        c["rope_parameters"] = dict(c["rope_parameters"], **parameters)
    return edit


def change(**keys):
    return lambda c: c.update(keys)


def both(*edits):
    return lambda c: [e(c) for e in edits] and None


def without(*keys):
    return lambda c: [c.pop(k, None) for k in keys] and None


def own_head(equal):
    def edit(t):
        source = next(v for k, v in t.items() if k.endswith("embed_tokens.weight"))
        t["lm_head.weight"] = source.clone() if equal else source.roll(1, 0).clone()
    return edit


def biases(names, row):
    sizes = dict(q_proj=row["heads"] * row["head_dim"], k_proj=row["kv_heads"] * row["head_dim"], v_proj=row["kv_heads"] * row["head_dim"],
                 o_proj=row["hidden"], gate_proj=row["ffn"], up_proj=row["ffn"], down_proj=row["hidden"])

    def edit(t):
        for layer in range(row["layers"]):
            for name in names:
                group = "self_attn" if sizes[name] != row["ffn"] and name != "down_proj" else "mlp"
                t["model.layers.%d.%s.%s.bias" % (layer, group, name)] = torch.randn(sizes[name], generator=torch.Generator().manual_seed(layer)).bfloat16()
    return edit


def keys_everywhere(t):
    """Keys and values in the layers that attend to those of others, as model folders have them."""
    for layer in range(3, 8):
        for name in ("k_proj", "v_proj", "k_norm"):
            t["model.layers.%d.self_attn.%s.weight" % (layer, name)] = t["model.layers.%d.self_attn.%s.weight" % (2 - layer % 2, name)].roll(1, 0).clone()


def older_rope(c):
    """The way of older folders: rope_scaling, with rope_theta beside it."""
    theta = c.pop("rope_parameters")["rope_theta"]
    c.update(rope_theta=theta, rope_scaling=dict(type="linear", factor=4.0))


def cases():
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
    for m in tiny.MODELS:
        name = m["name"][len("tiny-"):]
        yield (name, name, False, None, None, False)
        if "window" in m:  # its RoPE is one for each kind of layer
            continue
        if "interval" not in m:
            yield (name + " partial", name, False, rope(partial_rotary_factor=0.5), None, "llama3" in m or "longrope" in m)
        if "llama3" not in m and "longrope" not in m:
            yield (name + " yarn", name, False, rope(**yarn), None, False)
            yield (name + " linear", name, False, rope(rope_type="linear", factor=2.0), None, False)
    for name in ("qwen35", "qwen35moe", "gemma3"):
        yield (name + " wrapper", name, True, None, None, False)
    yield ("wrapper, tied inside only", "qwen35", True, both(change(tie_word_embeddings=False), lambda c: c["text_config"].update(tie_word_embeddings=True)), own_head(False), False)
    yield ("wrapper, tied outside only", "qwen35", True, lambda c: c["text_config"].update(tie_word_embeddings=False), None, False)
    yield ("wrapper, tied nowhere and no head", "qwen35", True, both(change(tie_word_embeddings=False)), None, True)
    yield ("tied, the head equal", "qwen2", False, None, own_head(True), False)
    yield ("tied, the head another", "qwen2", False, None, own_head(False), False)
    yield ("experts by the older name", "qwen3moe", False, both(lambda c: c.update(num_experts=c["num_local_experts"]), without("num_local_experts")), None, False)
    yield ("mixtral without theta", "mixtral", False, lambda c: c["rope_parameters"].pop("rope_theta"), None, False)
    yield ("mixtral without rope", "mixtral", False, without("rope_parameters"), None, False)
    yield ("yarn, factor null", "qwen3", False, rope(rope_type="yarn", factor=None, original_max_position_embeddings=512), None, False)
    yield ("yarn, no factor", "qwen3", False, rope(rope_type="yarn", original_max_position_embeddings=512), None, True)
    yield ("yarn, factor below 1", "qwen3", False, rope(**dict(yarn, factor=0.5)), None, False)
    yield ("yarn, context beside", "qwen3", False, both(rope(**dict(yarn, original_max_position_embeddings=512)), change(original_max_position_embeddings=64)), None, False)
    yield ("yarn, attention_factor", "llama", False, rope(**dict(yarn, attention_factor=1.5)), None, False)
    yield ("yarn, mscale", "qwen2", False, rope(**dict(yarn, mscale=2.0, mscale_all_dim=0.5)), None, False)
    yield ("yarn, mscale alone", "qwen2", False, rope(**dict(yarn, mscale=2.0)), None, False)
    yield ("llama3, context beside", "llama3", False, change(original_max_position_embeddings=128), None, False)
    yield ("rope of older folders", "qwen3", False, older_rope, None, False)
    yield ("rope both ways", "qwen3", False, change(rope_theta=20000.0, rope_scaling=dict(rope_type="linear", factor=4.0)), None, False)
    yield ("attention_bias", "qwen3", False, change(attention_bias=True), biases(("q_proj", "k_proj", "v_proj", "o_proj"), model_row("qwen3")), False)
    yield ("biases of llama", "llama", False, change(attention_bias=True, mlp_bias=True),
           biases(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), model_row("llama")), False)
    yield ("stray biases", "qwen3", False, None, biases(("q_proj", "o_proj"), model_row("qwen3")), False)
    yield ("window", "mixtral", False, change(sliding_window=100), None, False)
    yield ("window", "mistral", False, change(sliding_window=100), None, False)
    yield ("windows elsewhere", "gemma3", False, change(layer_types=["full_attention"] + ["sliding_attention"] * 3), None, False)
    yield ("no windows", "gemma3", False, change(layer_types=["full_attention"] * 4), None, False)
    yield ("the usual scale", "gemma3", False, change(query_pre_attn_scalar=32), None, False)
    yield ("gemma3 soft cap", "gemma3", False, change(final_logit_softcapping=5.0), None, False)
    yield ("gemma3, rope of older folders", "gemma3", False,
           both(without("rope_parameters"), change(rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=dict(rope_type="linear", factor=8.0))), None, False)
    yield ("gemma4, as published", "gemma4", False, both(without("per_layer_config"), change(global_head_dim=64, num_global_key_value_heads=1)), None, False)
    yield ("gemma4, no cap, another share", "gemma4", False,
           both(change(final_logit_softcapping=None), lambda c: c["rope_parameters"]["full_attention"].update(partial_rotary_factor=0.5)), None, False)
    yield ("gemma4, rope by default", "gemma4", False, without("rope_parameters"), None, False)
    yield ("gemma4e, keys that nothing reads", "gemma4e", False, None, keys_everywhere, False)
    yield ("gemma4e, as published", "gemma4e", False, both(without("per_layer_config"), change(global_head_dim=64)), None, False)
    yield ("gemma4e, wide where keys are shared", "gemma4e", False, change(num_kv_shared_layers=4), None, True)
    yield ("glm4moe, other groups", "glm4moe", False, change(n_group=2, topk_group=1), None, False)
    yield ("glm4moe, weights as they are", "glm4moe", False, change(norm_topk_prob=False), None, False)


def check_model(program, case, work):
    name, base, wrapper, edit, edit_weights, refused = case
    folder, gguf = os.path.join(work, "folder"), os.path.join(work, "model.gguf")
    save_folder(folder, model_row(base), wrapper)
    if edit_weights:
        edit_tensors(folder, edit_weights)
    if edit:
        edit_json(os.path.join(folder, "config.json"), edit)
    try:
        convert(program, folder, gguf)
    except Refused as e:
        return refused, "refused: " + str(e)
    if refused:
        return False, "accepted, but should be refused"
    worst = worst_difference(program, folder, gguf)
    return worst <= TOLERANCE, "differs by %.1e" % worst


# ---- Tokenizers ----
STRINGS = ["", " ", "Hello, world!", "don't DON'T we'LL it'\u017f 'S\u017f", "a  b\n\n  c\td \r\n x", "1234567 89", "x = (12 + 30) * 7.5;\n",
           "e\u0301a \u00e9 \u1e9b\u0323 \uac01 \u1112\u1161\u11ab", "\u0915\u09c7 \u0301\u0301 \U0001e5d0\U0001e5f1 \U00010d40\U00010d4a \u0897x \U0002ebf0",
           "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>", "<|begin_of_text|>x<|eot_id|>", "\u6771\u4eac\u306e\u5ddd \u041f\u0440\u0438\u0432\u0435\u0442 \U0001f642\U0001f6a3",
           "the them then \u212a\u017f\ufb01 \u2028\u3000\u00a0\u180e."]


def random_strings(count):
    draw = random.Random(5)
    nasty = "''sStTrRvVlLmMdDeE \t\r\n\u0085\u00a0\u2028\u3000\u0301\u0323\u20dd\u0903\u200d019\u00bd\u0663\u2167\u4e2d\u00e9\u017f\u212a.,!-_"
    for _ in range(count):
        yield "".join(draw.choice(nasty) if draw.random() < 0.8 else chr(draw.choice((draw.randrange(0x20, 0x3000), draw.randrange(0x1F300, 0x1F700))))
                      for _ in range(draw.randrange(1, 30)))


def split_then_regex(t):
    t["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = True


def gpt2(t):
    t["normalizer"] = None
    t["pre_tokenizer"] = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)


CASED = [r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+", r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"]


def cased(suffix, digits, **keys):
    """Words end where small letters are followed by capitals: of o200k and tekken."""
    regex = "|".join(c + suffix for c in CASED) + "|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

    def edit(t):
        t["normalizer"] = None
        t["pre_tokenizer"]["pretokenizers"][0]["pattern"] = dict(Regex=regex)
        t["model"].update(keys)
    return edit


def token_flag(key):
    return lambda t: t["added_tokens"][0].update({key: True})


def model_key(**keys):
    return lambda t: t["model"].update(keys)


def tokenizer_cases():
    """name, model, edit of tokenizer.json, must it be refused?"""
    for base in ("llama", "llama3", "qwen3", "qwen35"):
        yield base, base, None, False
    yield "gpt-2", "qwen3", gpt2, False
    yield "gpt-4o", "qwen3", cased("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"), False
    yield "tekken", "qwen3", cased("", r"\p{N}", ignore_merges=True), False
    yield "tekken without ignore_merges", "qwen3", cased("", r"\p{N}"), True
    yield "qwen2 without NFC", "qwen3", change(normalizer=None), False
    yield "qwen35 without NFC", "qwen35", change(normalizer=None), True
    yield "llama-bpe, ignore_merges", "llama", model_key(ignore_merges=True), False
    yield "qwen2, ignore_merges", "qwen3", model_key(ignore_merges=True), True
    yield "split twice", "qwen3", split_then_regex, True
    for key in ("lstrip", "rstrip", "single_word"):
        yield key, "qwen3", token_flag(key), True
    yield "end_of_word_suffix", "qwen3", model_key(end_of_word_suffix="</w>"), True
    for kind in ("Lowercase", "NFKC", "NFD"):
        yield kind, "qwen3", change(normalizer=dict(type=kind)), True


def check_tokenizer(program, case, work):
    _, base, edit, refused = case
    folder, gguf = os.path.join(work, "folder"), os.path.join(work, "model.gguf")
    save_folder(folder, model_row(base), False)
    path = os.path.join(folder, "tokenizer.json")
    if edit:
        edit_json(path, edit)
    try:
        convert(program, folder, gguf)
    except Refused as e:
        return refused, "refused: " + str(e)
    if refused:
        return False, "accepted, but should be refused"
    reference = tokenizers.Tokenizer.from_file(path)
    count = 0
    for text in STRINGS + list(random_strings(100)):
        done = subprocess.run([program, "tokenize", "-m", gguf, "--json", "--no-bos"], input=text.encode(), capture_output=True, check=True)
        got, want = json.loads(done.stdout)["tokens"], reference.encode(text, add_special_tokens=False).ids
        if got != want:
            return False, "%r: %s instead of %s" % (text, got, want)
        count += 1
    return True, "%d texts" % count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--keep", help="a folder to put the folders of failing cases into")
    options = parser.parse_args()
    print("transformers %s, tokenizers %s, torch %s" % (transformers.__version__, tokenizers.__version__, torch.__version__))
    failed = passed = 0
    for kind, check, listed in (("model", check_model, cases()), ("tokenizer", check_tokenizer, tokenizer_cases())):
        for case in listed:
            if options.only not in case[0]:
                continue
            with tempfile.TemporaryDirectory() as work:
                good, said = check(options.program, case, work)
                if not good and options.keep:
                    shutil.copytree(work, os.path.join(options.keep, case[0].replace(" ", "-")), dirs_exist_ok=True)
            print("%s  %s %s: %s" % ("ok  " if good else "FAIL", kind, case[0], said), flush=True)
            passed, failed = passed + bool(good), failed + (not good)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
