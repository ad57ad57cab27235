"""Two servers behind each router: behind_routers.py PROGRAM FOLDER-OF-ROUTERS. See routers.sh."""

import importlib.util
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import openai

PROGRAM, BIN = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
MODELS = pathlib.Path(__file__).parents[2] / "models"
SUM = [{"role": "user", "content": "77+94"}]
BLOCK = 64
KEY = "sk-of-this-test"  # litellm wants one; others do not look


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fetch(url, timeout=10):
    with urllib.request.urlopen(url, timeout=timeout) as r:
        return r.read().decode()


def wait_for(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.1)
    raise TimeoutError(what)


class Process:
    def __init__(self, name, *command, **environment):
        self.log = tempfile.NamedTemporaryFile("w+", prefix=name)
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, env=dict(os.environ, **environment))

    def end(self, sig=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        self.process.wait(60)


class Server(Process):
    def __init__(self, port, *options):
        self.port = port
        super().__init__("server", PROGRAM, "serve", MODELS / "demo-moe-nvfp4.gguf", "--port", port, "-c", 2048,
                         "-np", 8, "-t", 1, "--device", "cpu", "--served-model-name", "demo", "--no-access-log",
                         *options)
        self.url = f"http://127.0.0.1:{port}"
        wait_for(lambda: fetch(self.url + "/health"), "a server")

    def answered(self):
        """Requests for text."""
        return sum(float(line.split()[-1]) for line in fetch(self.url + "/metrics").splitlines()
                   if line.startswith("http_requests_total") and "completions" in line and "/render" not in line)


def smg(servers, port):
    return [BIN / "smg", "launch", "--worker-urls", *(s.url for s in servers), "--policy", "cache_aware", "--host",
            "127.0.0.1", "--port", port, "--prometheus-port", free_port(), "--health-check-interval-secs", 1,
            "--health-failure-threshold", 1, "--health-success-threshold", 1]


def vllm_router(servers, port):
    return [BIN / "vllm-router", "--worker-urls", *(s.url for s in servers), "--host", "127.0.0.1", "--port", port,
            "--prometheus-port", free_port(), "--health-check-interval-secs", 1, "--health-failure-threshold", 1,
            "--health-success-threshold", 1, "--policy", "cache_aware"]


def litellm(servers, port):
    models = [{"model_name": "demo", "litellm_params": {"model": "openai/demo", "api_base": s.url + "/v1",
                                                        "api_key": "none"}} for s in servers]
    settings = {"model_list": models, "general_settings": {"master_key": KEY},
                "router_settings": {"num_retries": 5, "allowed_fails": 0, "cooldown_time": 5}}
    config = tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False)
    config.write(json.dumps(settings))  # which YAML is
    config.close()
    return [BIN / "litellm", "--config", config.name, "--host", "127.0.0.1", "--port", port]


class Load:
    """Clients that ask one question after the other; none of them asks twice."""

    def __init__(self, url, clients=4):
        self.url, self.answers, self.failures, self.stop = url, 0, [], False
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(clients)]
        for t in self.threads:
            t.start()

    def run(self, number):
        client = openai.OpenAI(base_url=self.url + "/v1", api_key=KEY, max_retries=0, timeout=120)
        while not self.stop:
            try:
                asked = dict(model="demo", messages=SUM, temperature=0)
                if number % 2:
                    text = client.chat.completions.create(**asked).choices[0].message.content
                else:
                    chunks = client.chat.completions.create(**asked, stream=True)
                    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
                if text != "171":
                    self.failures.append(f"'{text}'")
                self.answers += 1
            except openai.OpenAIError as e:
                self.failures.append(f"{type(e).__name__}: {str(e)[:200]}")

    def more(self, count):
        before = self.answers + len(self.failures)
        wait_for(lambda: self.answers + len(self.failures) >= before + count, "answers")

    def end(self):
        self.stop = True
        for t in self.threads:
            t.join()
        return self.failures


