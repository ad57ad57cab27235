#!/usr/bin/env python3
"""Quire as a deployment of Ray Serve: each replica is a server of its own, and where one ends Ray starts another.

    pip install "ray[serve]" aiohttp
    python3 examples/routers/ray_serve.py -m models/demo-moe-nvfp4.gguf --replicas 2
    curl http://127.0.0.1:8000/v1/models

On GPUs, --gpus 1 gives each replica one of its own. What stands behind -- goes to `quire serve`.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import threading
import time

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@serve.deployment(max_ongoing_requests=256, health_check_period_s=2, graceful_shutdown_timeout_s=60)
class Quire:
    def __init__(self, program, options):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        # Ray has set CUDA_VISIBLE_DEVICES. The server ends with the pipe to it, however the replica does.
        self.server = subprocess.Popen([program, "serve", "--port", str(port), "--exit-with-stdin", *options],
                                       stdin=subprocess.PIPE)
        # Without its server the replica is of no use: that it is gone Ray notices at once.
        threading.Thread(target=lambda: os._exit(self.server.wait() or 1), daemon=True).start()
        self.session = None

    async def start(self):
        """The model is loaded; the first time that Ray asks for the replica's health it may take as long as it does."""
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=5))
        while True:
            try:
                async with self.session.get(self.url + "/health") as r:
                    if r.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)

    async def check_health(self):
        if self.session is None:
            await self.start()
        async with self.session.get(self.url + "/health") as r:
            if r.status != 200:
                raise RuntimeError(f"/health says {r.status}")

    async def __call__(self, request: Request):
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        try:
            if self.session is None:
                await self.start()
            answer = await self.session.request(
                request.method, self.url + request.url.path, params=request.query_params, data=await request.body(),
                headers=headers)
        except aiohttp.ClientError as e:
            return Response(f"the server is gone: {e}", status_code=503, headers={"Retry-After": "1"})
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
        return StreamingResponse(self.pieces(answer), status_code=answer.status, headers=kept)

    async def pieces(self, answer):
        try:
            async for piece in answer.content.iter_any():
                yield piece
        finally:
            answer.close()  # a client that leaves has its answer cancelled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--gpus", type=float, default=0, help="of each replica")
    parser.add_argument("--program", default="quire")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("options", nargs="*", help="of quire serve")
    a = parser.parse_args()
    model = os.path.abspath(a.model) if os.path.exists(a.model) else a.model
    program = os.path.abspath(a.program) if os.path.exists(a.program) else a.program
    serve.start(http_options={"host": "127.0.0.1", "port": a.port})
    serve.run(Quire.options(num_replicas=a.replicas, ray_actor_options={"num_gpus": a.gpus}).bind(
        program, ["-m", model, *a.options]), route_prefix="/")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
