#!/usr/bin/env python3
"""What constrained output costs: time between tokens, and to the first one.

    tools/constraint_costs.py build/release/quire models/demo-moe-nvfp4.gguf [--schemas FILE] [--streams 1,64]

Starts a server, with further options as they are given here. Streams that are held to a schema are measured against
as many that are not, in turn, so that whatever else the machine does meets both; of each round's pair the ratio counts,
and the table has the median and the quartiles of all rounds; and likewise the server's CPU time for each token, which
tells of the work on a busy machine too. Then the time to a first token: with a schema that was compiled before against
none, in pairs; and, with --schemas (a file of lines {"schema": ...}), with schemas that nobody has asked for before,
while another stream runs, whose longest gaps are compared with those it has while as many requests without a schema
come.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time

# Goes on for as long as anybody measures.
SCHEMA = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}


async def stream(port, body, gaps=None):
    """Seconds to the first event, seconds from it to the last, tokens; None: refused."""
    data = json.dumps({"stream": True, "stream_options": {"include_usage": True}, **body}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    begin = time.perf_counter()
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    if not (await reader.readline()).startswith(b"HTTP/1.1 200"):
        writer.close()
        return None
    first = last = tokens = None
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            break
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            writer.close()
            return None
        if usage := event.get("usage"):
            tokens = usage["completion_tokens"]
        if event.get("choices"):
            now = time.perf_counter()
            if gaps is not None and last is not None:
                gaps.append(now - last)
            first, last = first or now, now
    writer.close()
    return first - begin, last - first, tokens


def body_of(number, o, schema, tokens):
    body = {"prompt": f"Number {number} of a list of people as JSON: ", "max_tokens": tokens, "ignore_eos": True,
            "seed": number, "temperature": 1}
    if not o.speculative:
        body["speculative"] = False
    return body if schema is None else {**body, "guided_json": schema}


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def token_seconds(port, pid, o, count, schema):
    """The mean time between tokens of so many streams at once, and the server's CPU time for each token."""
    before = cpu_seconds(pid)
    got = await asyncio.gather(*(stream(port, body_of(i, o, schema, o.tokens)) for i in range(count)))
    if None in got:
        sys.exit("a stream failed")
    cpu = (cpu_seconds(pid) - before) / sum(tokens for _, _, tokens in got)
    return statistics.mean(seconds / (tokens - 1) for _, seconds, tokens in got), cpu


def quartiles(values):
    return statistics.quantiles(values, n=4) if len(values) > 1 else values * 3


async def compare_streams(port, pid, o, count):
    free, held = [], []
    for number in range(o.rounds + 1):
        order = [(free, None), (held, SCHEMA)]
        for to, schema in order if number % 2 else reversed(order):
            to.append(await token_seconds(port, pid, o, count, schema))
    for i, what in enumerate(("between tokens", "of CPU time a token")):
        pairs = [(f[i], h[i]) for f, h in zip(free[1:], held[1:])]  # the first round warms up
        low, middle, high = quartiles([100 * (h / f - 1) for f, h in pairs])
        print(f"{count:3} streams: {1e3 * statistics.median(f for f, _ in pairs):.2f} ms {what} free, "
              f"{1e3 * statistics.median(h for _, h in pairs):.2f} held to a schema; {middle:+.1f}% "
              f"({low:+.1f} to {high:+.1f})", flush=True)


async def first_token(port, o, schema):
    got = await stream(port, body_of(0, o, schema, 1))
    return None if got is None else 1e3 * got[0]


async def compare_first_tokens(port, o):
    free, held = [], []
    for number in range(o.first_tokens):
        order = [(free, None), (held, SCHEMA)]
        for to, schema in order if number % 2 else reversed(order):
            to.append(await first_token(port, o, schema))
    added = quartiles([h - f for f, h in zip(free[1:], held[1:])])
    print(f"first token: {statistics.median(free):.2f} ms free; a schema that was compiled before adds "
          f"{added[1]:+.2f} ms ({added[0]:+.2f} to {added[2]:+.2f})", flush=True)


def at(values, p):
    return sorted(values)[min(len(values) - 1, int(p * len(values)))]


async def new_schemas(port, o):
    with open(o.schemas, encoding="utf-8") as lines:
        schemas = list({json.dumps(json.loads(line)["schema"]): None for line in lines})[:o.most]
    found = {}
    for name in ("free", "new"):
        gaps, done, refused = [], [], 0

        async def beside():
            while True:
                body = {"prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": True, "seed": 1}
                await stream(port, body, gaps)

        running = asyncio.create_task(beside())
        for schema in schemas:
            ms = await first_token(port, o, json.loads(schema) if name == "new" else None)
            refused += ms is None
            done += [ms] if ms is not None else []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        found[name] = done
        print(f"{name:4}: {len(done)} requests ({refused} refused), first token p50 {at(done, .5):.1f} ms, "
              f"p90 {at(done, .9):.1f}, p99 {at(done, .99):.1f}, most {max(done):.1f}; gaps of the stream beside them "
              f"p50 {1e3 * at(gaps, .5):.1f} ms, p99 {1e3 * at(gaps, .99):.1f}, most {1e3 * max(gaps):.1f}", flush=True)
    base = statistics.median(found["free"])
    print("a new schema adds to the first token: " +
          ", ".join(f"p{100 * p:.0f} {at(found['new'], p) - base:.1f} ms" for p in (.5, .9, .99)), flush=True)


async def main(o):
    streams = [int(n) for n in o.streams.split(",")]
    server = subprocess.Popen(
        [o.program, "serve", "-m", o.model, "--port", "0", "-np", str(max(streams + [2])), "-c", "1200",
         "--no-access-log", *o.serve], stderr=subprocess.PIPE, text=True)
    try:
        port = 0
        while not port:
            line = server.stderr.readline()
            if not line:
                return "the server does not start"
            if "://127.0.0.1:" in line:
                port = int(line.rsplit(":", 1)[1])
        for count in streams:
            await compare_streams(port, server.pid, o, count)
        await compare_first_tokens(port, o)
        if o.schemas:
            await new_schemas(port, o)
    finally:
        server.terminate()
        server.communicate()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--streams", default="1,64", help="how many at once, each a line")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=256, help="of each stream")
    parser.add_argument("--first-tokens", type=int, default=200, help="pairs of requests for one token")
    parser.add_argument("--schemas", help="JSON lines with schemas that are new to the server")
    parser.add_argument("--most", type=int, default=1000, help="of these")
    parser.add_argument("--speculative", action="store_true", help="with drafts, which forced tokens are too")
    options, further = parser.parse_known_args()
    options.serve = further  # options of quire serve
    sys.exit(asyncio.run(main(options)))
