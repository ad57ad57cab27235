#!/usr/bin/env python3
"""An answer in the form of a JSON schema: examples/json_schema.py MODEL"""
import json
import sys

from quire_engine import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {"type": "object", "required": ["name", "age"],
          "properties": {"name": {"type": "string", "maxLength": 20},
                         "age": {"type": "integer", "minimum": 0, "maximum": 120}}}

with LLM(sys.argv[1], max_model_len=2048) as llm:
    params = SamplingParams(max_tokens=128, temperature=0, structured_outputs=StructuredOutputsParams(json=SCHEMA))
    [output] = llm.chat([{"role": "user", "content": "Who is in the story, and how old is she?"}], params)
    print(json.loads(output.outputs[0].text))
