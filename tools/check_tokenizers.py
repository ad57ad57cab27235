#!/usr/bin/env python3
"""Quire's tokenizers beside the originals: Hugging Face's tokenizers and Google's sentencepiece. Folders and files are
made of vocabularies that the package mistral-common ships (SentencePiece v1, v3 and v7, tekken) and of small ones trained
here; `quire tokenize` must give the same tokens of every text, and the same text of every list of tokens.

usage: check_tokenizers.py PROGRAM [--only TEXT] [--write-fixtures]

Needs tokenizers, sentencepiece and mistral-common (docs/testing.md says how to get them); without them it says so and
ends with 77, which ctest takes for skipped. Downloads nothing. --write-fixtures writes tests/data/tokenizer anew, which
the tests in C++ read: small vocabularies, texts, and what the originals make of them.
"""

import argparse
import io
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

try:
    import mistral_common
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as protobuf
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
except ImportError as missing:
    print("check_tokenizers: skipped: %s (needs tokenizers, sentencepiece, protobuf and mistral-common)" % missing)
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from tokenizer_files import write_folder, write_gguf  # noqa: E402
from tokenizer_texts import SAMPLES, texts  # noqa: E402

ROOT = pathlib.Path(__file__).parent.parent
FIXTURES = ROOT / "tests/data/tokenizer"
MISTRAL = pathlib.Path(mistral_common.__file__).parent / "data"
MARK = "\u2581"
ENDS = ["<end_of_turn>", "</s>", "<|tool_response>"]
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HARMONY = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
]


# ---- Vocabularies ----
def parsed(model):
    m = protobuf.ModelProto()
    m.ParseFromString(model)
    return m


def pieces_and_merges(model):
    """What conversions to tokenizers make of a SentencePiece model: its pieces, and their merges by score."""
    pieces = [(p.piece, p.score, p.type) for p in parsed(model).pieces]
    ids = {p[0]: i for i, p in enumerate(pieces)}
    merges = []
    for text, score, _ in pieces:
        local = [(text[:k], text[k:], score) for k in range(1, len(text)) if text[:k] in ids and text[k:] in ids]
        merges += sorted(local, key=lambda m: (ids[m[0]], ids[m[1]]))
    merges.sort(key=lambda m: -m[2])
    return pieces, ids, [(a, b) for a, b, _ in merges]


def hf_tokenizer(model, kind, added=()):
    """The tokenizers of the families: how they treat spaces is what differs."""
    pieces, ids, merges = pieces_and_merges(model)
    t = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replace = normalizers.Replace(" ", MARK)
    if kind == "prepend":  # Llama 2, Mistral 7B v0.1, Mixtral, TinyLlama, Phi-3
        t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), replace])
    elif kind == "gemma":
        t.normalizer = replace
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:  # "first": Mistral 7B v0.3 and what is not legacy
        t.pre_tokenizer = pre_tokenizers.Metaspace(MARK, kind, False)
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind not in ("gemma", "never"):
        steps.append(decoders.Strip(" ", 1, 0))
    t.decoder = decoders.Sequence(steps)
    t.add_special_tokens([AddedToken(p, normalized=False, special=True) for p, _, kind in pieces if kind in (2, 3)])
    t.add_tokens([AddedToken(p, normalized=False) for p, _, kind in pieces if kind == 4])
    for token in added:
        (t.add_special_tokens if token.special else t.add_tokens)([token])
    bos = next(p for p, _, kind in pieces if kind == 3 and p in ("<s>", "<bos>"))
    t.post_processor = processors.TemplateProcessing(
        single=bos + " $A", pair=None, special_tokens=[(bos, t.token_to_id(bos))]
    )
    return t


def train_model(samples=SAMPLES, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(samples * 3),
        model_writer=out,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        minloglevel=2,
        num_threads=1,
        character_coverage=0.99,
        **options
    )
    return out.getvalue()


def gemma_model(vocab=1800, **more):
    runs = ["\n" * n for n in range(1, 8)] + [MARK * n for n in range(2, 12)]
    return train_model(
        vocab_size=vocab,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>", "<table>", "</table>"] + runs,
        **more
    )


