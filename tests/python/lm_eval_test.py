#!/usr/bin/env python3
"""quire_engine.lm_eval against lm-evaluation-harness's own client of HTTP, over the demo model: the same numbers.

    build/python-venv/bin/python tests/python/lm_eval_test.py PROGRAM

build/python-venv: python3 -m venv build/python-venv && build/python-venv/bin/pip install 'lm_eval[api]'
Ends with 77, a skip, where there is none.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
try:
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from quire_engine.lm_eval import QuireLM
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
MODEL = str(ROOT / "models/demo-moe-nvfp4.gguf")
PAIRS = [(f"Once upon a time there was a {a}", f" {b}") for a in ("cat", "king") for b in ("who", "named Tom.", "xyz")]
TEXT = "Once upon a time there was a little cat. The cat had a friend. " * 12


def instances(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(arguments)]


class ByHttp(LocalCompletionsAPI):
    """The harness's client, with the module's tokens: the demo models have no tokenizer on a hub."""

    def __init__(self, module, url):
        self._module = module
        super().__init__(base_url=url + "/v1/completions", model="demo", tokenizer_backend=None, max_length=257,
                         num_concurrent=1)
        self.tokenized_requests, self.tokenizer = True, module

    def tok_encode(self, string, **_):
        if isinstance(string, str):
            return self._module.tok_encode(string)
        return [self._module.tok_encode(s) for s in string]

    prefix_token_id = property(lambda self: self._module.prefix_token_id)
    eot_token_id = property(lambda self: self._module.eot_token_id)


def main():
    module = QuireLM(MODEL, program=PROGRAM, max_model_len=512, max_length=256, quiet=True)
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([PROGRAM, "serve", MODEL, "--port", "0", "-c", "512", "-a", "demo", "--no-access-log",
                                   "--exit-with-stdin"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        url = next(m[0] for line in server.stderr if (m := re.search(r"http://\S+", line)))
        try:
            compare(module, ByHttp(module, url))
        finally:
            server.stdin.close()
            server.stderr.read()
            server.wait(30)
            module.llm.close()


def compare(module, http):
    pairs = instances("loglikelihood", PAIRS)
    ours, theirs = module.loglikelihood(pairs, disable_tqdm=True), http.loglikelihood(pairs, disable_tqdm=True)
    for pair, (a, greedy), (b, also) in zip(PAIRS, ours, theirs):
        assert abs(a - b) < 1e-5 and greedy == also, (pair, a, b, greedy, also)
    texts = instances("loglikelihood_rolling", [(TEXT,), ("a",)])
    ours, theirs = (m.loglikelihood_rolling(texts, disable_tqdm=True) for m in (module, http))
    assert all(abs(a - b) < 1e-4 for a, b in zip(ours, theirs)), (ours, theirs)
    asked = {"until": ["."], "max_gen_toks": 24, "do_sample": False, "temperature": 0}
    prompts = instances("generate_until", [(text, asked) for text, _ in PAIRS])
    ours, theirs = (m.generate_until(prompts, disable_tqdm=True) for m in (module, http))
    assert ours == theirs, (ours, theirs)
    print(json.dumps({"loglikelihood": len(PAIRS), "rolling": 2, "generate_until": len(prompts), "equal": True}))


main()
