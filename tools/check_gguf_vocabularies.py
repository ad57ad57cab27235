#!/usr/bin/env python3
"""Quire beside other tokenizers, over the vocabularies of GGUF files: Google's sentencepiece and Hugging Face's
tokenizers, to which the file's pieces, scores and merges are given, llama.cpp itself, and the texts and tokens that
llama.cpp keeps beside its own files (NAME.gguf.inp and .out). `quire tokenize` must give the same tokens of every text,
and the same text of every list of tokens.

usage: check_gguf_vocabularies.py PROGRAM FILE.gguf... [--texts 2000]

Needs what check_tokenizers.py needs, and cyllama for llama.cpp, which is left out where it is not there. The sdist of
llama-cpp-python has such files (docs/testing.md). Downloads nothing.
"""

import argparse
import os
import pathlib
import sys
import unicodedata

from check_tokenizers import MARK, Check, hf_tokenizer, processor, run_quire
from sentencepiece import sentencepiece_model_pb2 as protobuf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizer_files import read_gguf
from tokenizer_texts import texts

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
NFC = ("qwen2", "qwen35")  # tokenizers behind NFC, which llama.cpp leaves out (docs/tokenizer.md)


class Vocabulary:
    """What the keys tokenizer.ggml.* of a file say."""

    def __init__(self, path):
        entries = read_gguf(path)
        key = lambda name, default=None: entries.get("tokenizer.ggml." + name, default)
        self.architecture = entries.get("general.architecture", "")
        self.model, self.pre = key("model"), key("pre", "")
        self.tokens, self.scores, self.merges = key("tokens"), key("scores"), key("merges")
        self.types = key("token_type") or [1] * len(self.tokens)
        self.space_prefix = key("add_space_prefix", self.model == "llama")
        self.bos, self.unknown = key("bos_token_id", 1), key("unknown_token_id", 0)

    def of_type(self, kind):
        return [t for t, k in zip(self.tokens, self.types) if k == kind]


# ---- The other tokenizers ----
def google(vocabulary):
    """The pieces as a model of sentencepiece, which looks for no control tokens."""
    model = protobuf.ModelProto()
    for i, (text, score, kind) in enumerate(zip(vocabulary.tokens, vocabulary.scores, vocabulary.types)):
        if kind == UNKNOWN:  # also of ids without a token, in files of some converters
            kind = CONTROL
        if kind == USER_DEFINED:  # llama.cpp's converter writes their marks as the spaces that they stand for
            text = text.replace(" ", MARK)
        model.pieces.add(piece=text, score=score, type=UNKNOWN if i == vocabulary.unknown else kind)
    spec = model.trainer_spec
    spec.model_type, spec.byte_fallback, spec.vocab_size = protobuf.TrainerSpec.BPE, True, len(vocabulary.tokens)
    spec.unk_id = vocabulary.unknown
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = vocabulary.space_prefix
    model.normalizer_spec.remove_extra_whitespaces = False
    return model.SerializeToString()


def gemma4(vocabulary):
    """From the merges: Gemma 4's tokenizer.json has no scores either, and cuts text at runs of newlines."""
    merges = [tuple(m.split(" ", 1)) for m in vocabulary.merges]
    ids = {t: i for i, t in enumerate(vocabulary.tokens)}
    t = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", MARK)
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_special_tokens([AddedToken(p, normalized=False, special=True) for p in vocabulary.of_type(CONTROL)])
    t.add_tokens([AddedToken(p, normalized=False) for p in vocabulary.of_type(USER_DEFINED)])
    bos = vocabulary.tokens[vocabulary.bos]
    t.post_processor = processors.TemplateProcessing(
        single=bos + " $A", pair=None, special_tokens=[(bos, vocabulary.bos)]
    )
    return t


