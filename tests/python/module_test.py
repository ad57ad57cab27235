#!/usr/bin/env python3
"""The Python module over the program and the demo models: tests/python/module_test.py PROGRAM [TEST ...]

Checks of its processes and threads are in process_test.py. No network, nothing but the standard library.
"""
import asyncio
import json
import math
import os
import pathlib
import subprocess
import sys
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
import quire_engine as q  # noqa: E402

PROGRAM = os.path.abspath(sys.argv[1]) if __name__ == "__main__" else ""
MODEL = str(ROOT / "models/demo-moe-nvfp4.gguf")
WORDS = ("cat", "dog", "boy", "girl", "tree", "king", "ship", "bird")
PROMPTS = [f"Once upon a time, the {a} and the {b}" for a in WORDS for b in WORDS]
CHAT = [{"role": "user", "content": "77+94"}]


def load(**options):
    return q.LLM(MODEL, program=PROGRAM, max_model_len=512, threads=2, quiet=True, **options)


class WithModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = load(max_num_seqs=32)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()


class Texts(WithModel):
    def test_64_prompts_are_what_each_is_alone(self):
        params = [q.SamplingParams(temperature=0.9, seed=i, max_tokens=24, logprobs=2) for i in range(len(PROMPTS))]
        together = self.llm.generate(PROMPTS, params)
        self.assertEqual([o.prompt for o in together], PROMPTS)
        self.assertGreater(len({o.outputs[0].text for o in together}), 50)
        for prompt, asked, output in zip(PROMPTS, params, together):
            [alone] = self.llm.generate(prompt, asked)
            self.assertEqual(alone.outputs, output.outputs)
            self.assertEqual(alone.prompt_token_ids, output.prompt_token_ids)

    def test_texts_are_the_programs(self):
        params = q.SamplingParams(temperature=0, max_tokens=24)
        outputs = self.llm.generate(PROMPTS[:4], params)
        for prompt, output in zip(PROMPTS, outputs):
            said = subprocess.run([PROGRAM, "run", "-m", MODEL, "--raw", "-p", prompt, "-n", "24", "--temperature", "0",
                                   "--json", "--quiet"], check=True, stdout=subprocess.PIPE)
            self.assertEqual(output.outputs[0].text, json.loads(said.stdout)["text"])
        by_http = self.llm._value("/v1/completions", {"prompt": PROMPTS[:4], "temperature": 0, "max_tokens": 24})
        self.assertEqual([o.outputs[0].text for o in outputs], [c["text"] for c in by_http["choices"]])

    def test_several_answers_have_seeds_in_a_row(self):
        several = self.llm.generate("Once", q.SamplingParams(n=3, seed=5, temperature=1, max_tokens=12))[0]
        for i, output in enumerate(several.outputs):
            alone = self.llm.generate("Once", q.SamplingParams(seed=5 + i, temperature=1, max_tokens=12))[0]
            self.assertEqual((output.index, output.text), (i, alone.outputs[0].text))

    def test_prompts_as_tokens(self):
        params = q.SamplingParams(temperature=0, max_tokens=8)
        tokens = self.llm.tokenize("The cat")
        self.assertEqual(self.llm.detokenize(self.llm.tokenize("The cat", add_special_tokens=False)), "The cat")
        text = self.llm.generate("The cat", params)[0]
        self.assertEqual(text.prompt_token_ids, tokens)
        for prompt in (tokens, [tokens], [{"prompt_token_ids": tokens}], {"prompt": "The cat"}):
            [output] = self.llm.generate(prompt, params)
            self.assertEqual(output.outputs, text.outputs)
        self.assertEqual(self.llm.tokenize(["The cat", "a"]), [tokens, self.llm.tokenize("a")])
        self.assertEqual(self.llm.generate([]), [])

    def test_chat(self):
        [output] = self.llm.chat(CHAT, q.SamplingParams(temperature=0, max_tokens=None))
        self.assertIn("171", output.outputs[0].text)
        self.assertEqual(output.outputs[0].finish_reason, "stop")
        more = self.llm.chat([CHAT, CHAT], q.SamplingParams(temperature=0, max_tokens=None))
        self.assertEqual([o.outputs[0] for o in more], [output.outputs[0]] * 2)

    def test_logprobs(self):
        output = self.llm.generate("The cat", q.SamplingParams(temperature=0, max_tokens=6, logprobs=3,
                                                               prompt_logprobs=1))[0]
        answer = output.outputs[0]
        self.assertEqual(len(answer.logprobs), len(answer.token_ids))
        for token, entry in zip(answer.token_ids, answer.logprobs):
            self.assertEqual(next(iter(entry)), token)
            self.assertEqual(entry[token].rank, 1)
            self.assertEqual(len(entry), 3)
        self.assertEqual("".join(e[t].decoded_token for t, e in zip(answer.token_ids, answer.logprobs)), answer.text)
        self.assertAlmostEqual(answer.cumulative_logprob,
                               sum(e[t].logprob for t, e in zip(answer.token_ids, answer.logprobs)))
        self.assertIsNone(output.prompt_logprobs[0])
        self.assertIn(output.prompt_token_ids[1], output.prompt_logprobs[1])

    def test_structured_outputs(self):
        def answer(**form):
            params = q.SamplingParams(temperature=0, max_tokens=99, structured_outputs=q.StructuredOutputsParams(**form))
            return self.llm.generate("The answer:", params)[0].outputs[0].text
        self.assertIn(answer(choice=["red", "green"]), ("red", "green"))
        self.assertRegex(answer(regex="[0-9]{3}"), "^[0-9]{3}$")
        self.assertIn(answer(grammar='root ::= "yes" | "no"'), ("yes", "no"))
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        self.assertIsInstance(json.loads(answer(json=schema))["a"], bool)

    def test_stops(self):
        output = self.llm.generate("Once upon a time", q.SamplingParams(temperature=0, max_tokens=60, stop=["."]))[0]
        self.assertEqual((output.outputs[0].finish_reason, output.outputs[0].stop_reason), ("stop", "."))
        self.assertNotIn(".", output.outputs[0].text)


