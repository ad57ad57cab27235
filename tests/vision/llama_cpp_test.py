#!/usr/bin/env python3
"""Pictures beside llama.cpp: it opens small random models that see, as `quire convert` writes them. Both programs must
make the same rows of a picture, and the same of a prompt that has it.

usage: llama_cpp_test.py PROGRAM TOWER_TOOL

Needs numpy, pillow, and llama.cpp twice (docs/testing.md): cyllama gives what a tower makes of a picture, xllamacpp
answers. Without them it says so and ends with 77, which ctest takes for skipped.
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import cyllama.llama.llama_cpp as llama
    import numpy as np
    import xllamacpp
    from PIL import Image

    from picture_folders import VOCABULARY, write_gemma, write_qwen
except ImportError as missing:
    print("llama_cpp_test: skipped: %s (needs cyllama, xllamacpp, numpy and pillow)" % missing)
    sys.exit(77)

PROGRAM, TOWER_TOOL = sys.argv[1:3]
QUESTION = " What is this?"


# ---- llama.cpp ----
LOG = []
MARKER = "<__media__>"


def theirs_rows(model_path, mmproj_path, pixels):
    """What cyllama's llama.cpp makes of a picture."""
    LOG.clear()
    llama.set_log_callback(lambda level, text: LOG.append(text))
    height, width, _ = pixels.shape
    try:
        model = llama.LlamaModel(model_path)
        pictures = llama.MtmdContext(mmproj_path, model, llama.MtmdContextParams(
            use_gpu=False, print_timings=False, n_threads=2, flash_attn_type=0, warmup=False))
        bitmap = llama.MtmdBitmap.create_image(width, height, np.ascontiguousarray(pixels).tobytes())
        chunks = pictures.tokenize(MARKER, [bitmap], False, True)
        picture = next(c for c in (chunks[i] for i in range(len(chunks))) if c.type == llama.MtmdInputChunkType.IMAGE)
        assert pictures.encode_chunk(picture) == 0
        return np.array(pictures.get_output_embeddings(picture.n_tokens, model.n_embd_inp), np.float32)
    except Exception as e:
        raise AssertionError("%s:\n%s" % (e, "".join(LOG[-30:]))) from e


def print_logprobs(model_path, mmproj_path, picture_path, before, behind, count):
    """What xllamacpp's says behind a message with a picture: in a process of its own, because its server stays."""
    params = xllamacpp.CommonParams()
    params.model.path, params.mmproj.path = model_path, mmproj_path
    params.n_ctx, params.n_parallel, params.warmup = 1024, 1, False
    params.cpuparams.n_threads = 2
    server = xllamacpp.Server(params)
    with open(picture_path, "rb") as file:
        url = "data:image/png;base64," + base64.b64encode(file.read()).decode()
    content = [{"type": "text", "text": before}] if before else []
    content += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": behind}]
    said = server.handle_chat_completions({
        "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0, "logprobs": True,
        "top_logprobs": int(count), "ignore_eos": True})
    said = said if isinstance(said, dict) else json.loads(said)
    if "choices" not in said:
        raise SystemExit(json.dumps(said))
    top = said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    print(json.dumps([[t["id"], t["logprob"]] for t in top]), flush=True)
    os._exit(0)