def phi3(vocabulary):
    """Llama's pieces, and added tokens that swallow the white space behind them."""
    keep = ("<unk>", "<s>", "<|endoftext|>")
    added = [
        AddedToken(t, normalized=False, special=t != "</s>", rstrip=t not in keep)
        for t in vocabulary.of_type(CONTROL) + vocabulary.of_type(USER_DEFINED)
    ]
    return hf_tokenizer(google(vocabulary), "prepend", added)


class LlamaCpp:
    """llama.cpp by way of cyllama, which loads whole models only."""

    def __init__(self, path):
        from cyllama.llama import llama_cpp

        llama_cpp.disable_logging()
        self.model = llama_cpp.LlamaModel(str(path), llama_cpp.LlamaModelParams())
        self.vocab = self.model.vocab if hasattr(self.model, "vocab") else self.model.get_vocab()

    def encode(self, text):
        return list(self.vocab.tokenize(text, False, False)) if text else []


# ---- Comparing ----
def pairs_beside(path, nfc):
    """llama.cpp's texts for a vocabulary, and the tokens for them; `nfc`: only texts that are in this form already."""
    inputs, outputs = pathlib.Path(str(path) + ".inp"), pathlib.Path(str(path) + ".out")
    if not inputs.exists() or not outputs.exists():
        return [], []
    with open(inputs, encoding="utf-8", newline="") as f:
        found = f.read().split("\n__ggml_vocab_test__\n")
    ids = [[int(i) for i in line.split()] for line in outputs.read_text().split("\n")]
    pairs = [(t, i) for t, i in zip(found, ids) if not nfc or unicodedata.is_normalized("NFC", t)]
    return [t for t, _ in pairs], [i for _, i in pairs]


def with_llama_cpp(check, name, path, vocabulary, inputs):
    try:
        other = LlamaCpp(path)
    except (ImportError, ValueError) as reason:
        print("%s: not beside llama.cpp: %s" % (name, str(reason).split(" has ")[-1]))
        return
    # A zero byte ends its texts, and its converter's runs of spaces are no marks to it (docs/tokenizer.md).
    marks = MARK * 2 if "  " in vocabulary.of_type(USER_DEFINED) else "\0"
    shown = [t for t in inputs if "\0" not in t and marks not in t]
    got = run_quire(check.program, path, shown, "--no-bos", "--no-special")
    check.same(name + ": llama.cpp", shown, got, [other.encode(t) for t in shown])


def check_file(check, path, count):
    v = Vocabulary(path)
    name = os.path.basename(path)
    found, ids = pairs_beside(path, v.pre in NFC)
    if found:
        check.same(name + ": beside the file", found, run_quire(check.program, path, found, "--no-bos"), ids)
    if v.model == "llama":
        original = processor(google(v))
        check.sentencepiece(name + ": sentencepiece", path, original)
        inputs = texts(original, count)
        if v.architecture == "phi3":
            check.tokenizers(name + ": tokenizers", path, phi3(v), "<s>")
    elif v.model == "gemma4":
        original = gemma4(v)
        check.tokenizers(name + ": tokenizers", path, original, v.tokens[v.bos])
        inputs = texts(original, count)
    else:
        inputs = texts(Names(v), count)
    with_llama_cpp(check, name, path, v, inputs)


class Names:
    """As much of a tokenizer as texts() asks for, where no other library is given the file."""

    def __init__(self, vocabulary):
        self.tokens = vocabulary.tokens

    def get_piece_size(self):
        return len(self.tokens)

    def id_to_piece(self, i):
        return self.tokens[i]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("program")
    args.add_argument("files", nargs="+")
    args.add_argument("--texts", type=int, default=2000)
    options = args.parse_args()
    check = Check(os.path.abspath(options.program))
    for path in options.files:
        check_file(check, path, options.texts)
    print("%d compared, %d differ" % (check.compared, check.failed))
    return 1 if check.failed or not check.compared else 0


if __name__ == "__main__":
    sys.exit(main())
