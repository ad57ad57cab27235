#!/usr/bin/env python3
"""A server while a client sends schemas and grammars that are made to end, fill or hold it up.

    tools/hostile_grammars.py build/release/quire models/demo-moe-nvfp4.gguf [--mutated 5000] [--minutes 30] [--memory-mib 2048]

The server may have so many MiB of addresses (RLIMIT_AS; 0: as many as it likes). One key's clients send inputs within all limits, and
mutated ones, eight at a time, and leave some of them early. With two other keys, a stream is read and small schemas that nobody sent
before are asked for. Prints the longest silence of the stream and the longest wait of a small schema, then sends SIGTERM in the
middle of it. Fails if the server dies, or takes longer than its drain to end.
"""

import argparse
import collections
import http.client
import json
import multiprocessing
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

KEYS = {"hostile": "a" * 24, "stream": "b" * 24, "small": "c" * 24}


def chained(count, wrap, ring=False):
    """A schema of definitions of which each leads to the next one."""
    defs = {f"d{i}": wrap({"$ref": f"#/$defs/d{0 if ring and i + 1 == count else i + 1}"}) for i in range(count)}
    defs[f"d{count}"] = {"type": "string"}
    return {"$ref": "#/$defs/d0", "$defs": defs}


def inputs(scale):
    """Fields of requests. `scale` 1: as large as the limits let them be."""
    n = lambda x: max(1, int(x * scale))
    schema = lambda s: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}}
    only = lambda kind, text: {"structured_outputs": {kind: text}}
    names = lambda prefix: [f"{prefix}{i}" for i in range(n(50000))]
    chain = chained(n(16000), lambda s: s)
    yield schema(chain)
    yield schema(chained(n(15000), lambda s: {"type": "array", "items": s}))
    yield schema(chained(n(9000), lambda s: {"type": "object", "required": ["a"], "properties": {"a": s}}))
    yield schema(chained(n(10000), lambda s: {"anyOf": [{"type": "null"}, s]}))
    yield schema(chained(n(14000), lambda s: s, ring=True))
    yield only("structural_tag", json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": chain}}))
    yield only("regex", "(" * n(100000) + "a" + ")" * n(100000))
    yield schema({"type": "string", "pattern": "(" * n(100000) + ")" * n(100000)})
    yield only("regex", "a?" * n(300000))
    yield only("regex", "a?" * n(20000))
    yield only("regex", "(ab)?" * n(100000))
    yield only("regex", ".*" * n(3000))
    yield only("grammar", "root::=r0\n" + "".join(f'r{i}::="a"r{i + 1}\n' for i in range(n(45000))) + f'r{n(45000)}::="b"\n')
    yield only("grammar", "root ::= r0\n" + "".join(f'r{i} ::= r{(i + 1) % n(2000)} "a" | "b"\n' for i in range(n(2000))))
    yield only("choice", ["c" * n(15000) + str(i) for i in range(60)])
    yield schema({"allOf": [{"type": "object", "required": names("n")}, {"type": "object", "required": names("m")}]})
    yield schema({"allOf": [{"$ref": "#/$defs/a"}] * n(100), "$defs": {"a": {"properties": {k: {} for k in names("p")}}}})
    yield schema({"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/p"} for i in range(n(2000))},
                  "$defs": {"p": {"type": "string", "pattern": "[a-z]{2}" * n(37500)}}})


def mutated(rng):
    """One of the inputs in another size, with a piece of its text cut, doubled or changed."""
    body = rng.choice(list(inputs(rng.choice([0.001, 0.01, 0.03, 0.1]))))
    kind = next(iter(body))
    if kind == "structured_outputs" and isinstance(next(iter(body[kind].values())), str):
        name, text = next(iter(body[kind].items()))
        at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        change = rng.choice([lambda: text[:at] + text[to:], lambda: text[:at] + text[at:to] * 2 + text[to:],
                             lambda: text[:at] + rng.choice("()[]{}|*+?\\\"a") * rng.randint(1, 50) + text[at:]])
        return {kind: {name: change()[:1000000]}}
    return body


def post(port, who, body, timeout=60):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "go"}], **body}),
              {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS[who]}"})
    return c, c.getresponse()


def stream(port, over, found):
    """In a process of its own: the silences of a stream."""
    silences = []
    while not over.is_set():
        try:
            c, r = post(port, "stream", {"stream": True, "max_tokens": 2000, "ignore_eos": True})
            last = None
            while not over.is_set() and r.readline():
                now = time.monotonic()
                if last is not None:
                    silences.append((now, now - last))
                last = now
            c.close()
        except OSError:
            break
    found.put(silences)


