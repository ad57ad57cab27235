"""Runs large language models with the engine Quire.

    from quire_engine import LLM, SamplingParams
    with LLM("model.gguf") as llm:
        print(llm.generate("Once upon a time", SamplingParams(max_tokens=64))[0].outputs[0].text)

docs/python.md of the project says more.
"""
import sys

if sys.version_info < (3, 9):
    raise ImportError("quire_engine needs Python 3.9 or newer; the command quire does not")

from .async_llm import AsyncLLM
from .errors import (EngineDeadError, OptionError, OverloadedError, PromptTooLongError, QuireError, RequestError,
                     StartError)
from .llm import LLM
from .outputs import (CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Logprob, RequestOutput, ScoringOutput,
                      ScoringRequestOutput)
from .params import SamplingParams, StructuredOutputsParams

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "EmbeddingOutput", "EmbeddingRequestOutput", "EngineDeadError",
           "Logprob", "OptionError", "OverloadedError", "PromptTooLongError", "QuireError", "RequestError",
           "RequestOutput", "SamplingParams", "ScoringOutput", "ScoringRequestOutput", "StartError",
           "StructuredOutputsParams"]
