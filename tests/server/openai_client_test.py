"""The official openai client against a running server: openai_client_test.py BASE_URL KEY. See openai_client.sh."""

import asyncio
import sys
import time
import unittest
import urllib.request

import openai

BASE, KEY = sys.argv[1], sys.argv[2]
STORY = [{"role": "user", "content": "Tell me a story."}]


def make_client(**options):
    return openai.OpenAI(base_url=BASE, **({"api_key": KEY, "max_retries": 0, "timeout": 120} | options))


def metric(name):
    request = urllib.request.Request(BASE.removesuffix("/v1") + "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as response:
        for line in response.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
    return 0.0


class OpenAiClient(unittest.TestCase):
    def setUp(self):
        self.client = make_client()

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").owned_by, "quire")

    def test_chat(self):
        r = self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "77+94"}], temperature=0)
        self.assertEqual(r.choices[0].message.content, "171")
        self.assertEqual(r.choices[0].finish_reason, "stop")
        self.assertEqual(r.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertTrue(r.system_fingerprint.startswith("quire-"))

    def test_chat_stream_is_the_same(self):
        options = dict(model="demo", messages=STORY, temperature=0.8, seed=5, max_tokens=40)
        whole = self.client.chat.completions.create(**options)
        text, finish, usage = "", None, None
        for chunk in self.client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
                finish = chunk.choices[0].finish_reason or finish
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(finish, whole.choices[0].finish_reason)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_reasoning(self):
        r = self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "12+7"}], temperature=0, max_tokens=60,
            extra_body={"chat_template_kwargs": {"enable_thinking": True}})
        self.assertNotIn("think>", r.choices[0].message.content)
        self.assertTrue(hasattr(r.choices[0].message, "reasoning_content"))

    def test_parts_and_developer(self):
        parts = [{"role": "developer", "content": "Be brief."},
                 {"role": "user", "content": [{"type": "text", "text": "77+94"}]}]
        plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "77+94"}]
        texts = [self.client.chat.completions.create(model="demo", messages=m, temperature=0).choices[0].message.content
                 for m in (parts, plain)]
        self.assertEqual(texts[0], texts[1])

    def test_completion(self):
        r = self.client.completions.create(
            model="demo", prompt=["Once upon a time", "The cat"], max_tokens=8, temperature=0, echo=True)
        self.assertEqual(len(r.choices), 2)
        self.assertTrue(r.choices[0].text.startswith("Once upon a time"))
        stream = self.client.completions.create(
            model="demo", prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
        self.assertEqual("Once upon a time" + "".join(c.choices[0].text for c in stream), r.choices[0].text)

    def test_logprobs(self):
        r = self.client.chat.completions.create(
            model="demo", messages=STORY, temperature=0, max_tokens=6, logprobs=True, top_logprobs=4)
        tokens = r.choices[0].logprobs.content
        self.assertEqual(len(tokens), 6)
        self.assertEqual("".join(t.token for t in tokens), r.choices[0].message.content)
        for t in tokens:
            self.assertLessEqual(t.logprob, 0)
            self.assertEqual(t.top_logprobs[0].token, t.token)
            self.assertEqual(len(t.top_logprobs), 4)
        old = self.client.completions.create(model="demo", prompt="Once", max_tokens=3, temperature=0, logprobs=2)
        self.assertEqual(len(old.choices[0].logprobs.top_logprobs[0]), 2)
        echoed = self.client.completions.create(
            model="demo", prompt="Once upon a time", max_tokens=0, temperature=0, logprobs=1, echo=True)
        lists = echoed.choices[0].logprobs
        self.assertEqual("".join(lists.tokens), "Once upon a time")
        self.assertIsNone(lists.token_logprobs[0])
        self.assertLess(sum(lists.token_logprobs[1:]), 0)

    def test_n_is_three(self):
        r = self.client.chat.completions.create(
            model="demo", messages=STORY, n=3, seed=11, temperature=1.0, max_tokens=16)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2])
        self.assertEqual(len({c.message.content for c in r.choices}), 3)

    def test_stop_across_token_borders(self):
        options = dict(model="demo", prompt="Once upon a time", max_tokens=24, temperature=0)
        text = self.client.completions.create(**options).choices[0].text
        for length in (1, 3, 7):
            stop = text[9:9 + length]
            r = self.client.completions.create(**options, stop=[stop])
            self.assertEqual(r.choices[0].text, text[:text.index(stop)])
            self.assertEqual(r.choices[0].finish_reason, "stop")

    def test_embeddings(self):
        r = self.client.embeddings.create(model="demo", input=["The cat", "A dog"])  # the client asks for base64
        plain = self.client.embeddings.create(model="demo", input="A dog", encoding_format="float")
        self.assertEqual([d.index for d in r.data], [0, 1])
        self.assertEqual(r.data[1].embedding, plain.data[0].embedding)
        self.assertAlmostEqual(sum(x * x for x in r.data[0].embedding), 1, places=5)
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens)

    def test_errors(self):
        with self.assertRaises(openai.AuthenticationError):
            make_client(api_key="wrong-key-here").models.list()
        with self.assertRaises(openai.NotFoundError) as e:
            self.client.chat.completions.create(model="gpt-4", messages=STORY)
        self.assertEqual(e.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as e:
            self.client.chat.completions.create(model="demo", messages=STORY, temperature=-1)
        self.assertEqual(e.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as e:
            self.client.chat.completions.create(
                model="demo", messages=STORY, tools=[{"type": "function", "function": {"name": "f"}}],
                tool_choice={"type": "function", "function": {"name": "g"}})
        self.assertEqual(e.exception.code, "invalid_value")
        with self.assertRaises(openai.BadRequestError) as e:
            self.client.embeddings.create(model="demo", input="text", dimensions=7)
        self.assertEqual(e.exception.param, "dimensions")
        with self.assertRaises(openai.BadRequestError) as e:
            self.client.completions.create(model="demo", prompt="cat " * 3000)
        self.assertEqual(e.exception.code, "context_length_exceeded")

    def test_cancellation(self):
        aborted = 'vllm:request_success_total{model_name="demo",engine="0",finished_reason="abort"}'
        before = metric(aborted)
        stream = self.client.completions.create(
            model="demo", prompt="Once upon a time", max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        with self.assertRaises(openai.APITimeoutError):
            make_client(timeout=1).completions.create(
                model="demo", prompt="Once upon a time", max_tokens=2000, extra_body={"ignore_eos": True})
        end = time.time() + 60
        while metric(aborted) < before + 2 and time.time() < end:
            time.sleep(0.05)
        self.assertEqual(metric(aborted), before + 2)

    def test_many_at_once(self):
        async def all_of_them():
            client = openai.AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0, timeout=300)
            one = lambda i: client.completions.create(
                model="demo", prompt=f"Once upon a time {i % 4}", max_tokens=12, temperature=0.9, seed=i % 4)
            results = await asyncio.gather(*(one(i) for i in range(24)))
            await client.close()
            return [r.choices[0].text for r in results]

        texts = asyncio.run(all_of_them())
        for i, text in enumerate(texts):
            self.assertEqual(text, texts[i % 4])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
