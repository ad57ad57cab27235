"""What answers are."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol, overload


class Vector(Protocol):
    """Numbers of float32: an array of numpy where that is installed, else array.array("f")."""

    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


@dataclasses.dataclass
class Logprob:
    logprob: float
    rank: int | None  # 1: the likeliest token; None: behind all alternatives that were asked for
    decoded_token: str


# Of one token: itself first, then the likeliest ones.
TokenLogprobs = dict[int, Logprob]


@dataclasses.dataclass
class CompletionOutput:
    """One answer to a prompt; of a stream, what is new of it."""

    index: int
    text: str
    token_ids: list[int]  # the one that ended the answer too
    finish_reason: str | None = None  # "stop", "length", "tool_calls"; None: it goes on
    stop_reason: str | int | None = None  # the stop text, or the stop token, that ended it
    logprobs: list[TokenLogprobs] | None = None
    reasoning: str | None = None  # of chats
    tool_calls: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # of chats

    @property
    def cumulative_logprob(self) -> float | None:
        if self.logprobs is None:
            return None
        return sum(next(iter(entry.values())).logprob for entry in self.logprobs)


@dataclasses.dataclass
class RequestOutput:
    """All answers to one prompt."""

    request_id: str
    prompt: str | None  # None: it was given as tokens, or is a conversation
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    finished: bool = True


@dataclasses.dataclass
class EmbeddingOutput:
    embedding: Vector


@dataclasses.dataclass
class EmbeddingRequestOutput:
    outputs: EmbeddingOutput
    prompt_tokens: int  # of the request that this input was part of


@dataclasses.dataclass
class ScoringOutput:
    score: float


@dataclasses.dataclass
class ScoringRequestOutput:
    outputs: ScoringOutput
