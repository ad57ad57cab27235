"""LLM: a model in a process of its own."""
from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, overload

from . import _batch, _bodies
from ._bodies import Message, Prompt
from ._http import Reader, request_bytes
from ._options import Options
from ._process import Engine
from .outputs import (EmbeddingRequestOutput, RequestOutput, ScoringOutput, ScoringRequestOutput)
from .params import SamplingParams

if sys.version_info >= (3, 11):
    from typing import Self, Unpack
else:  # the standard library of 3.10 lacks them, and only type checkers ask
    from typing import TYPE_CHECKING
    if TYPE_CHECKING:
        from typing_extensions import Self, Unpack

TEXT_DEFAULT = SamplingParams()
CHAT_DEFAULT = SamplingParams(max_tokens=None)


class LLM:
    """A model, loaded by the program `quire` in a process of its own, which ends with this object or this process.

    model: a GGUF file, a Hugging Face folder, or a name on a hub. Options are those of `quire serve`, with underscores.
    program: another `quire` than the wheel's. quiet: nothing is shown while the model is loaded; otherwise, on a
    terminal, what the program says.

    All methods may be called from several threads. Ctrl-C, or any exception within a call, cancels what it asked for.
    """

    def __init__(self, model: str | os.PathLike[str], *, program: str | os.PathLike[str] | None = None,
                 quiet: bool = False, **options: Unpack[Options]) -> None:
        self._engine = Engine(model, program, options)
        self._engine.wait_until_ready(not quiet and sys.stderr is not None and sys.stderr.isatty())

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 add_special_tokens: bool = True, use_tqdm: bool = True) -> list[RequestOutput]:
        """Continues texts, or tokens. Results are in the order of the prompts; each depends on its prompt, parameters
        and seed alone. use_tqdm: a line shows the progress where standard error is a terminal."""
        given = _bodies.prompts_of(prompts)
        params = _bodies.params_of(sampling_params, len(given), TEXT_DEFAULT)
        return self._generate([_bodies.completion(p, s, add_special_tokens) for p, s in zip(given, params)], use_tqdm)

    def chat(self, messages: Sequence[Message] | Sequence[Sequence[Message]],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *, use_tqdm: bool = True,
             **more: Any) -> list[RequestOutput]:
        """Answers one conversation, or several, through the model's chat template.

        more: further fields of a chat (docs/server-api.md): tools, tool_choice, chat_template_kwargs,
        continue_final_message, reasoning_effort, ..."""
        given = _bodies.conversations_of(messages)
        params = _bodies.params_of(sampling_params, len(given), CHAT_DEFAULT)
        return self._generate([_bodies.chat(m, s, more) for m, s in zip(given, params)], use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *,
               add_special_tokens: bool = True) -> Iterator[RequestOutput]:
        """The same of one prompt, piece by piece: each piece has what is new. Closing the iterator cancels the rest."""
        return self._stream(_bodies.completion(prompt, sampling_params or TEXT_DEFAULT, add_special_tokens))

    def stream_chat(self, messages: Sequence[Message], sampling_params: SamplingParams | None = None,
                    **more: Any) -> Iterator[RequestOutput]:
        """The same of one conversation."""
        return self._stream(_bodies.chat(messages, sampling_params or CHAT_DEFAULT, more))

    def embed(self, prompts: Prompt | Sequence[Prompt], *, dimensions: int | None = None,
              use_tqdm: bool = True) -> list[EmbeddingRequestOutput]:
        """Vectors of length 1: arrays of numpy where that is installed, else array.array("f")."""
        jobs = _bodies.embedding_jobs(_bodies.prompts_of(prompts), dimensions)
        return [one for value in self._values("embedded", jobs, use_tqdm) for one in _bodies.embeddings(value)]

    def score(self, text_1: str | Sequence[str], text_2: str | Sequence[str]) -> list[ScoringRequestOutput]:
        """How much texts have to do with each other: one text with each of the others, or pair by pair."""
        value = self._value("/v1/score", {"text_1": text_1, "text_2": text_2})
        return [ScoringRequestOutput(ScoringOutput(entry["score"])) for entry in value["data"]]

    @overload
    def tokenize(  # type: ignore[overload-overlap]  # a text is no list of texts
        self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    @overload
    def tokenize(self, text: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]: ...

    def tokenize(self, text: str | Sequence[str], *, add_special_tokens: bool = True) -> list[int] | list[list[int]]:
        """The tokens of a text, or of each text of a list."""
        if isinstance(text, str):
            return self.tokenize([text], add_special_tokens=add_special_tokens)[0]
        jobs = [_bodies.Job("/tokenize", {"prompt": t, "add_special_tokens": add_special_tokens}) for t in text]
        return [value["tokens"] for value in self._values("tokenized", jobs, False)]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of tokens."""
        text: str = self._value("/detokenize", {"tokens": list(token_ids)})["prompt"]
        return text

    @property
    def max_model_len(self) -> int:
        """The longest sequence, prompt and answer."""
        most: int = self._engine.ask("GET", "/v1/models").value()["data"][0]["max_model_len"]
        return most

    def props(self) -> dict[str, Any]:
        """The model, its chat template, the limits of requests, the fingerprint that bits depend on."""
        said: dict[str, Any] = self._engine.ask("GET", "/props").value()
        return said

    def close(self) -> None:
        """Ends the process. What other threads wait for is cancelled."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("an LLM belongs to its process and is not copied to another one")

    def _value(self, path: str, body: dict[str, Any]) -> Any:
        return self._values("", [_bodies.Job(path, body)], False)[0]

    def _values(self, what: str, jobs: Sequence[_bodies.Job], use_tqdm: bool) -> list[Any]:
        values: list[Any] = [None] * len(jobs)
        progress = _batch.Progress(what, len(jobs), use_tqdm)

        def take(index: int, value: Any) -> None:
            values[index] = value
            progress.add(value.get("usage", {}).get("completion_tokens", 0))

        self._engine.check()
        try:
            _batch.run(self._engine, jobs, take)
        finally:
            progress.end()
        return values

    def _generate(self, jobs: Sequence[_bodies.Job], use_tqdm: bool) -> list[RequestOutput]:
        values = self._values("answered", jobs, use_tqdm)
        return [_bodies.result(job, value) for job, value in zip(jobs, values)]

    def _stream(self, job: _bodies.Job) -> Iterator[RequestOutput]:
        reader = Reader()
        with self._engine.connect() as connection:
            try:
                connection.sendall(request_bytes("POST", job.path, stream_body(job)))
                while not reader.done:
                    reader.feed(connection.recv(1 << 16))
                    yield from pieces(job, reader)
            except ConnectionError as error:
                raise self._engine.dead() from error


def stream_body(job: _bodies.Job) -> dict[str, Any]:
    return {**job.body, "stream": True}


def pieces(job: _bodies.Job, reader: Reader) -> Iterator[RequestOutput]:
    """What has come of a stream. An error is raised."""
    if reader.is_stream:
        for value in reader.events():
            if value["choices"]:
                yield _bodies.result(job, value)
    elif reader.done:
        reader.value()
