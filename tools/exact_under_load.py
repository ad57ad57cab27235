#!/usr/bin/env python3
"""Whether answers over HTTP depend on who else is served, on drafts, on the prefix cache or on scarce memory.

    tools/exact_under_load.py build/release/quire models/demo-moe-nvfp4.gguf [--seeds 20] [-- --device cuda]

What stands behind -- goes to `quire serve`. A program may be a command with arguments in one string; with --alone
another one gives the answers to compare with, as a CPU of the same bits: "build/release/quire --cpu avx2". For each seed the clients' requests are first sent one at a time to a
server that drafts nothing and keeps no prefixes, and then all at once to the servers of SETTINGS; every answer has to
be the same, byte for byte: text, reasoning, log-probabilities, why it ended. Prints a line for each setting, with what
its server's metrics say of drafts, prefixes and preemptions, and ends with 1 where an answer differed.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import re
import shlex
import subprocess
import sys
import threading

CONTEXT = 512
PLAIN = ["--speculative", "off", "--no-enable-prefix-caching", "--depth", "1"]
SETTINGS = {
    "auto": ["--speculative", "auto"],
    "block, 1 draft": ["--speculative", "mtp", "--speculative-tokens", "1"],
    "block, 3 drafts": ["--speculative", "mtp", "--speculative-tokens", "3", "--kv-tokens", "1024"],
    "block, 7 drafts": ["--speculative", "mtp", "--speculative-tokens", "7", "--depth", "2"],
    "lookup": ["--speculative", "lookup", "--kv-tokens", "1536", "--swap-space", "0"],
    "nothing": ["--speculative", "off", "--kv-tokens", "1024", "--depth", "2"],
}
COUNTERS = {
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "prefix tokens": "vllm:prefix_cache_hits_total",
    "preempted": "vllm:num_preemptions_total",
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20},
                   "parts": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "parts"],
    "additionalProperties": False,
}
FORMS = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}},
    {"response_format": {"type": "json_object"}},
    {"guided_regex": "([a-z]+ ){3,9}[0-9]{2}"},
]


class Server:
    def __init__(self, arguments):
        self.process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"at http://[^:]+:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            sys.exit("exact_under_load: the server did not start:\n" + "".join(said))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def counters(self):
        c = self.connect()
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        found = {}
        for name, metric in COUNTERS.items():
            found[name] = sum(float(m) for m in re.findall(rf"^{re.escape(metric)}(?:{{[^}}]*}})? (\S+)$", text, re.M))
        return found

    def stop(self):
        self.process.terminate()
        if self.process.wait(60) != 0:
            sys.exit(f"exact_under_load: the server ended with {self.process.returncode}")


def make_requests(rng, clients, grammars):
    """Prompts that share beginnings, and every field that changes how tokens are drawn."""
    families = [[rng.randint(30, 3000) for _ in range(320)] for _ in range(3)]
    rules = " ".join(f"Rule {i} of {rng.randint(0, 9)}: be kind." for i in range(30))
    requests = []
    for _ in range(clients):
        body = {"max_tokens": rng.choice([5, 7, 30, 30, 100]), "seed": rng.randint(0, 1000),
                "ignore_eos": rng.random() < 0.7, "temperature": rng.choice([0, 0, 0.3, 0.7, 1, 1.5])}
        sometimes = {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3, "frequency_penalty": 0.5,
                     "presence_penalty": 0.4, "n": 2, "stop": ["e", " the"], "stream": True, "min_tokens": 5,
                     "logit_bias": {"262": 3, "265": -4}, "bad_words": [" the", "a"], "speculative": False}
        body |= {k: v for k, v in sometimes.items() if rng.random() < 0.15}
        if rng.random() < 0.2 and grammars:
            body |= rng.choice(FORMS)
        if rng.random() < 0.3:
            path = "/v1/chat/completions"
            user = {"role": "user", "content": f"Tell me of {rng.randint(0, 9)}."}
            body["messages"] = [{"role": "system", "content": rules}, user]
            body["logprobs"] = rng.random() < 0.3
        else:
            path = "/v1/completions"
            shared = rng.choice(families)[:rng.choice([0, rng.randint(1, 320)])]
            body["prompt"] = shared + [rng.randint(30, 3000) for _ in range(rng.randint(1, 60))]
            if rng.random() < 0.3:
                body["logprobs"] = 2
        leaves = rng.random() < 0.1
        requests.append((path, body, leaves))
    return requests


def ask(server, path, body, leaves=False):
    """What the answer says, without names and times; None for a client that leaves in the middle."""
    c = server.connect()
    c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = c.getresponse()
    if leaves:
        answer.read(40)
        c.close()
        return None
    text = answer.read().decode()
    c.close()
    if answer.status != 200:
        return f"status {answer.status}: {text}"
    if not body.get("stream"):
        return json.dumps(json.loads(text)["choices"], sort_keys=True)
    events = [e[len("data: "):] for e in text.split("\n\n") if e.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return "a stream without an end: " + text
    said = {}
    for event in map(json.loads, events[:-1]):
        for choice in event.get("choices", [event]):
            parts = said.setdefault(choice.get("index"), {"text": "", "reasoning": "", "end": ""})
            delta = choice.get("delta", choice)
            parts["text"] += delta.get("text") or delta.get("content") or ""
            parts["reasoning"] += delta.get("reasoning_content") or ""
            parts["end"] += choice.get("finish_reason") or str(choice.get("error", ""))
    return json.dumps(said, sort_keys=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--alone", metavar="PROGRAM", help="has the requests one at a time; by default the program itself")
    p.add_argument("--without-grammars", action="store_true", help="an emulator cannot start the process that compiles them")
    p.add_argument("--setting", action="append", choices=SETTINGS, help="this one; by default all")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    o = p.parse_args(sys.argv[1:end])
    serve = ["serve", "-m", o.model, "--port", "0", "-c", str(CONTEXT), "-np", "32", "--max-queue", "1000",
             "--no-access-log", "--no-ui", *sys.argv[end + 1:]]
    command = shlex.split(o.program) + serve
    rounds = [make_requests(random.Random(seed), o.clients, not o.without_grammars) for seed in range(o.seeds)]
    plain = Server(shlex.split(o.alone or o.program) + serve + PLAIN)
    alone = [[None if leaves else ask(plain, path, body) for path, body, leaves in requests] for requests in rounds]
    plain.stop()
    refused = [a for answers in alone for a in answers if a and a.startswith("status")]
    answers, differing = sum(a is not None for answers in alone for a in answers), 0
    print(f"{answers} answers of {o.seeds} seeds, one at a time; {len(refused)} refused", *sorted(set(refused)), sep="\n  ",
          flush=True)
    for name in o.setting or SETTINGS:
        flags = SETTINGS[name]
        server = Server(command + flags)
        wrong = 0
        for requests, want in zip(rounds, alone):
            with concurrent.futures.ThreadPoolExecutor(o.clients) as pool:
                got = list(pool.map(lambda r: ask(server, *r), requests))
            for request, g, w in zip(requests, got, want):
                if g != w:
                    wrong += 1
                    if wrong <= 3:
                        print(f"{name}: {json.dumps(request)[:500]}\n  alone: {w[:500]}\n  here:  {g[:500]}")
        counted = ", ".join(f"{n} {int(v)}" for n, v in server.counters().items())
        server.stop()
        print(f"{name}: {answers - wrong} of {answers} the same; {counted}", flush=True)
        differing += wrong
    return 1 if differing or refused else 0


if __name__ == "__main__":
    sys.exit(main())
