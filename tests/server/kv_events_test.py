#!/usr/bin/env python3
"""KV events as a router reads them: with libzmq and msgspec, over the types that vLLM's subscribers have.

    kv_events_test.py build/release/quire

Exit code 77: pyzmq or msgspec is not installed (docs/testing.md)."""
import json
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

try:
    import msgspec
    import zmq
except ImportError as missing:
    print(f"{missing.name} is not installed")
    sys.exit(77)

PROGRAM = sys.argv.pop(1)
MODELS = pathlib.Path(__file__).parents[2] / "models"
HYBRID = MODELS / "demo-moe-nvfp4.gguf"
BLOCK, VOCAB = 64, 4000
QUIET = 400  # ms without a batch: nothing more will come


class Array(msgspec.Struct, array_like=True, tag=True):
    pass


class BlockStored(Array):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class BlockRemoved(Array):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Array):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Map(msgspec.Struct, tag_field="type", tag=True):
    pass


class StoredMap(Map, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int


class RemovedMap(Map, tag="BlockRemoved"):
    block_hashes: list[int]


class ClearedMap(Map, tag="AllBlocksCleared"):
    pass


class BatchMap(msgspec.Struct):
    ts: float
    events: list[StoredMap | RemovedMap | ClearedMap]
    data_parallel_rank: int


def free_port(count=1):
    """The first of so many free ones."""
    for _ in range(100):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        try:
            for i in range(count):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port + i))
            return port
        except OSError:
            continue
    raise RuntimeError("no free ports")


class Server:
    def __init__(self, *options):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [PROGRAM, "serve", HYBRID, "--port", str(port), "--no-access-log", "-np", "4", "--device", "cpu",
             "--served-model-name", "demo", *options], stdin=subprocess.DEVNULL, stderr=self.said)
        while not self.healthy():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended: {self.messages()}")
            time.sleep(0.05)

    def healthy(self):
        try:
            return urllib.request.urlopen(self.url + "/health", timeout=5).status == 200
        except OSError:
            return False

    def messages(self):
        self.said.seek(0)
        return self.said.read()

    def ask(self, prompt, **more):
        """How much of the prompt was found in the cache."""
        body = dict(model="demo", prompt=prompt, max_tokens=2, temperature=0, ignore_eos=True, **more)
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        usage = json.load(urllib.request.urlopen(request, timeout=120))["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    def metric(self, name):
        lines = urllib.request.urlopen(self.url + "/metrics", timeout=5).read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))

    def wait_for(self, router, count=1):
        """Until it has subscribed: libzmq may do that within functions of its socket."""
        end = time.monotonic() + 60
        while self.metric("quire:kv_event_subscribers") < count:
            assert time.monotonic() < end, "no subscriber"
            router.socket.poll(20)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        ended = self.process.wait(60)
        assert ended == 0, (ended, self.messages())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.said.close()


class Router:
    """Subscribes, and knows what a server has."""

    def __init__(self, endpoint, batch=Batch, topic="kv@", bind=False):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        (self.socket.bind if bind else self.socket.connect)(endpoint)
        self.decoder = msgspec.msgpack.Decoder(batch)
        self.blocks, self.cleared, self.removed, self.ranks, self.topics = {}, 0, 0, set(), set()
        self.last, self.gaps = None, 0

    def read(self, patience=QUIET):
        while self.socket.poll(patience):
            topic, number, payload = self.socket.recv_multipart()
            number = int.from_bytes(number, "big")
            self.gaps += self.last is not None and number != self.last + 1
            self.last = number
            self.topics.add(topic.decode())
            self.take(payload)
        return self

    def take(self, payload):
        batch = self.decoder.decode(payload)
        assert abs(batch.ts - time.time()) < 3600
        self.ranks.add(batch.data_parallel_rank)
        for event in batch.events:
            kind = type(event).__name__
            if "Stored" in kind:
                assert event.block_size == BLOCK
                parent = event.parent_block_hash
                assert parent is None or parent in self.blocks, "before its parent"
                assert len(event.token_ids) in (0, BLOCK * len(event.block_hashes))
                for i, block in enumerate(event.block_hashes):
                    assert block not in self.blocks, "stored twice"
                    self.blocks[block] = (parent, tuple(event.token_ids[i * BLOCK:(i + 1) * BLOCK]))
                    parent = block
            elif "Removed" in kind:
                for block in event.block_hashes:
                    del self.blocks[block]
                    self.removed += 1
            else:
                self.cleared += 1
                self.blocks.clear()

    def known(self, prompt):
        """How much of a prompt the server should find: one token has to be computed."""
        found, parent = 0, None
        following = {(p, tokens): block for block, (p, tokens) in self.blocks.items()}
        while found + BLOCK < len(prompt):
            block = following.get((parent, tuple(prompt[found:found + BLOCK])))
            if block is None:
                break
            found, parent = found + BLOCK, block
        return found

    def close(self):
        self.socket.close(0)


