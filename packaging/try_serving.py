#!/usr/bin/env python3
"""Runs a program `quire` and serves with it: both answer a prompt, and the server ends when it is told to.

    packaging/try_serving.py [--chroot FOLDER] [--user ID] PROGRAM MODEL

Needs nothing but Python, so that it runs in a bare system.
"""
import argparse
import json
import os
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--chroot")
    parser.add_argument("--user", type=int)
    parser.add_argument("program")
    parser.add_argument("model")
    o = parser.parse_args()

    def enter():
        if o.chroot:
            os.chroot(o.chroot)
            os.chdir("/")
        if o.user:
            os.setgroups([])
            os.setgid(o.user)
            os.setuid(o.user)

    said = subprocess.run([o.program, "run", "-m", o.model, "--raw", "-p", PROMPT, "-n", "16", "--temperature", "0",
                           "--quiet"], preexec_fn=enter, check=True, stdout=subprocess.PIPE, timeout=60).stdout.decode()
    port = free_port()
    server = subprocess.Popen([o.program, "serve", o.model, "--port", str(port), "--no-access-log"], preexec_fn=enter,
                              stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            if server.poll() is not None:
                sys.exit(f"try_serving: the server ended with {server.returncode}: {server.stderr.read()}")
            healthy = subprocess.run([o.program, "health", "--url", f"http://127.0.0.1:{port}"], preexec_fn=enter,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if healthy.returncode == 0:
                break
            time.sleep(0.1)
        else:
            sys.exit("try_serving: the server is not healthy after a minute")
        body = json.dumps({"prompt": PROMPT, "max_tokens": 16, "temperature": 0}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body,
                                         {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
        ended = server.wait(timeout=30)
    if ended != 0:
        sys.exit(f"try_serving: the server ended with {ended}")
    if not answer.strip() or not said.strip():
        sys.exit(f"try_serving: no text: {said!r}, {answer!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