def llama_model(vocab=1800, **more):
    return train_model(
        vocab_size=vocab,
        add_dummy_prefix=True,
        remove_extra_whitespaces=False,
        split_digits=True,
        pad_id=-1,
        allow_whitespace_only_pieces=True,
        **more
    )


def trained_in_tokenizers():
    """BPE with byte tokens, trained by the other library: merges with no scores behind them."""
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    t.train_from_iterator(
        SAMPLES * 3,
        trainers.BpeTrainer(
            vocab_size=1500, min_frequency=4, limit_alphabet=300, special_tokens=special, show_progress=False
        ),
    )
    document = json.loads(t.to_str())
    document["added_tokens"] = [a for a in document["added_tokens"] if a["id"] < 3]  # byte tokens are none
    t = Tokenizer.from_str(json.dumps(document))
    t.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return t


def harmony():
    """The splitter of o200k with harmony's special tokens over a vocabulary trained here."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(GPT4O), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        SAMPLES * 3,
        trainers.BpeTrainer(vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    t.add_special_tokens(HARMONY)
    return t


def byte_letters():
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return {b: chr(b) for b in kept} | {b: chr(0x100 + i) for i, b in enumerate(b for b in range(256) if b not in kept)}


def tekken(path):
    """tokenizer.json of a tekken file, whose tokens are ranked bytes: each merge is the last one of its own token."""
    import base64

    source = json.loads(path.read_text(encoding="utf-8"))
    config, letters = source["config"], byte_letters()
    special = config["default_num_special_tokens"]
    ranks = {
        base64.b64decode(v["token_bytes"]): v["rank"] for v in source["vocab"][: config["default_vocab_size"] - special]
    }
    spell = lambda b: "".join(letters[x] for x in b)
    merges = []
    for token, rank in ranks.items():
        parts = [bytes([x]) for x in token]
        while len(parts) > 2:
            at = min(range(len(parts) - 1), key=lambda i: (ranks.get(parts[i] + parts[i + 1], 1 << 40), i))
            if ranks.get(parts[at] + parts[at + 1], 1 << 40) >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((rank, spell(parts[0]), spell(parts[1])))
    named = {t["rank"]: t["token_str"] for t in source.get("special_tokens") or []}
    names = [
        named.get(i, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"][i] if i < 5 else "<SPECIAL_%d>" % i)
        for i in range(special)
    ]
    vocab = {name: i for i, name in enumerate(names)} | {spell(b): special + r for b, r in ranks.items()}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[(a, b) for _, a, b in sorted(merges)], ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(config["pattern"]), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(names)
    return t


# ---- Comparing ----
def run_quire(program, model, lines, *flags):
    done = subprocess.run(
        [program, "tokenize", "-m", str(model), "--jsonl", *flags],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode != 0:
        raise SystemExit("%s: quire tokenize: %s" % (model, done.stderr.strip()))
    key = "text" if "--decode" in flags else "tokens"
    return [json.loads(line)[key] for line in done.stdout.split("\n")[:-1]]


class Check:
    def __init__(self, program):
        self.program, self.failed, self.compared = program, 0, 0

    def same(self, name, inputs, got, want):
        assert len(got) == len(want) == len(inputs), "%s: %d of %d answers" % (name, len(got), len(inputs))
        wrong = [i for i in range(len(inputs)) if got[i] != want[i]]
        self.compared += len(inputs)
        self.failed += len(wrong)
        print("%-44s %6d compared, %d differ" % (name, len(inputs), len(wrong)), flush=True)
        for i in wrong[:3]:
            print("   %r\n      quire    %r\n      original %r" % (inputs[i], got[i], want[i]))

    def sentencepiece(self, name, model, original):
        """Without control tokens in texts, which sentencepiece does not look for."""
        inputs = [t for t in texts(original) if not other_by_design(original, t)]
        ids = [original.encode(t) for t in inputs]
        self.same(name + ": encode", inputs, run_quire(self.program, model, inputs, "--no-special"), ids)
        # Tokens that end a turn are control tokens here, whatever the file says.
        ends = [original.piece_to_id(t) for t in ENDS]
        hidden = [original.unk_id()] + [i for i in ends if not original.is_control(i)]
        lists = [[i for i in l if i not in hidden] for l in ids + random_ids(original.get_piece_size())]
        self.same(
            name + ": decode",
            lists,
            run_quire(self.program, model, lists, "--decode", "--no-special"),
            [original.decode(l) for l in lists],
        )

    def tokenizers(self, name, model, original, bos=None):
        inputs = texts(original)
        ids = [original.encode(t, add_special_tokens=False).ids for t in inputs]
        self.same(name + ": encode", inputs, run_quire(self.program, model, inputs, "--no-bos"), ids)
        if bos is not None:
            plain = [t for t in inputs if not t.startswith(bos)]  # Quire does not double it
            self.same(
                name + ": with BOS",
                plain,
                run_quire(self.program, model, plain),
                [original.encode(t).ids for t in plain],
            )
        lists = [l for l in ids + random_ids(original.get_vocab_size()) if whole_bytes(original, l)]
        for flags, skip in ([], False), (["--no-special"], True):
            # Tokens that end a turn are control tokens here, whatever the file says.
            special = {i for i, t in original.get_added_tokens_decoder().items() if t.special}
            hidden = {original.token_to_id(t) for t in ENDS} - special if skip else set()
            shown = [l for l in lists if not hidden & set(l)]
            want = [original.decode(l, skip_special_tokens=skip) for l in shown]
            self.same(
                name + ": decode " + " ".join(flags),
                shown,
                run_quire(self.program, model, shown, "--decode", *flags),
                want,
            )


def other_by_design(original, text):
    """Marks that are text beside spaces are one run to sentencepiece; here a user-defined run has either. And a token that
    ends a turn is a control token here, whatever the file says."""
    if "<end_of_turn>" in text:
        return True
    runs = parsed(original.serialized_model_proto()).pieces[original.piece_to_id(MARK * 2)].type == 4
    return runs and re.search(" %s|%s " % (MARK, MARK), text)


def random_ids(vocab):
    draw = random.Random(7)
    return [
        [draw.randrange(vocab if draw.random() < 0.7 else min(vocab, 300)) for _ in range(draw.randrange(1, 12))]
        for _ in range(600)
    ]


def whole_bytes(original, ids):
    """tokenizers make U+FFFD of every byte of a run with a fault, whole characters too: no stream could do that."""
    run = b""
    for i in [*ids, None]:
        text = original.id_to_token(i) if i is not None else ""
        if re.fullmatch("<0x[0-9A-F]{2}>", text or ""):
            run += bytes([int(text[3:5], 16)])
            continue
        if "\ufffd" in run.decode(errors="replace"):
            return False
        run = b""
    return True


def llama_gguf(path, model, **more):
    """As llama.cpp's converter writes a tokenizer.model."""
    pieces = parsed(model).pieces
    write_gguf(
        path,
        {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": [p.piece for p in pieces],
            "tokenizer.ggml.scores": [float(p.score) for p in pieces],
            "tokenizer.ggml.token_type": [int(p.type) for p in pieces],
            **more,
        },
    )


