"""lm-evaluation-harness over a server's /v1/completions, held against its own backend for transformers. Called by lm_eval.sh:

    lm_eval_test.py URL FOLDER DEVICE KEPT

URL: of the server; FOLDER: the Hugging Face model folder that it serves; DEVICE: what it computes on, which decides how close
it must be; KEPT: where what transformers says is kept for the next call."""
import json
import math
import os
import sys
import tempfile

import lm_eval
from lm_eval.tasks import TaskManager

WINDOW = 256  # tokens; the rolling task's texts have several
TASKS = ["local_choice", "local_rolling", "local_generate"]
# The sum of a text's log-probabilities may differ by `share` of itself and by `nats`.
CLOSE = {"reference": {"share": 2e-5, "nats": 1e-3}, "cpu": {"share": 1e-2, "nats": 0.1}}

CHOICE = """task: local_choice
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ROLLING = """task: local_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""
GENERATE = """task: local_generate
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 24, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def questions():
    capitals = {"Norway": "Oslo", "Kenya": "Nairobi", "Bulgaria": "Sofia", "Greece": "Athens", "Jamaica": "Kingston",
                "Nigeria": "Abuja", "Argentina": "Buenos Aires"}
    names = list(capitals.values())
    for i, (country, capital) in enumerate(capitals.items()):
        others = [names[(i + k) % len(names)] for k in (1, 2, 3)]
        yield {"question": f"The capital of {country} is", "choices": [" " + c for c in [capital, *others]], "answer": 0}
    for a, b in [(2, 3), (12, 30), (55, 27), (64, 21)]:
        sums = [a + b, a + b + 1, a + b - 10, a * 2]
        yield {"question": f"Q: {a} + {b} = ?\nA: {a} + {b} =", "choices": [f" {s}." for s in sums], "answer": 0}


def texts():
    golden = os.path.join(os.path.dirname(__file__), "..", "data", "golden", "ppl.txt")
    with open(golden, encoding="utf-8") as f:
        text = f.read()
    return [{"text": text[begin:begin + size]} for begin, size in [(0, 200), (5000, 700), (20000, 1600)]]


def evaluate(folder, model, arguments):
    results = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=TASKS,
                                      task_manager=TaskManager(include_path=folder, include_defaults=False),
                                      log_samples=True, bootstrap_iters=0)
    of_all, texts_of_all = {}, {}
    for task, samples in results["samples"].items():
        for s in sorted(samples, key=lambda s: s["doc_id"]):
            for k, answer in enumerate(s["resps"]):
                first = answer[0]
                if isinstance(first, str):
                    texts_of_all[f"{task}/{s['doc_id']}"] = first
                    continue
                likelihood, greedy = first if isinstance(first, (list, tuple)) else (first, None)
                of_all[f"{task}/{s['doc_id']}/{k}"] = [float(likelihood), greedy]
    scores = {t: {k: v for k, v in r.items() if isinstance(v, float)} for t, r in results["results"].items()}
    return {"samples": of_all, "texts": texts_of_all, "scores": scores}


def write_tasks(folder):
    for name, yaml, docs in [("choice", CHOICE, list(questions())), ("rolling", ROLLING, texts()),
                             ("generate", GENERATE, list(questions()))]:
        data = os.path.join(folder, name + ".jsonl")
        with open(data, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(d) + "\n" for d in docs)
        with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as f:
            f.write(yaml % data)


def main(url, model_folder, device, kept):
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(folder)
        if not os.path.exists(kept):
            # The client keeps a token of its length for the one that it has generated, and one more of a window.
            want = evaluate(folder, "hf", f"pretrained={model_folder},dtype=float32,device=cpu,max_length={WINDOW - 2}")
            with open(kept, "w", encoding="utf-8") as f:
                json.dump(want, f)
        with open(kept, encoding="utf-8") as f:
            want = json.load(f)
        got = evaluate(folder, "local-completions", f"model=demo,base_url={url}/v1/completions,tokenizer={model_folder},"
                       f"tokenizer_backend=huggingface,max_length={WINDOW},num_concurrent=4,max_retries=1")
    close = CLOSE[device]
    wrong, farthest, turned = [], 0.0, 0
    assert got["samples"].keys() == want["samples"].keys() and want["samples"]
    for name, (likelihood, greedy) in want["samples"].items():
        here, here_greedy = got["samples"][name]
        away = abs(here - likelihood)
        farthest = max(farthest, away / (close["nats"] + close["share"] * abs(likelihood)))
        if not math.isfinite(here) or away > close["nats"] + close["share"] * abs(likelihood):
            wrong.append(f"{name}: {here}, but transformers says {likelihood}")
        turned += greedy != here_greedy
    assert got["texts"].keys() == want["texts"].keys() and want["texts"]
    other = [f"{n}: {got['texts'][n]!r}, but transformers says {t!r}"
             for n, t in want["texts"].items() if got["texts"][n] != t]
    print(f"{device}: {len(want['texts'])} texts, {len(other)} of them others")
    print(f"{device}: {len(want['samples'])} likelihoods, the farthest at {farthest:.2f} of what is allowed, "
          f"{turned} other greedy marks")
    for task, scores in want["scores"].items():
        for score, value in scores.items():
            print(f"  {task} {score}: {got['scores'][task][score]:.6f}, transformers {value:.6f}")
    if device == "reference":
        wrong += other
    if device == "reference" and turned:
        wrong.append(f"{turned} continuations are greedy for one and not for the other")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