def theirs_logprobs(*arguments, count):
    done = subprocess.run([sys.executable, __file__, PROGRAM, TOWER_TOOL, *arguments, str(count)], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = np.full(count, np.nan)
    for token, logprob in json.loads(done.stdout.splitlines()[-1]):
        found[token] = logprob
    return found


# ---- Quire ----
def quire_rows(model, picture):
    said = subprocess.run([TOWER_TOOL, model, picture], capture_output=True, check=True).stdout
    head, values = said.split(b"\n", 1)
    tokens, width, levels = map(int, head.split())
    # llama.cpp has a token's rows of all levels side by side.
    by_level = np.frombuffer(values, np.float32).reshape(1 + levels, tokens, width)
    return by_level.transpose(1, 0, 2).reshape(tokens, -1)


def quire_logprobs(model, picture, vocabulary):
    done = subprocess.run([PROGRAM, "run", "-m", model, "--device", "reference", "--image", picture, "-p", QUESTION,
                           "--temperature", "0", "-n", "1", "--ignore-eos", "--logprobs", str(vocabulary), "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.full(vocabulary, np.nan)
    for top in json.loads(done.stdout)["logprobs"][0]["top"]:
        found[top["token"]] = top["logprob"]
    return found


class Pictures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="quire-llama-cpp-")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def write(self, name, write, size, outtype="f32"):
        """The model's file, and a picture of a size that neither program changes: its file and its pixels."""
        folder, file = os.path.join(self.folder, name), os.path.join(self.folder, name + ".gguf")
        write(folder)
        subprocess.run([PROGRAM, "convert", folder, file, "--outtype", outtype], check=True, capture_output=True)
        noise = np.random.default_rng(7).integers(0, 256, (size[1] // 8, size[0] // 8, 3), np.uint8)
        pixels = np.asarray(Image.fromarray(noise).resize(size, Image.BICUBIC))
        picture = os.path.join(self.folder, name + ".png")
        Image.fromarray(pixels).save(picture)
        return file, os.path.join(self.folder, "mmproj-" + name + ".gguf"), picture, pixels

    def compare_rows(self, bound, name, *model):
        file, mmproj, picture, pixels = self.write(name, *model)
        ours, theirs = quire_rows(file, picture), theirs_rows(file, mmproj, pixels)
        self.assertEqual(ours.shape, theirs.shape)
        apart = np.abs(ours - theirs).max() / np.sqrt(np.mean(ours ** 2))
        print("%s: %d rows of %d, furthest apart %.1e of their size" % (name, *ours.shape, apart))
        self.assertLess(apart, bound)

    # Cyllama's llama.cpp is of May 2026, and takes other places of the table where a picture has not its size.
    TABLE = (256, 256)

    # llama.cpp has GELU from a table of half precision.
    def test_rows(self):
        self.compare_rows(5e-3, "qwen", lambda f: write_qwen(f, 1, 0, 256), self.TABLE)
        self.compare_rows(5e-3, "deepstack", lambda f: write_qwen(f, 2, 2, 256), self.TABLE)
        self.compare_rows(5e-3, "gemma", lambda f: write_gemma(f, 3), (224, 224))

    def test_rows_of_other_types(self):
        for outtype in "bf16", "f16":
            with self.subTest(outtype):
                self.compare_rows(3e-2, "qwen-" + outtype, lambda f: write_qwen(f, 4, 2, 256), self.TABLE, outtype)
                self.compare_rows(3e-2, "gemma-" + outtype, lambda f: write_gemma(f, 5), (224, 224), outtype)

    QWEN = "", QUESTION
    # Quire writes what Gemma's processor does around a picture; llama.cpp leaves the line breaks to its caller.
    GEMMA = "\n\n", "\n\n" + QUESTION

    def compare_answers(self, around, name, *model):
        file, mmproj, picture, _ = self.write(name, *model)
        ours = quire_logprobs(file, picture, VOCABULARY)
        theirs = theirs_logprobs(file, mmproj, picture, *around, count=VOCABULARY)
        off = np.abs(ours - theirs).max()  # NaN: a token is missing
        print("%s: log-probabilities behind the picture %.1e apart" % (name, off))
        self.assertLess(off, 5e-2)

    # Keys and values in half precision.
    def test_answers(self):
        self.compare_answers(self.QWEN, "wide", lambda f: write_qwen(f, 6, 0, 36), (320, 256))
        self.compare_answers(self.QWEN, "tall", lambda f: write_qwen(f, 7, 2, 36), (256, 352))
        self.compare_answers(self.GEMMA, "square", lambda f: write_gemma(f, 8), (224, 224))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        print_logprobs(*sys.argv[3:])
    unittest.main(argv=sys.argv[:1], verbosity=2)