def processor(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def real_models():
    return {
        "mistral v1": (MISTRAL / "tokenizer.model.v1").read_bytes(),
        "mistral v3": (MISTRAL / "mistral_instruct_tokenizer_240323.model.v3").read_bytes(),
        "mistral v7": (MISTRAL / "mistral_instruct_tokenizer_241114.model.v7").read_bytes(),
    }


def phi3_tokens():
    return [
        AddedToken(t, normalized=False, special=True, rstrip=True) for t in ("<|user|>", "<|assistant|>", "<|end|>")
    ] + [AddedToken("<left>", normalized=False, special=False, lstrip=True), AddedToken("<think>", normalized=False)]


def check_all(check, work, only):
    wanted = lambda name: only in name
    trained = {
        "trained llama": llama_model(),
        "trained gemma": gemma_model(),
        "extra spaces": train_model(vocab_size=1400),
    }
    for name, model in {**real_models(), **trained}.items():
        if wanted(name + " alone"):
            write_folder(
                work / (name + " alone"),
                parsed(model).trainer_spec.vocab_size or len(parsed(model).pieces),
                tokenizer_DOT_model=model,
            )
            check.sentencepiece(name + " alone", work / (name + " alone"), processor(model))
        if wanted(name + " gguf") and name in ("mistral v1", "trained llama", "trained gemma"):
            path = work / (name + ".gguf")
            llama_gguf(path, model, **({"tokenizer.ggml.add_space_prefix": False} if "gemma" in name else {}))
            check.sentencepiece(name + " gguf", path, processor(model))
    kinds = [
        ("mistral v1", "prepend", ()),
        ("mistral v3", "first", ()),
        ("mistral v7", "always", ()),
        ("trained llama", "prepend", phi3_tokens()),
        ("trained llama", "first", phi3_tokens()),
        ("trained llama", "never", phi3_tokens()),
        ("trained gemma", "gemma", ()),
    ]
    for name, kind, added in kinds:
        label = "%s json %s%s" % (name, kind, " added" if added else "")
        if not wanted(label):
            continue
        model = real_models().get(name) or trained[name]
        original = hf_tokenizer(model, kind, added)
        bos = "<bos>" if "gemma" in name else "<s>"
        write_folder(
            work / label,
            original.get_vocab_size(),
            original.token_to_id(bos),
            tokenizer_DOT_json=original.to_str(),
            tokenizer_DOT_model=model,
        )
        check.tokenizers(label, work / label, original, bos)
        converted = work / (label + ".gguf")
        subprocess.run([check.program, "convert", str(work / label), str(converted)], check=True, capture_output=True)
        check.tokenizers(label + " converted", converted, original, bos)
    others = {"trained in tokenizers": trained_in_tokenizers, "harmony": harmony}
    for path in sorted(MISTRAL.glob("tekken_*.json")):
        others[path.stem] = lambda path=path: tekken(path)
    for name, make in others.items():
        if wanted(name):
            original = make()
            write_folder(work / name, original.get_vocab_size(), tokenizer_DOT_json=original.to_str())
            check.tokenizers(name, work / name, original)


# ---- Fixtures of the tests in C++ ----
def write_fixtures():
    FIXTURES.mkdir(parents=True, exist_ok=True)
    small = {"samples": SAMPLES[:15]}  # other scripts fall back on bytes
    llama, gemma = llama_model(900, **small), gemma_model(900, **small)
    (FIXTURES / "llama.model").write_bytes(llama)
    (FIXTURES / "gemma.model").write_bytes(gemma)
    write_cases("llama", processor(llama))
    write_cases("gemma", processor(gemma))
    for name, original in {
        "prepend": hf_tokenizer(llama, "prepend", phi3_tokens()),
        "first": hf_tokenizer(llama, "first", phi3_tokens()),
        "replace": hf_tokenizer(gemma, "gemma"),
    }.items():
        (FIXTURES / (name + ".json")).write_text(original.to_str(), encoding="utf-8")
        write_cases(name, original)
    return 0


def write_cases(name, original):
    """A line for each text: the text, its tokens, and what they are decoded to."""
    with open(FIXTURES / (name + ".jsonl"), "w", encoding="utf-8") as out:
        google = hasattr(original, "get_piece_size")
        for t in texts(original, 420, most=5):
            if google and other_by_design(original, t):
                continue
            ids = original.encode(t) if google else original.encode(t, add_special_tokens=False).ids
            back = original.decode(ids) if google else original.decode(ids, skip_special_tokens=False)
            out.write(json.dumps([t, ids, back], separators=(",", ":")) + "\n")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("program")
    args.add_argument("--only", default="")
    args.add_argument("--write-fixtures", action="store_true")
    options = args.parse_args()
    if options.write_fixtures:
        return write_fixtures()
    check = Check(os.path.abspath(options.program))
    with tempfile.TemporaryDirectory() as work:
        check_all(check, pathlib.Path(work), options.only)
    print("%d compared, %d differ" % (check.compared, check.failed))
    return 1 if check.failed or not check.compared else 0


if __name__ == "__main__":
    sys.exit(main())