class Streams(WithModel):
    PARAMS = q.SamplingParams(temperature=0, max_tokens=20, logprobs=0)

    def test_pieces_are_the_whole(self):
        pieces = [p.outputs[0] for p in self.llm.stream("The cat", self.PARAMS)]
        whole = self.llm.generate("The cat", self.PARAMS)[0].outputs[0]
        self.assertGreater(len(pieces), 5)
        self.assertEqual("".join(p.text for p in pieces), whole.text)
        self.assertEqual([t for p in pieces for t in p.token_ids], whole.token_ids)
        self.assertEqual([e for p in pieces for e in p.logprobs], whole.logprobs)
        self.assertEqual(pieces[-1].finish_reason, "length")
        chat = "".join(p.outputs[0].text for p in self.llm.stream_chat(CHAT, q.SamplingParams(temperature=0)))
        self.assertIn("171", chat)

    def test_leaving_early_cancels(self):
        for _ in self.llm.stream("The cat", q.SamplingParams(max_tokens=400, ignore_eos=True)):
            break
        self.assertTrue(idle(self.llm))

    def test_errors_are_raised(self):
        with self.assertRaises(q.PromptTooLongError):
            list(self.llm.stream("a " * 1000))

    def test_asyncio(self):
        async def all_at_once():
            async with q.AsyncLLM(MODEL, program=PROGRAM, max_model_len=512, threads=2) as llm:
                texts = await llm.generate(PROMPTS[:8], self.PARAMS)
                pieces = [p.outputs[0].text async for p in llm.stream(PROMPTS[0], self.PARAMS)]
                task = asyncio.create_task(llm.generate(PROMPTS, q.SamplingParams(max_tokens=400, ignore_eos=True)))
                await asyncio.sleep(0.3)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                with self.assertRaises(q.PromptTooLongError):
                    await llm.generate(["a", "a " * 1000])
                vectors = await llm.embed(["a", "b"])
                score = (await llm.score("a", "a"))[0].outputs.score
                tokens = await llm.tokenize("The cat", add_special_tokens=False)
                return texts, pieces, len(vectors), score, await llm.detokenize(tokens)
        texts, pieces, vectors, score, text = asyncio.run(all_at_once())
        alone = self.llm.generate(PROMPTS[:8], self.PARAMS)
        self.assertEqual([t.outputs for t in texts], [t.outputs for t in alone])
        self.assertEqual("".join(pieces), texts[0].outputs[0].text)
        self.assertEqual((vectors, text), (2, "The cat"))
        self.assertAlmostEqual(score, 1, places=5)


