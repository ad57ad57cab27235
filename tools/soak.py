#!/usr/bin/env python3
"""A server under clients that behave badly, for as long as one likes.

    tools/soak.py build/release/quire models/demo-moe-nvfp4.gguf [--minutes 20] [--clients 12] [--burst 500]
    tools/soak.py ... --minutes 60 --clients 48 --full-after 15 --serve "-np 16"       # memory, with caches as by default

Clients ask for short and long answers, several at once, with a shared beginning, held to schemas that nobody asked for before, and
for embeddings; they leave in the middle of a stream, and send what is malformed, of a wrong type or too long. Then `--burst`
requests come at once. Prints memory, its parts and descriptors every minute, what was answered how, and the speed of prompts before
and after. Fails if the server dies, keeps requests or descriptors, or grows by more than a tenth after `--full-after` minutes, by
when its caches must be full.
"""

import argparse
import collections
import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time

WORDS = "the cat sat on a mat and saw one big red dog run over some green hill to find its lost ball".split()
MALFORMED = ["{", "[]", '{"prompt":', '{"prompt":"a","max_tokens":-3}', "\xff\xfe", '{"prompt":"a","x":1}']


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def schema(rng):
    """Of an object whose members have names that no other has."""
    types = [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "number"}}, {"enum": WORDS[:5]}]
    members = {f"{rng.choice(WORDS)}_{rng.getrandbits(40):x}": rng.choice(types) for _ in range(rng.randint(1, 12))}
    body = {"type": "object", "properties": members, "required": sorted(members)}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": body}}


