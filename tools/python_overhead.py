#!/usr/bin/env python3
"""What the Python module adds to the engine: one batch through LLM.generate, and through quire-lab bench-batch.

    tools/python_overhead.py PROGRAM MODEL [--sequences 64] [--prompt 128] [--generated 128] [--turns 5] [OPTION=VALUE ...]

OPTION: of `quire bench-batch` and of LLM, such as device=cuda. The two take turns, so that a machine that others use
slows both. Medians of the turns: tokens a second, prompts included; seconds of a batch; seconds of CPU time of a batch,
which others disturb less, of all processes, and of Python alone. With threads=1 no thread of the engine waits for
another, which costs CPU time.
"""
import argparse
import json
import pathlib
import os
import random
import resource
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
from quire_engine import LLM, SamplingParams  # noqa: E402


def run_lab(o, options, batches):
    """Seconds of one batch, and CPU time of all of them, as the engine alone takes them."""
    command = [o.program.with_name("quire-lab"), "bench-batch", "-m", o.model, "--npl", str(o.sequences), "--npp",
               str(o.prompt), "--ntg", str(o.generated), "-r", str(batches), "--json"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    row = next(rows[0] for rows in said.values() if isinstance(rows, list) and rows and "tokens_per_second" in rows[0])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return o.sequences * (o.prompt + o.generated) / row["tokens_per_second"], cpu


def of_engine(o, options):
    """What a start and the batch that is not counted take is in both."""
    (_, less), (seconds, more) = run_lab(o, options, 1), run_lab(o, options, 2)
    return seconds, more - less


def cpu_of(process):
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def of_module(o, llm, vocabulary, turn):
    """Seconds, CPU time of both processes, and of Python."""
    chance = random.Random(turn)
    prompts = [[chance.randrange(vocabulary) for _ in range(o.prompt)] for _ in range(o.sequences)]
    # Prompts give the first token of an answer, and the steps that are counted the others.
    params = SamplingParams(temperature=0, max_tokens=o.generated + 1, ignore_eos=True)
    began, engine, own = time.perf_counter(), cpu_of(llm._engine.pid), time.process_time()
    outputs = llm.generate(prompts, params)
    own = time.process_time() - own
    taken = time.perf_counter() - began, cpu_of(llm._engine.pid) - engine + own, own
    assert all(len(output.outputs[0].token_ids) == o.generated + 1 for output in outputs)
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("model")
    parser.add_argument("options", nargs="*")
    for name, default in (("sequences", 64), ("prompt", 128), ("generated", 128), ("turns", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    options = dict(option.split("=", 1) for option in o.options)
    engine, module = [], []
    with LLM(o.model, program=o.program, max_num_seqs=o.sequences, max_model_len=o.prompt + o.generated + 64,
             enable_prefix_caching=False, speculative="off", quiet=True, **options) as llm:
        vocabulary = llm.props()["n_vocab"]
        of_module(o, llm, vocabulary, -1)
        for turn in range(o.turns):
            engine.append(of_engine(o, options))
            module.append(of_module(o, llm, vocabulary, turn))
    print(json.dumps({name: summary(o, rows) for name, rows in (("engine", engine), ("module", module))}, indent=1))


def summary(o, rows):
    names = ("seconds", "cpu_seconds", "cpu_seconds_of_python")
    medians = {name: round(statistics.median(column), 4) for name, column in zip(names, zip(*rows))}
    tokens = o.sequences * (o.prompt + o.generated)
    return {"tokens_per_second": round(tokens / medians["seconds"], 1), **medians, "turns": rows}


if __name__ == "__main__":
    main()
