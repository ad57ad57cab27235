"""AsyncLLM: the same as LLM for programs of asyncio."""
from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

from . import _bodies
from ._batch import CONNECTIONS
from ._bodies import Message, Prompt
from ._http import Reader, request_bytes
from ._options import Options
from ._process import Engine
from .llm import CHAT_DEFAULT, TEXT_DEFAULT, pieces, stream_body
from .outputs import EmbeddingRequestOutput, RequestOutput, ScoringOutput, ScoringRequestOutput
from .params import SamplingParams

if sys.version_info >= (3, 11):
    from typing import Self, Unpack
else:  # as in llm.py
    from typing import TYPE_CHECKING
    if TYPE_CHECKING:
        from typing_extensions import Self, Unpack

T = TypeVar("T")


class AsyncLLM:
    """A model in a process of its own, as LLM. Cancelling a task, or closing a stream, cancels its requests.

        async with AsyncLLM("model.gguf") as llm:
            async for piece in llm.stream("Once upon a time"):
                print(piece.outputs[0].text, end="")
    """

    def __init__(self, model: str | os.PathLike[str], *, program: str | os.PathLike[str] | None = None,
                 **options: Unpack[Options]) -> None:
        """Starts the process; the first call waits until the model is loaded."""
        self._engine = Engine(model, program, options)
        self._ready: asyncio.Future[None] | None = None

    async def generate(self, prompts: Prompt | Sequence[Prompt],
                       sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                       add_special_tokens: bool = True) -> list[RequestOutput]:
        """As LLM.generate."""
        given = _bodies.prompts_of(prompts)
        params = _bodies.params_of(sampling_params, len(given), TEXT_DEFAULT)
        return await self._results([_bodies.completion(p, s, add_special_tokens) for p, s in zip(given, params)])

    async def chat(self, messages: Sequence[Message] | Sequence[Sequence[Message]],
                   sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                   **more: Any) -> list[RequestOutput]:
        """As LLM.chat."""
        given = _bodies.conversations_of(messages)
        params = _bodies.params_of(sampling_params, len(given), CHAT_DEFAULT)
        return await self._results([_bodies.chat(m, s, more) for m, s in zip(given, params)])

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *,
               add_special_tokens: bool = True) -> AsyncGenerator[RequestOutput, None]:
        """As LLM.stream."""
        return self._stream(_bodies.completion(prompt, sampling_params or TEXT_DEFAULT, add_special_tokens))

    def stream_chat(self, messages: Sequence[Message], sampling_params: SamplingParams | None = None,
                    **more: Any) -> AsyncGenerator[RequestOutput, None]:
        """As LLM.stream_chat."""
        return self._stream(_bodies.chat(messages, sampling_params or CHAT_DEFAULT, more))

    async def embed(self, prompts: Prompt | Sequence[Prompt], *,
                    dimensions: int | None = None) -> list[EmbeddingRequestOutput]:
        """As LLM.embed."""
        values = await self._values(_bodies.embedding_jobs(_bodies.prompts_of(prompts), dimensions))
        return [one for value in values for one in _bodies.embeddings(value)]

    async def score(self, text_1: str | Sequence[str], text_2: str | Sequence[str]) -> list[ScoringRequestOutput]:
        """As LLM.score."""
        value = await self._value(_bodies.Job("/v1/score", {"text_1": text_1, "text_2": text_2}))
        return [ScoringRequestOutput(ScoringOutput(entry["score"])) for entry in value["data"]]

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """As LLM.tokenize."""
        job = _bodies.Job("/tokenize", {"prompt": text, "add_special_tokens": add_special_tokens})
        tokens: list[int] = (await self._value(job))["tokens"]
        return tokens

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """As LLM.detokenize."""
        text: str = (await self._value(_bodies.Job("/detokenize", {"tokens": list(token_ids)})))["prompt"]
        return text

    async def close(self) -> None:
        """As LLM.close."""
        await asyncio.to_thread(self._engine.close)

    async def __aenter__(self) -> Self:
        try:
            await self._wait()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _wait(self) -> None:
        if self._ready is None:
            self._ready = asyncio.ensure_future(asyncio.to_thread(self._engine.wait_until_ready, False))
            self._ready.add_done_callback(lambda f: f.cancelled() or f.exception())  # which may find nobody waiting
        await asyncio.shield(self._ready)

    async def _results(self, jobs: Sequence[_bodies.Job]) -> list[RequestOutput]:
        return [_bodies.result(job, value) for job, value in zip(jobs, await self._values(jobs))]

    async def _values(self, jobs: Sequence[_bodies.Job]) -> list[Any]:
        """In the order of the jobs. The first error cancels the others."""
        room = asyncio.Semaphore(CONNECTIONS)

        async def one(job: _bodies.Job) -> Any:
            async with room:
                return await self._value(job)

        tasks = [asyncio.ensure_future(one(job)) for job in jobs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _value(self, job: _bodies.Job) -> Any:
        reader = Reader()
        async for _ in self._exchange(job.path, job.body, reader):
            pass
        return reader.value()

    async def _stream(self, job: _bodies.Job) -> AsyncGenerator[RequestOutput, None]:
        reader = Reader()
        exchange = self._exchange(job.path, stream_body(job), reader)
        try:
            async for _ in exchange:
                for piece in pieces(job, reader):
                    yield piece
        finally:
            await exchange.aclose()

    async def _exchange(self, path: str, body: dict[str, Any], reader: Reader) -> AsyncGenerator[None, None]:
        """Sends a request and yields whenever something of its answer has come."""
        await self._wait()
        connection = self._engine.connect(blocking=False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(connection, request_bytes("POST", path, body))
            while not reader.done:
                reader.feed(await loop.sock_recv(connection, 1 << 18))
                yield
        except ConnectionError as error:
            raise await asyncio.to_thread(self._engine.dead) from error
        finally:
            connection.close()
