#!/usr/bin/env python3
"""Continues several texts at once: examples/batch.py MODEL"""
import sys

from quire_engine import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The little cat", "One day, a boy named Tom", "In a big forest"]

with LLM(sys.argv[1], max_model_len=2048) as llm:
    for output in llm.generate(PROMPTS, SamplingParams(temperature=0.8, seed=1, max_tokens=32)):
        print(f"{output.prompt}|{output.outputs[0].text}\n")
