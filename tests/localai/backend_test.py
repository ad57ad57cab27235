"""LocalAI's part, played with grpcio: backend_test.py PROGRAM MODEL SEES. See backend.sh."""

import base64
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
import zlib

import backend_pb2 as pb
import backend_pb2_grpc
import grpc

PROGRAM, MODEL, SEES = sys.argv[1:4]
ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = json.dumps([{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])
SIZES = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


class Backend:
    """The program and a channel to it."""

    def __init__(self, *arguments, command=None, env=None):
        self.log = tempfile.NamedTemporaryFile("w+")
        command = command or [PROGRAM, "localai", "--addr=127.0.0.1:0"]
        self.process = subprocess.Popen([*command, *arguments], stdin=subprocess.DEVNULL, stderr=self.log, env=env)
        self.address = self.wait_for_line(r"LocalAI backend at (\S+)")
        self.channel = grpc.insecure_channel(self.address, options=SIZES)
        self.stub = backend_pb2_grpc.BackendStub(self.channel)

    def wait_for_line(self, pattern):
        for _ in range(600):
            said = pathlib.Path(self.log.name).read_text()
            if found := re.search(pattern, said):
                return found.group(1)
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the program did not say {pattern!r}: {said}")

    def load(self, **options):
        options = {"Model": "demo", "ModelFile": MODEL, "ContextSize": 2048, "NBatch": 512, "NGPULayers": 99999999,
                   "Threads": 2, **options}
        return self.stub.LoadModel(pb.ModelOptions(**options), timeout=600)

    def close(self):
        self.channel.close()
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(timeout=60)
        self.log.close()
        return code


def chat(text, **options):
    return pb.PredictOptions(UseTokenizerTemplate=True, Messages=[pb.Message(role="user", content=text)], **options)


def status_of(call):
    try:
        call()
    except grpc.RpcError as e:
        return e.code(), e.details()
    return grpc.StatusCode.OK, ""


def kib_of(pid, field):
    return int(re.search(rf"^{field}:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1])


def resident_mib(pid):
    return kib_of(pid, "VmRSS") / 1024


def peak_mib(pid):
    return kib_of(pid, "VmHWM") / 1024


def text_of(replies):
    return "".join(d.content for r in replies for d in r.chat_deltas)


def calls_of(replies):
    calls = {}
    for reply in replies:
        for delta in reply.chat_deltas:
            for c in delta.tool_calls:
                name, arguments = calls.get(c.index, ("", ""))
                calls[c.index] = (name + c.name, arguments + c.arguments)
    return [calls[i] for i in sorted(calls)]


class Scenarios(unittest.TestCase):
    """What LocalAI's own tests of backends ask for."""

    @classmethod
    def setUpClass(cls):
        cls.backend = Backend()
        cls.stub = cls.backend.stub
        assert cls.stub.Health(pb.HealthMessage(), timeout=30).message == b"OK"
        assert cls.stub.Status(pb.HealthMessage()).state == pb.StatusResponse.UNINITIALIZED
        assert status_of(lambda: cls.stub.Predict(chat("77+94")))[0] == grpc.StatusCode.FAILED_PRECONDITION
        result = cls.backend.load(Options=["parallel:16", "max_queue:256"])
        assert result.success, result.message
        assert cls.stub.Status(pb.HealthMessage()).state == pb.StatusResponse.READY

    @classmethod
    def tearDownClass(cls):
        assert cls.backend.close() == 0

    def test_predict(self):
        reply = self.stub.Predict(chat("77+94", Tokens=20))
        self.assertEqual(reply.message, b"171")
        self.assertEqual(text_of([reply]), "171")
        self.assertGreater(reply.tokens, 0)
        self.assertGreater(reply.prompt_tokens, 0)
        self.assertGreater(reply.timing_prompt_processing, 0)

    def test_predict_a_prompt_without_the_template(self):
        reply = self.stub.Predict(pb.PredictOptions(Prompt="Once upon a time", Tokens=8, IgnoreEOS=True))
        self.assertEqual(reply.tokens, 8)
        self.assertTrue(reply.message)
        streamed = b"".join(r.message for r in self.stub.PredictStream(
            pb.PredictOptions(Prompt="Once upon a time", Tokens=8, IgnoreEOS=True)))
        self.assertEqual(streamed, reply.message)

    def test_stream(self):
        replies = list(self.stub.PredictStream(chat("77+94", Tokens=20)))
        self.assertEqual(text_of(replies), "171")
        self.assertEqual(b"".join(r.message for r in replies), b"171")
        self.assertGreater(replies[-1].tokens, 0)
        self.assertGreater(replies[-1].prompt_tokens, 0)

    def test_more_tokens_than_there_is_room_for(self):
        self.assertEqual(self.stub.Predict(chat("77+94", Tokens=1000000)).message, b"171")

    def test_stop(self):
        reply = self.stub.Predict(chat("77+94", Tokens=20, StopPrompts=["7"]))
        self.assertEqual(reply.message, b"1")

    def test_grammar(self):
        asked = chat("77+94", Tokens=40, Grammar='root ::= "the sum is " [0-9]+ "."')
        self.assertRegex(self.stub.Predict(asked).message.decode(), r"^the sum is [0-9]+\.?$")
        code, text = status_of(lambda: self.stub.Predict(chat("a", Grammar="root ::= (")))
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("grammar", text)

    def test_tools(self):
        for choice in ["", "auto", '"auto"']:
            asked = chat("What is the weather in Paris?", Tokens=200, Tools=TOOLS, ToolChoice=choice)
            whole, streamed = [self.stub.Predict(asked)], list(self.stub.PredictStream(asked))
            self.assertEqual(calls_of(whole), calls_of(streamed))
            self.assertEqual(text_of(whole), text_of(streamed))

    def test_a_conversation_with_calls(self):
        messages = [
            pb.Message(role="user", content="What is the weather in Paris?"),
            pb.Message(role="assistant", tool_calls=json.dumps([{
                "id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}])),
            pb.Message(role="tool", content="sunny", name="get_weather", tool_call_id="1")]
        asked = pb.PredictOptions(UseTokenizerTemplate=True, Messages=messages, Tools=TOOLS, Tokens=8)
        reply = self.stub.Predict(asked)
        self.assertGreater(reply.prompt_tokens, 0)

    def test_thinking_is_switched(self):
        prompts = {self.stub.Predict(chat("77+94", Tokens=1, Metadata={"enable_thinking": x})).prompt_tokens
                   for x in ("true", "false")}
        self.assertTrue(prompts)
        metadata = self.stub.ModelMetadata(pb.ModelOptions())
        self.assertIn("test", metadata.rendered_template)
        if metadata.supports_thinking:
            self.assertEqual(len(prompts), 2)

    def test_logprobs(self):
        asked = chat("77+94", Tokens=20, Logprobs=1, TopLogprobs=3)
        whole = json.loads(self.stub.Predict(asked).logprobs)["content"]
        streamed = [e for r in self.stub.PredictStream(asked) if r.logprobs
                    for e in json.loads(r.logprobs)["content"]]
        self.assertEqual(whole, streamed)
        self.assertEqual("".join(e["token"] for e in whole), "171")
        self.assertTrue(all(len(e["top_logprobs"]) == 3 and e["logprob"] <= 0 for e in whole))

    def test_logit_bias(self):
        first = json.loads(self.stub.Predict(chat("77+94", Tokens=1, Logprobs=1)).logprobs)["content"][0]["token"]
        token = self.stub.TokenizeString(pb.PredictOptions(Prompt=first)).tokens[0]
        other = self.stub.Predict(chat("77+94", Tokens=1, LogitBias=json.dumps({str(token): -100})))
        self.assertNotEqual(other.message.decode(), first)

    def test_tokenize(self):
        for text in ["The quick brown fox", "äöü 😀", ""]:
            tokens = self.stub.TokenizeString(pb.PredictOptions(Prompt=text))
            self.assertEqual(tokens.length, len(tokens.tokens))
            self.assertEqual(self.stub.Detokenize(pb.DetokenizeRequest(tokens=tokens.tokens)).content, text)

    def test_embeddings(self):
        vector = self.stub.Embedding(pb.PredictOptions(Embeddings="a text")).embeddings
        self.assertAlmostEqual(sum(x * x for x in vector), 1, places=3)
        tokens = self.stub.TokenizeString(pb.PredictOptions(Prompt="a text")).tokens
        self.assertEqual(len(self.stub.Embedding(pb.PredictOptions(EmbeddingTokens=tokens)).embeddings), len(vector))

    def test_rerank(self):
        result = self.stub.Rerank(pb.RerankRequest(query="one two", documents=["apples", "one two", "x"], top_n=2))
        self.assertEqual([r.index for r in result.results][0], 1)
        self.assertEqual(len(result.results), 2)

    def test_metrics(self):
        self.stub.Predict(chat("77+94", Tokens=20))
        self.assertGreater(self.stub.GetMetrics(pb.MetricsRequest()).tokens_generated, 0)
        self.assertGreater(self.stub.Status(pb.HealthMessage()).memory.total, 0)

    def test_identity(self):
        self.assertEqual(self.stub.Predict(chat("77+94", Tokens=20, ModelIdentity="demo")).message, b"171")
        code, details = status_of(lambda: self.stub.Predict(chat("77+94", ModelIdentity="other")))
        self.assertEqual(code, grpc.StatusCode.NOT_FOUND)
        self.assertIn("model identity mismatch", details)
        code, _ = status_of(lambda: list(self.stub.PredictStream(chat("77+94", ModelIdentity="other"))))
        self.assertEqual(code, grpc.StatusCode.NOT_FOUND)

    # 16 streams run and 48 wait behind them: some fifty seconds of work, were it not cancelled.

    def test_cancelled_streams_free_their_requests(self):
        asked = chat("Count.", Tokens=2000, IgnoreEOS=True)
        streams = [self.stub.PredictStream(asked) for _ in range(16)]
        for s in streams:
            next(s)
        streams += [self.stub.PredictStream(asked) for _ in range(48)]
        time.sleep(0.5)
        for s in streams:
            s.cancel()
        self.assertEqual(self.stub.Predict(chat("77+94", Tokens=20), timeout=20).message, b"171")

    def test_a_killed_client_frees_its_requests(self):
        code = ("import sys, time, backend_pb2 as pb, backend_pb2_grpc as g, grpc\n"
                "s = g.BackendStub(grpc.insecure_channel(sys.argv[1]))\n"
                "m = [pb.Message(role='user', content='Count.')]\n"
                "asked = pb.PredictOptions(UseTokenizerTemplate=True, Messages=m, Tokens=2000, IgnoreEOS=True)\n"
                "r = [s.PredictStream(asked) for _ in range(16)]\n"
                "[next(x) for x in r]\nr += [s.PredictStream(asked) for _ in range(48)]\ntime.sleep(0.5)\n"
                "print('begun', flush=True)\n[list(x) for x in r]\n")
        client = subprocess.Popen([sys.executable, "-c", code, self.backend.address], stdout=subprocess.PIPE)
        self.assertEqual(client.stdout.readline(), b"begun\n")
        client.kill()
        client.wait()
        client.stdout.close()
        self.assertEqual(self.stub.Predict(chat("77+94", Tokens=20), timeout=20).message, b"171")

    def test_cancelled_calls_free_their_requests(self):
        calls = [self.stub.Predict.future(chat("Count.", Tokens=2000, IgnoreEOS=True)) for _ in range(64)]
        time.sleep(0.5)
        for c in calls:
            c.cancel()
        self.assertEqual(self.stub.Predict(chat("77+94", Tokens=20), timeout=20).message, b"171")

    def test_hostile_messages(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        deep = "[" * 100000
        for expected, asked in [
                (invalid, pb.PredictOptions(UseTokenizerTemplate=True)),
                (invalid, pb.PredictOptions()),
                (invalid, chat("a", LogitBias="{")),
                (invalid, chat("a", LogitBias=deep)),
                (invalid, chat("a", LogitBias='{"99999999": 1}')),
                (invalid, chat("a", LogitBias='{"1": 1, "1": 2}')),
                (invalid, chat("a", LogitBias="[1]")),
                (invalid, chat("a", Tools="{}")),
                (invalid, chat("a", Tools=deep)),
                (invalid, chat("a", Tools='[{"type": "function"}]')),
                (invalid, chat("a", Tools="[1]")),
                (invalid, chat("a", Tools=TOOLS, ToolChoice="sometimes")),
                (invalid, chat("a", Tools=TOOLS, ToolChoice='{"')),
                (invalid, chat("a", Temperature=float("nan"))),
                (invalid, chat("a", Temperature=-1)),
                (invalid, chat("a", TopP=float("inf"))),
                (invalid, chat("a", Penalty=-1)),
                (invalid, chat("a", TopLogprobs=2147483647)),
                (invalid, chat("a", StopPrompts=["x"] * 1000)),
                (invalid, chat("a", Metadata={"enable_thinking": "perhaps"})),
                (invalid, chat("a", Images=["AAAA"])),
                (invalid, chat("a " * 100000)),
                (invalid, pb.PredictOptions(UseTokenizerTemplate=True, Messages=[pb.Message()])),
                (invalid, pb.PredictOptions(UseTokenizerTemplate=True, Messages=[
                    pb.Message(role="assistant", tool_calls=deep)])),
                (invalid, pb.PredictOptions(UseTokenizerTemplate=True, Messages=[
                    pb.Message(role="assistant", tool_calls='{"a": 1}')]))]:
            with self.subTest(str(asked)[:100]):
                for call in (lambda: self.stub.Predict(asked), lambda: list(self.stub.PredictStream(asked))):
                    code, details = status_of(call)
                    self.assertEqual(code, expected, details)
                    self.assertTrue(details)
        self.assertEqual(status_of(lambda: self.stub.Detokenize(pb.DetokenizeRequest(tokens=[-1])))[0], invalid)
        self.assertEqual(status_of(lambda: self.stub.Detokenize(pb.DetokenizeRequest(tokens=[2**31 - 1])))[0], invalid)
        self.assertEqual(status_of(lambda: self.stub.Embedding(pb.PredictOptions()))[0], invalid)
        self.assertEqual(status_of(lambda: self.stub.Embedding(pb.PredictOptions(EmbeddingTokens=[-5])))[0], invalid)
        self.assertEqual(status_of(lambda: self.stub.Rerank(pb.RerankRequest(query="a")))[0], invalid)
        self.assertEqual(self.stub.Predict(chat("77+94", Tokens=20)).message, b"171")

    def test_messages_of_sizes(self):
        # 40 MiB are read and refused for the context's sake, 51 MiB are not read.
        code, details = status_of(lambda: self.stub.Predict(chat("a" * (40 << 20))))
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT, details)
        self.assertIn("context", details)
        code, _ = status_of(lambda: self.stub.Predict(chat("a" * (51 << 20))))
        self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_messages_that_come_to_much(self):
        # Some 20 million turns of a conversation in 48 MB, and their kin: refused before they are made.
        before = resident_mib(self.backend.process.pid)
        turn = pb.PredictOptions(Messages=[pb.Message()]).SerializeToString()
        stop = pb.PredictOptions(StopPrompts=[""]).SerializeToString()
        tokens = pb.PredictOptions(EmbeddingTokens=[1] * 3_000_000).SerializeToString()
        for method, part in [("Predict", turn), ("Predict", stop), ("Embedding", tokens), ("LoadModel", b"\xf8\x7f\x01"),
                             ("Health", b"\xf8\x7f\x01")]:
            bytes_ = part * ((48 << 20) // len(part))
            call = self.backend.channel.unary_unary(f"/backend.Backend/{method}")
            code, details = status_of(lambda: call(bytes_, timeout=120))
            with self.subTest(method):
                self.assertEqual(code, grpc.StatusCode.OK if method == "Health" else grpc.StatusCode.INVALID_ARGUMENT,
                                 details)
            self.assertLess(peak_mib(self.backend.process.pid), before + 400)
        self.assertTrue(self.backend.load(Options=["parallel:16", "max_queue:256"]).success)

    def test_bytes_that_are_no_message(self):
        call = self.backend.channel.unary_unary("/backend.Backend/Predict")
        for bytes_ in [b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x07", b"\x0a\x02\xff\xfe", b"\xe2\x02\x00" * 10]:
            self.assertNotEqual(status_of(lambda: call(bytes_, timeout=10))[0], grpc.StatusCode.OK)
        unknown = self.backend.channel.unary_unary("/backend.Backend/GenerateImage")
        self.assertEqual(status_of(lambda: unknown(b"", timeout=10))[0], grpc.StatusCode.UNIMPLEMENTED)


@contextlib.contextmanager
def served(model):
    """Asks `quire serve` in a chat, and a backend with the same model."""
    log = tempfile.NamedTemporaryFile("w+")
    server = subprocess.Popen(
        [PROGRAM, "serve", "-m", model, "--port", "0", "-c", "2048", "-np", "16", "--no-access-log",
         "--threads", "2"], stdin=subprocess.DEVNULL, stderr=log)
    backend = Backend()
    try:
        assert backend.load(ModelFile=model, Options=["parallel:16"]).success
        while not (url := re.search(r"at (http:\S+)", pathlib.Path(log.name).read_text())):
            assert server.poll() is None
            time.sleep(0.05)

        def over_http(content, **fields):
            body = {"messages": [{"role": "user", "content": content}], **fields}
            request = urllib.request.Request(url.group(1) + "/v1/chat/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as r:
                message = json.load(r)["choices"][0]["message"]
            return message["content"], message.get("reasoning_content", "")

        def over_grpc(text, **fields):
            replies = list(backend.stub.PredictStream(chat(text, **fields)))
            return text_of(replies), "".join(d.reasoning_content for r in replies for d in r.chat_deltas)

        yield over_http, over_grpc
    finally:
        server.terminate()
        server.wait()
        log.close()
        assert backend.close() == 0


def picture(shade):
    """A PNG of 64 x 64 as base64."""
    rows = b"".join(b"\0" + bytes((shade, x * 4, y * 4)[i] for x in range(64) for i in range(3)) for y in range(64))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    file = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks)
    return base64.b64encode(file).decode()


class LikeHttp(unittest.TestCase):
    def test_64_streams_at_once(self):
        """Each of 64 clients is told what HTTP's clients are told."""
        with served(MODEL) as (over_http, over_grpc), concurrent.futures.ThreadPoolExecutor(64) as pool:
            one = lambda i: over_grpc(f"{i}+{3 * i}", Tokens=24, Seed=i, Temperature=i % 2)
            other = lambda i: over_http(f"{i}+{3 * i}", max_tokens=24, seed=i, temperature=i % 2)
            self.assertEqual(list(pool.map(one, range(64))), list(pool.map(other, range(64))))

    def test_pictures(self):
        a, b = picture(0), picture(255)
        url = "data:image/png;base64,"
        part = lambda p: {"type": "image_url", "image_url": {"url": url + p}}
        usual, asked = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}, {"Tokens": 16, "IgnoreEOS": True}
        with served(SEES) as (over_http, over_grpc):
            http = [over_http([part(p), {"type": "text", "text": "What is it?"}], **usual) for p in (a, b)]
            self.assertNotEqual(*http)
            self.assertEqual([over_grpc("What is it?", Images=[p], **asked) for p in (a, b)], http)
            self.assertEqual(over_grpc("What is it?", Images=[url + a], **asked), http[0])
            both = over_http([part(a), part(b), {"type": "text", "text": "And they?"}], **usual)
            self.assertEqual(over_grpc("And they?", Images=[a, b], **asked), both)
            for wrong in ["%", "", "https://example.com/a.png", base64.b64encode(b"no picture").decode()]:
                code, _ = status_of(lambda: over_grpc("What is it?", Images=[wrong], **asked))
                self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT, wrong)


class Loading(unittest.TestCase):
    def setUp(self):
        self.backend = Backend()
        self.addCleanup(self.backend.close)

    def test_what_cannot_be_loaded(self):
        for reason, options in [
                ("no-such", {"ModelFile": "/tmp/no-such.gguf"}),
                ("no file is named", {"ModelFile": "", "Model": ""}),
                ("colour", {"Options": ["colour:red"]}),
                ("colour", {"EngineArgs": '{"colour": 1}'}),
                ("port", {"Options": ["port:80"]}),
                ("model", {"Options": ["model:/etc/passwd"]}),
                ("EngineArgs", {"EngineArgs": "["}),
                ("EngineArgs", {"EngineArgs": "[1]"}),
                ("EngineArgs", {"EngineArgs": '{"parallel": {"a": 1}}'}),
                ("whole number", {"Options": ["parallel:many"]}),
                ("must be between", {"Options": ["parallel:-3"]}),
                ("pooling", {"EngineArgs": '{"pooling": "max"}'}),
                ("q5_1", {"CacheTypeKey": "q5_1", "CacheTypeValue": "q5_1"}),
                ("one type", {"CacheTypeKey": "f16", "CacheTypeValue": "fp8"}),
                ("LoraAdapter", {"LoraAdapters": ["x.safetensors"]})]:
            with self.subTest(reason):
                code, details = status_of(lambda: self.backend.load(**options))
                self.assertNotEqual(code, grpc.StatusCode.OK)
                self.assertIn(reason, details)
                self.assertEqual(self.backend.stub.Status(pb.HealthMessage()).state, pb.StatusResponse.ERROR)
                self.assertEqual(self.backend.stub.Health(pb.HealthMessage()).message, b"OK")
        self.assertTrue(self.backend.load(EngineArgs='{"max_model_len": 512, "parallel": 2}').success)
        code, details = status_of(lambda: self.backend.stub.Predict(chat("a " * 600)))
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("512", details)

    def test_files_that_options_name(self):
        """Whoever may call reads no file through a template but those beside the model."""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
            model = pathlib.Path(folder, "model.gguf")
            model.symlink_to(MODEL)
            inside, outside = pathlib.Path(folder, "sub"), pathlib.Path(elsewhere, "secret.jinja")
            inside.mkdir()
            (inside / "good.jinja").write_text("a good template: {{ messages[0]['content'] }}")
            (inside / "key.pem").write_text("a secret")
            outside.write_text("a secret")
            (inside / "link.jinja").symlink_to(outside)
            os.mkfifo(inside / "pipe.jinja")
            (inside / "zero.jinja").symlink_to("/dev/zero")
            (inside / "folder.jinja").mkdir()
            for option in ["chat_template_file", "chat-template", "generation_config", "card_costs"]:
                for bad in [str(outside), "/etc/passwd", "sub/link.jinja", f"../{outside.parent.name}/secret.jinja",
                            "sub/key.pem", "/proc/self/environ", "sub/zero.jinja", "none.jinja", ""]:
                    with self.subTest(option=option, file=bad):
                        for given in [{"Options": [f"{option}:{bad}"]}, {"EngineArgs": json.dumps({option: bad})}]:
                            code, details = status_of(lambda: self.backend.load(ModelFile=str(model), **given))
                            self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT, details)
                            self.assertNotIn("secret\"", details)
            for bad in ["sub/pipe.jinja", "sub/folder.jinja"]:
                code, details = status_of(lambda: self.backend.load(ModelFile=str(model),
                                                                    Options=[f"chat_template_file:{bad}"]))
                self.assertIn("is not a regular file", details)
            for good in ["sub/good.jinja", str(inside / "good.jinja")]:
                self.assertTrue(self.backend.load(ModelFile=str(model), ContextSize=512,
                                                  Options=[f"chat_template_file:{good}"]).success)
                metadata = self.backend.stub.ModelMetadata(pb.ModelOptions())
                self.assertEqual(metadata.rendered_template, "a good template: test")

    def test_another_model_and_none(self):
        self.assertTrue(self.backend.load(Options=["parallel:2"]).success)
        stream = self.backend.stub.PredictStream(chat("Count.", Tokens=2000, IgnoreEOS=True))
        next(stream)
        self.assertTrue(self.backend.load(Model="second", Options=["parallel:2"]).success)
        self.assertNotEqual(status_of(lambda: list(stream))[0], grpc.StatusCode.OK)
        self.assertEqual(self.backend.stub.Predict(chat("77+94", Tokens=20, ModelIdentity="second")).message, b"171")
        self.assertTrue(self.backend.stub.Free(pb.HealthMessage()).success)
        self.assertEqual(status_of(lambda: self.backend.stub.Predict(chat("a")))[0],
                         grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(self.backend.stub.Status(pb.HealthMessage()).state, pb.StatusResponse.UNINITIALIZED)


class Program(unittest.TestCase):
    def test_token(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("a-secret-token\n")
            file.flush()
            backend = Backend("--auth-token-file", file.name)
            with contextlib.closing(backend):
                for shown in ["", "Bearer wrong-token", "a-secret-token"]:
                    metadata = (("authorization", shown),) if shown else ()
                    for call in (lambda: backend.stub.Health(pb.HealthMessage(), metadata=metadata),
                                 lambda: backend.stub.LoadModel(pb.ModelOptions(), metadata=metadata),
                                 lambda: backend.stub.Predict(chat("a"), metadata=metadata),
                                 lambda: list(backend.stub.PredictStream(chat("a"), metadata=metadata))):
                        self.assertEqual(status_of(call)[0], grpc.StatusCode.UNAUTHENTICATED)
                good = (("authorization", "Bearer a-secret-token"),)
                self.assertEqual(backend.stub.Health(pb.HealthMessage(), metadata=good).message, b"OK")

    def test_the_directory_of_localai(self):
        with tempfile.TemporaryDirectory() as folder:
            install = [ROOT / "packaging/localai/install.sh", pathlib.Path(PROGRAM).with_name("quire-localai"), folder]
            subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
            self.assertIn("run.sh", os.listdir(folder))
            json.loads(pathlib.Path(folder, "metadata.json").read_text())
            backend = Backend(command=[folder + "/run.sh", "--addr=127.0.0.1:0"],
                              env={**os.environ, "LOCALAI_GRPC_AUTH_TOKEN": "a-secret-token"})
            with contextlib.closing(backend):
                self.assertEqual(status_of(lambda: backend.stub.Health(pb.HealthMessage()))[0],
                                 grpc.StatusCode.UNAUTHENTICATED)
                good = (("authorization", "Bearer a-secret-token"),)
                self.assertEqual(backend.stub.Health(pb.HealthMessage(), metadata=good).message, b"OK")

    def test_it_ends_with_its_parent(self):
        code = ("import subprocess, sys\n"
                "p = subprocess.Popen([sys.argv[1], 'localai', '--addr=127.0.0.1:0'], stderr=subprocess.PIPE)\n"
                "print(p.pid, p.stderr.readline(), flush=True)\n")
        parent = subprocess.run([sys.executable, "-c", code, PROGRAM], stdin=subprocess.DEVNULL, capture_output=True)
        pid = int(parent.stdout.split()[0])
        for _ in range(200):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            if pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        self.fail("it goes on without its parent")

    def test_an_address_that_is_taken(self):
        backend = Backend()
        with contextlib.closing(backend):
            for address in [backend.address, "nowhere", "127.0.0.1:", "999.1.1.1:80"]:
                second = subprocess.run([PROGRAM, "localai", "--addr", address], stdin=subprocess.DEVNULL,
                                        capture_output=True, timeout=30)
                self.assertEqual(second.returncode, 2)
                self.assertIn(b"--addr", second.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
