"""Clients that others made against running servers: clients_test.py SERVER SERVER [ROUTER...]. See clients.sh."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
import unittest
import urllib.request

import litellm
import ollama
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

SERVERS, ROUTERS = sys.argv[1:3], sys.argv[3:]
SUM = [{"role": "user", "content": "77+94"}]


def answered():
    """Requests for text that each server answered. A router's questions how a prompt is rendered are none."""
    counts = []
    for url in SERVERS:
        with urllib.request.urlopen(url + "/metrics") as r:
            lines = [line for line in r.read().decode().splitlines()
                     if line.startswith("http_requests_total") and "completions" in line and "/render" not in line]
        counts.append(sum(float(line.split()[-1]) for line in lines))
    return counts


class LiteLlm(unittest.TestCase):
    def test_chat_and_stream(self):
        options = dict(model="openai/demo", api_base=SERVERS[0] + "/v1", api_key="none", messages=SUM, temperature=0)
        self.assertEqual(litellm.completion(**options).choices[0].message.content, "171")
        text = "".join(c.choices[0].delta.content or "" for c in litellm.completion(**options, stream=True))
        self.assertEqual(text, "171")

    def test_a_conversation_that_is_too_long(self):
        # What is built on litellm compacts a conversation when it is told this, and ends it at any other error.
        history = [{"role": "user", "content": "cats " * 4000}]
        for model, base in ("openai/demo", "/v1"), ("anthropic/demo", ""):
            with self.subTest(model), self.assertRaises(litellm.ContextWindowExceededError):
                litellm.completion(
                    model=model, api_base=SERVERS[0] + base, api_key="none", messages=history, max_tokens=9,
                    num_retries=0)

    def test_embeddings(self):
        r = litellm.embedding(model="openai/demo", api_base=SERVERS[0] + "/v1", api_key="none", input=["a", "b"])
        self.assertEqual(len(r.data), 2)


class LiteLlmOverOllama(unittest.TestCase):
    """The half of litellm that speaks Ollama's API; what is asynchronous in it sends application/octet-stream."""

    OPTIONS = dict(api_base=SERVERS[0], messages=SUM, temperature=0)

    def test_at_once(self):
        r = litellm.completion(model="ollama_chat/demo", **self.OPTIONS)
        self.assertEqual(r.choices[0].message.content, "171")

    def test_asynchronous(self):
        async def ask(model):
            whole = await litellm.acompletion(model=model, **self.OPTIONS)
            stream = await litellm.acompletion(model=model, stream=True, **self.OPTIONS)
            pieces = [c.choices[0].delta.content or "" async for c in stream]
            return whole.choices[0].message.content, "".join(pieces)

        self.assertEqual(asyncio.run(ask("ollama_chat/demo")), ("171", "171"))
        # It writes the conversation into one prompt by itself there, of which the demo model makes another sum.
        whole, streamed = asyncio.run(ask("ollama/demo"))
        self.assertEqual(whole, streamed)
        self.assertTrue(whole)

    def test_asynchronous_embeddings(self):
        r = asyncio.run(litellm.aembedding(model="ollama/demo", api_base=SERVERS[0], input=["a", "b"]))
        self.assertEqual(len(r.data), 2)


class Ollama(unittest.TestCase):
    def setUp(self):
        self.client = ollama.Client(host=SERVERS[0])

    def test_a_conversation_that_is_too_long(self):
        history = [{"role": role, "content": f"{role} {i}: " + "cats " * 50}
                   for i in range(40) for role in ("user", "assistant")]
        self.assertTrue(self.client.chat(model="demo", messages=history + SUM, options={"num_predict": 4}).done)
        with self.assertRaisesRegex(ollama.ResponseError, "maximum context length is 2048 tokens"):
            self.client.chat(model="demo", messages=[{"role": "user", "content": "cats " * 4000}])

    def test_images_are_told_of(self):
        message = {"role": "user", "content": "77+94", "images": ["aGVsbG8="]}
        self.assertTrue(self.client.chat(model="demo", messages=[message], options={"num_predict": 4}).done)

    def test_pull_of_what_is_there(self):
        self.assertEqual(self.client.pull("demo").status, "success")
        self.assertEqual([p.status for p in self.client.pull("demo", stream=True)][-1], "success")
        with self.assertRaisesRegex(ollama.ResponseError, "quire pull"):
            self.client.pull("llama3")

    def test_log_probabilities(self):
        for kind in "chat", "generate":
            with self.subTest(kind):
                asked = dict(messages=SUM) if kind == "chat" else dict(prompt="77+94")
                r = getattr(self.client, kind)(model="demo", logprobs=True, top_logprobs=2, **asked)
                self.assertEqual(len(r.logprobs[0].top_logprobs), 2)

    def test_embeddings(self):
        new = self.client.embed(model="demo", input=["a cat"], dimensions=16).embeddings[0]
        self.assertEqual(len(new), 16)
        whole = self.client.embed(model="demo", input="a cat").embeddings[0]
        self.assertEqual(self.client.embeddings(model="demo", prompt="a cat").embedding, whole)
        self.assertEqual(self.client.embed(model="demo", input="").embeddings, [])
        self.client.embed(model="demo", input="cats " * 10000)
        with self.assertRaises(ollama.ResponseError):
            self.client.embed(model="demo", input="cats " * 10000, truncate=False)


