"""Hostile model folders and GGUF files, each through the program: no crash, no hang, and one line that says what is wrong.

    hostile_models.py PROGRAM [--folders 20] [--files 12] [--seed 1]

Folders are FP8 models with experts (tools/make_fp8_folder.py), of which a number in config.json, a header of
safetensors, the index, or bytes are changed; files are small models that `quire synth` writes, with changed or missing
bytes where their metadata and tensors are described. What is still a model by chance may run.
"""
import argparse
import collections
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS = 60
NUMBERS = [0, -1, 1, 3, 7, 2**31 - 1, 2**31, 2**63, -(2**63), 1e30, 0.5, 1e-30, "12", "", None, True, [], {}, [1, 2]]
QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
              r"|\s*[\r\n]+|\s+(?!\S)|\s+")
PRESETS = [("gpt-oss-20b", "mxfp4"), ("35b-a3b", "nvfp4"), ("0.6b", "q8_0")]


def run(arguments):
    try:
        done = subprocess.run(arguments, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None, "took too long"
    return done.returncode, done.stderr.decode("utf-8", "replace")


def change_config(folder, random_):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    at = config
    while True:
        key = random_.choice(list(at))
        if not isinstance(at[key], dict) or not at[key] or random_.random() < 0.3:
            break
        at = at[key]
    if random_.random() < 0.2:
        del at[key]
    else:
        at[key] = random_.choice(NUMBERS)
    path.write_text(json.dumps(config))
    return f"config.json {key}"


def change_header(folder, random_):
    path = random_.choice(sorted(folder.glob("*.safetensors")))
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8: 8 + size])
    name = random_.choice(list(header))
    what = random_.randrange(6)
    if what == 0:
        header[name]["dtype"] = random_.choice(["F8_E4M3", "BF16", "F32", "I64", "U8", "F8_E5M2", "", 7])
    elif what == 1:
        shape = header[name]["shape"]
        shape[random_.randrange(len(shape))] = random_.choice(NUMBERS)
    elif what == 2:
        header[name]["data_offsets"][random_.randrange(2)] = random_.choice(NUMBERS)
    elif what == 3:
        del header[name]
    elif what == 4:
        header[name + random_.choice(["x", ".weight", "_scale_inv", "\0"])] = header.pop(name)
    else:
        header[name] = random_.choice(NUMBERS)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    return f"{path.name} {name} ({what})"


def change_index(folder, random_):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = random_.choice(list(index["weight_map"]))
    index["weight_map"][name] = random_.choice(["../secret", "/etc/passwd", "none.safetensors", "", 7, None, "a\0b"])
    path.write_text(json.dumps(index))
    return f"index {name}"


def changed(data, random_):
    data = bytearray(data)
    if random_.random() < 0.5:
        for _ in range(random_.randrange(1, 8)):
            data[random_.randrange(len(data))] = random_.randrange(256)
    else:
        at = random_.randrange(max(1, len(data) - 8))
        data[at: at + 8] = struct.pack("<q", random_.choice([0, -1, 1, 2**31, 2**62, 2**63 - 1]))
    return bytes(data)


def change_bytes(path, random_):
    data = path.read_bytes()
    if random_.random() < 0.3:
        path.write_bytes(data[: random_.randrange(len(data))])
        return f"{path.name} cut"
    path.write_bytes(changed(data[:4096], random_) + data[4096:])
    return f"{path.name} bytes"


class ChangedHead:
    """A large file, of which the beginning is other bytes for a while."""

    def __init__(self, path, random_):
        self.path = path
        with open(path, "rb") as file:
            self.head = file.read(16384)
        self.write(changed(self.head, random_))

    def write(self, head):
        with open(self.path, "r+b") as file:
            file.write(head)

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        self.write(self.head)


def change_folder(folder, random_):
    kind = random_.randrange(8)
    if kind < 3:
        return change_config(folder, random_)
    if kind < 6:
        return change_header(folder, random_)
    if kind == 6:
        return change_index(folder, random_)
    return change_bytes(random_.choice(sorted(folder.iterdir())), random_)


def tokenizer():
    # A printable letter for each byte, as byte-level tokenizers have.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    split = {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"normalizer": {"type": "NFC"},
            "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(letters)}, "merges": []},
            "added_tokens": [], "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "decoder": level}


def both(model):
    return [["inspect", str(model)],
            ["run", "-m", str(model), "--tokens", "1,2", "-n", "1", "--json", "--context", "64"]]


def expect_sound(model, o):
    for arguments in both(model):
        status, said = run([o.program, *arguments])
        if status != 0:
            sys.exit(f"{model.name}, unchanged: {arguments[0]} ended with {status}: {said[-600:]}")


def judge(found, what, model, o):
    """Both an inspection and a token; returns whether all went as it should."""
    for arguments in both(model):
        status, said = run([o.program, *arguments])
        found[(arguments[0], status)] += 1
        lines = [line for line in said.splitlines() if line.startswith("quire: ") and "cache: " not in line]
        if status is None or status < 0 or status > 4 or (status != 0 and (not lines or len(lines[-1]) < 20)):
            print(f"{what}: {arguments[0]} ended with {status}: {said[-600:]}", file=sys.stderr)
            return False
        if o.verbose and status != 0:
            print(f"{what}: {lines[-1]}")
    return True


def main(o):
    random_ = random.Random(o.seed)
    found, wrong = collections.Counter(), 0
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        sound = work / "sound"
        subprocess.run([sys.executable, ROOT / "tools/make_fp8_folder.py", sound, "--layers", "4", "--experts", "8",
                        "--vocab", "512"], check=True, stdout=subprocess.DEVNULL)
        (sound / "tokenizer.json").write_text(json.dumps(tokenizer()))
        expect_sound(sound, o)
        for number in range(o.folders):
            model = work / "folder"
            shutil.rmtree(model, ignore_errors=True)
            shutil.copytree(sound, model)
            wrong += not judge(found, f"folder {number}: {change_folder(model, random_)}", model, o)
        files = []
        for preset, kind in PRESETS:
            files.append(work / f"{preset}.gguf")
            subprocess.run([o.program, "synth", "--preset", preset, "--ffn-type", kind, "--layers", "2", "--vocab",
                            "512", files[-1]], check=True, capture_output=True)
            expect_sound(files[-1], o)
        for number in range(o.files):
            with ChangedHead(random_.choice(files), random_) as model:
                wrong += not judge(found, f"file {number}: {model.name}", model, o)
    print(", ".join(f"{command} ended with {status}: {count}" for (command, status), count in sorted(found.items())))
    print(f"{o.folders + o.files - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("--folders", type=int, default=20)
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print every message")
    sys.exit(main(parser.parse_args()))
