#!/usr/bin/env python3
"""Plays LocalAI with the folder of a backend that lies in a bare system: starts run.sh, loads a model, asks, ends it.

    packaging/try_localai.py ROOT FOLDER MODEL      FOLDER and MODEL: as the bare system in ROOT names them

Prints when the first answer was there, in seconds since 1970. gRPC is spoken with curl and protoc alone. As root.
"""
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time

import try_serving

PROTO = pathlib.Path(__file__).resolve().parent.parent / "src/localai"
TOKEN = "of-a-trial"


def protoc(how, kind, content):
    command = ["protoc", f"--proto_path={PROTO}", f"--{how}=backend.{kind}", "backend.proto"]
    return subprocess.run(command, input=content, check=True, stdout=subprocess.PIPE).stdout


def call(port, method, kind, text, reply):
    """Calls a method with a message that is given as text; returns the reply as text, or None where there is none."""
    message = protoc("encode", kind, text.encode())
    command = ["curl", "--silent", "--http2-prior-knowledge", "--noproxy", "*", "--max-time", "60",
               "--data-binary", "@-", "-H", "Content-Type: application/grpc", "-H", "TE: trailers",
               "-H", f"Authorization: Bearer {TOKEN}",
               f"http://127.0.0.1:{port}/backend.Backend/{method}"]
    answer = subprocess.run(command, input=struct.pack(">BI", 0, len(message)) + message,
                            stdout=subprocess.PIPE).stdout
    return protoc("decode", reply, answer[5:]).decode() if len(answer) >= 5 else None


def main():
    root, folder, model = sys.argv[1:]
    port = try_serving.free_port()

    def enter():
        os.chroot(root)
        os.chdir("/")

    server = subprocess.Popen([f"{folder}/run.sh", f"--addr=127.0.0.1:{port}"], preexec_fn=enter, text=True,
                              stderr=subprocess.PIPE, env={"PATH": "/usr/bin:/bin", "LOCALAI_GRPC_AUTH_TOKEN": TOKEN})
    try:
        try_serving.wait_until(lambda: call(port, "Health", "HealthMessage", "", "Reply") is not None, server)
        loaded = call(port, "LoadModel", "ModelOptions", f'ModelFile: "{model}" ContextSize: 512', "Result")
        reply = call(port, "Predict", "PredictOptions", f'Prompt: "{try_serving.PROMPT}" Tokens: 16', "Reply")
        answered = time.time()
    finally:
        server.send_signal(signal.SIGTERM)
        said = server.stderr.read()
        ended = server.wait(timeout=30)
    if "success: true" not in (loaded or "") or "message:" not in (reply or "") or ended != 0:
        sys.exit(f"try: loaded {loaded!r}, replied {reply!r}, ended with {ended}: {said}")
    print(f"{answered:.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