class OpenAi(unittest.TestCase):
    def test_below_other_paths(self):
        for path in "/v1", "/ollama/v1":
            with self.subTest(path):
                client = openai.OpenAI(base_url=SERVERS[0] + path, api_key="none", max_retries=0)
                r = client.chat.completions.create(
                    model="demo", messages=SUM, temperature=0, seed=-1, max_tokens=-1, verbosity="low",
                    web_search_options={}, extra_body={"return_token_ids": True})
                self.assertEqual(r.choices[0].message.content, "171")
                self.assertTrue(r.prompt_token_ids and r.choices[0].token_ids)

    def test_responses_go_on(self):
        client = openai.OpenAI(base_url=SERVERS[0] + "/v1", api_key="none", max_retries=0)
        asked = dict(model="demo", temperature=0, max_output_tokens=8)
        first = client.responses.create(input="77+94", include=["message.output_text.logprobs"], **asked)
        self.assertEqual(first.output_text, "171")
        self.assertEqual("".join(t.token for t in first.output[-1].content[0].logprobs), "171")
        second = client.responses.create(input="And 1+1?", previous_response_id=first.id, **asked)
        self.assertEqual(second.previous_response_id, first.id)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)
        self.assertEqual(client.responses.retrieve(first.id).output_text, "171")
        self.assertEqual(client.responses.input_items.list(first.id).data[0].content[0].text, "77+94")
        client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            client.responses.retrieve(first.id)
        with self.assertRaises(openai.BadRequestError) as e:
            client.responses.create(input="And?", previous_response_id=first.id, **asked)
        self.assertEqual(e.exception.code, "previous_response_not_found")

    def test_a_stream_of_responses_that_is_too_long(self):
        client = openai.OpenAI(base_url=SERVERS[0] + "/v1", api_key="none", max_retries=0)
        *_, last = client.responses.create(model="demo", input="cats " * 4000, stream=True)
        self.assertEqual((last.type, last.response.error.code), ("response.failed", "context_length_exceeded"))

    def test_short_embeddings(self):
        client = openai.OpenAI(base_url=SERVERS[0] + "/v1", api_key="none", max_retries=0)
        self.assertEqual(len(client.embeddings.create(model="demo", input="a", dimensions=8).data[0].embedding), 8)


@unittest.skipUnless(shutil.which("node"), "node is not installed")
class NodeFetch(unittest.TestCase):
    """Names text/plain for a text that it is given, and says how it fetches as browsers do."""

    def test_a_text_as_body(self):
        script = """fetch(process.argv[1] + "/v1/chat/completions", {method: "POST", body: process.argv[2]})
            .then(r => r.json()).then(j => console.log(j.choices[0].message.content))"""
        body = json.dumps({"messages": SUM, "temperature": 0})
        said = subprocess.run(["node", "-e", script, SERVERS[0], body], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout.strip(), "171")


class LangChain(unittest.TestCase):
    def test_chat(self):
        chat = ChatOpenAI(model="demo", base_url=SERVERS[0] + "/v1", api_key="none", temperature=0)
        self.assertEqual(chat.invoke("77+94").content, "171")
        self.assertEqual("".join(c.content for c in chat.stream("77+94")), "171")

    def test_embeddings_of_200_texts(self):
        # Texts, not the tokens of another model's tokenizer.
        embeddings = OpenAIEmbeddings(
            model="demo", base_url=SERVERS[0] + "/v1", api_key="none", check_embedding_ctx_length=False)
        vectors = embeddings.embed_documents([f"text number {i}" for i in range(200)])
        self.assertEqual(len(vectors), 200)
        alone = embeddings.embed_query("text number 7")
        self.assertEqual(vectors[7], alone)


class Routers(unittest.TestCase):
    def test_there_are_some(self):
        self.assertTrue(ROUTERS, "neither sglang-router nor vllm-router is installed")

    def each(self):
        for url in ROUTERS:
            with self.subTest(url):
                yield openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)

    def test_chat_and_stream(self):
        for client in self.each():
            options = dict(model="demo", messages=SUM, temperature=0)
            r = client.chat.completions.create(**options)
            self.assertEqual(r.choices[0].message.content, "171")
            chunks = client.chat.completions.create(**options, stream=True)
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            self.assertEqual(text, "171")

    def test_completions(self):
        for client in self.each():
            options = dict(model="demo", prompt="Once upon a time", temperature=0, max_tokens=12)
            whole = client.completions.create(**options).choices[0].text
            self.assertTrue(whole)
            pieces = client.completions.create(**options, stream=True)
            self.assertEqual("".join(c.choices[0].text for c in pieces if c.choices), whole)

    def test_embeddings(self):
        for client in self.each():
            self.assertEqual(len(client.embeddings.create(model="demo", input=["a", "b"]).data), 2)

    def test_same_prefixes_go_to_the_same_server(self):
        for client in self.each():
            system = "You answer questions about the sea, and of nothing else. " * 20
            before = answered()
            for i in range(8):
                client.chat.completions.create(model="demo", max_tokens=4, messages=[
                    {"role": "system", "content": system}, {"role": "user", "content": f"Question {i}?"}])
            for _ in range(100):  # a request is counted when its answer has been sent
                gained = [b - a for a, b in zip(before, answered())]
                if sum(gained) >= 8:
                    break
                time.sleep(0.1)
            self.assertEqual(sorted(gained), [0, 8], "the same beginning is computed on one server")

    def test_errors_come_through(self):
        for client in self.each():
            with self.assertRaises(openai.BadRequestError):
                client.chat.completions.create(model="demo", messages=SUM, extra_body={"best_of": 2}, top_p=7)


class OpenWebUi(unittest.TestCase):
    def test_sliders(self):
        body = {"model": "demo", "messages": SUM, "max_tokens": 4, "repeat_penalty": 1.1, "num_ctx": 4096, "tfs_z": 1,
                "mirostat_tau": 5}
        request = urllib.request.Request(
            SERVERS[0] + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as r:
            self.assertEqual(r.headers["X-Ignored-Parameters"], "num_ctx, tfs_z, mirostat_tau")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