def small(port, over, found):
    """In a process of its own: what small schemas that nobody sent before wait."""
    waits, number = [], 0
    while not over.wait(0.2):
        number += 1
        schema = {"type": "object", "properties": {f"n{number}": {"type": "integer"}}, "required": [f"n{number}"]}
        body = {"max_tokens": 1, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        begin = time.monotonic()
        try:
            c, r = post(port, "small", body)
            r.read()
            c.close()
        except OSError:
            break
        now = time.monotonic()
        waits.append((now, now - begin if r.status == 200 else float("inf")))
    found.put(waits)


class Server:
    def __init__(self, o):
        keys = tempfile.NamedTemporaryFile("w", suffix=".keys", delete=False)
        keys.write("\n".join(KEYS.values()) + "\n")
        keys.close()
        limit = o.memory_mib << 20
        self.process = subprocess.Popen(
            [o.program, "serve", "-m", o.model, "--port", "0", "--no-access-log", "--api-key-file", keys.name],
            stderr=subprocess.PIPE, text=True,
            preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))) if limit else None)
        self.port = next((int(m[1]) for m in (re.search(r"at http://[^:]+:(\d+)", l) for l in self.process.stderr) if m), 0)
        self.said = collections.deque(maxlen=20)
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()


def main(o):
    server, rng, lock = Server(o), random.Random(o.seed), threading.Lock()
    if server.port == 0:
        return "the server does not start"
    answered, over = collections.Counter(), multiprocessing.Event()
    todo = list(inputs(1)) * 2 + [None] * o.mutated
    until = time.monotonic() + 60 * o.minutes

    def send():
        while True:
            with lock:
                if not todo or time.monotonic() > until or server.process.poll() is not None:
                    return
                body, leaves, seed = todo.pop(0), rng.random() < 0.3, rng.random()
            body = mutated(random.Random(seed)) if body is None else body
            try:
                c, r = post(server.port, "hostile", {**body, "max_tokens": 4}, timeout=0.5 if leaves else 60)
                text = r.read().decode(errors="replace")
                outcome = str(r.status) + (" " + json.loads(text)["error"]["message"][:90] if r.status >= 500 else "")
                c.close()
            except TimeoutError:
                outcome = "left"
            except OSError as e:
                outcome = type(e).__name__
            with lock:
                answered[outcome] += 1

    others = []
    for watch in (stream, small):
        found = multiprocessing.Queue()
        process = multiprocessing.Process(target=watch, args=(server.port, over, found))
        process.start()
        others.append((process, found))
    time.sleep(5)
    began = time.monotonic()
    senders = [threading.Thread(target=send) for _ in range(8)]
    for t in senders:
        t.start()
    for t in senders:
        t.join()
    died = server.process.poll()
    peak = next((l.split()[1] for l in open(f"/proc/{server.process.pid}/status") if l.startswith("VmHWM")), "?") if died is None else "?"
    over.set()
    (silences, waits) = (found.get() for _, found in others)
    todo[:] = list(inputs(1))
    until = time.monotonic() + 60
    senders = [threading.Thread(target=send) for _ in range(8)]
    for t in senders:
        t.start()
    time.sleep(1)
    begin = time.monotonic()
    if died is None:
        server.process.send_signal(signal.SIGTERM)
        try:
            server.process.wait(60)
        except subprocess.TimeoutExpired:
            server.process.kill()
    ended = time.monotonic() - begin
    for t in senders:
        t.join()
    before = lambda all: 1e3 * max((x for at, x in all if at < began), default=0)
    during = lambda all: sorted(x for at, x in all if at >= began) or [0]
    s, w = during(silences), during(waits)
    print(f"answers: {dict(answered)}")
    print(f"resident at most {peak} kB")
    print(f"silence of the stream: 99.9% {1e3 * s[int(0.999 * (len(s) - 1))]:.0f} ms, longest {1e3 * s[-1]:.0f} (before: {before(silences):.0f})")
    print(f"wait of a small schema: median {1e3 * w[len(w) // 2]:.0f} ms, 99% {1e3 * w[int(0.99 * (len(w) - 1))]:.0f}, longest "
          f"{1e3 * w[-1]:.0f} (before: {before(waits):.0f})")
    print(f"SIGTERM: ended after {ended:.1f} s with {server.process.returncode}")
    if died is not None:
        return f"the server ended with {died}: {''.join(server.said)}"
    return "the server did not end within its drain" if ended > 35 else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--mutated", type=int, default=5000)
    parser.add_argument("--minutes", type=float, default=30, help="at most, before SIGTERM")
    parser.add_argument("--memory-mib", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    failed = main(parser.parse_args())
    print(failed or "ok", file=sys.stderr if failed else sys.stdout)
    sys.exit(1 if failed else 0)
