"""Many requests at once, on the thread that asks: each has a connection of its own, and closing it cancels it."""
from __future__ import annotations

import errno
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ._bodies import Job
from ._http import Reader, request_bytes
from ._process import Engine
from .errors import QuireError, RequestError

CONNECTIONS = 256  # at a time


class _Exchange:
    def __init__(self, index: int, connection: socket.socket, request: bytes) -> None:
        self.index = index
        self.connection = connection
        self.unsent = memoryview(request)
        self.reader = Reader()

    def send(self) -> bool:
        """Whether there is nothing left to send."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.connection.send(self.unsent):]
        except BlockingIOError:
            return False
        return True

    def receive(self) -> bool:
        """Whether the answer is complete."""
        try:
            self.reader.feed(self.connection.recv(1 << 18))
        except BlockingIOError:
            return False
        return self.reader.done


def run(engine: Engine, jobs: Sequence[Job], then: Callable[[int, Any], None]) -> None:
    """Calls `then` with a job's number and its answer, in the order in which they come. Whatever is raised, also by
    Ctrl-C, cancels all that has no answer yet."""
    with selectors.DefaultSelector() as selector:
        try:
            _run(engine, jobs, then, selector)
        finally:
            for key in list(selector.get_map().values()):
                key.data.connection.close()


def _run(engine: Engine, jobs: Sequence[Job], then: Callable[[int, Any], None],
         selector: selectors.BaseSelector) -> None:
    begun = active = 0
    most = CONNECTIONS
    while begun < len(jobs) or active > 0:
        while begun < len(jobs) and active < most:
            try:
                _begin(engine, begun, jobs[begun], selector)
            except OSError as error:
                # This process has no descriptor left: what is open goes on, and the rest follows it.
                if error.errno != errno.EMFILE or active == 0:
                    raise QuireError(f"no connection to the engine: {error.strerror}") from error
                most = active
                break
            begun += 1
            active += 1
        for key, _ in selector.select():
            exchange: _Exchange = key.data
            try:
                if exchange.unsent and exchange.send():
                    selector.modify(exchange.connection, selectors.EVENT_READ, exchange)
                if not exchange.receive():
                    continue
            except ConnectionError as error:
                raise engine.dead() from error
            selector.unregister(exchange.connection)
            exchange.connection.close()
            active -= 1
            then(exchange.index, _value(exchange, len(jobs)))


def _begin(engine: Engine, index: int, job: Job, selector: selectors.BaseSelector) -> None:
    exchange = _Exchange(index, engine.connect(blocking=False), request_bytes("POST", job.path, job.body))
    try:
        sent = exchange.send()
    except ConnectionError:  # its answer may say why
        sent = True
    both = selectors.EVENT_READ | (0 if sent else selectors.EVENT_WRITE)
    selector.register(exchange.connection, both, exchange)


def _value(exchange: _Exchange, of: int) -> Any:
    try:
        return exchange.reader.value()
    except RequestError as error:
        if of > 1:
            error.args = (f"request {exchange.index} of {of}: {error}",)
        raise


class Progress:
    """A line on standard error, where that is a terminal and there is something to wait for."""

    def __init__(self, what: str, of: int, wanted: bool) -> None:
        self._what, self._of, self._done, self._tokens = what, of, 0, 0
        self._shown = wanted and of > 1 and sys.stderr is not None and sys.stderr.isatty()
        self._began = self._told = time.monotonic()

    def add(self, tokens: int) -> None:
        self._done += 1
        self._tokens += tokens
        now = time.monotonic()
        if self._shown and (now - self._told > 0.1 or self._done == self._of):
            self._told = now
            self._tell(now - self._began)

    def _tell(self, seconds: float) -> None:
        left = seconds / self._done * (self._of - self._done)
        rate = f", {self._tokens / max(seconds, 1e-9):.0f} tokens/s" if self._tokens else ""
        sys.stderr.write(f"\r{self._what}: {self._done}/{self._of}, {seconds:.0f} s, {left:.0f} s to go{rate}\033[K")
        sys.stderr.flush()

    def end(self) -> None:
        if self._shown and self._done > 0:
            sys.stderr.write("\n")