class Server:
    def __init__(self, program, model, options):
        self.process = subprocess.Popen(
            [program, "serve", "-m", model, "--port", "0", "--max-queue", "1000", "--no-access-log", *options.split()],
            stderr=subprocess.PIPE, text=True)
        self.port = next((int(m[1]) for m in (re.search(r"at http://[^:]+:(\d+)", l) for l in self.process.stderr) if m), 0)
        threading.Thread(target=lambda: collections.deque(self.process.stderr, 0), daemon=True).start()

    def memory_mib(self):
        return int(open(f"/proc/{self.process.pid}/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def parts(self):
        """MiB of the memory's parts, as the metrics tell them."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        return {m[1]: float(m[2]) / 2**20 for m in re.finditer(r'^quire:memory_bytes{part="(\w+)"} (\S+)', text, re.M)}

    def ask(self, body, kind="application/json", leave_after=None, path="/v1/completions"):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        c.request("POST", path, body if isinstance(body, str) else json.dumps(body), {"Content-Type": kind})
        r = c.getresponse()
        r.read(leave_after)
        c.close()
        return r.status

    def waiting(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        c.request("GET", "/metrics")
        lines = c.getresponse().read().decode().splitlines()
        c.close()
        return sum(float(l.split()[-1]) for l in lines if re.match(r"vllm:num_requests_(running|waiting)\{", l))

    def prompt_speed(self):
        def once():
            begin = time.monotonic()
            self.ask({"prompt": [random.randint(300, 1000) for _ in range(1500)], "max_tokens": 1})
            return 1500 / (time.monotonic() - begin)
        return max(once() for _ in range(4))


def one_request(server, rng, shared):
    kind = rng.choice(["plain", "plain", "shared", "cut", "malformed", "type", "long", "several", "schema", "embedding",
                       "prompt"])
    if kind == "plain":
        return kind, server.ask({"prompt": text(rng, rng.randint(1, 200)), "max_tokens": rng.randint(1, 60),
                                 "temperature": rng.random(), "seed": rng.randint(0, 99)})
    if kind == "shared":
        return kind, server.ask({"prompt": shared + text(rng, rng.randint(1, 50)), "max_tokens": rng.randint(1, 40)})
    if kind == "cut":
        return kind, server.ask({"prompt": text(rng, 100), "max_tokens": 400, "stream": True, "ignore_eos": True},
                                leave_after=rng.randint(1, 2000))
    if kind == "malformed":
        return kind, server.ask(rng.choice(MALFORMED))
    if kind == "type":
        return kind, server.ask("a=b", "text/plain")
    if kind == "long":
        return kind, server.ask({"prompt": "a " * 5000, "max_tokens": 5})
    if kind == "schema":
        return kind, server.ask({"messages": [{"role": "user", "content": text(rng, 20)}], "max_tokens": 30,
                                 "response_format": schema(rng)}, path="/v1/chat/completions")
    if kind == "embedding":
        return kind, server.ask({"input": [text(rng, rng.randint(1, 60)) for _ in range(rng.randint(1, 8))]},
                                path="/v1/embeddings")
    if kind == "prompt":
        return kind, server.ask({"prompt": [rng.randint(300, 1000) for _ in range(rng.randint(200, 1800))],
                                 "max_tokens": 4, "stream": True})
    return kind, server.ask({"prompt": text(rng, 20), "max_tokens": 20, "n": 4, "temperature": 1, "stop": ["cat"]})


def main(o):
    server = Server(o.program, o.model, o.serve)
    if server.port == 0:
        return "the server does not start"
    print(f"prompts {server.prompt_speed():.0f} tokens/s, {server.descriptors()} descriptors", flush=True)
    began, answered, lock = time.monotonic(), collections.Counter(), threading.Lock()
    first_descriptors, shared = server.descriptors(), text(random.Random(1), 300)

    def client(seed):
        rng = random.Random(seed)
        while time.monotonic() < began + 60 * o.minutes and server.process.poll() is None:
            try:
                outcome = one_request(server, rng, shared)
            except OSError as e:
                outcome = ("failed", type(e).__name__)
            with lock:
                answered[outcome] += 1

    threads = [threading.Thread(target=client, args=(i,)) for i in range(o.clients)]
    for t in threads:
        t.start()
    memory = []
    while alive := [t for t in threads if t.is_alive()]:
        alive[-1].join(60)
        memory.append(server.memory_mib())
        parts = ", ".join(f"{name} {mib:.0f}" for name, mib in server.parts().items())
        print(f"{time.monotonic() - began:5.0f} s  {memory[-1]:.0f} MiB ({parts}), {server.descriptors()} descriptors, "
              f"{sum(answered.values())} requests", flush=True)
    burst = [threading.Thread(target=server.ask, args=({"prompt": text(random.Random(i), 50), "max_tokens": 8},))
             for i in range(o.burst)]
    for t in burst:
        t.start()
    for t in burst:
        t.join()
    speed, memory = server.prompt_speed(), memory + [server.memory_mib()]
    print(f"after {o.burst} at once: prompts {speed:.0f} tokens/s, {memory[-1]:.0f} MiB, {server.descriptors()} descriptors")
    for outcome in sorted(answered, key=str):
        print(*outcome, answered[outcome])
    left, descriptors = server.waiting(), server.descriptors()
    server.process.terminate()
    code = server.process.wait(timeout=60)
    if not answered:
        return "nobody asked anything"
    if any(kind == "failed" for kind, _ in answered) or code != 0:
        return f"requests without an answer, or exit code {code}"
    if left or descriptors > first_descriptors + 1:
        return f"{left:.0f} requests and {descriptors - first_descriptors} descriptors are left"
    full = memory[min(o.full_after, len(memory)) - 1]
    if memory[-1] > 1.1 * full + 8:
        return "memory grows"
    return None


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--minutes", type=float, default=20)
    p.add_argument("--clients", type=int, default=12)
    p.add_argument("--burst", type=int, default=500)
    p.add_argument("--full-after", type=int, default=1, metavar="MINUTES")
    p.add_argument("--serve", default="-c 2048 -np 8 --kv-tokens 6000", help="options of quire serve")
    sys.exit(main(p.parse_args()))