class Behind:
    """The tests of each router."""
    ROUTER = None
    SAME_SERVER = True  # for the same beginning
    TOKENS = True  # are taken as prompts

    def setUp(self):
        self.servers = [Server(free_port()) for _ in range(2)]
        self.port = free_port()
        # litellm is not to look for prices on the network.
        self.router = Process("router", *type(self).ROUTER(self.servers, self.port), LITELLM_LOCAL_MODEL_COST_MAP="True")
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key=KEY, max_retries=0, timeout=120)
        try:
            wait_for(lambda: self.router.process.poll() is not None or self.sum() == "171", "a router", 120)
            self.assertEqual({m.id for m in self.client.models.list().data}, {"demo"})
            wait_for(self.both_are_healthy, "both servers")
        except BaseException:
            self.tearDown()
            print(pathlib.Path(self.router.log.name).read_text()[-3000:])
            raise

    def tearDown(self):
        for p in (self.router, *self.servers):
            p.end(signal.SIGKILL)

    def sum(self):
        try:
            r = self.client.chat.completions.create(model="demo", messages=SUM, temperature=0)
            return r.choices[0].message.content
        except openai.OpenAIError:
            return None

    def both_are_healthy(self):
        return json.loads(fetch(self.url + "/readiness"))["healthy_workers"] == 2

    def test_texts(self):
        r = self.client.completions.create(model="demo", prompt="Once upon a time", temperature=0, max_tokens=12)
        pieces = self.client.completions.create(model="demo", prompt="Once upon a time", temperature=0, max_tokens=12,
                                                stream=True)
        self.assertEqual("".join(c.choices[0].text or "" for c in pieces if c.choices), r.choices[0].text)
        chunks = self.client.chat.completions.create(model="demo", messages=SUM, temperature=0, stream=True,
                                                     stream_options={"include_usage": True})
        chunks = list(chunks)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), "171")
        self.assertGreater(chunks[-1].usage.completion_tokens, 0)

    def test_tokens_in_and_out(self):
        if not self.TOKENS:
            self.skipTest("it takes texts alone")
        prompt = [300 + i for i in range(100)]
        r = self.client.completions.create(model="demo", prompt=prompt, temperature=0, max_tokens=5,
                                           extra_body={"return_token_ids": True, "ignore_eos": True})
        self.assertEqual(len(r.choices[0].token_ids), 5)
        self.assertEqual(r.choices[0].prompt_token_ids, prompt)

    def test_same_beginnings_go_to_the_same_server(self):
        if not self.SAME_SERVER:
            self.skipTest("it does not look at them")
        system = "You answer questions about the sea, and of nothing else. " * 20
        ask = lambda i: self.client.chat.completions.create(model="demo", max_tokens=4, messages=[
            {"role": "system", "content": system}, {"role": "user", "content": f"Question {i}?"}])
        ask(0)
        time.sleep(1)  # what that left in a cache has been told
        before = [s.answered() for s in self.servers]
        for i in range(1, 8):
            ask(i)
        wait_for(lambda: sum(s.answered() for s in self.servers) >= sum(before) + 7, "counts")
        self.assertEqual(sorted(s.answered() - b for s, b in zip(self.servers, before)), [0, 7])

    def test_nothing_is_lost_when_a_server_drains_and_comes_back(self):
        load = Load(self.url)
        load.more(20)
        first = self.servers[0]
        first.end(signal.SIGTERM)
        self.assertEqual(first.process.returncode, 0)
        load.more(20)
        self.servers[0] = Server(first.port)
        load.more(20)
        self.assertEqual(load.end(), [])
        wait_for(self.both_are_healthy, "the server that came back")

    def test_nothing_is_lost_when_a_server_dies_between_requests(self):
        self.assertEqual(self.sum(), "171")
        self.servers[0].end(signal.SIGKILL)
        load = Load(self.url)
        load.more(40)
        self.assertEqual(load.end(), [])


class Smg(Behind, unittest.TestCase):
    ROUTER = smg
    TOKENS = False

    def test_health(self):
        ready = json.loads(fetch(self.url + "/readiness"))
        self.assertEqual((ready["healthy_workers"], ready["total_workers"]), (2, 2))
        workers = json.loads(fetch(self.url + "/workers"))["workers"]
        self.assertEqual({w["labels"]["max_model_len"] for w in workers}, {"2048"})


class VllmRouter(Behind, unittest.TestCase):
    ROUTER = vllm_router


class LiteLlm(Behind, unittest.TestCase):
    ROUTER = litellm
    SAME_SERVER = False

    def both_are_healthy(self):
        return True  # it asks nobody


@unittest.skipUnless(importlib.util.find_spec("dynamo"), "ai-dynamo-runtime is not installed")
class DynamoIndexer(unittest.TestCase):
    """Dynamo's index of what servers' caches hold, which reads their KV events: it knows what a prompt will find."""

    def setUp(self):
        self.port = free_port()
        self.processes = [Process("indexer", sys.executable, "-m", "dynamo.indexer", "--port", self.port)]
        wait_for(lambda: fetch(f"http://127.0.0.1:{self.port}/workers"), "the indexer")

    def tearDown(self):
        for p in self.processes:
            p.end(signal.SIGKILL)

    def post(self, path, **body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as r:
            return json.loads(r.read() or "{}")

    def known(self, prompt):
        """Tokens of a prompt that each server has, as the index has it."""
        instances = self.post("/query", token_ids=prompt, model_name="demo")["instances"]
        return {int(i): found["longest_matched"] for i, found in instances.items()}

    def test_knows_what_prompts_find(self):
        for number, form in enumerate(("arrays", "tagged")):
            events, replays = free_port(), free_port()
            server = Server(free_port(), "--kv-events-endpoint", f"@tcp://127.0.0.1:{events}",
                            "--kv-events-replay-endpoint", f"tcp://127.0.0.1:{replays}", "--kv-events-token-ids",
                            "--kv-events-format", form, "--kv-tokens", "4096")
            self.processes.append(server)
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
            ask = lambda p: client.completions.create(
                model="demo", prompt=p, max_tokens=2).usage.prompt_tokens_details.cached_tokens
            random_ = random.Random(number)
            prompts = [[random_.randrange(300, 4000) for _ in range(600 + 60 * i)] for i in range(9)]
            ask(prompts[0])
            # It comes late, and asks for what it has missed.
            more = {"replay_endpoint": f"tcp://127.0.0.1:{replays}"} if form == "arrays" else {}
            self.post("/register", instance_id=number, endpoint=f"tcp://127.0.0.1:{events}", model_name="demo",
                      block_size=BLOCK, **more)
            subscribed = 'kv_event_subscribers{model_name="demo",engine="0"} 1'
            wait_for(lambda: subscribed in fetch(server.url + "/metrics"), "its subscription")
            for prompt in prompts[1:]:
                ask(prompt)
            time.sleep(1)
            with self.subTest(form):
                for prompt in reversed(prompts[-4:]):
                    known = self.known(prompt).get(number, 0)
                    self.assertEqual(ask(prompt), known)
                    self.assertGreater(known, 500)


if __name__ == "__main__":
    unittest.main(verbosity=2)
