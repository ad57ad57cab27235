"""What a request asks for."""
from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass
class StructuredOutputsParams:
    """What an answer must be: one of these. docs/constraints.md says what is enforced."""

    json: Mapping[str, Any] | str | None = None  # a JSON schema, or its text
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None  # in EBNF as in GBNF, or Lark
    json_object: bool | None = None
    structural_tag: str | None = None


@dataclasses.dataclass
class SamplingParams:
    """How answers are sampled. docs/server-api.md explains each field.

    Where temperature, top_p, top_k, min_p and repetition_penalty are None, the model's makers decide
    (`generation_config`). max_tokens=None: as many as the context has room for.
    """

    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    logprobs: int | None = None  # alternatives beside each token of the answer
    prompt_logprobs: int | None = None  # and beside each of the prompt
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    priority: int = 0  # lower ones start first

    def fields(self) -> dict[str, Any]:
        """Of the body of a request."""
        body: dict[str, Any] = {}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value is not None and value != default:
                body[name] = value
        body["max_tokens"] = -1 if self.max_tokens is None else self.max_tokens
        if self.logprobs is not None:
            body["answer_logprobs"] = self.logprobs
        if self.structured_outputs is not None:
            asked = dataclasses.asdict(self.structured_outputs)
            body["structured_outputs"] = {k: v for k, v in asked.items() if v is not None}
        return body


_ELSEWHERE = ("max_tokens", "logprobs", "structured_outputs")
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(SamplingParams) if f.name not in _ELSEWHERE}
