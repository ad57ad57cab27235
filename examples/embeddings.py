#!/usr/bin/env python3
"""Which text is the nearest to a question: examples/embeddings.py MODEL"""
import sys

from quire_engine import LLM

TEXTS = ["The cat sat on the mat.", "Two and two are four.", "A dog ran through the park."]
QUESTION = "Where was the cat?"

with LLM(sys.argv[1], max_model_len=512, pooling="mean") as llm:
    question, *texts = (output.outputs.embedding for output in llm.embed([QUESTION, *TEXTS]))
    scores = [sum(float(a) * float(b) for a, b in zip(question, text)) for text in texts]
    for score, text in sorted(zip(scores, TEXTS), reverse=True):
        print(f"{score:.4f} {text}")
