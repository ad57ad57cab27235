#!/usr/bin/env python3
"""Quire as a worker of NVIDIA Dynamo: tokens come in, go to a server over HTTP, and tokens come out.

    pip install ai-dynamo-runtime aiohttp
    quire serve FOLDER --port 8001 --kv-events-endpoint @tcp://127.0.0.1:5557 --kv-events-token-ids
    python3 examples/routers/dynamo_worker.py --server http://127.0.0.1:8001 --model FOLDER \\
        --kv-events tcp://127.0.0.1:5557

FOLDER is the model's Hugging Face folder. Without other options no etcd and no NATS is needed: workers and frontends of
one machine find each other in files. --frontend PORT is such a frontend, in place of a worker.
"""

import argparse
import asyncio
import json

import aiohttp
import uvloop
from dynamo.llm import (EngineType, EntrypointArgs, KvEventPublisher, KvRouterConfig, ModelInput, ModelRuntimeConfig,
                        ModelType, RouterConfig, RouterMode, WorkerType, make_engine, register_model, run_input)
from dynamo.runtime import DistributedRuntime

BLOCK = 64  # tokens of a block of KV events


def body_of(request, model):
    """A request of Dynamo's as one for /v1/completions."""
    sampling, stop = request.get("sampling_options") or {}, request.get("stop_conditions") or {}
    body = {"model": model, "prompt": request["token_ids"], "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}}
    for name in ("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
                 "repetition_penalty"):
        if sampling.get(name) is not None:
            body[name] = sampling[name]
    for name in ("max_tokens", "min_tokens", "stop", "ignore_eos"):
        if stop.get(name) is not None:
            body[name] = stop[name]
    hidden = [*(stop.get("stop_token_ids_hidden") or []), *(stop.get("stop_token_ids") or [])]
    if hidden:
        body["stop_token_ids"] = hidden
    return body


class Worker:
    def __init__(self, server, name):
        self.server, self.name = server, name
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=5))

    async def model(self):
        async with self.session.get(self.server + "/v1/models") as r:
            return (await r.json())["data"][0]

    async def watch(self, runtime):
        """Where the server is gone, or refuses, Dynamo is to know: this worker leaves."""
        while True:
            await asyncio.sleep(1)
            try:
                async with self.session.get(self.server + "/health") as r:
                    if r.status == 200:
                        continue
            except aiohttp.ClientError:
                pass
            print(f"{self.server} serves no more", flush=True)
            return runtime.shutdown()

    async def generate(self, request, context):
        answer = await self.session.post(self.server + "/v1/completions", json=body_of(request, self.name))
        try:
            if answer.status != 200:
                raise RuntimeError(f"{self.server}: {answer.status}: {await answer.text()}")
            async for line in answer.content:
                if context.is_stopped():
                    return
                if not line.startswith(b"data: {"):
                    continue
                piece = json.loads(line[6:])
                if "error" in piece:
                    raise RuntimeError(piece["error"]["message"])
                for choice in piece["choices"]:
                    out = {"token_ids": choice.get("token_ids") or []}
                    if choice["finish_reason"]:
                        out["finish_reason"] = choice["finish_reason"]
                    if out["token_ids"] or choice["finish_reason"]:
                        yield out
        finally:
            answer.close()  # whoever leaves has the answer cancelled


async def work(runtime, a):
    worker = Worker(a.server, a.name)
    model = await worker.model()
    worker.name = a.name or model["id"]
    endpoint = runtime.endpoint(a.endpoint)
    config = ModelRuntimeConfig()
    config.enable_local_indexer = True
    await register_model(ModelInput.Tokens, ModelType.Chat | ModelType.Completions, endpoint, a.model, worker.name,
                         worker_type=WorkerType.Aggregated, kv_cache_block_size=BLOCK, runtime_config=config,
                         ignore_weights=True)
    publisher = None
    if a.kv_events:
        publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK, zmq_endpoint=a.kv_events, zmq_topic="kv@",
                                     enable_local_indexer=True)
    watching = asyncio.create_task(worker.watch(runtime))
    try:
        await endpoint.serve_endpoint(worker.generate)
    finally:
        watching.cancel()
        if publisher:
            publisher.shutdown()
        await worker.session.close()


async def front(runtime, a):
    router = RouterConfig(RouterMode.KV, KvRouterConfig(use_kv_events=True))
    engine = await make_engine(runtime, EntrypointArgs(EngineType.Dynamic, http_port=a.frontend, router_config=router,
                                                       kv_cache_block_size=BLOCK))
    await run_input(runtime, "http", engine)


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:8001")
    parser.add_argument("--model", help="the model's Hugging Face folder")
    parser.add_argument("--name", help="what clients call it (default: as the server does)")
    parser.add_argument("--kv-events", metavar="ENDPOINT", help="where the server publishes them")
    parser.add_argument("--endpoint", default="dynamo.quire.generate")
    parser.add_argument("--discovery", default="file", choices=["file", "etcd", "kubernetes", "mem"])
    parser.add_argument("--frontend", type=int, metavar="PORT")
    a = parser.parse_args()
    runtime = DistributedRuntime(asyncio.get_running_loop(), a.discovery, "tcp", event_plane="zmq")
    await (front(runtime, a) if a.frontend else work(runtime, a))


if __name__ == "__main__":
    uvloop.run(main())
