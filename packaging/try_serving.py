#!/usr/bin/env python3
"""Runs a program `quire` and serves with it: both answer a prompt, and the server ends when it is told to.

    packaging/try_serving.py PROGRAM MODEL

Prints when the first answer was there, in seconds since 1970. Needs nothing but Python 3.8, so that it runs in a bare
system.
"""
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

PROMPT = "Once upon a time"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(healthy, server):
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"try: the server ended with {server.returncode}: {server.stderr.read()}")
        if healthy():
            return
        time.sleep(0.1)
    sys.exit("try: the server is not healthy after a minute")


def check(start, health, model, port):
    """`start(arguments)` starts the program, `health()` is what `quire health` ends with. Returns when it answered."""
    said, error = start(["run", "-m", model, "--raw", "-p", PROMPT, "-n", "16", "--temperature", "0", "--quiet"]
                        ).communicate(timeout=60)
    answered = time.time()
    if not said.strip():
        sys.exit(f"try: no text: {error}")
    server = start(["serve", model, "--port", str(port), "--no-access-log"])
    try:
        wait_until(lambda: health() == 0, server)
        body = json.dumps({"prompt": PROMPT, "max_tokens": 16, "temperature": 0}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body,
                                         {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
        ended = server.wait(timeout=30)
    if ended != 0 or health() == 0:
        sys.exit(f"try: the server ended with {ended}")
    if not answer.strip():
        sys.exit("try: the server's answer has no text")
    return answered


def main():
    program, model = sys.argv[1:]
    port = free_port()
    health = [program, "health", "--url", f"http://127.0.0.1:{port}"]

    def start(arguments):
        return subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask_health():
        return subprocess.run(health, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode

    print(f"{check(start, ask_health, model, port):.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
