#!/usr/bin/env python3
"""What a thousand clients that wait cost those that are served.

    tools/idle_streams.py build/release/quire models/demo-moe-nvfp4.gguf [--idle 1000] [--active 32] [--tokens 300]

Starts a server and measures the time between events of `--active` streams, first alone and then beside `--idle` streams
that wait in the queue: a third of them never reads, a third reads a byte now and then, a third reads. Then the idle ones are
answered in turn, unread as they are, and leave. Prints the gaps and the memory that is the server's own (RssAnon, so
without the mapped model) at each point; fails if a waiting stream costs more than --max-kib of it, or if the 1000 leave
something behind that a second round adds to.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time


def anonymous_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))


def request(prompt, tokens, priority):
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0,
                       "priority": priority}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def active_stream(port, number, tokens, times, started):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(f"Once upon a time there was number {number}", tokens, 0))
    first = True
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            break
        if line.startswith(b"data: "):
            times.append(time.monotonic())
            if first:
                started.release()
                first = False
    writer.close()


async def idle_stream(port, number, sent, leave):
    # A small window, so that what is not read stays with the server soon.
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(request(f"Waiting {number}", 4, 1))
    await writer.drain()
    sent.release()
    if number % 3 == 0:
        writer.transport.pause_reading()
        await leave.wait()
    while number % 3 != 0 and not leave.is_set():
        if not await reader.read(1 if number % 3 == 1 else 1024):
            break
        await asyncio.sleep(0.5 if number % 3 == 1 else 0)
    await leave.wait()
    writer.close()


async def round_of(port, pid, o, idle):
    """Gaps of the active streams, in ms, from when the idle ones wait; the most memory meanwhile."""
    times, started, sent, leave = [[] for _ in range(o.active)], asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Event()
    active = [asyncio.create_task(active_stream(port, i, o.tokens, times[i], started)) for i in range(o.active)]
    for _ in range(o.active):
        await started.acquire()
    waiting = [asyncio.create_task(idle_stream(port, i, sent, leave)) for i in range(idle)]
    for _ in range(idle):
        await sent.acquire()
    since, memory = time.monotonic(), anonymous_kib(pid)
    while not all(t.done() for t in active):
        await asyncio.sleep(0.2)
        memory = max(memory, anonymous_kib(pid))
    for t in active:
        t.result()
    gaps = sorted(1000 * (b - a) for of in times for a, b in zip(of, of[1:]) if a >= since)
    if idle:
        await asyncio.sleep(o.serve_seconds)  # those that waited are answered
        memory = max(memory, anonymous_kib(pid))
    leave.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(1)
    return gaps, memory


def describe(name, gaps, memory, after):
    at = lambda p: gaps[min(len(gaps) - 1, int(p * len(gaps)))]
    print(f"{name:28} {len(gaps):6} gaps  p50 {at(.5):6.1f} ms  p90 {at(.9):6.1f}  p99 {at(.99):6.1f}  "
          f"mean {statistics.mean(gaps):6.1f}  | memory at most {memory / 1024:6.1f} MiB, after {after / 1024:6.1f} MiB",
          flush=True)


async def main(o):
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    server = subprocess.Popen(
        [o.program, "serve", "-m", o.model, "--port", "0", "-np", str(o.active), "-c", "2048", "--kv-tokens",
         str(max(2048, 2 * o.active * (o.tokens + 32))),  # the pool is backed as it is touched: soon all of it is
         "--max-queue",
         str(2 * o.idle + 100), "--no-access-log", "--drain-timeout", "1"], stderr=subprocess.PIPE, text=True)
    try:
        port = 0
        while not port:
            line = server.stderr.readline()
            if not line:
                return "the server does not start"
            if "://127.0.0.1:" in line:
                port = int(line.rsplit(":", 1)[1])
        await round_of(port, server.pid, o, o.idle)  # warms up, and touches all of the KV cache
        worst = 0
        after = []
        for number in range(o.rounds):
            before = anonymous_kib(server.pid)
            for name, idle in ((f"{o.active} alone", 0), (f"{o.active} beside {o.idle}", o.idle)):
                gaps, memory = await round_of(port, server.pid, o, idle)
                describe(f"round {number + 1}: {name}", gaps, memory, anonymous_kib(server.pid))
            worst = max(worst, (memory - before) / max(1, o.idle))
            after.append(anonymous_kib(server.pid))
        print(f"at most {worst:.1f} KiB for each stream that waits")
        if worst > o.max_kib:
            return f"more than {o.max_kib} KiB"
        if len(after) > 1 and after[-1] > 1.1 * after[-2] + 4096:
            return "every round leaves memory behind"
    finally:
        server.terminate()
        server.wait()
    return None


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--idle", type=int, default=1000)
    p.add_argument("--active", type=int, default=32)
    p.add_argument("--tokens", type=int, default=300)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--serve-seconds", type=float, default=15, help="for those that waited to be answered")
    p.add_argument("--max-kib", type=float, default=100)
    sys.exit(asyncio.run(main(p.parse_args())))