class Embeddings(WithModel):
    def test_vectors(self):
        texts = [f"the {w}" for w in WORDS] * 5
        outputs = [o.outputs.embedding for o in self.llm.embed(texts)]
        self.assertEqual(len(outputs), len(texts))
        for i, vector in enumerate(outputs):
            self.assertAlmostEqual(math.fsum(float(x) ** 2 for x in vector), 1, places=4)
            self.assertEqual(list(vector), list(outputs[i % len(WORDS)]))
        self.assertNotEqual(list(outputs[0]), list(outputs[1]))
        self.assertEqual(len(self.llm.embed("a", dimensions=8)[0].outputs.embedding), 8)
        scores = [o.outputs.score for o in self.llm.score("the cat", ["the cat", "the dog"])]
        self.assertAlmostEqual(scores[0], 1, places=5)
        self.assertLess(scores[1], scores[0])


class Errors(WithModel):
    def test_are_the_programs_messages(self):
        with self.assertRaisesRegex(q.RequestError, "'temperature'") as caught:
            self.llm.generate("a", q.SamplingParams(temperature=-1))
        self.assertEqual((caught.exception.status, caught.exception.param), (400, "temperature"))
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaisesRegex(q.PromptTooLongError, "request 1 of 2: .*maximum context length is 512"):
            self.llm.generate(["a", "a " * 1000])
        self.assertEqual(len(self.llm.generate(["a", "b"])), 2)

    def test_options(self):
        for options, message in (({"max_model_length": 5}, "did you mean 'max_model_len'"),
                                 ({"no_repack": 1}, "must be True or False"), ({"gpu": True}, "a whole number"),
                                 ({"host": "0.0.0.0"}, "no option 'host'")):
            with self.assertRaisesRegex(q.OptionError, message):
                q.LLM(MODEL, program=PROGRAM, **options)
        with self.assertRaisesRegex(q.StartError, "pooling cls: must be last or mean"):
            q.LLM(MODEL, program=PROGRAM, pooling="cls")
        with self.assertRaisesRegex(q.StartError, "none.gguf"):
            q.LLM("/nowhere/none.gguf", program=PROGRAM)
        with self.assertRaisesRegex(q.StartError, "cannot be started"):
            q.LLM(MODEL, program="/nowhere/quire")
        with q.LLM(MODEL, program=PROGRAM, max_model_len=256, enable_prefix_caching=False, limits={"max_n": 2}) as llm:
            self.assertEqual(llm.max_model_len, 256)
            with self.assertRaisesRegex(q.RequestError, "'n'"):
                llm.generate("a", q.SamplingParams(n=3))


class Threads(WithModel):
    def test_eight_at_once(self):
        params = q.SamplingParams(temperature=0.8, seed=3, max_tokens=16)
        expected = [o.outputs for o in self.llm.generate(PROMPTS, params)]
        got = {}

        def ask(i):
            got[i] = [o.outputs for o in self.llm.generate(PROMPTS[i * 8:i * 8 + 8], params)]
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([o for i in range(8) for o in got[i]], expected)


def idle(llm, seconds=10):
    """Whether nothing is being computed any more, soon."""
    import time
    for _ in range(seconds * 50):
        text = bytes(llm._engine.ask("GET", "/metrics").body).decode()
        counts = [line.rsplit(" ", 1)[1] for line in text.split("\n")
                  if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting"))]
        if counts and all(float(c) == 0 for c in counts):
            return True
        time.sleep(0.02)
    return False


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