def tokens(count, seed):
    return [random.Random(seed * 100003 + i).randrange(300, VOCAB) for i in range(count)]


def replay(port, first, kind=zmq.DEALER):
    client = zmq.Context.instance().socket(kind)
    client.connect(f"tcp://127.0.0.1:{port}")
    client.send_multipart([b"", first.to_bytes(8, "big")] if kind == zmq.DEALER else [first.to_bytes(8, "big")])
    batches = []
    while client.poll(20000):
        frames = client.recv_multipart()
        frames = frames[1:] if kind == zmq.DEALER else frames
        batches.append(frames)
        if frames[-1] == b"" or kind == zmq.REQ:
            break
    client.close(0)
    return batches


class KvEvents(unittest.TestCase):
    def publishing(self, *options, ports=1):
        self.port, self.replays = free_port(ports), free_port(ports)
        server = Server("--kv-events-endpoint", f"@tcp://127.0.0.1:{self.port}", "--kv-events-replay-endpoint",
                        f"tcp://127.0.0.1:{self.replays}", "--kv-events-format", "arrays", *options)
        self.addCleanup(server.__exit__)
        return server

    def router(self, server, port=None, **options):
        had = server.metric("quire:kv_event_subscribers")
        router = Router(f"tcp://127.0.0.1:{port or self.port}", **options)
        self.addCleanup(router.close)
        server.wait_for(router, had + 1)
        return router

    def test_what_is_stored_is_what_a_prompt_finds(self):
        server = self.publishing("--kv-events-token-ids", "-c", "2048")
        router = self.router(server)
        prompts = [tokens(n, n) for n in (300, 700, 1200, 63, 64, 65, 129)]
        for prompt in prompts:
            self.assertEqual(server.ask(prompt), 0)
            self.assertEqual(router.read().known(prompt), server.ask(prompt))
        self.assertEqual(router.removed, 0)
        for prompt in prompts:
            longer = prompt + tokens(100, 7)
            known = router.read().known(longer)
            self.assertEqual(server.ask(longer), known)
            self.assertGreaterEqual(known, (len(prompt) - 64) // BLOCK * BLOCK)
        # Who leaves a known prompt in the middle goes on from the last state before: no more than what is told.
        other = prompts[2][:700] + tokens(300, 8)
        self.assertGreaterEqual(router.read().known(other), server.ask(other))
        self.assertEqual(router.read().known(other), server.ask(other))
        self.assertEqual(router.gaps, 0)
        self.assertEqual(router.ranks, {0})
        self.assertEqual({t.rsplit("@")[0] + "@" + t.rsplit("@")[-1] for t in router.topics}, {"kv@demo"})

    def test_under_pressure_what_goes_is_removed(self):
        server = self.publishing("--kv-events-token-ids", "-c", "1024", "--kv-tokens", "4096")
        router = self.router(server)
        prompts = [tokens(random.Random(i).randrange(200, 900), 1000 + i) for i in range(30)]
        for prompt in prompts:
            server.ask(prompt)
        router.read()
        self.assertGreater(router.removed, 50)
        self.assertGreater(len(router.blocks), 10)
        for prompt in reversed(prompts[-12:]):
            known = router.read().known(prompt)
            self.assertEqual(server.ask(prompt), known)
        self.assertEqual(router.gaps, 0)

    def test_replays(self):
        server = self.publishing("--kv-events-token-ids", "-c", "1024")
        for i in range(4):
            server.ask(tokens(400, i))
        time.sleep(QUIET / 1000)
        batches = replay(self.replays, 0)
        self.assertEqual([int.from_bytes(n, "big") for n, _ in batches], [*range(len(batches) - 1), 2**64 - 1])
        late = Router("inproc://nowhere")
        self.addCleanup(late.close)
        for _, payload in batches[:-1]:
            late.take(payload)
        self.assertEqual(late.cleared, 1, "the first thing that is said")
        for i in range(4):
            self.assertEqual(late.known(tokens(400, i)), server.ask(tokens(400, i)))
        self.assertEqual(replay(self.replays, 3, zmq.REQ), batches[3:4])
        self.assertEqual(len(replay(self.replays, 10**6)), 1)

    def test_only_so_many_batches_are_kept(self):
        server = self.publishing("-c", "1024", "--kv-events-buffer-steps", "2")
        for i in range(4):
            server.ask(tokens(400, i))
        time.sleep(QUIET / 1000)
        batches = replay(self.replays, 0)
        self.assertEqual(len(batches), 3)
        self.assertGreater(int.from_bytes(batches[0][0], "big"), 0)

    def test_maps_have_their_topic_in_replays(self):
        server = self.publishing("--kv-events-format", "maps", "--kv-events-token-ids", "--kv-events-topic",
                                 "kv@10.0.0.7:8000@org/model")
        router = self.router(server, batch=BatchMap, topic="kv@10.0.0.7")
        prompt = tokens(500, 1)
        server.ask(prompt)
        self.assertEqual(router.read().known(prompt), server.ask(prompt))
        *batches, end = replay(self.replays, 0)
        self.assertEqual({topic for topic, _, _ in batches}, {b"kv@10.0.0.7:8000@org/model"})
        self.assertEqual(end, [b"", b"\xff" * 8, b""])

    def test_without_tokens_hashes_alone_are_told(self):
        server = self.publishing()
        router = self.router(server)
        for salt in None, "of one", "of another":
            server.ask(tokens(300, 1), **({"cache_salt": salt} if salt else {}))
        router.read()
        self.assertEqual(len({parent for parent, _ in router.blocks.values()}), len(router.blocks) - 2)
        self.assertEqual({tokens for _, tokens in router.blocks.values()}, {()})

    def test_with_tokens_nothing_of_a_salt_is_told(self):
        server = self.publishing("--kv-events-token-ids")
        router = self.router(server)
        server.ask(tokens(300, 1), cache_salt="secret")
        self.assertEqual(router.read().blocks, {})
        server.ask(tokens(300, 1))
        self.assertGreater(router.read().known(tokens(300, 1)), 0)

    def test_a_restart_begins_anew(self):
        with tempfile.TemporaryDirectory() as folder:
            options = ["--kv-events-token-ids", "--prefix-cache-file", folder + "/prefixes"]
            server = self.publishing(*options)
            router = self.router(server)
            prompt = tokens(600, 1)
            server.ask(prompt)
            known = router.read().known(prompt)
            self.assertGreater(known, 500)
            server.end()
            # At the same places.
            ports = self.port, self.replays
            again = Server("--kv-events-endpoint", f"@tcp://127.0.0.1:{ports[0]}", "--kv-events-replay-endpoint",
                           f"tcp://127.0.0.1:{ports[1]}", "--kv-events-format", "arrays", *options)
            self.addCleanup(again.__exit__)
            restarted = Router("inproc://nowhere")
            self.addCleanup(restarted.close)
            for _, payload in replay(ports[1], 0)[:-1]:
                restarted.take(payload)
            self.assertEqual(restarted.known(prompt), known, "what the file kept is told")
            self.assertEqual(again.ask(prompt), known)
            again.wait_for(router)
            again.ask(tokens(300, 2))
            self.assertTrue(router.socket.poll(5000), "the subscriber's socket has come back by itself")
            _, number, _ = router.socket.recv_multipart()
            self.assertEqual(int.from_bytes(number, "big"), len(replay(ports[1], 0)) - 2, "numbers begin at 0 again")

    def test_connects_to_one_that_listens(self):
        router = Router(f"tcp://127.0.0.1:{(port := free_port())}", bind=True)
        self.addCleanup(router.close)
        server = Server("--kv-events-endpoint", f"tcp://localhost:{port}", "--kv-events-token-ids",
                        "--kv-events-format", "arrays")
        self.addCleanup(server.__exit__)
        server.wait_for(router)
        server.ask(tokens(300, 1))
        self.assertGreater(router.read().known(tokens(300, 1)), 0)

    def test_each_engine_has_its_own_port(self):
        server = self.publishing("--data-parallel-size", "2", "--kv-events-token-ids", ports=2)
        routers = [self.router(server, self.port + i) for i in range(2)]
        for i in range(6):
            server.ask(tokens(300, i))
        for rank, router in enumerate(routers):
            router.read()
        told = [router.known(tokens(300, i)) for router in routers for i in range(6)]
        self.assertEqual(sum(n > 0 for n in told), 6, "each prompt is with one of them")
        for rank, router in enumerate(routers):
            self.assertLessEqual(router.ranks, {rank})

    def test_strangers_do_no_harm(self):
        server = self.publishing("--kv-events-token-ids")
        for port in self.port, self.replays:
            for junk in b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, bytes(1000), b"":
                with socket.create_connection(("127.0.0.1", port)) as s:
                    s.sendall(junk)
        wrong = zmq.Context.instance().socket(zmq.PULL)
        wrong.connect(f"tcp://127.0.0.1:{self.port}")
        self.assertFalse(wrong.poll(300))
        wrong.close(0)
        dealer = zmq.Context.instance().socket(zmq.DEALER)
        dealer.connect(f"tcp://127.0.0.1:{self.replays}")
        dealer.send_multipart([b"", b"what?"])
        self.assertFalse(dealer.poll(300))
        dealer.close(0)
        router = self.router(server)
        server.ask(tokens(300, 1))
        self.assertGreater(router.read().known(tokens(300, 1)), 0)
        self.assertIn("no greeting of ZeroMQ's", server.messages())

    def test_heartbeats_are_answered(self):
        server = self.publishing("--kv-events-token-ids")
        socket_ = zmq.Context.instance().socket(zmq.SUB)
        for option, value in ((zmq.HEARTBEAT_IVL, 50), (zmq.HEARTBEAT_TIMEOUT, 200), (zmq.HEARTBEAT_TTL, 300)):
            socket_.setsockopt(option, value)
        events = socket_.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.addCleanup(events.close, 0)
        socket_.setsockopt_string(zmq.SUBSCRIBE, "")
        socket_.connect(f"tcp://127.0.0.1:{self.port}")
        self.assertFalse(events.poll(1500), "it was taken for dead")
        server.ask(tokens(300, 1))
        self.assertTrue(socket_.poll(5000))
        socket_.disable_monitor()
        socket_.close(0)


class Refusals(unittest.TestCase):
    def test_say_what_is_wrong(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for options, why in (
                    (["--kv-events-topic", "x"], "--kv-events-endpoint is missing"),
                    (["--kv-events-endpoint", "tcp:5557"], "endpoints are"),
                    (["--kv-events-endpoint", "tcp://*:5557", "--no-enable-prefix-caching"], "switched off"),
                    (["--kv-events-endpoint", f"@tcp://127.0.0.1:{port}"], "another program listens there")):
                with self.subTest(options):
                    done = subprocess.run([PROGRAM, "serve", HYBRID, "--port", "0", *options], text=True,
                                          capture_output=True, timeout=60)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
