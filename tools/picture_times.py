#!/usr/bin/env python3
"""What pictures cost a server: times to the first token, and pictures a second, with requests as clients send them.

usage: picture_times.py PROGRAM MODEL [--side 1024] [--words 128] [--clients 16] [--checks CUDA_CHECKS] [--serve FLAGS]

Starts `quire serve` with MODEL (quire-lab synth --images makes one of real shapes). Pictures are PNG files of noise
and gradients, each another one, as data URLs. --checks also runs the benchmark of the tower alone. Needs the standard
library only.
"""
import argparse
import base64
import http.client
import json
import random
import shlex
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import zlib


def png(side, seed):
    """A gradient with some noise, so that it is neither all alike nor beyond compression."""
    noise = random.Random(seed).randbytes(3 * side)
    gradient = bytes((x * 255 // side + c * 40) % 256 for x in range(side) for c in range(3))
    line = bytes(g ^ (n & 15) for g, n in zip(gradient, noise))
    lines = b"".join(b"\0" + line[3 * (y % side):] + line[:3 * (y % side)] for y in range(side))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 1)) +
            chunk(b"IEND", b""))


def body(text, picture=None):
    content = [{"type": "text", "text": text}]
    if picture is not None:
        url = "data:image/png;base64," + base64.b64encode(picture).decode()
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    return json.dumps({"messages": [{"role": "user", "content": content}], "stream": True, "max_tokens": 2,
                       "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}).encode()


def ask(port, sent):
    """Seconds to the first token, and the prompt's tokens."""
    begin, first, tokens = time.perf_counter(), None, 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/chat/completions", sent, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"picture_times: {answer.status}: {answer.read().decode()}")
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if first is None and any(c["delta"].get("content") is not None and c["delta"].get("role") is None
                                 for c in event["choices"]):
            first = time.perf_counter() - begin
        tokens = (event.get("usage") or {}).get("prompt_tokens", tokens)
    connection.close()
    return (first or time.perf_counter() - begin), tokens


def words(count, seed):
    rng = random.Random(seed)
    return " ".join(rng.choice(("a", "I", "to", "in", "it", "we")) for _ in range(count))


class Server:
    def __init__(self, program, model, flags):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        command = [program, "serve", "-m", model, "--port", str(self.port), *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said = []
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()
        while True:
            if self.process.poll() is not None:
                raise SystemExit("picture_times: the server ended: " + "".join(self.said[-5:]))
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def milliseconds(times):
    times = [1e3 * t for t in times]
    return f"{statistics.median(times):8.1f} ms, {min(times):.1f} to {max(times):.1f}"


def measure(server, options):
    port, side = server.port, options.side
    for i in range(3):
        ask(port, body(words(options.words, -1 - i), png(side, -1 - i)))
    texts, pictures, again, tokens = [], [], [], 0
    for i in range(options.repetitions):
        texts.append(ask(port, body(words(options.words, i)))[0])
        picture = png(side, i)
        first, tokens = ask(port, body(words(options.words, 1000 + i), picture))
        pictures.append(first)
        again.append(ask(port, body(words(options.words, 2000 + i), picture))[0])
    print(f"first token of {options.words} words:                          {milliseconds(texts)}")
    print(f"first token of a picture of {side} x {side} and {options.words} words: {milliseconds(pictures)}"
          f" ({tokens} tokens)")
    print(f"another question about the same picture:           {milliseconds(again)}")


def crowd(server, options):
    """Pictures a second with as many requests at any time as there are clients. Bodies are made before."""
    bodies = [body(words(options.words, 5000 + i), png(options.side, 5000 + i)) for i in range(4 * options.clients)]
    lock, begin = threading.Lock(), time.perf_counter()

    def client():
        while True:
            with lock:
                if not bodies:
                    return
                mine = bodies.pop()
            ask(server.port, mine)

    count = len(bodies)
    threads = [threading.Thread(target=client) for _ in range(options.clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(f"pictures a second, {options.clients} clients:                  {count / (time.perf_counter() - begin):8.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--words", type=int, default=128)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--checks", metavar="CUDA_CHECKS")
    parser.add_argument("--serve", default="", metavar="FLAGS")
    options = parser.parse_args()
    server = Server(options.program, options.model, shlex.split(options.serve))
    try:
        measure(server, options)
        crowd(server, options)
    finally:
        server.close()
    if options.checks:
        sys.stdout.flush()
        command = [options.checks, "--bench", "--gtest_filter=VisionTowerBench.*", "--gtest_brief=1"]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
