"""Bodies of requests, and what their answers say."""
from __future__ import annotations

import array
import base64
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Union

from .outputs import (CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Logprob, RequestOutput, TokenLogprobs,
                      Vector)
from .params import SamplingParams

# A text, its tokens, or either by name as vLLM has it: {"prompt": ...}, {"prompt_token_ids": ...}.
Prompt = Union[str, Sequence[int], Mapping[str, Any]]
Message = Mapping[str, Any]
EMBEDDINGS_AT_ONCE = 16


@dataclasses.dataclass
class Job:
    """One request of a call, and what makes its answer a result."""

    path: str
    body: dict[str, Any]
    prompt: str | None = None


def prompts_of(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, of one or of several."""
    if isinstance(prompts, (str, Mapping)) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def conversations_of(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    if len(messages) > 0 and isinstance(messages[0], Mapping):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]


def params_of(params: SamplingParams | Sequence[SamplingParams] | None, count: int,
              default: SamplingParams) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or default] * count
    if len(params) != count:
        raise ValueError(f"there are {count} prompts, and {len(params)} sampling_params")
    return list(params)


def bare(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, Mapping):
        prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
    return prompt if isinstance(prompt, str) else list(prompt)  # type: ignore[arg-type]


def completion(prompt: Prompt, params: SamplingParams, add_special_tokens: bool) -> Job:
    given = bare(prompt)
    body = {"prompt": given, "return_token_ids": True, **params.fields()}
    if not add_special_tokens:
        body["add_special_tokens"] = False
    return Job("/v1/completions", body, given if isinstance(given, str) else None)


def chat(messages: Sequence[Message], params: SamplingParams, more: Mapping[str, Any]) -> Job:
    body = {"messages": list(messages), "return_token_ids": True, **params.fields()}
    body.update((name, value) for name, value in more.items() if value is not None)
    return Job("/v1/chat/completions", body)


def _logprobs(entries: Any) -> list[Any]:
    return [None if entry is None else {int(token): Logprob(**said) for token, said in entry.items()}
            for entry in entries]


def _answer(choice: Mapping[str, Any], said: Mapping[str, Any]) -> CompletionOutput:
    """`said`: what of a choice has the text: a message, a delta, or the choice itself."""
    logprobs: list[TokenLogprobs] | None = None
    if "answer_logprobs" in choice:
        logprobs = _logprobs(choice["answer_logprobs"])
    return CompletionOutput(index=choice["index"], text=said.get("text", said.get("content")) or "",
                            token_ids=choice.get("token_ids", []), finish_reason=choice.get("finish_reason"),
                            stop_reason=choice.get("stop_reason"), logprobs=logprobs,
                            reasoning=said.get("reasoning_content"), tool_calls=said.get("tool_calls") or [])


def result(job: Job, value: Mapping[str, Any]) -> RequestOutput:
    """Of a whole answer, or of an event of a stream."""
    choices = value["choices"]
    outputs = [_answer(c, c.get("message") or c.get("delta") or c) for c in choices]
    told = value if "prompt_token_ids" in value or not choices else choices[0]
    prompt_logprobs = value.get("prompt_logprobs") or (choices[0].get("prompt_logprobs") if choices else None)
    usage = value.get("usage") or {}
    return RequestOutput(request_id=value["id"], prompt=job.prompt, prompt_token_ids=told.get("prompt_token_ids", []),
                         outputs=outputs,
                         prompt_logprobs=_logprobs(prompt_logprobs) if prompt_logprobs else None,
                         num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
                         finished=all(o.finish_reason is not None for o in outputs))


def embedding_jobs(prompts: Sequence[Prompt], dimensions: int | None) -> list[Job]:
    jobs = []
    for at in range(0, len(prompts), EMBEDDINGS_AT_ONCE):
        body: dict[str, Any] = {"input": [bare(p) for p in prompts[at:at + EMBEDDINGS_AT_ONCE]],
                                "encoding_format": "base64"}
        if dimensions is not None:
            body["dimensions"] = dimensions
        jobs.append(Job("/v1/embeddings", body))
    return jobs


def embeddings(value: Mapping[str, Any]) -> list[EmbeddingRequestOutput]:
    tokens = value["usage"]["prompt_tokens"]
    return [EmbeddingRequestOutput(EmbeddingOutput(vector(base64.b64decode(entry["embedding"]))), tokens)
            for entry in value["data"]]


def vector(content: bytes) -> Vector:
    try:
        import numpy
        made: Vector = numpy.frombuffer(bytearray(content), dtype="<f4")
        return made
    except ImportError:
        numbers = array.array("f", content)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers
